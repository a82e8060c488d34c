"""Every fault in every phase of every protection: the study finishes or ends by a typed reason, and loses no round."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from node import session
from secure_fl import limits, protect
from secure_fl.aggregation import RequestKind
from secure_fl.errors import LateMessageError
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.pace import Backoff
from tests.support import clock
from tests.support.fault_table import FaultTable
from tests.support.federation import Federation, Killed
from tests.support.network import CORRUPT, CUT, DEAF, DELAY, DUPLICATE, HANG, REORDER, LinkFault, Network
from tests.support.outcomes import Ending, ending
from tests.support.training import Faults

# Of whoever is there; and `masked` as it is without recovery, in two circles.
PHASES = {
    "none": ("upload",),
    "masked+recovery": ("advertise", "share", "upload", "consistency", "unmask"),
    "sealed": ("advertise", "upload", "open"),
    "masked": ("advertise", "commit", "upload"),
    "encrypted+recovery": ("advertise", "key", "upload", "check", "open"),
    "encrypted": ("advertise", "key", "upload", "check", "open"),
}
CIRCLES = ("masked", "encrypted")
# The others have files of their own: two processes share the work.
ROWS = [
    (name, phase) for name, phases in PHASES.items() for phase in phases if name not in CIRCLES and "encry" not in name
]
COLUMNS = (
    "node crash",
    "node hang",
    "coordinator kill -9",
    "cut link",
    "duplicate",
    "reorder",
    "delay",
    "corrupt byte",
)

NODES = {protection: 8 if protection in CIRCLES else 4 for protection in PHASES}
# At the same time. Runs that wait for a deadline alternate with runs that compute, which would be late for it together.
AT_ONCE = 6
SECOND = 2  # Faults strike in the second round, when there is a committed one to lose.
# What one site's silence costs where a phase has to run into its deadline.
SHORT = {"deadline": 2.4, "phase_deadline": 2.4, "gather": 4, "attempts": 2, "patience": 0}
SIGNATURE = -10  # A byte of the signature, which stands last in an upload's header.
LONG = {"deadline": 40, "phase_deadline": 40, "gather": 10}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way in which a fault of a column can strike."""

    name: str
    kill_node: str = ""  # the point at which the victim dies
    returns: bool = True  # and whether it comes back
    kill_coordinator: tuple[tuple[str, int], ...] = ()  # one kill after the other
    link: tuple[LinkFault, ...] = ()
    victims: int = 1
    short: bool = False  # the fault outlasts the deadline
    rounds: int = 2  # of the study
    unchanged: bool = False  # nobody may be left out: the model is that of an undisturbed run, bit for bit
    heartbeat: float = 0.5
    expect: Callable[[Network], bool] | None = None  # what else must have happened on a victim's line
    ends: str = "finished"


def _node_crash(protection: str, phase: str) -> list[Variant]:
    # Whoever comes back to its circle is in the same round, whatever phase it missed.
    first = phase == PHASES[protection][0] or protection in CIRCLES
    only = len(PHASES[protection]) == 1 or protection in CIRCLES
    return [
        Variant(name="on the announcement", kill_node=f"announce:{phase}", unchanged=first),
        Variant(name="before the upload", kill_node=f"before:{phase}", unchanged=first),
        Variant(name="before the receipt", kill_node=f"after:{phase}", unchanged=only),
        # A circle waits for a member until the round ends, with its deadline; others go on at once.
        Variant(name="for good", kill_node=f"before:{phase}", returns=False, short=protection in CIRCLES),
    ]


def _node_hang(_protection: str, phase: str) -> list[Variant]:
    return [
        Variant(name="connected, never answers", link=(_fault(HANG, "send", phase),), short=True),
        # It says its heartbeats and reads nothing. It notices that itself, dials again and is told again.
        Variant(name="stops reading", link=(_fault(DEAF, "tell", phase),), heartbeat=0.2, unchanged=True),
    ]


def _coordinator_kill(protection: str, phase: str) -> list[Variant]:
    """Killed over and over in the same phase; every life counts its own transactions."""
    phases = PHASES[protection]
    before = [*phases, *phases[: phases.index(phase)]]  # the first round, and the second until this phase
    mine = min(2, _answers(protection, phase))
    kills = [
        ("before:add_answer", sum(_answers(protection, earlier) for earlier in before) + mine),
        ("after:add_answer", 1),
        ("before:close_phase", 1),
        ("after:close_phase", 1),
    ]
    if phase == phases[-1]:
        kills += [("before:commit_round", 1), ("after:commit_round", 1), ("before:end_study", 1)]
    return [Variant(name="again and again", kill_coordinator=tuple(kills), unchanged=True)]


