"""What a node sends to a coordinator that asks for what its site does not allow: an error code, and nothing else.

Real mutual TLS, a real node, and a server with a good coordinator certificate that keeps every byte of every message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import tomli_w

import secure_fl
from coordinator.config import CoordinatorFile
from node.config import NodeFile
from node.link import GrpcConnector
from node.service import Node
from node.training.jobs import Job, Result
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.messages import parse
from secure_fl.privacy.ledger import read_ledger
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.transport.wire import layout_to_wire, our_versions, reference
from tests.support.training import FakeTraining

LAYOUT = Layout((BlockShape(name="features", tensors=(TensorShape(name="w", shape=(3,)),)),))
WEIGHTS = bytes(12)
QUIET_SECONDS = 0.6  # six heartbeats in which something more could be said

HELLO = pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software=f"secure-fl {secure_fl.__version__}"))


class Recorder(grpc.GenericRpcHandler):
    """Says what a test wants; keeps the name of every call and the bytes of every message of a session."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.sessions: list[list[bytes]] = []
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()

    def service(self, handler_call_details: Any) -> Any:
        """Every method there is, without decoding anything."""
        method = handler_call_details.method.rpartition("/")[2]
        self.calls.append(method)
        if method == "Session":
            return grpc.stream_stream_rpc_method_handler(self._session)
        return grpc.stream_stream_rpc_method_handler(_nothing)

    async def _session(self, incoming: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        heard: list[bytes] = []
        self.sessions.append(heard)
        reader = asyncio.create_task(_keep(incoming, heard))
        try:
            yield pb.CoordinatorMessage(welcome=pb.Welcome(version=1, heartbeat_ms=100)).SerializeToString()
            beating = pb.CoordinatorMessage(heartbeat=pb.Heartbeat()).SerializeToString()
            while True:
                try:
                    yield await asyncio.wait_for(self.outbox.get(), 0.1)
                except TimeoutError:
                    yield beating
        finally:
            reader.cancel()

    def say(self, *messages: pb.CoordinatorMessage) -> None:
        """Queue messages for the node."""
        for message in messages:
            self.outbox.put_nowait(message.SerializeToString())

    def heard(self) -> list[pb.NodeMessage]:
        """Everything but hello and heartbeats, from all sessions; every byte of it accounted for."""
        rest = []
        for session in self.sessions:
            for position, raw in enumerate(session):
                message = parse(pb.NodeMessage, raw)
                if position == 0:
                    assert raw == HELLO.SerializeToString()
                elif message.WhichOneof("body") == "heartbeat":
                    beat = pb.Heartbeat(sequence=message.heartbeat.sequence)
                    assert raw == pb.NodeMessage(heartbeat=beat).SerializeToString()
                    assert beat.sequence < len(session)  # a counter, no channel for anything
                else:
                    rest.append(message)
        return rest


async def _keep(incoming: AsyncIterator[bytes], heard: list[bytes]) -> None:
    async for raw in incoming:
        heard += [raw]


async def _nothing(incoming: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
    async for _ in incoming:
        yield b""


class Untrained(FakeTraining):
    """Notes that somebody wanted to train."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[Job] = []

    async def run(self, job: Job) -> Result:
        """As the fake does."""
        self.jobs.append(job)
        return await super().run(job)


@dataclass
class Scene:
    """A site, the study it approved, and a coordinator that may say anything."""

    workspace: Workspace
    recorder: Recorder = field(default_factory=Recorder)
    executor: Untrained = field(default_factory=Untrained)

    @property
    def study(self) -> Study:
        """What the site approved."""
        return self.workspace.study

    @property
    def names(self) -> tuple[str, ...]:
        """The roster."""
        return tuple(self.study.study.roster)

    def policy(self, **changes: Any) -> None:
        """Change what the site allows."""
        path = self.workspace.node_file("site-01")
        table = read_toml(path)
        table["policy"].update(changes)
        path.write_bytes(tomli_w.dumps(table).encode())

    def approve(self, study: Study) -> None:
        """Approve another study's hash, and with it nothing but the hash."""
        self.policy(approved=[self.study.id, study.id])

    def offer(self, study: Study, *, named: str = "") -> None:
        """Offer a study under its own name or another."""
        body = pb.StudyOffer(settings=study.canonical())
        self.recorder.say(pb.CoordinatorMessage(study_id=named or study.id, study_offer=body))

    def announce(self, study: Study | None = None, **changes: Any) -> None:
        """A first round that is right but for the changes."""
        model = pb.ModelRef(
            digest=LAYOUT.digest(LAYOUT.unflatten(WEIGHTS)), blocks=layout_to_wire(LAYOUT), object=reference(WEIGHTS)
        )
        body = pb.PhaseAnnouncement(
            round=1, attempt=1, kind=pb.ROUND_KIND_TRAIN, phase="upload", deadline_ms=5000, model=model,
            payload=pb.Payload(protection=changes.pop("protection", "none"), phase="upload", version=1),
            invited=changes.pop("invited", self.names),
        )  # fmt: skip
        for name, value in changes.items():
            setattr(body, name, value)
        self.recorder.say(pb.CoordinatorMessage(study_id=(study or self.study).id, announcement=body))

    def changed(self, section: str, **values: Any) -> Study:
        """The approved study with something else in it."""
        return self.study.model_copy(update={section: getattr(self.study, section).model_copy(update=values)})


def conversation(folder: Path, scenario: Callable[[Scene], None], *, replies: int, sessions: int = 1) -> Scene:
    """Let a real node hear a scenario; returns when it has replied and then kept quiet."""

    async def run() -> Scene:
        initial = LAYOUT.digest(LAYOUT.unflatten(WEIGHTS)).hex()
        table = {
            "study": {"initial": initial},
            "protection": {"kind": "none", "recovery": True},
            "simulation": {"nodes": 4},
            "metrics": {"share": "per-node"},
        }
        scene = Scene(prepare(folder / "run", Study.parse(table), policy={}))
        file = CoordinatorFile.read(scene.workspace.coordinator_file)
        credential = file.credential()
        server = grpc.aio.server(handlers=[scene.recorder])
        tls = grpc.ssl_server_credentials(
            [(credential.tls_key.reveal(), credential.certificate.pem)],
            root_certificates=file.ca_pem(),
            require_client_auth=True,
        )
        scene.workspace.point_nodes_at(server.add_secure_port("127.0.0.1:0", tls))
        scenario(scene)
        await server.start()
        node_file = NodeFile.read(scene.workspace.node_file("site-01"))
        task = asyncio.create_task(Node(node_file, GrpcConnector(node_file), scene.executor).run())
        try:
            async with asyncio.timeout(30):
                heard = scene.recorder.heard
                while len(heard()) < replies or len(scene.recorder.sessions) < sessions:
                    assert not task.done(), task.exception()
                    await asyncio.sleep(0.02)
            await asyncio.sleep(QUIET_SECONDS)
            assert scene.recorder.outbox.empty()
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await server.stop(grace=0)
        return scene

    return asyncio.run(run())


def nothing_happened(scene: Scene) -> None:
    """No other call, nothing trained, nothing reserved, nothing left on the disk."""
    assert set(scene.recorder.calls) == {"Session"}
    assert scene.executor.jobs == []
    folder = scene.workspace.node_folder("site-01")
    assert [entry.kind for entry in read_ledger(folder / "ledger.jsonl")] == ["opened"]
    assert not list(folder.rglob("*.safetensors"))
    assert not list(folder.rglob("scratch-*"))


# --- offers ---------------------------------------------------------------------------------------------------


def unapproved(scene: Scene) -> Study:
    return scene.changed("study", seed=7)


def approved_with_another_roster(scene: Scene) -> Study:
    """One site replaced: another study, whatever it is called."""
    roster = {**scene.study.study.roster, "site-04": "0" * 64}
    return scene.changed("study", roster=roster)


def without_this_site(scene: Scene) -> Study:
    roster = {name: print_ for name, print_ in scene.study.study.roster.items() if name != "site-01"}
    study = scene.changed("study", roster={**roster, "site-05": "0" * 64})
    scene.approve(study)
    return study


def forbidden_strategy(scene: Scene) -> Study:
    scene.policy(strategies=["fedper"])
    return scene.study


def forbidden_protection(scene: Scene) -> Study:
    scene.policy(protections=["masked", "sealed"])
    return scene.study


def too_small_a_roster(scene: Scene) -> Study:
    scene.policy(min_cohort=5)
    return scene.study


def too_small_a_minimum(scene: Scene) -> Study:
    scene.policy(min_cohort=4)
    return scene.study


def too_few_colluders(scene: Scene) -> Study:
    scene.policy(colluders=2)
    return scene.study


def too_open_metrics(scene: Scene) -> Study:
    scene.policy(metrics="aggregate")
    return scene.study


def unknown_dataset(scene: Scene) -> Study:
    study = scene.changed("task", dataset="patients")
    scene.approve(study)
    return study


def unapproved_task_of_their_choosing(scene: Scene) -> Study:
    return scene.changed("task", name="tests.support.task:Line", settings={})


def task_of_their_choosing(scene: Scene) -> Study:
    study = scene.changed("task", name="tests.support.task:Line", settings={})
    scene.approve(study)
    return study


OFFERS = (
    unapproved, approved_with_another_roster, without_this_site, forbidden_strategy, forbidden_protection,
    too_small_a_roster, too_small_a_minimum, too_few_colluders, too_open_metrics, unknown_dataset,
    unapproved_task_of_their_choosing, task_of_their_choosing,
)  # fmt: skip


@pytest.mark.parametrize("make", OFFERS, ids=lambda make: make.__name__.replace("_", " "))
def test_a_study_the_site_does_not_allow_gets_a_code_and_its_rounds_get_nothing(
    tmp_path: Path, make: Callable[[Scene], Study]
) -> None:
    offered: list[str] = []

    def scenario(scene: Scene) -> None:
        study = make(scene)
        offered.append(study.id)
        scene.offer(study)
        scene.announce(study, invited=tuple(study.study.roster))  # as if it had been accepted

    scene = conversation(tmp_path, scenario, replies=1)
    # That nobody has agreed yet is said. Of the policy of a site that has not agreed, and of its tasks, nothing is.
    code = "TaskUnavailable" if make is task_of_their_choosing else "Refused"
    if make in (unapproved, approved_with_another_roster, unapproved_task_of_their_choosing):
        code = "NotApproved"
    refusal = pb.StudyAnswer(accepted=False, refusal=code)
    assert scene.recorder.heard() == [pb.NodeMessage(study_id=offered[0], study_answer=refusal)]
    nothing_happened(scene)


def test_another_study_under_the_approved_name_is_refused(tmp_path: Path) -> None:
    def scenario(scene: Scene) -> None:
        scene.offer(approved_with_another_roster(scene), named=scene.study.id)
        scene.announce()

    scene = conversation(tmp_path, scenario, replies=1)
    refusal = pb.StudyAnswer(accepted=False, refusal="Refused")
    assert scene.recorder.heard() == [pb.NodeMessage(study_id=scene.study.id, study_answer=refusal)]
    nothing_happened(scene)


# --- announcements --------------------------------------------------------------------------------------------


def test_an_announcement_of_a_study_never_offered_gets_nothing(tmp_path: Path) -> None:
    scene = conversation(tmp_path, lambda scene: scene.announce(), replies=0)
    assert scene.recorder.heard() == []
    nothing_happened(scene)


def test_an_announcement_before_the_answer_gets_nothing(tmp_path: Path) -> None:
    def scenario(scene: Scene) -> None:
        scene.announce()
        scene.offer(scene.study)

    scene = conversation(tmp_path, scenario, replies=1)
    accepted = pb.StudyAnswer(accepted=True)
    assert scene.recorder.heard() == [pb.NodeMessage(study_id=scene.study.id, study_answer=accepted)]
    nothing_happened(scene)


@pytest.mark.parametrize(
    "changes",
    [
        {"invited": ("site-01", "site-02")},
        {"invited": ("site-01",)},
        {"invited": ("site-02", "site-03", "site-04")},
        {"invited": ("site-01", "site-02", "site-03", "site-99")},
        {"protection": "masked"},
        {"round": 11},
        {"attempt": 4},
    ],
    ids=str,
)
def test_a_round_the_study_does_not_have_gets_a_code(tmp_path: Path, changes: dict[str, Any]) -> None:
    def scenario(scene: Scene) -> None:
        scene.offer(scene.study)
        scene.announce(**dict(changes))

    scene = conversation(tmp_path, scenario, replies=2)
    number, attempt = changes.get("round", 1), changes.get("attempt", 1)
    assert scene.recorder.heard() == [
        pb.NodeMessage(study_id=scene.study.id, study_answer=pb.StudyAnswer(accepted=True)),
        pb.NodeMessage(study_id=scene.study.id, sit_out=pb.SitOut(round=number, attempt=attempt, reason="Refused")),
    ]
    nothing_happened(scene)


# --- the recorder itself --------------------------------------------------------------------------------------


def test_the_recorder_would_have_noticed(tmp_path: Path) -> None:
    """The same conversation without a reason to refuse: the node starts to fetch."""

    def scenario(scene: Scene) -> None:
        scene.offer(scene.study)
        scene.announce()

    scene = conversation(tmp_path, scenario, replies=1)
    assert "Download" in scene.recorder.calls


def test_bytes_that_do_not_decode_cost_a_session_and_not_the_node(tmp_path: Path) -> None:
    def scenario(scene: Scene) -> None:
        scene.recorder.outbox.put_nowait(b"\xff\xff\xff")

    scene = conversation(tmp_path, scenario, replies=0, sessions=2)
    assert scene.recorder.heard() == []
    nothing_happened(scene)
