"""Every fault in every phase of every protection: the study finishes or ends by a typed reason, and loses no round."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from secure_fl import limits, protect
from secure_fl.errors import LateMessageError
from secure_fl.protect.base import RequestKind
from secure_fl.rpc import federation_pb2 as pb
from tests.support.fault_table import FaultTable
from tests.support.federation import Federation, Killed
from tests.support.network import CORRUPT, CUT, DEAF, DELAY, DUPLICATE, HANG, REORDER, LinkFault, Network
from tests.support.outcomes import Ending, ending
from tests.support.training import Faults

PHASES = {"none": ("upload",), "double": ("advertise", "upload", "reveal")}
ROWS = [(protection, phase) for protection, phases in PHASES.items() for phase in phases]
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

NODES = 4
SECOND = 2  # Faults strike in the second round, when there is a committed one to lose.
# What one site's silence costs where a phase has to run into its deadline.
SHORT = {"deadline": 0.8, "phase_deadline": 0.8, "gather": 2}
LONG = {"deadline": 20, "phase_deadline": 20, "gather": 3}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way in which a fault of a column can strike."""

    name: str
    kill_node: str = ""  # the point at which the victim dies
    returns: bool = True  # and whether it comes back
    kill_coordinator: tuple[str, int] = ("", 0)
    link: tuple[LinkFault, ...] = ()
    short: bool = False  # the fault outlasts the deadline
    unchanged: bool = False  # nobody may be left out: the model is that of an undisturbed run, bit for bit
    heartbeat: float = 0.5
    expect: Callable[[Network], bool] | None = None  # what else must have happened on the victim's line


def _node_crash(protection: str, phase: str) -> list[Variant]:
    first = phase == PHASES[protection][0]
    only = len(PHASES[protection]) == 1
    return [
        Variant(name="on the announcement", kill_node=f"announce:{phase}", unchanged=first),
        Variant(name="before the upload", kill_node=f"before:{phase}", unchanged=first),
        Variant(name="before the receipt", kill_node=f"after:{phase}", unchanged=only),
        Variant(name="for good", kill_node=f"before:{phase}", returns=False),
    ]


def _node_hang(_protection: str, phase: str) -> list[Variant]:
    silent = LinkFault(what=HANG, point=f"send:{phase}", occurrence=SECOND)
    deaf = LinkFault(what=DEAF, point=f"tell:{phase}", occurrence=SECOND)
    return [
        Variant(name="connected, never answers", link=(silent,), short=True),
        # It says its heartbeats and reads nothing. It notices that itself, dials again and is told again.
        Variant(name="stops reading", link=(deaf,), heartbeat=0.2, unchanged=True),
    ]


def _coordinator_kill(protection: str, phase: str) -> list[Variant]:
    phases = PHASES[protection]
    position = phases.index(phase)
    answer = NODES * (len(phases) + position) + 2
    points = [
        ("before:add_answer", answer),
        ("after:add_answer", answer),
        ("before:close_phase", len(phases) + position + 1),
        ("after:close_phase", len(phases) + position + 1),
    ]
    if phase == phases[0]:
        points += [("after:begin_attempt", SECOND)]
    if phase == phases[-1]:
        points += [("before:commit_round", SECOND), ("after:commit_round", SECOND)]
    return [
        Variant(name=f"{point} {count}", kill_coordinator=(point, count), unchanged=True) for point, count in points
    ]


def _cut_link(protection: str, phase: str) -> list[Variant]:
    faults = [LinkFault(what=CUT, point=f"send:{phase}", occurrence=SECOND, part=part) for part in _parts(phase)]
    faults += [
        LinkFault(what=CUT, point=f"receipt:{phase}", occurrence=SECOND),
        LinkFault(what=CUT, point=f"tell:{phase}", occurrence=SECOND),
    ]
    faults += [
        LinkFault(what=CUT, point=f"fetch:{phase}", occurrence=SECOND, part=1) for _ in _fetches(protection, phase)
    ]
    return [_unchanged(fault) for fault in faults]


