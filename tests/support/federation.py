"""A federation in one process whose links, stores and trainers can fail exactly where a test wants them to.

Everything here stands at a seam production has too: a `Connector`, a `Store`, an `Executor`. A killed node is one whose
calls never return again and whose stream has ended, which is all that the rest of the world can see of a kill −9.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from coordinator.service import Coordinator
from coordinator.store import Store
from node.config import NodeFile
from node.service import Node
from secure_fl.errors import NetworkError
from secure_fl.events import Event
from secure_fl.results.record import StudyRecord
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.transport.base import CoordinatorLink, FederationService
from secure_fl.transport.local import LocalLink
from tests.support.network import Network, RoughLink
from tests.support.training import FakeTraining, Faults


class Killed(BaseException):
    """The coordinator was killed here."""


class FaultyLink:
    """A link that dies with its node."""

    def __init__(self, inner: CoordinatorLink, faults: Faults, alive: Callable[[], bool]) -> None:
        self._inner = inner
        self._alive = alive  # whether the coordinator behind this link is still the one that runs
        self._faults = faults
        self._pump: asyncio.Task[None] | None = None
        self._grave: asyncio.Task[None] | None = None

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """Forward; at a point named `announce:<phase>` or `offer` the node dies on receipt."""
        queue: asyncio.Queue[pb.CoordinatorMessage | BaseException | None] = asyncio.Queue()
        self._pump = asyncio.create_task(self._forward(outgoing, queue))
        self._grave = asyncio.create_task(self._hang_up_when_dead(queue))
        while (item := await queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            self._require_alive()  # What is left of a killed coordinator in this process must not keep its nodes.
            body = str(item.WhichOneof("body"))
            point = f"announce:{item.announcement.phase}" if body == "announcement" else body
            await self._maybe_die(point)
            yield item

    async def _forward(
        self,
        outgoing: AsyncIterator[pb.NodeMessage],
        queue: asyncio.Queue[pb.CoordinatorMessage | BaseException | None],
    ) -> None:
        try:
            async for message in self._inner.session(outgoing):
                queue.put_nowait(message)
        except Exception as error:
            queue.put_nowait(error)
        queue.put_nowait(None)

    async def _hang_up_when_dead(self, queue: asyncio.Queue[pb.CoordinatorMessage | BaseException | None]) -> None:
        """Also where the node dies in something that is no message."""
        await self._faults.fired.wait()
        if self._pump is not None:
            self._pump.cancel()
        queue.put_nowait(None)

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """Die before the upload is forwarded, or after it was and before the receipt arrives."""
        collected = [part async for part in parts]
        phase = collected[0].header.phase
        await self._maybe_die(f"before:{phase}")
        self._require_alive()
        try:
            receipt = await self._inner.upload(_iterate(collected), timeout=timeout)
        except Killed:
            raise NetworkError("the coordinator died") from None
        await self._maybe_die(f"after:{phase}")
        return receipt

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """Forward."""
        self._require_alive()
        return await self._inner.uploaded(query, timeout=timeout)

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """Die at the first chunk."""
        self._require_alive()
        async for chunk in self._inner.download(request, timeout=timeout):
            await self._maybe_die("download")
            yield chunk

    async def close(self) -> None:
        """Hang up."""
        for task in (self._pump, self._grave):
            if task is not None:
                task.cancel()

    def _require_alive(self) -> None:
        if not self._alive():
            raise NetworkError("the coordinator is dead")

    async def _maybe_die(self, point: str) -> None:
        if self._faults.reaches(point):
            if self._pump is not None:
                self._pump.cancel()
            self._faults.fired.set()
            await asyncio.Event().wait()


async def _iterate(parts: list[pb.UploadPart]) -> AsyncIterator[pb.UploadPart]:
    for part in parts:
        yield part


class FaultyStore(Store):
    """A store at which the coordinator is killed before or after a transaction."""

    def __init__(self, url: str, faults: Faults) -> None:
        super().__init__(url)
        self.faults = faults
        self.dead = False
        self.writing = 0  # transactions that have begun: a killed process has none that ends after its death
        self._lock = threading.Lock()  # Circles write from several threads.

    def count(self, change: int) -> None:
        """A transaction begins or ends."""
        with self._lock:
            self.writing += change

    def meet(self, point: str) -> None:
        """Die here if the faults say so, and for ever after: a killed process writes nothing more."""
        with self._lock:
            self.dead = self.faults.reaches(point) or self.dead
            if self.dead:
                raise Killed


def _faulty(name: str) -> Callable[..., Any]:
    method = getattr(Store, name)

    def call(self: FaultyStore, *args: Any, **kwargs: Any) -> Any:
        self.count(1)
        try:
            self.meet(f"before:{name}")
            result = method(self, *args, **kwargs)
            self.meet(f"after:{name}")
        finally:
            self.count(-1)
        return result

    return call


for _name in (
    "begin_attempt", "add_answer", "close_phase", "keep_opening", "abort_attempt", "give_up_turn", "commit_round",
    "end_study", "add_model",
):  # fmt: skip
    setattr(FaultyStore, _name, _faulty(_name))


def heard(event: Event) -> tuple[str, dict[str, Any]]:
    """An event as its name and its fields; a committed round's record as fields, too."""
    fields = asdict(event)
    record = fields.pop("record", {})
    return event.name, {**fields, **record}


