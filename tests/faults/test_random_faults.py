"""Faults drawn at random, several to a study: whatever happens, what was promised to sites and study lead holds.

The draws are derandomised, so every run is the same; `--hypothesis-seed` and the slow test go elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import node.store
from coordinator.machine import RoundMachine
from coordinator.store import Attempt, StoredAnswer
from node import session
from secure_fl import limits, protect
from secure_fl.errors import StorageError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.protect.contract import OpenedSums
from secure_fl.results.record import RoundRecord
from secure_fl.transport.pace import Backoff
from tests.support.disk import FullDisk
from tests.support.federation import FaultyStore, Federation, Killed
from tests.support.network import CORRUPT, CUT, DEAF, DELAY, DUPLICATE, HANG, REORDER, LinkFault, Network
from tests.support.outcomes import ending
from tests.support.training import Faults

NODES, MINIMUM, ROUNDS = 4, 3, 2
PHASES = ("advertise", "upload", "reveal")
SITES = tuple(f"site-{n + 1:02d}" for n in range(NODES))
TRANSACTIONS = ("begin_attempt", "add_answer", "close_phase", "commit_round", "end_study")
SETTINGS: dict[str, Any] = {
    "study": {"rounds": ROUNDS},
    "protection": {"kind": "double"},
    "task": {"name": "tests.support.task:Line", "width": 16},
    "rounds": {"deadline": 1.5, "phase_deadline": 1.5, "gather": 1},
}


# --- operations -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KillNode:
    """Kill −9 of a node at a point of its work; it is started again after a pause."""

    site: str
    point: str
    occurrence: int
    pause: float


@dataclass(frozen=True)
class KillCoordinator:
    """Kill −9 of the coordinator before or after its n-th transaction of a kind; it is started again."""

    point: str
    occurrence: int


@dataclass(frozen=True)
class Line:
    """Something happens on a site's line."""

    site: str
    fault: LinkFault


@dataclass(frozen=True)
class Full:
    """A party's disk is full for a while; an empty site means the coordinator."""

    site: str
    after: float
    seconds: float


@dataclass(frozen=True)
class FullStore:
    """The coordinator's n-th transaction of a kind finds no room."""

    name: str
    occurrence: int


@dataclass(frozen=True)
class Restart:
    """An orderly stop and start of the coordinator."""

    after: float


Operation = KillNode | KillCoordinator | Line | Full | FullStore | Restart

_points = [
    "study_offer", "download", "train", *(f"{w}:{phase}" for phase in PHASES for w in ("announce", "before", "after")),
]  # fmt: skip
_lines = [
    *(f"{where}:{phase}" for where in ("tell", "send", "receipt", "fetch") for phase in PHASES),
    *(f"tell:{body}" for body in ("welcome", "study_offer", "round_closed", "heartbeat")),
    *(f"say:{body}" for body in ("hello", "study_answer", "heartbeat", "sit_out")),
]
_sites = st.sampled_from(SITES)
_moment = st.sampled_from((0.0, 0.05, 0.1, 0.2, 0.3, 0.5))

operations: st.SearchStrategy[list[Operation]] = st.lists(
    st.one_of(
        st.builds(KillNode, _sites, st.sampled_from(_points), st.integers(1, 3), _moment),
        st.builds(
            KillCoordinator,
            st.builds("{}:{}".format, st.sampled_from(("before", "after")), st.sampled_from(TRANSACTIONS)),
            st.integers(1, 9),
        ),
        st.builds(
            Line,
            _sites,
            st.builds(
                LinkFault,
                what=st.sampled_from((CUT, DUPLICATE, DELAY, REORDER, CORRUPT, HANG, DEAF)),
                point=st.sampled_from(_lines),
                occurrence=st.integers(1, 3),
                seconds=st.sampled_from((0.1, 0.5)),
                part=st.integers(0, 2),
                byte=st.integers(0, 400),
            ),
        ),
        st.builds(Full, st.sampled_from(("", *SITES)), _moment, _moment),
        st.builds(FullStore, st.sampled_from(TRANSACTIONS), st.integers(1, 9)),
        st.builds(Restart, _moment),
    ),
    min_size=1,
    max_size=6,
)


# --- what is watched ------------------------------------------------------------------------------------------


