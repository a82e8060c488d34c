"""An encrypted round for attack tests: everything that was said is on the table, and any of it can be forged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coordinator.machine import RoundMachine
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.errors import SecureFLError
from secure_fl.identity.member import Member
from secure_fl.messages import parse
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.combining import CombineContribution, node_half
from secure_fl.protect.contract import Ask, Message, Opened, RoundContext
from secure_fl.protect.encrypted.combine_coordinator import CombineCoordinator
from secure_fl.protect.encrypted.groups import DIGESTS, encrypted_groups
from secure_fl.protect.encrypted.node import EncryptedCombiningNode, EncryptedNode
from secure_fl.protect.encrypted.opener import TOTAL
from secure_fl.protect.encrypted.protection import Encrypted, EncryptedSettings
from secure_fl.protect.encrypted.scheme import Scheme
from secure_fl.protect.encrypted.sides import Side, Sides
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.release.history import OpenedRow, ProcessMemory
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.protect.uploads.statements import Uploads, sign_row
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpening, EncryptedVouches
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadCommit, UploadRow
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.protect.members import member
from tests.protect.sealed.table import said


class RecklessCoordinator(CombineCoordinator):
    """Works with some of the sites and does not look at rows."""

    def _ask_for_rows_to_open(self) -> Ask | Opened:
        self._replies.clear()
        self._rows = {name: self._rows[name] for name in sorted(self._rows) if self._rows[name].row}
        return self._ask_for_openings()


class Reckless(Encrypted):
    """The same protection with that coordinator."""

    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> RecklessCoordinator:
        """It."""
        return RecklessCoordinator(context, earlier, recompute=self.settings.recompute)


ENCRYPTED = Encrypted()
TRUSTING = Encrypted(EncryptedSettings(recompute=False))  # sites decrypt whatever the coordinator calls a sum
RECKLESS = Reckless(ENCRYPTED.settings)
NAMES = ("n0", "n1", "n2", "n3", "n4", "n5")
EIGHT = tuple(f"n{index}" for index in range(8))
EVEN = dict(zip(NAMES, (11, 11, 11, 11, 10, 10), strict=True))


def sum_round(*names: str, blocks: Layout | None = None, **changes: Any) -> RoundContext:
    """A sum among six, of whoever is there."""
    return replace(context(*(names or NAMES), blocks=blocks, protection=ENCRYPTED), **changes)


def circle_round(*names: str, **changes: Any) -> RoundContext:
    """A sum of all six, or of nobody."""
    return sum_round(*names, whole=True, **changes)


def combine_round(*names: str, blocks: Layout | None = None, **changes: Any) -> RoundContext:
    """A combine among six."""
    about = context(*(names or NAMES), blocks=blocks, kind=RequestKind.COMBINE, min_cohort=4, protection=ENCRYPTED)
    return replace(about, **changes)


KINDS: dict[str, Callable[..., RoundContext]] = {"sum": sum_round, "circle": circle_round, "combine": combine_round}


def trusting(about: RoundContext) -> RoundContext:
    """The same without recomputing."""
    return replace(about, settings=TRUSTING.canonical_settings)


def values(about: RoundContext, deep: frozenset[str] | None = None) -> dict[str, CombineContribution]:
    """Everybody's contribution; only those in `deep` hold the second block, and everybody weighs all alike."""
    row = dict.fromkeys(about.invited, 1)
    everybody = {}
    for place, name in enumerate(about.invited):
        head = {"head": [place, -place]} if deep is None or name in deep else {}
        everybody[name] = contribution(64, row, body=[place, 2, -3], **head)
    return everybody


