"""The node's half of `masked`. Every promise to the site is a check here, before anything is said.

advertise  say which blocks I hold and under which fresh key, signed
commit     verify that the whole circle is there; mask my values towards each of it; sign the hash of that
upload     verify that the whole circle has committed; send what I committed to
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import as_bulk, read_bulky, say
from secure_fl.protect.cohort.meeting import meet, note
from secure_fl.protect.cohort.signed import make_manifest
from secure_fl.protect.contract import Contribution, Host, Message, RoundContext
from secure_fl.protect.masked.layout import CircleWords
from secure_fl.protect.masked.manifest import MANIFESTS
from secure_fl.protect.masked.phases import PHASES
from secure_fl.protect.masked.statements import mask_keys, sign_commit, verify_commits
from secure_fl.protect.primitives.masks import add_masks
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.protect.turns import Act, InTurn
from secure_fl.rpc.protect_masked_pb2 import CircleCommits


class CircleNode(InTurn):
    """One node in one attempt."""

    def __init__(self, context: RoundContext, contribution: Contribution, host: Host) -> None:
        self._context = context
        self._host = host
        self._me = host.me
        self._blocks = dict(contribution.blocks)
        self._weight = contribution.weight
        # In memory only: after a restart there is another attempt, with the same integers under another key.
        self._mask_key = X25519PrivateKey.from_private_bytes(host.randomness.bytes(32))
        self._words: Words = np.empty(0, WORD)
        super().__init__(PHASES)

    @classmethod
    def _acts(cls) -> Sequence[Act]:
        return cls._advertise, cls._commit, cls._upload

    def _advertise(self, _message: Message) -> Message:
        self._manifest = make_manifest(
            self._context,
            self._host,
            protocol=MANIFESTS.protocol,
            blocks=self._blocks,
            extension=MANIFESTS.write(self._mask_key),
        )
        return say(self._manifest)

    def _commit(self, message: Message) -> Message:
        self._cohort = meet(self._context, read_bulky(message), MANIFESTS, host=self._host, mine=self._manifest)
        words = CircleWords.of(self._context, self._cohort).pack(self._blocks, self._weight)
        plus, minus = mask_keys(self._mask_key, self._cohort, self._me.name)
        add_masks(words, plus=plus, minus=minus)
        del self._mask_key
        self._words = words
        self._digest = hashlib.sha256(as_bulk(words)).digest()
        self._committed = sign_commit(self._me, self._cohort, self._digest)
        said = say(self._committed)
        return Message(body=said.body, pledged=words.nbytes)

    def _upload(self, message: Message) -> Message:
        commits = parse(CircleCommits, message.body).commits
        if self._committed not in commits:
            raise ProtectionError("this node is said to have committed to something else than it did")
        # Not before everybody is bound: whoever chooses last, knowing the others' sum, makes it what it wants.
        verify_commits(self._cohort, commits)
        note(self._context, self._cohort, self._host, [self._cohort.names])
        words, self._words = self._words, np.empty(0, WORD)
        return Message(bulk=as_bulk(words), digest=self._digest)
