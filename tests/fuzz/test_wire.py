"""Hostile bytes through a real server with mutual TLS: every call ends with one of our codes, and the study goes on."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import tomli_w
from google.protobuf.message import Message

from coordinator.config import CoordinatorFile
from coordinator.server import start_server
from coordinator.service import Coordinator
from node.config import NodeFile
from node.link import GrpcConnector
from node.service import Node
from secure_fl.errors import SecureFLError, by_code
from secure_fl.identity.authority import Authority
from secure_fl.operations.operator import OperatorFile
from secure_fl.operations.submission import request_of
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc import operations_pb2 as ops
from secure_fl.rpc.protect_none_pb2 import PlainUpload
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.study.submission import start_of_study
from secure_fl.transport.channel import dial
from secure_fl.transport.errors import DETAIL_KEY
from secure_fl.transport.wire import our_versions, reference, sign_upload_header
from tests.fuzz.mutation import Octets, Structured
from tests.fuzz.plan import MESSAGES, report, seeded
from tests.fuzz.watch import watched
from tests.support.training import FakeTraining

SHARE = 0.03  # of the messages; a call over TLS costs ten times what it costs in the process
SECONDS = 10.0  # for one call; hostile input is refused at once

Call = tuple[str, bool, bool, list[bytes]]  # method, stream up, stream down, what is sent


class Caller:
    """Calls every method with raw bytes, as an enrolled node and as an operator."""

    def __init__(self, workspace: Workspace, node: NodeFile, rng: random.Random) -> None:
        self._id = workspace.study.id
        self._key = node.credential().signing_key
        self._rng = rng
        self._structured = Structured(rng)
        other = workspace.study.model_copy(update={"study": workspace.study.study.model_copy(update={"roster": {}})})
        self._request = request_of(other, start_of_study(other).first_model())
        self._octets = Octets(rng, [message.SerializeToString() for message in (*self._said(), *self._asked())])
        self.sent = 0
        self.outcomes: dict[str, int] = {}

    def _said(self) -> list[pb.NodeMessage]:
        return [
            pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software="secure-fl")),
            pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=7)),
            pb.NodeMessage(study_id=self._id, study_answer=pb.StudyAnswer(refusal="Refused")),
            pb.NodeMessage(study_id=self._id, sit_out=pb.SitOut(round=1, attempt=1, reason="Refused")),
        ]

    def _asked(self) -> list[Message]:
        return [
            self._request,
            ops.StatusRequest(study_id=self._id),
            ops.StopRequest(study_id="0" * 64),
            ops.ExportRequest(study_id=self._id),
        ]

    def _upload(self) -> list[bytes]:
        header = pb.UploadHeader(
            study_id=self._id,
            round=1,
            attempt=1,
            phase="upload",
            payload=pb.Payload(
                protection="none", phase="upload", version=1, body=PlainUpload(weight=64).SerializeToString()
            ),
            bulk=reference(b"1234"),
        )
        sign_upload_header(header, self._key)
        changed = self._structured.mutate(pb.UploadPart(header=header))
        if changed.WhichOneof("body") == "header" and self._rng.random() < 0.5:
            sign_upload_header(changed.header, self._key)
        chunk = pb.UploadPart(chunk=pb.Chunk(study_id=self._id, data=b"1234"))
        first = changed.SerializeToString()
        return [first if self._rng.random() < 0.7 else self._spoilt(pb.UploadPart(header=header)), self._spoilt(chunk)]

    def _spoilt(self, message: Message) -> bytes:
        if self._rng.random() < 0.5:
            return self._structured.mutate(message).SerializeToString()
        return self._octets.mutate(message.SerializeToString())

    def node_call(self) -> Call:
        """One call of a node."""
        match self._rng.randrange(3):
            case 0:
                hello = [] if self._rng.random() < 0.3 else [self._said()[0].SerializeToString()]
                lies = [self._spoilt(self._rng.choice(self._said())) for _ in range(self._rng.randrange(1, 5))]
                return "Federation/Session", True, True, hello + lies
            case 1:
                return "Federation/Upload", True, False, self._upload()
        request = pb.DownloadRequest(study_id=self._id, sha256=bytes(32))
        return "Federation/Download", False, True, [self._spoilt(request)]

    def operator_call(self) -> Call:
        """One call of an operator."""
        message = self._rng.choices(self._asked(), weights=(1, 5, 5, 5))[0]
        if isinstance(message, ops.SubmitPart):
            return "Operations/Submit", True, True, [self._spoilt(message)]
        method = type(message).__name__.removesuffix("Request")
        return f"Operations/{method}", False, method == "Export", [self._spoilt(message)]

    async def make(self, channel: grpc.aio.Channel, call: Call) -> None:
        """Call, and judge how it ends."""
        method, up, down, raws = call
        path = f"/secure_fl.v1.{method}"
        kinds = {
            (True, True): channel.stream_stream,
            (True, False): channel.stream_unary,
            (False, True): channel.unary_stream,
            (False, False): channel.unary_unary,
        }
        start: Any = kinds[up, down](path, request_serializer=None, response_deserializer=None)
        self.sent += len(raws)

        async def stream() -> AsyncIterator[bytes]:
            for raw in raws:
                yield raw

        outcome = "OK"
        try:
            made = start(stream() if up else raws[0], timeout=SECONDS)
            if down:
                async for _ in made:
                    pass
            else:
                await made
        except grpc.aio.AioRpcError as error:
            outcome = _judged(error, call)
        key = f"{method}: {outcome}"
        self.outcomes[key] = self.outcomes.get(key, 0) + 1


def _judged(error: grpc.aio.AioRpcError, call: Call) -> str:
    """The code behind a failed call; anything else than one of ours is a finding."""
    details = error.details() or ""
    if details == "Internal error from Core":
        return "ended while we were sending"  # This side's own gRPC says so; the server's status is lost to it.
    assert error.code() is not grpc.StatusCode.INTERNAL, (error, call)
    assert by_code(details) is not SecureFLError, (error, call)
    assert DETAIL_KEY in dict(error.trailing_metadata() or ()), (error, call)
    return details


async def _operator_file(workspace: Workspace, port: int) -> OperatorFile:
    credential = Authority.open(workspace.folder / "pki").issue("operator", "lead")
    certificate, _, _ = credential.save(workspace.folder / "pki")
    section = read_toml(workspace.node_file("site-01"))["node"]
    table = {key: section[key] for key in ("coordinator", "fingerprint")}
    table |= {"certificate": str(certificate), "ca": "ca.pem", "crl": "pki/crl.pem"}
    path = workspace.folder / "operator.toml"
    path.write_bytes(tomli_w.dumps({"operator": table}).encode())
    return OperatorFile.read(path)


@pytest.mark.timeout(0)
def test_the_server_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> str:
        table = {
            "study": {"rounds": 1},
            "task": {"name": "tests.support.task:Line"},
            "simulation": {"nodes": 3},
            "protection": {"kind": "none", "recovery": True},
        }
        workspace = prepare(tmp_path / "run", Study.parse(table), policy={})
        file = CoordinatorFile.read(workspace.coordinator_file)
        coordinator = Coordinator(file.state_folder, heartbeat=5, tasks=file.coordinator.tasks)
        runner = coordinator.prepare(workspace.study)
        server, port = await start_server(coordinator, file)
        workspace.point_nodes_at(port)
        work = asyncio.create_task(coordinator.run())
        files = [NodeFile.read(workspace.node_file(name)) for name in workspace.study.study.roster]
        caller = Caller(workspace, files[0], seeded())
        as_node, as_operator = await dial(files[0]), await dial(await _operator_file(workspace, port))
        started = time.monotonic()
        while caller.sent < SHARE * MESSAGES:
            await asyncio.gather(
                *(caller.make(as_node, caller.node_call()) for _ in range(3)),
                caller.make(as_operator, caller.operator_call()),
            )
        seconds = time.monotonic() - started
        await as_node.close()
        await as_operator.close()
        nodes = [Node(site, GrpcConnector(site), FakeTraining(), until_done=True) for site in files]
        await asyncio.wait_for(asyncio.gather(*(node.run() for node in nodes)), 60)
        assert runner.outcome == "finished", runner.reason
        assert list((workspace.study_state / "spool").iterdir()) == []
        work.cancel()
        await coordinator.close()
        await server.stop(grace=0)
        assert len(caller.outcomes) >= 7
        return f"{caller.sent} messages over TLS in {seconds:.0f} s, {caller.sent / seconds:.0f}/s"

    with watched() as watch:
        said = asyncio.run(run())
    report(capsys, said)
    watch.check()