def _duplicate(protection: str, phase: str) -> list[Variant]:
    faults = [
        LinkFault(what=DUPLICATE, point=f"send:{phase}", occurrence=SECOND),
        LinkFault(what=DUPLICATE, point=f"tell:{phase}", occurrence=SECOND),
        *(LinkFault(what=DUPLICATE, point=f"fetch:{phase}", occurrence=SECOND) for _ in _fetches(protection, phase)),
    ]
    return [_unchanged(fault) for fault in faults]


def _reorder(protection: str, phase: str) -> list[Variant]:
    again = LinkFault(what=REORDER, point=f"send:{phase}", occurrence=SECOND, late=True)
    overtaken = LinkFault(what=REORDER, point=f"tell:{phase}", occurrence=SECOND)
    variants = [
        # The upload arrives a second time, after the next phase's or round's: known, or too late, but never summed twice.
        Variant(name="an old upload after the next one", link=(again,), unchanged=True, expect=_echo_is_harmless),
        Variant(name="the announcement after the next message", link=(overtaken,), short=True),
    ]
    if len(_parts(phase)) > 1:
        variants.append(_unchanged(LinkFault(what=REORDER, point=f"send:{phase}", occurrence=SECOND)))
    for _ in _fetches(protection, phase):
        variants.append(_unchanged(LinkFault(what=REORDER, point=f"fetch:{phase}", occurrence=SECOND)))
    return variants


def _delay(_protection: str, phase: str) -> list[Variant]:
    return [
        _unchanged(LinkFault(what=DELAY, point=f"send:{phase}", occurrence=SECOND, seconds=0.3)),
        _unchanged(LinkFault(what=DELAY, point=f"tell:{phase}", occurrence=SECOND, seconds=0.3)),
        Variant(
            name="an upload beyond the deadline",
            link=(LinkFault(what=DELAY, point=f"send:{phase}", occurrence=SECOND, late=True),),
            short=True,
            expect=lambda network: isinstance(network.echoes[0], LateMessageError),
        ),
        Variant(
            name="an announcement beyond the deadline",
            link=(LinkFault(what=DELAY, point=f"tell:{phase}", occurrence=SECOND, seconds=1.0),),
            short=True,
        ),
    ]


def _corrupt_byte(protection: str, phase: str) -> list[Variant]:
    """In both directions. What names its own digest is asked for again; what parses to something else is refused."""
    header = [LinkFault(what=CORRUPT, point=f"send:{phase}", occurrence=SECOND, byte=byte) for byte in (5, 90, -100)]
    chunk = [
        LinkFault(what=CORRUPT, point=f"send:{phase}", occurrence=SECOND, part=part, byte=-40)
        for part in _parts(phase)[1:]
    ]
    told = [LinkFault(what=CORRUPT, point=f"tell:{phase}", occurrence=SECOND, byte=byte) for byte in (1, 70, -5)]
    fetched = [
        LinkFault(what=CORRUPT, point=f"fetch:{phase}", occurrence=SECOND, part=1, byte=-80)
        for _ in _fetches(protection, phase)
    ]
    return [
        *(Variant(name=_name(fault), link=(fault,), short=True) for fault in (*header, *told)),
        *(_unchanged(fault) for fault in (*chunk, *fetched)),
    ]


FAULTS: dict[str, Callable[[str, str], list[Variant]]] = dict(
    zip(
        COLUMNS,
        (_node_crash, _node_hang, _coordinator_kill, _cut_link, _duplicate, _reorder, _delay, _corrupt_byte),
        strict=True,
    )
)


def _parts(phase: str) -> tuple[int, ...]:
    """After which parts an upload of this phase can break off: the model has several chunks, other answers none."""
    return (1, 3) if phase == "upload" else (1,)


def _fetches(protection: str, phase: str) -> tuple[str, ...]:
    """What a node downloads in this phase: the model in the first, the double's bulk in its second."""
    return () if phase == "reveal" else (phase,)


def _name(fault: LinkFault) -> str:
    return f"{fault.what} {fault.point} part {fault.part} byte {fault.byte} {fault.seconds:g} s"


def _unchanged(fault: LinkFault) -> Variant:
    return Variant(name=_name(fault), link=(fault,), unchanged=True)