class Federation:
    """One coordinator and a roster of nodes on temporary folders."""

    def __init__(self, folder: Path, settings: dict[str, Any], *, nodes: int = 4) -> None:
        settings = {"study": {"rounds": 2}, "simulation": {"nodes": nodes}, **settings}
        # Whoever is there takes part, unless a test is about circles: then it says so.
        settings["protection"] = {"kind": "none", "recovery": True, **settings.get("protection", {})}
        settings.setdefault("rounds", {"deadline": 20, "phase_deadline": 20, "gather": 3})
        self.workspace: Workspace = prepare(folder, Study.parse(settings), policy={})
        self.workspace.point_nodes_at(0)
        self.study = self.workspace.study
        self.beside: list[Study] = []  # studies that the coordinator runs as well
        self.names = tuple(self.study.study.roster)
        self.services: list[FederationService | None] = [None]
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.coordinator: Coordinator | None = None  # the one that runs now
        self.networks: list[Network] = []
        self.nodes: dict[str, Node] = {}  # the last life of each
        self._tasks: list[asyncio.Task[Any]] = []

    # --- coordinator ------------------------------------------------------------------------------------------

    async def coordinate(
        self,
        faults: Faults | None = None,
        *,
        heartbeat: float = 0.5,
        grace: float = 5.0,
        now: Callable[[], float] = time.time,
        storage_pause: float | None = None,
        store: FaultyStore | None = None,
    ) -> StudyRecord | None:
        """Run a coordinator until the study ends; raises `Killed` where the faults say so."""
        store = store or self.open_store(faults)
        coordinator = self.coordinator = Coordinator(
            self.workspace.coordinator_state,
            store=store,
            heartbeat=heartbeat,
            grace=grace,
            listener=lambda event: self.events.append(heard(event)),
            now=now,
            storage_pause=storage_pause,
            tasks=[self.study.task.name],
        )
        coordinator.resume()
        runner = coordinator.prepare(self.study)
        for other in self.beside:
            coordinator.prepare(other)
        self.services[0] = coordinator.hub
        try:
            await self._run_until_killed(coordinator, store)
            await coordinator.hub.drain(2.0)
        finally:
            self.services[0] = None
            coordinator.hub.hang_up()
            with contextlib.suppress(Killed):
                await coordinator.close()
        if runner.outcome != "finished":
            return None
        return runner.record() if runner.is_open else StudyRecord.load(self.workspace.study_state / "record.json")

    def open_store(self, faults: Faults | None = None) -> FaultyStore:
        """The coordinator's store, as it is on disk."""
        state = self.workspace.coordinator_state
        state.mkdir(parents=True, exist_ok=True)
        return FaultyStore(f"sqlite:///{state / 'coordinator.sqlite'}", faults or Faults())

    async def _run_until_killed(self, coordinator: Coordinator, store: FaultyStore) -> None:
        work = asyncio.ensure_future(coordinator.run())
        killed = asyncio.create_task(_watch(store.faults))
        await asyncio.wait((work, killed), return_when=asyncio.FIRST_COMPLETED)
        store.dead = store.dead or _struck(store.faults)
        killed.cancel()
        if store.dead:
            self.services[0] = None
            work.cancel()
            while store.writing:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            raise Killed
        work.result()

    # --- nodes ------------------------------------------------------------------------------------------------

    def start_node(
        self,
        name: str,
        faults: Faults | None = None,
        executor: Any = None,
        network: Network | None = None,
        link: type[LocalLink] = LocalLink,
    ) -> asyncio.Task[None]:
        """Start a node from what is on its disk."""
        faults, network = faults or Faults(), network or Network()
        self.networks.append(network)
        file = NodeFile.read(self.workspace.node_file(name))
        connector = _Connector(self, file, faults, network, link)
        node = Node(file, connector, executor or FakeTraining(faults), until_done=True)
        self.nodes[name] = node
        _make_ledger_mortal(node, faults)
        task = asyncio.create_task(node.run(), name=name)
        self._tasks += [task, asyncio.create_task(_bury(node, faults))]
        return task

    async def close(self) -> None:
        """Cancel whatever still runs, the blocked remains of killed nodes included."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for network in self.networks:
            await network.close()

    # --- results ----------------------------------------------------------------------------------------------

    def model(self) -> bytes:
        """The last checkpoint."""
        return max((self.workspace.study_state / "checkpoints").glob("*.safetensors")).read_bytes()

    def set_policy(self, name: str, **policy: Any) -> None:
        """Rewrite one site's policy."""
        import tomllib

        path = self.workspace.node_file(name)
        settings = tomllib.loads(path.read_text())
        settings["policy"].update(policy)
        for dataset in policy.get("datasets", ()):  # The file has to have them.
            settings["datasets"].setdefault(dataset, {"path": f"{dataset}.csv"})
        path.write_bytes(tomli_w.dumps(settings).encode())


