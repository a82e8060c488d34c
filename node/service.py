"""A node: its studies, its rounds, its session. Everything but the wire and the training process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

from node.agreements import Agreements
from node.approvals import Approvals
from node.attempt import Participation
from node.carried import OngoingTraining
from node.comparisons import ComparisonBook
from node.config import NodeFile
from node.events import NodeListener, StudyRefused, ignore
from node.flushing import participation
from node.limits import keep_limit
from node.own_ledger import own_entries, took_part
from node.past import PastSums
from node.policy import Policy
from node.privacy import limit_of
from node.repair import Repairs
from node.session import Session
from node.site_services import SiteServices
from node.store import NodeStore, StudyStore
from node.training.executor import Executor
from node.training.seeds import DataSecrets, data_secrets, secret_seed, simulated_secrets, simulated_seed
from node.witnessing import Witnessing
from secure_fl.errors import CertificateError, SecureFLError, StorageError
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import utc_now
from secure_fl.identity.member import Member
from secure_fl.limits import SESSION_QUEUE
from secure_fl.privacy.accountant import SiteAccountant
from secure_fl.privacy.ledger import Ledger
from secure_fl.privacy.witness import WitnessFile
from secure_fl.randomness import Randomness, SystemRandomness, UnsafeSeededRandomness
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.threads import in_thread
from secure_fl.transport.base import Connector

_APPROVAL_SECONDS = 1.0
_REMEMBERED_OFFERS = 64  # A coordinator may offer what it likes; it may not fill the memory.

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _JoinedStudy:
    """A study this node takes part in, and the attempt it is in."""

    resolved: ResolvedStudy
    store: StudyStore
    attempt: Participation | None = None
    task: asyncio.Task[None] | None = None
    before: asyncio.Task[None] | None = None  # whatever the attempt waits for before it begins
    ongoing: OngoingTraining = field(default_factory=OngoingTraining)  # where it outlives attempts
    declaring: asyncio.Task[None] | None = None  # a declaration that outlives its attempt: it trains the first round

    @property
    def is_running(self) -> bool:
        return self.task is not None and not self.task.done()

    def begin(self, attempt: Participation) -> None:
        """Take part in another attempt, as soon as the one before has let go of its files."""
        before = self.task
        if self.attempt is not None and self.attempt.declares and (self.declaring is None or self.declaring.done()):
            self.declaring = before
        elif self.attempt is not None and before is not None:
            before.cancel()
            if not self.attempt.began:
                # It has no files, and goes at once: however many a coordinator announces, one waits, and what it
                # waits for is the one that still has.
                before = self.before
        self.attempt, self.before = attempt, before
        self.task = asyncio.create_task(_after(before, attempt))

    async def let_go(self) -> None:
        """Until nothing of an attempt runs any more that was cancelled, or ends by itself."""
        tasks = (task for task in (self.before, self.task, self.declaring) if task is not None)
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.ongoing.ended()

    def cancel_training(self) -> None:
        """Nobody wants what is trained beyond the attempt that it began in."""
        self.ongoing.cancel()
        if self.declaring is not None:
            self.declaring.cancel()


class Node:
    """One site."""

    def __init__(
        self,
        file: NodeFile,
        connector: Connector,
        executor: Executor,
        *,
        until_done: bool = False,
        listener: NodeListener = ignore,
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
        self._studies: dict[str, _JoinedStudy] = {}
        self._refused: dict[str, bytes] = {}  # offers that an approval may still change
        self._cramped: set[str] = set()  # of those: refused because the disk could not be used
        self._said_of: dict[str, str] = {}  # by study: the last line about it in the log
        self._stopping = False
        self._said: asyncio.Queue[pb.CoordinatorMessage] = asyncio.Queue(SESSION_QUEUE)
        self._session = Session(connector, handler=self._said.put)
        self._repairs = Repairs(self._session.say)
        self._ending: dict[str, asyncio.Task[None]] = {}  # by study: what is left of attempts that are over
        ledger = Ledger(
            self._store.ledger,
            certificate=me,
            key=credential.signing_key,
            authority=file.ca_pem(),
            expected=took_part(self._store),
        )
        self._accountant = accountant = SiteAccountant(
            ledger,
            own_entries(file, self._store),
            limit=limit_of(file),
            simulated=file.simulation is not None,
        )
        self._services = SiteServices(
            file=file,
            me=Member(
                certificate=me,
                key=credential.signing_key,
                vouch=lambda peer: trust.check(peer, role="node", now=utc_now()),
            ),
            policy=self._policy,
            accountant=accountant,
            executor=executor,
            comparisons=ComparisonBook(self._store.comparisons),
            session=self._session,
            past=PastSums(self._store.folder / "openings.json"),
            witness=Witnessing(ledger, WitnessFile(self._store.folder / "witness.jsonl")),
            randomness=self._randomness,
            training_seed=self._training_seed,
            data_secrets=self._data_secrets,
            agreements=Agreements(file, Approvals(self._store.folder), accountant),
            unready=self._step_back,
            listener=listener,
        )

    async def run(self) -> None:
        """Serve until stopped or, with `until_done`, until every study is closed.

        Raises `StorageError` at the start, and `IdentityError` when the coordinator is not the one to talk to.
        """
        await in_thread(self._store.sweep)
        await in_thread(keep_limit, self._file, self._store)
        work = [asyncio.create_task(self._listen()), asyncio.create_task(self._watch_approvals())]
        try:
            await self._session.run()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            for joined in self._studies.values():
                await _cancel(joined)
            await self._repairs.close()
            if self._ending:
                await asyncio.wait(list(self._ending.values()))
            await self._executor.close()

    @property
    def connected(self) -> bool:
        """Whether there is a session with the coordinator now."""
        return self._session.connected

    @property
    def budgets(self) -> dict[str, Callable[[], float]]:
        """By data set of the file, how much of its privacy budget is used; none where the site sets no limit."""
        if self._accountant.limit is None:
            return {}
        return {name: partial(self._accountant.used, name) for name in self._file.datasets}

    def stop(self) -> None:
        """Leave cleanly and at once: state is on disk after every round, so nothing is lost."""
        self._stopping = True
        for joined in self._studies.values():
            joined.cancel_training()
            if joined.task is not None:
                joined.task.cancel()
        self._session.stop()

    # --- what the coordinator says ----------------------------------------------------------------------------

    async def _listen(self) -> None:
        """One message after the other, in order and beside the session: what they cause may take a while."""
        while True:
            message = await self._said.get()
            if self._stopping:
                continue
            try:
                await self._handle(message)
            except Exception:
                # A node that handles no message any more, and still sends heartbeats, would look well and be deaf.
                log.exception("a message of the coordinator could not be handled")

    async def _handle(self, message: pb.CoordinatorMessage) -> None:
        match message.WhichOneof("body"):
            case "study_offer":
                await self._consider(message.study_id, message.study_offer.settings)
            case "announcement":
                self._announce(message.study_id, message.announcement)
            case "round_closed":
                await self._close_round(message.study_id, message.round_closed)
            case "study_closed":
                await self._close_study(message.study_id, message.study_closed)

    async def _consider(self, study_id: str, settings: bytes) -> None:
        """Take part in a study, or say by which kind of reason not."""
        if study_id not in self._studies and (ending := self._ending.get(study_id)) is not None:
            await asyncio.wait((ending,))  # It was closed a moment ago, and may still write its files.
        try:
            joined = await in_thread(self._examine, study_id, settings)
        except SecureFLError as error:
            if len(self._refused) < _REMEMBERED_OFFERS:
                self._refused[study_id] = settings
                await in_thread(self._keep_offer, study_id, settings)
            advice = f" → {error.hint}" if error.hint else ""
            self._say(logging.WARNING, study_id, f"refusing study {study_id[:12]}: {error.message}{advice}")
            self._listener(StudyRefused(study_id=study_id, code=error.code))
            answer = pb.StudyAnswer(accepted=False, refusal=error.code)
            if isinstance(error, StorageError):
                self._cramped.add(study_id)
        else:
            # Offered again after a broken link: a round under way goes on.
            self._studies.setdefault(study_id, joined)
            self._said_of.pop(study_id, None)  # A refusal that comes back is news again.
            # Unless something has to be repaired here first: it has been said, and perhaps lost with the link.
            waits = self._repairs.under_way(study_id)
            answer = pb.StudyAnswer(accepted=not waits, refusal=waits)
            self._cramped.discard(study_id)
        self._session.say(pb.NodeMessage(study_id=study_id, study_answer=answer))

    def _examine(self, study_id: str, settings: bytes) -> _JoinedStudy:
        """Whether this site can and will take part: raises if not. What it agreed to is on disk then."""
        study = Study.from_canonical(settings)
        self._policy.check_study(study_id, study, self._store.approvals())
        if (joined := self._studies.get(study_id)) is not None:
            return joined
        resolved = ResolvedStudy.of(study)
        store = self._store.study(study_id)
        write_atomically(store.settings, settings)
        with contextlib.suppress(OSError):  # It is a study now; that it is listed as an offer, too, does no harm.
            self._store.forget_offer(study_id)
        store.load_declared(resolved.division)
        return _JoinedStudy(resolved, store)

    def _keep_offer(self, study_id: str, settings: bytes) -> None:
        """For the site operator's desk, which knows nothing but this node's folder."""
        with contextlib.suppress(SecureFLError):  # what is no study, or has no room, is only not shown there
            if Study.from_canonical(settings).id == study_id:
                self._store.keep_offer(study_id, settings)

    async def _watch_approvals(self) -> None:
        """Look again at refused offers when the site operator has approved something, or the disk had no room."""
        known: frozenset[str] = frozenset()
        while True:
            await asyncio.sleep(_APPROVAL_SECONDS)
            with contextlib.suppress(SecureFLError):  # An unreadable list approves nothing; offers are checked anyway.
                known, before = await in_thread(self._store.approvals), known
                for study_id in ((known - before) | self._cramped) & self._refused.keys():
                    offer = pb.StudyOffer(settings=self._refused.pop(study_id))
                    await self._said.put(pb.CoordinatorMessage(study_id=study_id, study_offer=offer))

    def _announce(self, study_id: str, announcement: pb.PhaseAnnouncement) -> None:
        joined = self._studies.get(study_id)
        if joined is None:
            log.warning("an announcement for a study this node has not accepted")
            return
        current, key = joined.attempt, (announcement.round, announcement.attempt)
        if current is not None and current.key == key:
            current.announce(announcement)
            return
        if current is not None and not current.is_over:
            if not Participation.begins(joined.resolved, announcement):
                # A node meets every attempt in its first phase: a coordinator cannot restart its rounds at will.
                log.warning("phase %r of an attempt that this node is not in", announcement.phase)
                return
            if key < current.key:
                log.warning("an attempt that is over was announced again")
                return
        try:
            attempt = participation(self._services, joined.resolved, joined.store, announcement, joined.ongoing)
        except SecureFLError as error:
            log.warning("an announcement that makes no sense: %s", error.message)
            return
        joined.begin(attempt)

    async def _close_round(self, study_id: str, closed: pb.RoundClosed) -> None:
        joined = self._studies.get(study_id)
        if joined is None:
            return
        key = (closed.round, closed.attempt)

        def forget() -> None:
            joined.store.forget_attempt(*key)
            # Only what was sent: a coordinator that says too early that a round is over would have it trained anew.
            if closed.committed and joined.store.was_sent(closed.round):
                joined.store.forget_round(closed.round)

        current = joined.attempt
        if current is not None and current.key == key and joined.is_running and not current.declares:
            # The round went on without this node, or failed: training further would be for nothing.
            self._end(study_id, joined, forget)
        else:
            await in_thread(forget)

    async def _close_study(self, study_id: str, closed: pb.StudyClosed) -> None:
        how = "finished" if closed.finished else f"aborted ({closed.reason})"
        self._say(logging.INFO, study_id, f"study {study_id[:12]} is {how}")
        joined = self._studies.pop(study_id, None)
        self._repairs.forget(study_id)
        if joined is not None:
            joined.cancel_training()
            self._end(study_id, joined, partial(joined.store.leave, rounds=joined.resolved.study.study.rounds))
        if self._until_done and not self._studies:
            self.stop()

    def _say(self, level: int, study_id: str, text: str) -> None:
        """Log what is to be said of a study, once: a coordinator repeats itself whenever it is connected anew."""
        if self._said_of.get(study_id) == text:
            return
        if len(self._said_of) < _REMEMBERED_OFFERS or study_id in self._said_of:
            self._said_of[study_id] = text
        log.log(level, "%s", text)

    def _end(self, study_id: str, joined: _JoinedStudy, forget: Callable[[], None]) -> None:
        """Cancel what runs; once it has let go of its files, erase what was remembered of it."""
        running, before, earlier = joined.task, joined.before, self._ending.get(study_id)
        if running is not None:
            running.cancel()

        async def end() -> None:
            for task in (earlier, before, running):
                if task is not None:
                    await asyncio.wait((task,))
            await joined.ongoing.ended()
            try:
                await in_thread(forget)
            except (OSError, StorageError) as error:  # Nobody waits for this task who could say so.
                log.warning("what was remembered of an attempt cannot be erased (%s)", error)

        self._ending[study_id] = asyncio.create_task(end())

    def _step_back(self, study_id: str, try_again: Callable[[], Awaitable[object]], error: Exception) -> None:
        # A simulation has nobody who could repair anything while it runs: there it sits out, and the study may fail.
        if self._file.simulation is None:
            self._repairs.needed(study_id, try_again, error)

    def _training_seed(self, resolved: ResolvedStudy, number: int) -> int:
        if self._file.simulation is None:
            return secret_seed(self._store.secret(), resolved.id, number)
        return simulated_seed(resolved.study.study.seed, self._file.node.name, number)

    def _data_secrets(self, resolved: ResolvedStudy, number: int, attempt: int) -> DataSecrets:
        if self._file.simulation is None:
            return data_secrets(self._store.secret())
        return simulated_secrets(resolved.study.study.seed, self._file.node.name, number, attempt)

    def _randomness(self, *context: str) -> Randomness:
        if self._file.simulation is None:
            return SystemRandomness()
        return UnsafeSeededRandomness(self._file.simulation.seed, self._file.node.name, *context)


async def _after(before: asyncio.Task[None] | None, current: Participation) -> None:
    """Start once the one before has let go of its files."""
    if before is not None:
        await asyncio.wait((before,))
    current.began = True
    await current.run()


async def _cancel(joined: _JoinedStudy) -> None:
    if joined.task is not None:
        joined.task.cancel()
    joined.cancel_training()
    await joined.let_go()
