"""The study lead's end of a deployed coordinator: submit, watch, stop, export."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from secure_fl.errors import NotOwnerError, SettingsError
from secure_fl.identity.party_file import DialingFile, DialingSection
from secure_fl.operations.answers import about_stopping, about_submitting
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.rpc.operations_pb2_grpc import OperationsStub
from secure_fl.study.settings import Study
from secure_fl.transport.channel import dial, received, typed_errors

_CALL_SECONDS = 60.0
_EXPORT_SECONDS = 3600.0


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

    async def submit(self, study: Study) -> pb.StudyStatus:
        """Hand a study in; the same study again is the same study. What the coordinator refuses is explained."""
        request = pb.SubmitRequest(settings=study.canonical())
        try:
            with typed_errors():
                status: pb.StudyStatus = received(await self._stub.Submit(request, timeout=_CALL_SECONDS))
        except SettingsError as error:
            raise about_submitting(error, study) from None
        return status

    async def status(self, study_id: str = "") -> tuple[pb.StudyStatus, ...]:
        """All studies, or one with its record."""
        with typed_errors():
            reply = received(await self._stub.Status(pb.StatusRequest(study_id=study_id), timeout=_CALL_SECONDS))
        return tuple(reply.studies)

    async def stop(self, study_id: str) -> pb.StudyStatus:
        """End a study early. Raises `NotOwnerError`, which names the owner, if somebody else submitted it."""
        try:
            with typed_errors():
                request = pb.StopRequest(study_id=study_id)
                status: pb.StudyStatus = received(await self._stub.Stop(request, timeout=_CALL_SECONDS))
        except NotOwnerError:
            (found,) = await self.status(study_id)
            raise about_stopping(study_id, found.owner) from None
        return status

    async def export(self, study_id: str, path: Path) -> int:
        """Write the current model to `path` (safetensors); returns its version."""
        version = 0
        partial = path.with_name(f".{path.name}.part")
        try:
            with typed_errors(), partial.open("wb") as file:
                async for part in self._stub.Export(pb.ExportRequest(study_id=study_id), timeout=_EXPORT_SECONDS):
                    version = received(part).version
                    file.write(part.data)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return version


@asynccontextmanager
async def connect(file: OperatorFile) -> AsyncIterator[Operator]:
    """A connection to the coordinator of an operator's file."""
    channel = await dial(file)
    try:
        yield Operator(OperationsStub(channel))  # type: ignore[no-untyped-call]
    finally:
        await channel.close()