async def _watch(faults: Faults) -> None:
    """Notice a kill that happened inside an upload, where it does not surface in the study's own task."""
    while not _struck(faults):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def _struck(faults: Faults) -> bool:
    return bool(faults.point) and faults.seen.get(faults.point, 0) >= faults.occurrence


def meet(faults: Faults, point: str, loop: asyncio.AbstractEventLoop) -> None:
    """Kill a node at a point of its own, in whichever thread: from then on whoever comes by such a point is dead."""
    if faults.struck:
        raise Killed
    if faults.reaches(point):
        faults.struck = True
        loop.call_soon_threadsafe(faults.fired.set)
        raise Killed


def _make_ledger_mortal(node: Node, faults: Faults) -> None:
    """Points `before:<kind>` and `after:<kind>` of every entry."""
    loop, ledger = asyncio.get_running_loop(), vars(node._services.accountant)["_ledger"]
    append = ledger.append

    def mortal(kind: str, facts: Any) -> None:
        meet(faults, f"before:{kind}", loop)
        append(kind, facts)
        meet(faults, f"after:{kind}", loop)

    ledger.append = mortal


async def _bury(node: Node, faults: Faults) -> None:
    """What is left of a killed node in this process must not touch the disk that its successor uses."""
    await faults.fired.wait()

    def dead(*_: Any, **__: Any) -> None:
        raise Killed

    vars(node._services.accountant)["_ledger"].append = dead
    for participation in node._studies.values():
        vars(participation.store)["clear_scratch"] = dead


class _Connector:
    def __init__(
        self, federation: Federation, file: NodeFile, faults: Faults, network: Network, link: type[LocalLink]
    ) -> None:
        self._federation = federation
        self._certificate = file.credential().certificate
        self._faults = faults
        self._network = network
        self._link = link

    async def connect(self) -> CoordinatorLink:
        if self._faults.fired.is_set():
            await asyncio.Event().wait()  # The dead do not dial.
        service = self._federation.services[0]
        if service is None:
            raise NetworkError("no coordinator is running")
        link = RoughLink(self._link(service, self._certificate), self._network)
        return FaultyLink(link, self._faults, lambda: self._federation.services[0] is service)