@dataclass
class Witness:
    """Everything that must never go wrong, noted where it happens."""

    accepted: dict[tuple[str, int, int, str], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    cursors: dict[Path, list[list[int]]] = field(default_factory=lambda: defaultdict(list))
    cohorts: list[int] = field(default_factory=list)  # of everything that was ever opened
    records: list[tuple[RoundRecord, ...]] = field(default_factory=list)  # after every life of the coordinator

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note what coordinator and nodes do."""
        close, write = RoundMachine.close, vars(node.store)["write_atomically"]

        def closing(machine: RoundMachine) -> Any:
            opened = close(machine)
            if isinstance(opened, OpenedSums):
                self.cohorts += [len(opened.cohort), *(block.contributors for block in opened.blocks.values())]
            return opened

        def writing(path: Path, content: bytes, **keywords: Any) -> None:
            write(path, content, **keywords)
            if path.name == "cursor.json":
                self.cursors[path].append(json.loads(content)[:2])

        vars(node.store)["write_atomically"] = writing
        RoundMachine.close = closing  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            RoundMachine.close = close  # type: ignore[method-assign]
            vars(node.store)["write_atomically"] = write


class WitnessedStore(FaultyStore):
    """Notes the answers that were accepted, and has no room when it is told to."""

    def __init__(self, url: str, faults: Faults, witness: Witness, full: list[FullStore]) -> None:
        super().__init__(url, faults)
        self.witness = witness
        self.full = full
        self.calls: dict[str, int] = defaultdict(int)

    def require_room(self, name: str) -> None:
        """Raise as the store does when SQLite says that the disk is full."""
        self.calls[name] += 1
        for fault in self.full:
            if (fault.name, fault.occurrence) == (name, self.calls[name]):
                self.full.remove(fault)
                raise StorageError("the coordinator's store failed (OperationalError)")

    def add_answer(self, attempt: Attempt, answer: StoredAnswer) -> None:
        """As the store does."""
        self.require_room("add_answer")
        try:
            super().add_answer(attempt, answer)
        finally:
            if any(a.header.upload_id == answer.header.upload_id for a in self.answers(attempt)):
                key = (answer.node, attempt.number, attempt.attempt, answer.phase)
                self.witness.accepted[key].append(answer.header.upload_id)


def _with_room(name: str) -> Callable[..., Any]:
    method = getattr(FaultyStore, name)

    def call(self: WitnessedStore, *args: Any, **kwargs: Any) -> Any:
        self.require_room(name)
        return method(self, *args, **kwargs)

    return call


for _name in TRANSACTIONS:
    if _name != "add_answer":
        setattr(WitnessedStore, _name, _with_room(_name))


# --- one study ------------------------------------------------------------------------------------------------


class Ordeal:
    """One study and the operations it has to live through."""

    def __init__(self, folder: Path, chosen: list[Operation]) -> None:
        self.fed = Federation(folder, SETTINGS, nodes=NODES)
        self.witness = Witness()
        self._chosen = chosen
        self._disk = FullDisk()
        self._helpers: list[asyncio.Task[None]] = []
        self._full = [operation for operation in chosen if isinstance(operation, FullStore)]

    async def run(self) -> None:
        """Until the study has ended."""
        with self.witness.watching(), self._disk.mounted():
            for site in SITES:
                self._start(self._live(site))
            for operation in self._chosen:
                if isinstance(operation, Full):
                    self._start(self._fill(operation))
            try:
                await self._coordinate()
            finally:
                for helper in self._helpers:
                    helper.cancel()
                await asyncio.gather(*self._helpers, return_exceptions=True)
                await self.fed.close()

    def _start(self, work: Any) -> None:
        self._helpers.append(asyncio.create_task(work))

    async def _live(self, site: str) -> None:
        """A node, started again after every kill, and once more if its disk was full at the start."""
        network = Network(tuple(op.fault for op in self._chosen if isinstance(op, Line) and op.site == site))
        kills = [operation for operation in self._chosen if isinstance(operation, KillNode) and operation.site == site]
        for kill in [*kills, None]:
            faults = Faults(kill.point, kill.occurrence) if kill else Faults()
            while True:
                try:
                    self.fed.start_node(site, faults, network=network)
                    break
                except StorageError:  # The node says so and exits; whoever watches it starts it again.
                    await asyncio.sleep(0.1)
            if kill is not None:
                await faults.fired.wait()
                await asyncio.sleep(kill.pause)
                network = Network(network.faults)  # A new process; its network is as before.

    async def _fill(self, operation: Full) -> None:
        workspace = self.fed.workspace
        folder = workspace.node_folder(operation.site) if operation.site else workspace.study_state
        await asyncio.sleep(operation.after)
        self._disk.folders.add(folder)
        await asyncio.sleep(operation.seconds)
        self._disk.folders.discard(folder)

    async def _coordinate(self) -> None:
        lives = [operation for operation in self._chosen if isinstance(operation, KillCoordinator | Restart)]
        for life in [*lives, None]:
            kill = isinstance(life, KillCoordinator)
            faults = Faults(life.point, life.occurrence) if isinstance(life, KillCoordinator) else Faults()
            work = asyncio.create_task(self._one_life(faults))
            if isinstance(life, Restart):
                await asyncio.wait((work,), timeout=life.after)
                work.cancel()
            done = False
            try:
                await work
                done = True
            except (Killed, asyncio.CancelledError):
                assert kill or isinstance(life, Restart)
            self.witness.records.append(ending(self.fed).records)
            if done:
                return

    async def _one_life(self, faults: Faults) -> None:
        url = f"sqlite:///{self.fed.workspace.coordinator_state / 'coordinator.sqlite'}"
        self.fed.workspace.coordinator_state.mkdir(parents=True, exist_ok=True)
        store = WitnessedStore(url, faults, self.witness, self._full)
        await self.fed.coordinate(store=store, heartbeat=0.3, grace=0.6, storage_pause=0.1)

    def judge(self) -> None:
        """Raise unless everything that was promised held."""
        end = ending(self.fed)
        assert end.is_typed, (str(end), self.fed.events[-3:])
        assert end.lost == 0
        for earlier, later in zip(self.witness.records, self.witness.records[1:], strict=False):
            assert later[: len(earlier)] == earlier  # Committed records grow and never change.
        for path, positions in self.witness.cursors.items():
            assert positions == sorted(positions), path
        for key, ids in self.witness.accepted.items():
            assert len(ids) == 1, key
        assert all(count >= MINIMUM for count in self.witness.cohorts), self.witness.cohorts
        self._judge_resends()
        self._judge_ledgers()

    def _judge_resends(self) -> None:
        for network in self.fed.networks:
            resends: dict[tuple[int, int, str], set[bytes]] = defaultdict(set)
            for sent in network.sent:
                resends[sent.header.round, sent.header.attempt, sent.header.phase].add(sent.octets)
            assert all(len(octets) == 1 for octets in resends.values()), resends.keys()

    def _judge_ledgers(self) -> None:
        spent = set()
        for site in SITES:
            for entry in read_ledger(self.fed.workspace.node_folder(site) / "ledger.jsonl"):
                if entry.kind == "sent":
                    spent.add((site, entry.facts["round"], entry.facts["attempt"]))
        # Whatever the coordinator took, the site has charged itself for.
        assert {(site, number, attempt) for site, number, attempt, _ in self.witness.accepted} <= spent


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and files of a federation that has not run yet."""
    protect.register("double", "tests.protect.double:OneTimePad")
    folder = tmp_path_factory.mktemp("template") / "run"
    Federation(folder, SETTINGS, nodes=NODES)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _quick() -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(limits, "CHUNK_BYTES", 64)
    patch.setattr(session, "Backoff", partial(Backoff, first=0.05))
    yield
    patch.undo()


def live_through(template: Path, chosen: list[Operation]) -> None:
    """One example."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shutil.copytree(template, run)

        async def scenario() -> None:
            ordeal = Ordeal(run, chosen)
            async with asyncio.timeout(40):
                await ordeal.run()
            ordeal.judge()

        asyncio.run(scenario())


_common = settings(
    deadline=None,
    print_blob=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.generate],  # An example takes a second; shrinking one would take an hour.
)


@settings(_common, max_examples=20, derandomize=True)
@given(operations)
def test_a_study_lives_through_whatever_is_drawn(template: Path, chosen: list[Operation]) -> None:
    live_through(template, chosen)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(_common, max_examples=500)
@given(operations)
def test_many_studies_live_through_whatever_is_drawn(template: Path, chosen: list[Operation]) -> None:
    live_through(template, chosen)
