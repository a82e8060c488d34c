"""A node: its studies, its rounds, its session. Everything but the wire and the training process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from node.config import NodeFile
from node.policy import Policy
from node.round import Round, Site
from node.session import Session
from node.store import NodeStore, StudyStore
from node.worker import Executor
from secure_fl.errors import CertificateError, SecureFLError, StorageError
from secure_fl.events import Listener, ignore
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import utc_now
from secure_fl.identity.member import Member
from secure_fl.privacy.accountant import RecordingAccountant
from secure_fl.privacy.ledger import Ledger
from secure_fl.randomness import Randomness, SystemRandomness, UnsafeSeededRandomness
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study import Study
from secure_fl.transport.base import Connector

_APPROVAL_SECONDS = 1.0
_REMEMBERED_OFFERS = 64  # A coordinator may offer what it likes; it may not fill the memory.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Participation:
    study: Study
    store: StudyStore
    round: Round | None = None
    task: asyncio.Task[None] | None = None


class Node:
    """One site."""

    def __init__(
        self,
        file: NodeFile,
        connector: Connector,
        executor: Executor,
        *,
        until_done: bool = False,
        listener: Listener = ignore,
    ) -> None:
        credential = file.credential()
        me = credential.certificate
        if me.name != file.node.name or me.role != "node":
            raise CertificateError(
                f"the certificate belongs to the {me.role} {me.name!r}, not to {file.node.name!r}",
                advice="[node] name and [node] certificate in the node file are those of one site",
            )
        trust = file.trust()
        self._file = file
        self._store = NodeStore(file.state_folder)
        self._policy = Policy(file, me)
        self._executor = executor
        self._until_done = until_done
        self._listener = listener
        self._studies: dict[str, _Participation] = {}
        self._refused: dict[str, bytes] = {}  # offers that an approval may still change
        self._cramped: set[str] = set()  # of those: refused because the disk could not be used
        self._stopping = False
        self._session = Session(connector, handler=self._handle)
        ledger = Ledger(self._store.ledger, certificate=me, key=credential.signing_key)
        self._site = Site(
            file=file,
            me=Member(
                certificate=me,
                key=credential.signing_key,
                vouch=lambda peer: trust.check(peer, role="node", now=utc_now()),
            ),
            policy=self._policy,
            accountant=RecordingAccountant(ledger),
            executor=executor,
            session=self._session,
            randomness=self._randomness,
            listener=listener,
        )

    async def run(self) -> None:
        """Serve until stopped or, with `until_done`, until every study is closed."""
        watch = asyncio.create_task(self._watch_approvals())
        try:
            await self._session.run()
        finally:
            watch.cancel()
            for participation in self._studies.values():
                await _cancel(participation)
            await self._executor.close()

    @property
    def connected(self) -> bool:
        """Whether there is a session with the coordinator now."""
        return self._session.connected

    def stop(self) -> None:
        """Leave cleanly and at once: state is on disk after every round, so nothing is lost."""
        self._stopping = True
        for participation in self._studies.values():
            if participation.task is not None:
                participation.task.cancel()
        self._session.stop()

    # --- what the coordinator says ----------------------------------------------------------------------------

    def _handle(self, message: pb.CoordinatorMessage) -> None:
        if self._stopping:
            return
        match message.WhichOneof("body"):
            case "study_offer":
                self._consider(message.study_id, message.study_offer.settings)
            case "announcement":
                self._announce(message.study_id, message.announcement)
            case "round_closed":
                self._close_round(message.study_id, message.round_closed)
            case "study_closed":
                self._close_study(message.study_id, message.study_closed)

    def _consider(self, study_id: str, settings: bytes) -> None:
        """Take part in a study, or say by which kind of reason not."""
        try:
            study = Study.from_canonical(settings)
            self._policy.check_study(study_id, study, self._store.approvals())
            if study_id not in self._studies:
                store = self._store.study(study_id)
                write_atomically(store.settings, settings)
                self._studies[study_id] = _Participation(study, store)
        except SecureFLError as error:
            if len(self._refused) < _REMEMBERED_OFFERS:
                self._refused[study_id] = settings
            log.warning(
                "refusing study %s: %s%s",
                study_id[:12],
                error.message,
                f" → {error.hint}" if error.hint else "",
            )
            self._listener("refused", {"study_id": study_id, "code": error.code})
            answer = pb.StudyAnswer(accepted=False, refusal=error.code)
            if isinstance(error, StorageError):
                self._cramped.add(study_id)
        else:
            # Offered again after a broken link: a round under way goes on.
            answer = pb.StudyAnswer(accepted=True)
            self._cramped.discard(study_id)
        self._session.say(pb.NodeMessage(study_id=study_id, study_answer=answer))

    async def _watch_approvals(self) -> None:
        """Look again at refused offers when the site operator has approved something, or the disk had no room."""
        known: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(_APPROVAL_SECONDS)
            with contextlib.suppress(SecureFLError):  # An unreadable list approves nothing; offers are checked anyway.
                known, before = self._store.approvals(), known
                for study_id in ((known - before) | self._cramped) & self._refused.keys():
                    self._consider(study_id, self._refused.pop(study_id))

    def _announce(self, study_id: str, announcement: pb.PhaseAnnouncement) -> None:
        participation = self._studies.get(study_id)
        if participation is None:
            log.warning("an announcement for a study this node has not accepted")
            return
        current = participation.round
        if current is not None and current.key == (announcement.round, announcement.attempt):
            current.announce(announcement)
            return
        running = participation.task is not None and not participation.task.done()
        if running and not Round.begins(participation.study, announcement):
            # A node meets every attempt in its first phase. Otherwise a coordinator could restart its rounds at will.
            log.warning("phase %r of an attempt that this node is not in", announcement.phase)
            return
        if participation.task is not None:
            participation.task.cancel()
        earlier = participation.task
        current = Round(self._site, participation.study, participation.store, announcement)
        participation.round = current
        participation.task = asyncio.create_task(_after(earlier, current))

    def _close_round(self, study_id: str, closed: pb.RoundClosed) -> None:
        participation = self._studies.get(study_id)
        if participation is None:
            return
        participation.store.forget()
        if participation.round is None or participation.task is None:
            return
        if participation.round.key == (closed.round, closed.attempt) and not participation.task.done():
            # The round went on without this node, or failed: training further would be for nothing.
            participation.task.cancel()

    def _close_study(self, study_id: str, closed: pb.StudyClosed) -> None:
        log.info("study %s is %s", study_id[:12], "finished" if closed.finished else f"aborted ({closed.reason})")
        participation = self._studies.pop(study_id, None)
        if participation is not None:
            participation.store.forget()
            if participation.task is not None:
                participation.task.cancel()
        if self._until_done and not self._studies:
            self.stop()

    def _randomness(self, *context: str) -> Randomness:
        if self._file.simulation is None:
            return SystemRandomness()
        return UnsafeSeededRandomness(self._file.simulation.seed, self._file.node.name, *context)


async def _after(earlier: asyncio.Task[None] | None, current: Round) -> None:
    """Start a round once the one before has let go of its files, and the one before that: cancelled, it still waits."""
    if earlier is not None:
        try:
            await asyncio.wait([earlier])
        except asyncio.CancelledError:
            await asyncio.wait([earlier])
            raise
    await current.run()


async def _cancel(participation: _Participation) -> None:
    if participation.task is not None:
        participation.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await participation.task
