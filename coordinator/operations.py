"""What a study lead may ask of a running coordinator, authenticated by an operator certificate."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import asdict

from coordinator.service import Coordinator
from coordinator.store import Owner
from coordinator.study_runner import StudyRunner
from secure_fl.errors import NotOwnerError, StorageError, UnknownStudyError
from secure_fl.identity.certificates import Certificate
from secure_fl.limits import SETTINGS_BYTES
from secure_fl.messages import require
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread
from secure_fl.transport.wire import check_study_id, file_chunks

log = logging.getLogger(__name__)


class Operations:
    """Submit, watch, stop and export studies."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def Submit(self, request: pb.SubmitRequest, operator: Certificate) -> pb.StudyStatus:
        """Take a study up. The same study again is the same study."""
        require(len(request.settings) <= SETTINGS_BYTES, "a study is too long")
        study = Study.from_canonical(request.settings)
        owner = Owner(name=operator.name, fingerprint=operator.fingerprint)
        runner = await self._coordinator.submit(study, owner=owner)
        log.info("study %s submitted by %s", study.id[:12], operator.name)
        return await self._status(runner)

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
            raise NotOwnerError(f"study {runner.id[:12]} was submitted by {owner.name!r}, not by {operator.name!r}")
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
