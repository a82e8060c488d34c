"""A node as an uploader: says who it is, makes or takes the attempt's key, and encrypts its update under it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import Integers
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import read_bulky, say, say_bulky
from secure_fl.protect.combining import CombineHost
from secure_fl.protect.contract import Contribution, Message
from secure_fl.protect.encrypted.groups import EncryptedGroup, weight_values
from secure_fl.protect.encrypted.party import KEY_PURPOSE, EncryptedParty
from secure_fl.protect.encrypted.scheme import Key
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.uploads.statements import sign_commit
from secure_fl.protect.uploads.uploader import Advertiser
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedKeys, EncryptedStart
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadEnvelope, UploadReply


class Uploader(Advertiser):
    """Only in the process that trained: after a restart there is nothing to upload, and no key."""

    def __init__(self, party: EncryptedParty, contribution: Contribution, combining: CombineHost | None = None) -> None:
        super().__init__(party, contribution, combining)
        self._party = party
        self._roster = b""

    def make_key(self, message: Message) -> Message:
        """As the key maker: verify everybody, and seal a fresh key to each of them."""
        party = self._party
        self._meet(read_bulky(message))
        if party.sides.key_maker != party.name:
            raise ProtectionError("another node makes this attempt's key")
        party.key = Key.generate(party.scheme)
        envelopes = [
            UploadReply(peer=name, sealed=party.seal(party.key.raw, name, purpose=KEY_PURPOSE))
            for name in party.cohort.names
            if name != party.name
        ]
        return say_bulky(EncryptedKeys(key_id=party.key.id, envelopes=envelopes))

    def upload(self, message: Message) -> Message:
        """Verify everybody, take the key, encrypt, and sign what is sent."""
        party = self._party
        said = parse(EncryptedStart, read_bulky(message))
        self._meet(said.roster)
        self._take_key(said)
        party.note_circle()
        self._count_comparisons()
        groups = party.groups_of(party.name)
        bulk, digests = self._encrypted(groups)
        party.upload_digest = hashlib.sha256(bulk).digest()
        commit = sign_commit(party.me, party.cohort, party.upload_digest, [party.known_key.id, *digests])
        envelopes = [
            UploadEnvelope(peer=holder, sketch_share=share) for holder, share in self._sealed_sketches().items()
        ]
        answer = UploadAnswer(commit=commit, envelopes=envelopes)
        return say(answer, bulk=bulk, digest=party.upload_digest)

    def _meet(self, roster: bytes) -> None:
        """Once: the key maker is told twice, and must be told the same."""
        if not self._roster:
            self._party.meet(roster, self._manifest)
            self._roster = roster
        elif roster != self._roster:
            raise ProtectionError("this node is told of other sites than before")

    def _take_key(self, said: EncryptedStart) -> None:
        party = self._party
        maker, key = party.sides.key_maker, party.key
        if party.name != maker:
            key = Key.read(party.scheme, party.unseal(said.sealed, maker, purpose=KEY_PURPOSE))
        if key is None or key.id != said.key_id:
            raise ProtectionError("the attempt's key is not the one that the others are given")
        party.key = key

    def _encrypted(self, groups: tuple[EncryptedGroup, ...]) -> tuple[memoryview, list[bytes]]:
        """The upload and, for each group, the digests of its bodies and of its seeds."""
        size = sum(part.size for group in groups for part in group.halves.values())
        bulk = memoryview(bytearray(size))
        digests: list[bytes] = []
        for group in groups:
            body, seeds = self._party.cipher.encrypt(self._values(group), values=group.values)
            for side, half in ((Side.BODIES, body), (Side.SEEDS, seeds)):
                part = group.halves[side]
                bulk[part.start : part.start + part.size] = half
                digests.append(hashlib.sha256(half).digest())
        self._blocks.clear()  # what too few hold stays here
        return bulk, digests

    def _values(self, group: EncryptedGroup) -> Iterator[Integers]:
        for block in group.group.blocks:
            yield self._blocks.pop(block)
        if self._party.context.kind is RequestKind.SUM:
            yield weight_values(self._weight, self._party.terms.packing.limit)