class Table:
    """A round up to a phase. What is drawn from the operating system differs from run to run, so do the two sides.

    `earlier` is what was opened before, and `memories` what each node saw of it, if not everything. A `reckless`
    coordinator has every row opened that anybody asks for. `me` replaces identities. With a `seed` nodes draw the keys
    that envelopes are sealed with from it, as no node ever does.
    """

    def __init__(
        self,
        about: RoundContext,
        contributions: Mapping[str, CombineContribution] | None = None,
        *,
        deep: frozenset[str] | None = None,
        earlier: Sequence[OpenedRow] = (),
        memories: Mapping[str, Sequence[OpenedRow]] | None = None,
        reckless: bool = False,
        me: Mapping[str, Member] | None = None,
        seed: int | None = None,
    ) -> None:
        self.about = about
        self._seed = seed
        self.protection = ENCRYPTED if about.settings == ENCRYPTED.canonical_settings else TRUSTING
        self.values = dict(contributions or values(about, deep))
        self.memories = {name: ProcessMemory((memories or {}).get(name, earlier)) for name in about.invited}
        self.nodes = {name: self.half(name, (me or {}).get(name)) for name in about.invited}
        self.machine = RoundMachine(RECKLESS if reckless else self.protection, about, earlier)
        self.machine.begin()
        self.told: dict[tuple[str, str], Message] = {}
        self.answers: dict[tuple[str, str], Message] = {}
        self.phases = ENCRYPTED.phases(about.kind)

    def half(self, name: str, me: Member | None = None) -> Any:
        """A new node half: that of a process that knows nothing of the attempt."""
        randomness = None if self._seed is None else UnsafeSeededRandomness(self._seed, name)
        offered = host(me or name, randomness, self.memories[name])
        half = node_half(self.protection, self.about, self.values[name], offered)
        assert isinstance(half, EncryptedNode | EncryptedCombiningNode)
        return half

    # --- how it goes ------------------------------------------------------------------------------------------

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
            self.told[now, name] = self.machine.asked[name]
            answer = (forged or {}).get(name) or self.nodes[name].answer(now, self.told[now, name])
            self.answers[now, name] = answer
            self.take(name, answer)
        return self.machine.close()

    def take(self, name: str, answer: Message) -> None:
        """The coordinator half takes an answer to the current phase, as it comes over the wire."""
        self.machine.accept(name, self.machine.phase, replace(answer, bulk=b""), InMemory(answer.bulk))

    @property
    def asked(self) -> Mapping[str, Message]:
        """What the coordinator asks now."""
        return self.machine.asked

    def tell(self, name: str, message: Message) -> Message:
        """Put a forged question to a node."""
        answer: Message = self.nodes[name].answer(self.machine.phase, message)
        return answer

    def refuses(self, name: str, message: Message, error: type[SecureFLError] | tuple[type[SecureFLError], ...]) -> Any:
        """The node answers with an error, and to this and all earlier phases nothing ever after."""
        with pytest.raises(error) as refused:
            self.tell(name, message)
        for phase in self.phases[: self.phases.index(self.machine.phase) + 1]:
            with pytest.raises(SecureFLError):
                self.nodes[name].answer(phase, message)
        return refused.value

    # --- what everybody knows ---------------------------------------------------------------------------------

    @property
    def cohort(self) -> UploadCohort:
        """Who takes part, as everybody was told."""
        half: Any = self.nodes[self.about.invited[0]]
        cohort: UploadCohort = half.party.cohort
        return cohort

    @property
    def sides(self) -> Sides:
        """Who is given what."""
        return Sides(self.cohort)

    def on(self, side: Side) -> list[str]:
        """The nodes of one side, those that open sums first."""
        return [name for name in self.sides._members[side] if name in self.about.invited]

    @property
    def scheme(self) -> Scheme:
        """Of the round."""
        return Scheme(Terms.of(self.about))

    def commits(self, *names: str) -> list[UploadCommit]:
        """The honest commits of these nodes, or of everybody."""
        chosen = names or self.about.invited
        return [parse(UploadAnswer, self.answers["upload", name].body).commit for name in chosen]

    def uploads(self, *names: str) -> Uploads:
        """What they signed, verified."""
        return Uploads(self.cohort, self.commits(*names), digests=DIGESTS)

    def part(self, side: Side, name: str, group: Group | None = None) -> bytes:
        """One half of what a node uploaded, of its first group."""
        groups = encrypted_groups(self.about, Terms.of(self.about), self.cohort, name)
        part = next(mine for mine in groups if mine.group == (group or groups[0].group)).halves[side]
        return bytes(self.answers["upload", name].bulk[part.start : part.start + part.size])

    def total(self, side: Side, weights: Mapping[str, int], group: Group | None = None) -> bytes:
        """Σ w·half, as the coordinator could add up whatever it likes."""
        first = group or self.cohort.groups[0]
        groups = encrypted_groups(self.about, Terms.of(self.about), self.cohort, next(iter(weights)))
        count = next(mine.values for mine in groups if mine.group == first)
        parts = [(weight, self.part(side, name, group)) for name, weight in sorted(weights.items())]
        add = self.scheme.add_bodies if side is Side.BODIES else self.scheme.add_seeds
        return add(parts, values=count)

    def signed_row(self, name: str, row: Mapping[str, int], *uploaded: str) -> UploadRow:
        """A row that `name` really signed, being one that works with the coordinator."""
        return sign_row(member(name), self.cohort, self.uploads(*uploaded), row)


def other_than(table: Table, *names: str) -> str:
    """A member that is none of these."""
    return next(name for name in table.about.invited if name not in names)


def now(table: Table) -> Any:
    """The coordinator half as it is."""
    return table.machine._half


def maker_of(table: Table) -> str:
    """Who makes the key, once everybody has advertised."""
    [name] = table.asked if table.machine.phase == "key" else [n for phase, n in table.answers if phase == "key"]
    return name


def until_it_is(make: Callable[[int], Table], fits: Callable[[Table], bool]) -> Table:
    """Roles are drawn anew in every attempt: the first one that `fits`."""
    return next(table for table in map(make, range(1, 200)) if fits(table))


def checking(table: Table, me: str, names: Sequence[str]) -> Message:
    """What a coordinator asks `me` that wants just these added up."""
    parts = [table.part(table.sides.of(me), name) for name in names]
    return replace(said(EncryptedCheck(commits=table.commits(*names))), bulk=b"".join(parts))


def opening(table: Table, me: str, names: Sequence[str], vouches: Mapping[str, Message]) -> Message:
    """And what it asks then, with the words of those who were asked about the same."""
    told = EncryptedOpening(commits=table.commits(*names))
    for answer in vouches.values():
        told.vouches.extend(parse(EncryptedVouches, answer.body).vouches)
    half = table.total(table.sides.of(me).other, dict.fromkeys(names, 1))
    return replace(said(told), bulk=half)


def totals_of(answer: Message) -> list[int]:
    """As an opener says them."""
    return [int(total) for total in np.frombuffer(answer.bulk, TOTAL)]