def _cut_link(protection: str, phase: str) -> list[Variant]:
    """Session, download, upload and receipt, each cut on its way, and the retry of the upload further on."""
    faults = [
        _fault(CUT, "tell", phase),
        *(_fault(CUT, "fetch", phase, part=1) for _ in _fetches(protection, phase)),
        *(_fault(CUT, "send", phase, occurrence=n, part=part) for n, part in enumerate(_parts(phase), 1)),
        _fault(CUT, "receipt", phase),
    ]
    return [Variant(name="cut everywhere", link=tuple(faults), unchanged=True)]


def _duplicate(protection: str, phase: str) -> list[Variant]:
    """The announcement, a chunk of the download, and the upload twice at the same time."""
    faults = [
        _fault(DUPLICATE, "tell", phase),
        *(_fault(DUPLICATE, "fetch", phase) for _ in _fetches(protection, phase)),
        _fault(DUPLICATE, "send", phase),
    ]
    return [Variant(name="everywhere", link=tuple(faults), unchanged=True)]


def _reorder(protection: str, phase: str) -> list[Variant]:
    chunks = [
        *(_fault(REORDER, "fetch", phase) for _ in _fetches(protection, phase)),
        *(_fault(REORDER, "send", phase) for part in _parts(phase) if part > 1),
    ]
    sends = 1 + len([fault for fault in chunks if fault.point.startswith("send")])
    # The upload arrives a second time, after the next phase's or round's: known or too late, but never summed twice.
    again = _fault(REORDER, "send", phase, occurrence=sends, late=True)
    return [
        Variant(name="chunks and uploads", link=(*chunks, again), unchanged=True, expect=_echo_is_harmless),
        Variant(name="the announcement after the next message", link=(_fault(REORDER, "tell", phase),), short=True),
    ]


def _delay(protection: str, phase: str) -> list[Variant]:
    brief = (_fault(DELAY, "tell", phase, seconds=0.3), _fault(DELAY, "send", phase, seconds=0.3))
    late = _fault(DELAY, "send", phase, late=True)
    told_late = _fault(DELAY, "tell", phase, seconds=3.0)
    return [
        Variant(name="within the deadline", link=brief, unchanged=True),
        Variant(
            name="an upload beyond the deadline",
            link=(late,),
            short=True,
            expect=None if protection in CIRCLES else _echo_is_late,  # While a circle's round is open, it counts.
        ),
        Variant(name="an announcement beyond the deadline", link=(told_late,), short=True),
    ]


def _corrupt_byte(protection: str, phase: str) -> list[Variant]:
    """In both directions. What does not match its digest is asked for again; what means something else is refused."""
    bulk = [
        *(_fault(CORRUPT, "fetch", phase, part=1, byte=-80) for _ in _fetches(protection, phase)),
        *(_fault(CORRUPT, "send", phase, part=part, byte=-80) for part in _parts(phase) if part > 1),
    ]
    sends = 1 + len([fault for fault in bulk if fault.point.startswith("send")])
    header = _fault(CORRUPT, "send", phase, occurrence=sends, byte=90)
    signature = _fault(CORRUPT, "send", phase, byte=SIGNATURE)
    told = [_fault(CORRUPT, "tell", phase, number=n, byte=byte) for n, byte in ((1, 5), (2, 90), (3, -5))]
    return [
        Variant(name="header and bulk", link=(*bulk, header), unchanged=True),
        Variant(name="signature", link=(signature,), short=True),
        Variant(name="announcements", link=tuple(told), short=True),
    ]


FAULTS: dict[str, Callable[[str, str], list[Variant]]] = dict(
    zip(
        COLUMNS,
        (_node_crash, _node_hang, _coordinator_kill, _cut_link, _duplicate, _reorder, _delay, _corrupt_byte),
        strict=True,
    )
)


