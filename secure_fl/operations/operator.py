"""The study lead's end of a deployed coordinator: submit, watch, stop, export."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio

from secure_fl.errors import MalformedMessageError
from secure_fl.identity.party_file import DialingFile, DialingSection
from secure_fl.messages import require
from secure_fl.operations.submission import chunks_of, request_of
from secure_fl.plain_text import require_plain
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.rpc.operations_pb2_grpc import OperationsStub
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread
from secure_fl.transport.channel import dial, received, typed_errors

if TYPE_CHECKING:
    from secure_fl.study.start import Start

_CALL_SECONDS = 60.0
_TRANSFER_SECONDS = 3600.0
_ANSWER = "the coordinator's answer"


class OperatorFile(DialingFile):
    """The study lead's file: an operator certificate, and the coordinator it is for."""

    operator: DialingSection

    @property
    def dialing(self) -> DialingSection:
        """The section that names the coordinator."""
        return self.operator


class Operator:
    """One connection; every call raises typed errors."""

    def __init__(self, stub: OperationsStub) -> None:
        self._stub = stub

    async def submit(self, study: Study, start: Start | None = None) -> pb.StudyStatus:
        """Hand a study in, with the model that it starts from: `start`, or what the study's task makes of its seed.

        The same study again is the same study. What the coordinator refuses is explained.
        """
        if start is None:
            from secure_fl.study.submission import start_of_study  # torch

            start = await in_thread(start_of_study, study)
        first = await in_thread(start.first_model)
        first.require(initial=study.study.initial, shipped=study.make_strategy().shipped)
        with typed_errors():
            call = self._stub.Submit(timeout=_TRANSFER_SECONDS)
            await call.write(request_of(study, first))
            reply = await _next(call)
            if reply.wanted:
                # A call that has failed takes no more: the reason is read below.
                with suppress(asyncio.InvalidStateError):
                    for part in chunks_of(study.id, start):
                        await call.write(part)
                    await call.done_writing()
                reply = await _next(call)
        require(reply.HasField("status"), "the coordinator does not say how the study stands")
        require_plain(reply.status, what=_ANSWER)
        return reply.status

    async def status(self, study_id: str = "") -> tuple[pb.StudyStatus, ...]:
        """All studies, or one with its record."""
        with typed_errors():
            reply = received(await self._stub.Status(pb.StatusRequest(study_id=study_id), timeout=_CALL_SECONDS))
        require_plain(reply, what=_ANSWER)
        return tuple(reply.studies)

    async def stop(self, study_id: str) -> pb.StudyStatus:
        """End a study early. Raises `NotOwnerError`, which names the owner, if somebody else submitted it."""
        with typed_errors():
            request = pb.StopRequest(study_id=study_id)
            status: pb.StudyStatus = received(await self._stub.Stop(request, timeout=_CALL_SECONDS))
        require_plain(status, what=_ANSWER)
        return status

    async def export(self, study_id: str, path: Path) -> int:
        """Write the current model to `path` (safetensors); returns its version."""
        version = 0
        partial = path.with_name(f".{path.name}.part")
        try:
            with typed_errors(), partial.open("wb") as file:
                async for part in self._stub.Export(pb.ExportRequest(study_id=study_id), timeout=_TRANSFER_SECONDS):
                    version = received(part).version
                    file.write(part.data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return version


async def _next(call: Any) -> pb.SubmitReply:
    reply = await call.read()
    if reply is grpc.aio.EOF:
        raise MalformedMessageError("the coordinator ended a submission without an answer")
    said: pb.SubmitReply = received(reply)
    return said


@asynccontextmanager
async def connect(file: OperatorFile) -> AsyncIterator[Operator]:
    """A connection to the coordinator of an operator's file.

    Raises `CertificateError` where the file's ca.pem is another authority's, and as `dial` does.
    """
    # Before the coordinator is asked: with another authority's ca.pem it would be the coordinator that looks foreign.
    file.require_own_authority()
    channel = await dial(file)
    try:
        yield Operator(OperationsStub(channel))  # type: ignore[no-untyped-call]
    finally:
        await channel.close()
