"""What a study lead may ask of a running coordinator, authenticated by an operator certificate."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from coordinator.service import Coordinator
from coordinator.store import Owner
from coordinator.study_runner import StudyRunner
from secure_fl.errors import NetworkError, NotOwnerError, StorageError, UnknownStudyError
from secure_fl.files import private_folder
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import require
from secure_fl.operations.submission import read_request
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.rpc.federation_pb2 import ObjectRef
from secure_fl.study.first_model import FirstModel
from secure_fl.threads import in_thread, in_thread_whole
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.wire import check_study_id, file_chunks

_PART_SECONDS = 60.0  # for 1 MiB

log = logging.getLogger(__name__)


class Operations:
    """Submit, watch, stop and export studies."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def Submit(self, parts: AsyncIterator[pb.SubmitPart], operator: Certificate) -> AsyncIterator[pb.SubmitReply]:
        """Take a study up, with the model that it starts from. The same study again is the same study."""
        study, first = read_request(await anext(parts, pb.SubmitPart()))
        content = self._coordinator.incoming / f"{study.id}-{secrets.token_hex(8)}"
        with ExitStack() as ends:
            if study.id not in self._coordinator.runners:
                # Before a byte of the model is sent: whoever is refused learns it at once.
                await in_thread(self._coordinator.examine, study, first)
                ends.enter_context(self._coordinator.room.taken(first.size))
                ends.callback(content.unlink, missing_ok=True)
                yield pb.SubmitReply(wanted=True)
                await self._receive(parts, study.id, first, content)
            owner = Owner(name=operator.name, fingerprint=operator.fingerprint)
            runner = await self._coordinator.submit(study, first, content, owner=owner)
            log.info("study %s submitted by %s", study.id[:12], operator.name)
            yield pb.SubmitReply(status=await self._status(runner))

    async def _receive(
        self, parts: AsyncIterator[pb.SubmitPart], study_id: str, first: FirstModel, content: Path
    ) -> None:
        """The first model, whole and compared with its digest, in the file `content`."""
        private_folder(content.parent)
        reference = ObjectRef(sha256=first.sha256, size=first.size)
        incoming = IncomingObject(content, reference)
        try:
            while incoming.position < first.size:
                part = await _next(parts)
                require(part.WhichOneof("body") == "chunk", "a submission ends before its model is whole")
                require(part.chunk.study_id == study_id, "a chunk of another study's model")
                require(part.chunk.offset == incoming.position, "a chunk is out of order")
                await in_thread_whole(incoming.write, part.chunk)
            await in_thread_whole(lambda: incoming.finish(durable=True))
        finally:
            incoming.discard()

    async def Status(self, request: pb.StatusRequest, _operator: Certificate) -> pb.StatusReply:
        """All studies in short, or one with its record."""
        if not request.study_id:
            return pb.StatusReply(
                studies=[await self._status(runner) for runner in list(self._coordinator.runners.values())]
            )
        runner = self._runner(request.study_id)
        status = await self._status(runner)
        record = await in_thread(runner.known_record)
        status.record = json.dumps(asdict(record)).encode() if record is not None else b""
        return pb.StatusReply(studies=[status])

    async def Stop(self, request: pb.StopRequest, operator: Certificate) -> pb.StudyStatus:
        """End a study before its last round; what it has committed stays. Only who submitted it may."""
        runner = self._runner(request.study_id)
        owner = await self._coordinator.owner(runner)
        # By name: the consortium gives a name to one operator, who keeps it when the certificate is renewed.
        if owner is not None and owner.name != operator.name:
            raise NotOwnerError(
                f"study {runner.id[:12]} was submitted by operator {owner.name!r}, and nobody else may stop it",
                advice=f"ask {owner.name!r} to stop it; a site that wants to leave takes its approval back",
            )
        log.info("study %s is stopped by %s", runner.id[:12], operator.name)
        await self._coordinator.stop(runner)
        return await self._status(runner)

    async def Export(self, request: pb.ExportRequest, _operator: Certificate) -> AsyncIterator[pb.ExportPart]:
        """The current model as safetensors."""
        runner = self._runner(request.study_id)
        version, path = await in_thread(runner.checkpoint)
        if not path.exists():
            raise StorageError(f"model {version} of study {runner.id[:12]} was removed from this coordinator's disk")
        async for chunk in file_chunks(path, study_id=runner.id):
            yield pb.ExportPart(study_id=runner.id, version=version, data=chunk.data)

    def _runner(self, study_id: str) -> StudyRunner:
        check_study_id(study_id)
        runner = self._coordinator.runners.get(study_id)
        if runner is None:
            raise UnknownStudyError(f"no study {study_id[:12]} here")
        return runner

    async def _status(self, runner: StudyRunner) -> pb.StudyStatus:
        owner, circles = await self._coordinator.owner(runner), runner.missing
        return pb.StudyStatus(
            study_id=runner.id,
            name=runner.study.study.name,
            state=runner.outcome,
            reason=runner.reason,
            rounds_done=runner.rounds_done,
            rounds_planned=runner.study.versions,
            owner="" if owner is None else owner.name,
            sites=[pb.SiteStatus(**site) for site in self._coordinator.hub.sites(runner)],
            needed=0 if circles else runner.study.min_cohort(runner.resolved.request),
            circles=[pb.CircleStatus(members=circle, missing=sorted(absent)) for circle, absent in circles],
        )


async def _next(parts: AsyncIterator[pb.SubmitPart]) -> pb.SubmitPart:
    """The next part; an empty one at the end. Raises `NetworkError` where a submission stands still.

    What it has sent takes room that other submissions may want.
    """
    try:
        async with asyncio.timeout(_PART_SECONDS):
            return await anext(parts, pb.SubmitPart())
    except TimeoutError:
        raise NetworkError(
            f"nothing came of a submission for {_PART_SECONDS:g} s", advice="check the connection, and submit it again"
        ) from None