def _echo_is_harmless(network: Network) -> bool:
    """An upload that comes again is a duplicate of what is known, or late."""
    echo = network.echoes[0]
    return isinstance(echo, LateMessageError) or (isinstance(echo, pb.UploadReceipt) and echo.duplicate)


# --- one run --------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    protect.register("double", "tests.library.double:OneTimePad")
    monkeypatch.setattr(limits, "CHUNK_BYTES", 256)  # so that a small model has a middle in which to cut


class Studies:
    """Fresh federations of four sites and two rounds. Keys are made once per kind of study: they cost time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0
        self._calm: dict[tuple[str, bool], tuple[Ending, bytes]] = {}

    def fresh(self, protection: str, *, short: bool = False) -> Federation:
        """A federation that has not run yet."""
        settings: dict[str, Any] = {
            "protection": {"kind": protection},
            "task": {"name": "tests.support.task:Line", "width": 64},
            "rounds": SHORT if short else LONG,
        }
        template = self._folder / f"{protection}-{short}"
        if not template.exists():
            Federation(template, settings, nodes=NODES)
        self._made += 1
        folder = self._folder / f"run-{self._made}"
        shutil.copytree(template, folder)
        return Federation(folder, settings, nodes=NODES)

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
    protect.register("double", "tests.library.double:OneTimePad")
    return Studies(tmp_path_factory.mktemp("studies"))


async def endure(fed: Federation, variant: Variant) -> tuple[Ending, Network]:
    """Run a study through one fault, restarting what was killed."""
    victim = fed.names[0]
    faults = Faults(variant.kill_node, SECOND)
    network = Network(variant.link)
    for name in fed.names[1:]:
        fed.start_node(name)
    fed.start_node(victim, faults, network=network)
    coordinator_faults = Faults(*variant.kill_coordinator)

    async def coordinator() -> None:
        kills = 0
        while True:
            try:
                await fed.coordinate(
                    Faults() if kills else coordinator_faults,
                    heartbeat=variant.heartbeat,
                    grace=5.0 if variant.returns else 0.3,
                )
            except Killed:
                kills += 1
            else:
                assert kills == bool(variant.kill_coordinator[1])
                return

    study = asyncio.create_task(coordinator())
    if variant.kill_node:
        await asyncio.wait_for(faults.fired.wait(), 20)
        if variant.returns:
            fed.start_node(victim)
    await study
    await fed.close()
    return ending(fed), network


async def check(studies: Studies, protection: str, variant: Variant) -> Ending:
    """One variant, and everything that must hold of it."""
    calm, model = await studies.calm(protection)
    fed = studies.fresh(protection, short=variant.short)
    async with asyncio.timeout(40):
        end, network = await endure(fed, variant)
    label = f"{variant.name}: {end}, {[r.cohort for r in end.records]}, {network.struck}"
    assert len(network.struck) == len(variant.link), label
    assert end.is_typed, label
    assert end.lost == 0, label
    assert all(len(record.cohort) >= fed.study.min_cohort(RequestKind.SUM) for record in end.records), label
    if end.state == "finished":
        assert [record.number for record in end.records] == [1, 2, 3], label
    same = [record.cohort for record in end.records] == [record.cohort for record in calm.records]
    assert same or not variant.unchanged, label
    if same:
        # Nothing was lost and nothing counted twice: the same integers were summed, so the model is the same.
        assert fed.model() == model, label
    assert variant.expect is None or variant.expect(network), f"{label} {network.echoes}"
    return end


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize(("protection", "phase"), ROWS)
def test_a_fault_in_a_phase(
    studies: Studies, fault_table: FaultTable, protection: str, phase: str, column: str
) -> None:
    async def cell() -> list[Ending]:
        await studies.calm(protection)
        # Side by side, in their own folders: they mostly wait.
        async with asyncio.TaskGroup() as group:
            runs = [
                group.create_task(check(studies, protection, variant)) for variant in FAULTS[column](protection, phase)
            ]
        return [run.result() for run in runs]

    endings = asyncio.run(cell())
    fault_table.columns = COLUMNS
    fault_table.add(f"{protection} / {phase}", column, endings)


def test_the_table_covers_every_phase_of_the_protections() -> None:
    for protection, phases in PHASES.items():
        assert protect.resolve(protection).phases(RequestKind.SUM) == phases
