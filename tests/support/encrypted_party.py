"""`encrypted` with a window: a node that stops where a test wants to kill it, and notes the keys that it was given.

SECURE_FL_TEST_STOPS is a list of `round/phase@role`, separated by spaces. The first member of an attempt that comes by
one of them, in that role, leaves its name in a file of SECURE_FL_TEST_MARKS and stops dead, with its answer made and
not sent: only then does it know its role. With SECURE_FL_TEST_KEYS every key that a node makes or takes is written to
that folder, and with SECURE_FL_TEST_UNSEALED it travels as it is, as if there were no envelopes.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

from secure_fl.encoding.integers import BlockSum
from secure_fl.protect.combining import CombineContribution, CombineHost, CombiningNodeHalf
from secure_fl.protect.contract import Contribution, Host, Message, NodeHalf, RoundContext
from secure_fl.protect.encrypted.node import EncryptedCombiningNode, EncryptedNode
from secure_fl.protect.encrypted.party import EncryptedParty
from secure_fl.protect.encrypted.protection import Encrypted
from secure_fl.protect.primitives.envelopes import TAG_BYTES


class WatchedEncrypted(Encrypted):
    """`encrypted`, whose node halves can be stopped and overheard."""

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half, wrapped."""
        inner = EncryptedNode(context, contribution, host, recompute=self.settings.recompute)
        return _Watched(inner, inner.party)

    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half, wrapped."""
        return _WatchedRecipient(EncryptedCombiningNode(context, contribution, host, recompute=self.settings.recompute))


class _Watched:
    def __init__(self, inner: NodeHalf, party: EncryptedParty) -> None:
        self._inner = inner
        self._party = party
        if os.environ.get("SECURE_FL_TEST_UNSEALED"):
            unseal(party)

    def answer(self, phase: str, message: Message) -> Message:
        """What the real one answers, late."""
        answer = self._inner.answer(phase, message)
        note_key(self._party)
        stop_at(self._party, phase)
        return answer


class _WatchedRecipient(_Watched):
    def __init__(self, inner: EncryptedCombiningNode) -> None:
        super().__init__(inner, inner.party)
        self._recipient = inner

    def combination(self) -> Mapping[str, BlockSum]:
        """What was opened here."""
        return self._recipient.combination()


def roles(party: EncryptedParty) -> set[str]:
    """What a member is in its attempt, once it knows who takes part; `any` before that, too."""
    if party._met is None:
        return {"any"}
    sides = party.sides
    openers = sides.openers(party.cohort.names, spare=not party.context.whole)
    if party.name == sides.key_maker:
        return {"any", "maker"}  # and always an opener, of bodies
    return {"any", party.side.value if party.name in openers else "plain"}


def stop_at(party: EncryptedParty, phase: str) -> None:
    """Stop dead if this is one of the places, and nobody has stopped there yet."""
    for number, stop in enumerate(os.environ.get("SECURE_FL_TEST_STOPS", "").split()):
        place, _, role = stop.partition("@")
        if place == f"{party.context.round}/{phase}" and role in roles(party):
            folder = Path(os.environ["SECURE_FL_TEST_MARKS"])
            mine = folder / f"{party.name}-{number}"
            mine.write_text(party.name)
            with contextlib.suppress(FileExistsError):
                (folder / str(number)).hardlink_to(mine)  # for one of them only, and never half written
                time.sleep(120)


def note_key(party: EncryptedParty) -> None:
    """Write the attempt's key down, once this node has it."""
    folder = os.environ.get("SECURE_FL_TEST_KEYS")
    if folder and party.key is not None:
        path = Path(folder) / f"{party.name}-{party.context.round}-{party.context.attempt}"
        path.with_suffix(".key").write_bytes(party.key.raw)
        path.with_suffix(".id").write_bytes(party.key.id)


def unseal(party: EncryptedParty) -> None:
    """Take the envelopes away: what is sealed is what was given, and as long as if it were sealed."""
    vars(party)["seal"] = lambda plain, *_, **__: plain + bytes(TAG_BYTES)
    vars(party)["unseal"] = lambda sealed, *_, **__: sealed[:-TAG_BYTES]
