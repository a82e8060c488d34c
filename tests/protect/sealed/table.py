"""A sealed round for attack tests: everything that was said is on the table, and any of it can be forged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest
from google.protobuf.message import Message as ProtoMessage

from coordinator.machine import RoundMachine
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SecureFLError
from secure_fl.identity.member import Member
from secure_fl.messages import parse
from secure_fl.protect.combining import CombineContribution, node_half
from secure_fl.protect.contract import Ask, Message, Opened, RoundContext
from secure_fl.protect.release.comparisons import Comparisons
from secure_fl.protect.release.history import OpenedRow, ProcessMemory
from secure_fl.protect.release.sketch import SIZE
from secure_fl.protect.sealed.combine_coordinator import CombineCoordinator
from secure_fl.protect.sealed.node import SealedCombiningNode, SealedNode
from secure_fl.protect.sealed.party import DIGESTED
from secure_fl.protect.sealed.protection import Sealed, SealedSettings
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.protect.uploads.statements import NO_DIGESTS, Uploads, sign_row
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit, UploadManifest, UploadRow
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.protect.members import member


class RecklessCoordinator(CombineCoordinator):
    """Works with some of the sites and does not look at rows."""

    def _ask_for_rows_to_open(self) -> Ask | Opened:
        self._replies.clear()
        self._rows = {name: self._rows[name] for name in sorted(self._rows) if self._rows[name].row}
        return self._ask_for_openings()


class Reckless(Sealed):
    """The same protection with that coordinator."""

    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> RecklessCoordinator:
        """It."""
        return RecklessCoordinator(context, earlier, recompute=self.settings.recompute)


RECOMPUTES = Sealed()
SEALED = Sealed(SealedSettings(recompute=False))  # recipients believe the coordinator: the weaker setting
RECKLESS = Reckless(SEALED.settings)
NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")
P = TypeVar("P", bound=ProtoMessage)


def sum_round(*names: str, **changes: Any) -> RoundContext:
    """A sum among six."""
    return replace(context(*(names or NAMES), protection=SEALED), **changes)


def combine_round(*names: str, **changes: Any) -> RoundContext:
    """A combine among six."""
    about = context(*(names or NAMES), kind=RequestKind.COMBINE, min_cohort=4, protection=SEALED)
    return replace(about, **changes)


def said(message: ProtoMessage) -> Message:
    """As it is sent."""
    return Message(body=message.SerializeToString(deterministic=True))


def edited(kind: type[P], message: Message, change: Callable[[P], object]) -> Message:
    """A message with something changed inside."""
    body = parse(kind, message.body)
    change(body)
    return replace(message, body=body.SerializeToString(deterministic=True))


def flip(raw: bytes) -> bytes:
    """One bit of it changed."""
    return bytes(raw[:-1]) + bytes([raw[-1] ^ 1])


def values(about: RoundContext, deep: frozenset[str] | None = None) -> dict[str, CombineContribution]:
    """Everybody's contribution; only those in `deep` hold the second block, and everybody weighs all alike."""
    row = dict.fromkeys(about.invited, 1)
    everybody = {}
    for place, name in enumerate(about.invited):
        head = {"head": [place, -place]} if deep is None or name in deep else {}
        mine = contribution(64, row, body=[place, 2, -3], **head)
        sketch = np.full(SIZE, 3 * place, np.int32) if about.compares else None
        everybody[name] = replace(mine, sketch=sketch)
    return everybody