def _for_too_many(protection: str, phase: str) -> dict[str, Variant]:
    """Two sites of four, from the second round on, every time: there is no cohort left, or one circle of two."""
    lines = {
        "node hang": _fault(HANG, "send", phase, ever_after=True),
        "cut link": _fault(CUT, "send", phase, ever_after=True),
        "delay": _fault(DELAY, "tell", phase, ever_after=True, seconds=3.0),
        "corrupt byte": _fault(CORRUPT, "send", phase, ever_after=True, byte=SIGNATURE),
    }
    encrypted = protection.startswith("encrypted")
    spared = encrypted and phase == "open"  # The other two open what most have checked.
    ends = "finished" if protection in CIRCLES or spared else "aborted: StudyAborted"
    victims = 1 if encrypted and phase == "key" else 2  # One makes the key, the same one whenever it is tried again.
    # With recovery a round that fails late comes to nothing, and the next one begins: it takes two of them.
    return {
        column: Variant(name=f"{column} at two sites", link=(fault,), victims=victims, short=True, ends=ends, rounds=3)
        for column, fault in lines.items()
    }


def _answers(protection: str, phase: str) -> int:
    """How many sites answer a phase: of an encrypted one, perhaps the key maker or the openers only."""
    circles = 2 if protection in CIRCLES else 1
    if not protection.startswith("encrypted") or phase in ("advertise", "upload"):
        return NODES[protection]
    return circles if phase == "key" else 4  # two openers in each of two circles, or two of either side


def _parts(phase: str) -> tuple[int, ...]:
    """After which parts an upload of this phase breaks off: the model has several chunks, other answers none."""
    return (1, 3) if phase == "upload" else (0,)


def _fetches(protection: str, phase: str) -> tuple[str, ...]:
    """What a node downloads in this phase: the model in the first, and others' uploads where it adds them up."""
    adds_up = protection.startswith("encrypted") and phase in ("check", "open")
    return (phase,) if phase == PHASES[protection][0] or adds_up else ()


def _fault(what: str, where: str, phase: str, *, number: int = SECOND, **fields: Any) -> LinkFault:
    return LinkFault(what=what, point=f"{where}:{phase}", round=number, **fields)


def _echo_is_harmless(network: Network) -> bool:
    """An upload that comes again is a duplicate of what is known, or late."""
    echo = network.echoes[0]
    return isinstance(echo, LateMessageError) or (isinstance(echo, pb.UploadReceipt) and echo.duplicate)


def _echo_is_late(network: Network) -> bool:
    return isinstance(network.echoes[0], LateMessageError)


# --- one run --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "Backoff", partial(Backoff, first=0.05))  # Over a hundred studies wait to dial again.
    monkeypatch.setattr(limits, "CHUNK_BYTES", 256)  # so that a small model has a middle in which to cut


