"""A site's work where it joins flushes at its own pace (`rounds.unit = "site"`): versions it was told of, and updates.

Training goes on while flushes open without this site. What came of it waits here, as integers, and enters the next
attempt, in which it counts less the older it is. It leaves in one flush only: an update in two flushes' sums would
count twice, and the two could be compared.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from node.kept import KeptUpdate
from node.store import StudyStore, read_json
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.encoding.weights import aged_weight
from secure_fl.errors import RefusedError
from secure_fl.files import write_atomically
from secure_fl.messages import parse
from secure_fl.protect.cohort.agreements import who_agreed
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.versions import Version
from secure_fl.randomness import KeyStream
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.protect_cohort_pb2 import Agreements
from secure_fl.strategies.merging import discount
from secure_fl.study.resolved import ResolvedStudy

log = logging.getLogger(__name__)

_Told = TypeAdapter(list[tuple[int, str]])
_Left = TypeAdapter(int)
_Agreed = TypeAdapter(list[str])


class CarriedWork:
    """One study's, on this node's disk. Every method blocks."""

    def __init__(self, resolved: ResolvedStudy, store: StudyStore) -> None:
        self._resolved = resolved
        self._limits = resolved.study.rounds
        self._store = store

    # --- versions ---------------------------------------------------------------------------------------------

    def meet(self, announcement: pb.PhaseAnnouncement) -> None:
        """Note the newest version, as the coordinator tells it. Raises `RefusedError` if it told another one before.

        Whether or not this site trains from it: others may, and this site says in every attempt what it was told.
        """
        number, digest = announcement.model.version, announcement.model.digest
        if number != announcement.round - 1:
            raise RefusedError("a flush makes the next version of the newest one, and this one begins elsewhere")
        known = {version.number: version.digest for version in self._told()}
        if known.setdefault(number, digest) != digest:
            raise RefusedError(
                f"version {number} of the model was another one before",
                advice="if the coordinator was restored from a backup, stop the study there and submit a new one",
            )
        recent = sorted((one, known[one].hex()) for one in known if one >= number - self._limits.staleness)
        write_atomically(self._versions, json.dumps(recent).encode())

    def learn(self, announcement: pb.PhaseAnnouncement) -> None:
        """Note who agreed to sums of changing sites in this study, as the coordinator passes it on.

        Raises `SecureFLError` for what is forged.
        """
        passed_on = parse(Agreements, announcement.agreements).agreements
        roster = self._resolved.study.study.roster
        names = who_agreed(passed_on, study_id=self._resolved.id, roster=roster)
        if not names <= (known := self.agreed):
            write_atomically(self._store.folder / "agreed.json", json.dumps(sorted(names | known)).encode())

    @property
    def agreed(self) -> frozenset[str]:
        """Whoever this site knows to have agreed."""
        return frozenset(read_json(self._store.folder / "agreed.json", _Agreed) or ())

    def told(self, newest: int) -> tuple[Version, ...]:
        """The recent versions that this site was told of."""
        oldest = newest - self._limits.staleness
        return tuple(version for version in self._told() if oldest <= version.number <= newest)

    def _told(self) -> tuple[Version, ...]:
        kept = read_json(self._versions, _Told) or []
        return tuple(Version(number=number, digest=bytes.fromhex(digest)) for number, digest in kept)

    @property
    def _versions(self) -> Path:
        return self._store.folder / "versions.json"

    # --- updates ----------------------------------------------------------------------------------------------

    def keep(self, kept: KeptUpdate) -> None:
        """What training came to, until it leaves or is too old."""
        kept.save(self._path, bits=self._resolved.study.protection.bits)

    def waiting(self, number: int, attempt: int) -> KeptUpdate | None:
        """What may enter this attempt: trained before, never sent, and not too old. Anything else is erased."""
        kept = KeptUpdate.load(self._path)
        if kept is None:
            return None
        age = number - kept.trained
        if kept.trained <= self._left() or self._is_last(age, attempt):
            log.info("work of %d flushes ago is not used: this site trains from the newest model", age)
        elif age <= self._limits.staleness:
            return kept
        else:
            log.warning(
                "what this site trained is %d versions old, and enters a sum until it is %d versions old "
                "(rounds.staleness): it trains anew. If a site that is always there says this again and again, the "
                "study needs a larger rounds.staleness or rounds.buffer",
                age,
                self._limits.staleness,
            )
        self._path.unlink(missing_ok=True)
        return None

    def entered(self, number: int, attempt: int) -> KeptUpdate | None:
        """What entered an earlier attempt at this flush: every attempt at it has the same. None where nothing did.

        Raises `RefusedError` where it may have left already, and leaves once; or is lost.
        """
        if self._resolved.leaves_once(RoundKind.TRAIN):
            self._store.require_first(number)
        path = self._store.kept_update(number)
        kept = KeptUpdate.load(path)
        if kept is None:
            self._store.require_unsent(number)
            return None
        if not self._store.was_sent(number) and self._is_last(number - kept.trained, attempt):
            path.unlink(missing_ok=True)  # `waiting` does the same with what it is made of.
            return None
        return kept

    def _is_last(self, age: int, attempt: int) -> bool:
        """Whether old work has failed often enough.

        Work from a version that too few others know is in no sum. Where that is why attempts fail, the last one that
        the study allows has to do without.
        """
        return age > 0 and 1 < self._limits.attempts <= attempt

    def joining(self, kept: KeptUpdate, context: RoundContext, *, stream: KeyStream) -> KeptUpdate:
        """The same work as it enters one flush, in all its attempts: it weighs less if it is old, and is kept so."""
        resolved = self._resolved
        merging = resolved.strategy.merging(self._limits.merging, largest=resolved.largest_mean)
        part = discount(merging.discount, context.round - kept.trained)
        weight = aged_weight(kept.weight, part, min_cohort=context.min_cohort, colluders=context.colluders)
        blocks = {
            # Measurements count the same from every site, whatever its weight.
            name: vector
            if name == METRICS_BLOCK
            else resolved.codec.reweighed(vector, before=kept.weight, after=weight, stream=stream)
            for name, vector in kept.blocks.items()
        }
        entered = replace(kept, blocks=blocks, weight=weight)
        entered.save(self._store.kept_update(context.round), bits=self._resolved.study.protection.bits)
        return entered

    def leaves(self, trained: int) -> None:
        """Note, durably and before anything leaves, that work trained in this round does: no other flush gets it."""
        # Never back: what left once has left, whatever is said of the work that leaves now.
        write_atomically(self._store.folder / "left.json", json.dumps(max(trained, self._left())).encode())
        self._path.unlink(missing_ok=True)

    def _left(self) -> int:
        """The round of the last training that may have left."""
        left = read_json(self._store.folder / "left.json", _Left)
        return 0 if left is None else left

    @property
    def _path(self) -> Path:
        return self._store.folder / "update-waiting.safetensors"


class OngoingTraining:
    """A study's training that outlives the attempt it began in: at most one."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._key: tuple[int, int] = (0, 0)

    async def done(self, key: tuple[int, int], train: Callable[[], Awaitable[None]]) -> None:
        """Wait for the one under way or, where there is none, for this one. It goes on if the waiting is cancelled."""
        task = self._task
        if task is None or task.done():
            task = self._task = asyncio.ensure_future(train())
            self._key = key
            task.add_done_callback(_heard)
        await asyncio.shield(task)

    def holds(self, key: tuple[int, int]) -> bool:
        """Whether what began in this attempt still goes on."""
        return self._task is not None and not self._task.done() and self._key == key

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if self._task is not None:
            self._task.cancel()

    async def ended(self) -> None:
        """Wait until one that was cancelled has let go of its files; for no other."""
        if self._task is not None and self._task.cancelling():
            await asyncio.wait((self._task,))


def _heard(task: asyncio.Task[None]) -> None:
    """What went wrong is said by whoever waits; where nobody does any more, in the log."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("training came to nothing: %s", type(error).__name__)