class Table:
    """A round up to a phase.

    `earlier` is what was opened before, and `memories` what each node saw of it, if not everything. A `reckless`
    coordinator has every row opened that anybody asks for.
    """

    def __init__(
        self,
        about: RoundContext,
        contributions: Mapping[str, CombineContribution] | None = None,
        *,
        deep: frozenset[str] | None = None,
        seed: int = 7,
        earlier: Sequence[OpenedRow] = (),
        memories: Mapping[str, Sequence[OpenedRow]] | None = None,
        reckless: bool = False,
        comparisons: Mapping[str, Comparisons] | None = None,
    ) -> None:
        self.about = about
        self.protection = RECOMPUTES if about.settings == RECOMPUTES.canonical_settings else SEALED
        self.comparisons = comparisons or {}
        self.values = dict(contributions or values(about, deep))
        self.memories = {name: ProcessMemory((memories or {}).get(name, earlier)) for name in about.invited}
        self.nodes = {name: self.half(name, UnsafeSeededRandomness(seed, name)) for name in about.invited}
        self.machine = RoundMachine(RECKLESS if reckless else self.protection, about, earlier)
        self.machine.begin()
        self.answers: dict[tuple[str, str], Message] = {}
        self.phases = SEALED.phases(about.kind)

    def half(self, name: str, randomness: Any = None, *, me: Member | None = None) -> Any:
        """A node half on its node's memory."""
        offered = host(me or name, randomness, self.memories[name], self.comparisons.get(name))
        half = node_half(self.protection, self.about, self.values[name], offered)
        assert isinstance(half, SealedNode | SealedCombiningNode)
        return half

    def restart(self, name: str) -> Any:
        """The node's process dies, and another goes on with what is on its disk."""
        self.nodes[name] = self.half(name)
        return self.nodes[name]

    def until(self, phase: str, *, absent: tuple[str, ...] = ()) -> Table:
        """Play honestly up to the beginning of `phase`; `absent` do not answer the one before."""
        while self.machine.phase != phase:
            last = self.phases.index(self.machine.phase) + 1 == self.phases.index(phase)
            self.play(absent if last else ())
        return self

    def play(self, absent: tuple[str, ...] = (), forged: Mapping[str, Message] | None = None) -> Any:
        """One phase; `forged` are answers that others give for their nodes."""
        now = self.machine.phase
        for name in sorted(self.machine.waiting):
            if name in absent:
                self.machine.leave(name, "NotConnected")
                continue
            answer = (forged or {}).get(name) or self.nodes[name].answer(now, self.machine.asked[name])
            self.answers[now, name] = answer
            self.machine.accept(name, now, replace(answer, bulk=b""), InMemory(answer.bulk))
        return self.machine.close()

    @property
    def asked(self) -> Mapping[str, Message]:
        """What the coordinator asks now."""
        return self.machine.asked

    def tell(self, name: str, message: Message) -> Message:
        """Put a forged question to a node."""
        answer: Message = self.nodes[name].answer(self.machine.phase, message)
        return answer

    def remembers(self, name: str) -> Any:
        """What the node has on disk."""
        half: Any = self.nodes[name]
        return half.party.memory.now if self.memories[name].load() is not None else None

    def decided(self, name: str) -> bool:
        """Whether the node has bound itself to an opening."""
        memory = self.remembers(name)
        return memory is not None and "open" in memory.decided

    def refuses(self, name: str, message: Message, error: type[SecureFLError] | tuple[type[SecureFLError], ...]) -> Any:
        """The node answers with an error, has decided nothing, and in this process gives nothing ever after."""
        with pytest.raises(error) as refused:
            self.tell(name, message)
        assert not self.decided(name)
        position = self.phases.index(self.machine.phase)
        for phase in self.phases[: position + 1]:
            with pytest.raises(SecureFLError):
                self.nodes[name].answer(phase, message)
        return refused.value

    @property
    def cohort(self) -> UploadCohort:
        """Who takes part, as everybody was told."""
        half: Any = self.nodes[self.about.invited[0]]
        cohort: UploadCohort = half.party.cohort
        return cohort

    def commits(self, *names: str) -> list[UploadCommit]:
        """The honest commits of these nodes."""
        from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer

        return [parse(UploadAnswer, self.answers["upload", name].body).commit for name in names]

    def signed_row(self, name: str, row: Mapping[str, int], *uploaded: str) -> UploadRow:
        """A row that `name` really signed, being one that works with the coordinator."""
        commits = self.commits(*(uploaded or self.about.invited))
        uploads = Uploads(self.cohort, commits, digests=DIGESTED if self.protection is RECOMPUTES else NO_DIGESTS)
        return sign_row(member(name), self.cohort, uploads, row)


def reworded(manifest: Manifest, **fields: Any) -> None:
    """Another extension, which its node did not sign."""
    said = parse(UploadManifest, manifest.extension)
    for name, value in fields.items():
        said.ClearField(name)
        if value:
            setattr(said, name, value)
    manifest.extension = said.SerializeToString(deterministic=True)


def roster_of(message: Message) -> Roster:
    """The roster that a node is told."""
    return parse(Roster, message.body)