class Studies:
    """Fresh federations of four sites, or eight in circles. Keys are made once per kind of study: they cost time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._calm: dict[tuple[str, bool], tuple[Ending, bytes]] = {}

    def fresh(self, protection: str, *, short: bool = False, rounds: int = 2) -> Federation:
        """A federation that has not run yet."""
        settings: dict[str, Any] = {
            "study": {"rounds": rounds},
            "protection": {"kind": protection.partition("+")[0], "recovery": protection not in CIRCLES},
            "task": {"name": "tests.support.task:Line", "width": 64},
            "rounds": SHORT if short else LONG,
        }
        template = self._folder / f"{protection}-{short}-{rounds}"
        if not template.exists():
            Federation(template, settings, nodes=NODES[protection])
        self._made += 1
        folder = self._folder / f"run-{self._made}"
        shutil.copytree(template, folder)
        return Federation(folder, settings, nodes=NODES[protection])

    async def calm(self, protection: str, *, short: bool = False) -> tuple[Ending, bytes]:
        """How the study ends when nothing happens."""
        if (protection, short) not in self._calm:
            fed = self.fresh(protection)
            for name in fed.names:
                fed.start_node(name)
            await fed.coordinate()
            await fed.close()
            self._calm[protection, short] = ending(fed), fed.model()
        return self._calm[protection, short]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return Studies(tmp_path_factory.mktemp("studies"))


async def endure(fed: Federation, variant: Variant) -> tuple[Ending, list[Network]]:
    """Run a study through one fault, restarting what was killed."""
    victims, others = fed.names[: variant.victims], fed.names[variant.victims :]
    networks = [Network(variant.link) for _ in victims]
    faults = Faults(variant.kill_node, SECOND)
    for name in others:
        fed.start_node(name)
    for name, network in zip(victims, networks, strict=True):
        fed.start_node(name, faults, network=network)
    study = asyncio.create_task(_coordinate(fed, variant))
    if variant.kill_node:
        await asyncio.wait_for(faults.fired.wait(), 20)
        if variant.returns:
            fed.start_node(victims[0])
    await study
    await fed.close()
    return ending(fed), networks


async def _coordinate(fed: Federation, variant: Variant) -> None:
    grace = 15.0 if variant.returns else 0.3
    for point, occurrence in variant.kill_coordinator:
        with pytest.raises(Killed):
            await fed.coordinate(Faults(point, occurrence), heartbeat=variant.heartbeat, grace=grace)
    await fed.coordinate(heartbeat=variant.heartbeat, grace=grace)


async def check(studies: Studies, protection: str, variant: Variant) -> Ending:
    """One variant, and everything that must hold of it."""
    calm, model = await studies.calm(protection)
    fed = studies.fresh(protection, short=variant.short, rounds=variant.rounds)
    async with asyncio.timeout(100):
        end, networks = await endure(fed, variant)
    struck = [network.struck for network in networks]
    label = f"{variant.name}: {end}, {[(r.attempts, r.cohort) for r in end.records]}, {struck}"
    assert all(set(network.struck) == set(variant.link) for network in networks), label
    assert end.is_typed, label
    assert str(end) == variant.ends, label
    assert end.lost == 0, label
    assert end.committed >= 1, label
    opened = [record for record in end.records if not record.came_to_nothing]
    assert all(len(record.cohort) >= fed.study.min_cohort(RequestKind.SUM) for record in opened), label
    everything = list(range(1, variant.rounds + 2))  # with the closing evaluation
    assert [record.number for record in opened] == (everything if end.state == "finished" else [1]), label
    # A circle's next attempt has the same integers; elsewhere it may have another cohort's.
    told = [(0 if protection in CIRCLES else r.attempts, r.cohort) for r in end.records]
    same = told == [(0 if protection in CIRCLES else r.attempts, r.cohort) for r in calm.records]
    assert same or not variant.unchanged, label
    if same:
        # Nothing was lost and nothing counted twice: the same integers were summed, so the model is the same.
        assert fed.model() == model, label
    assert variant.expect is None or all(map(variant.expect, networks)), label
    return end


def _taking_turns(variants: list[Variant]) -> list[Variant]:
    """Those that outlast a deadline, and so mostly wait, each followed by one that mostly computes."""
    waits, computes = [v for v in variants if v.short], [v for v in variants if not v.short]
    return [variant for pair in zip_longest(waits, computes) for variant in pair if variant is not None]


class Rows:
    """All runs of a row, made together when the first of its cells is asked for: they mostly wait."""

    def __init__(self, studies: Studies) -> None:
        self._studies = studies
        self._done: dict[tuple[str, str], dict[Variant, Ending | BaseException]] = {}

    def endings(self, protection: str, phase: str, variants: list[Variant]) -> list[Ending]:
        """How some variants of a row ended; raises what went wrong in one of them."""
        if (protection, phase) not in self._done:
            self._done[protection, phase] = clock.run(self._run(protection, phase))
        results = [self._done[protection, phase][variant] for variant in variants]
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, Ending)]

    async def _run(self, protection: str, phase: str) -> dict[Variant, Ending | BaseException]:
        await self._studies.calm(protection)
        one_column = [variant for column in FAULTS.values() for variant in column(protection, phase)]
        variants = _taking_turns([*_for_too_many(protection, phase).values(), *one_column])
        places = asyncio.Semaphore(AT_ONCE)

        async def run(variant: Variant) -> Ending:
            async with places:
                return await check(self._studies, protection, variant)

        results = await asyncio.gather(*map(run, variants), return_exceptions=True)
        return dict(zip(variants, results, strict=True))


@pytest.fixture(scope="module")
def rows(studies: Studies) -> Rows:
    return Rows(studies)


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_in_a_phase(rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str) -> None:
    endings = rows.endings(protection, phase, FAULTS[column](protection, phase))
    fault_table.columns = COLUMNS
    fault_table.add(f"{protection} / {phase}", column, endings)


@pytest.mark.parametrize("column", _for_too_many("", ""))
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_at_too_many_sites_for_too_long(
    rows: Rows, fault_table: FaultTable, protection: str, phase: str, column: str
) -> None:
    endings = rows.endings(protection, phase, [_for_too_many(protection, phase)[column]])
    fault_table.columns = COLUMNS
    fault_table.add(f"{protection} / {phase}, two of {NODES[protection]} sites", column, endings)


def test_the_table_covers_every_phase_of_the_protections() -> None:
    for protection, phases in PHASES.items():
        kind, plus, _ = protection.partition("+")
        assert protect.describe(kind, recovery=bool(plus)).phases(RequestKind.SUM) == phases
