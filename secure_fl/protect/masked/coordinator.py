"""The coordinator's half of `masked`: adds masked words as they arrive. In the whole circle's sum no mask is left.

It holds one sum, never an upload. It draws no randomness, so replaying the accepted messages after a crash rebuilds it.
What it checks keeps malformed answers out; what protects a node is arithmetic, and the node's half.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say, say_bulky
from secure_fl.protect.cohort.meeting import Gathering
from secure_fl.protect.cohort.minima import require_weight, require_whole
from secure_fl.protect.contract import Ask, Bulk, Message, Opened, OpenedSums, RoundContext
from secure_fl.protect.masked.layout import CircleWords
from secure_fl.protect.masked.manifest import MANIFESTS
from secure_fl.protect.masked.phases import ADVERTISE, COMMIT, PHASES, UPLOAD
from secure_fl.protect.masked.statements import verify_commit
from secure_fl.protect.primitives.packing import WORD, Words
from secure_fl.rpc.protect_masked_pb2 import CircleCommit, CircleCommits

_PIECE = 1 << 17  # words read and added at a time


class CircleCoordinator:
    """The coordinator in one attempt of one circle."""

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._gathering = Gathering(context, MANIFESTS)
        self._commits: dict[str, CircleCommit] = {}
        self._uploaded: set[str] = set()
        self._torn = False
        self._phase = ADVERTISE

    def begin(self) -> Ask:
        """Everybody advertises."""
        return Ask(phase=ADVERTISE, messages=dict.fromkeys(self._context.invited, Message()))

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Take one answer to the current phase."""
        take, _ = self._step()
        take(node, message, bulk)

    def close(self) -> Ask | Opened:
        """End the current phase: with everybody, or not at all."""
        _, end = self._step()
        return end()

    @property
    def missing(self) -> int:
        """Everybody is needed in every phase, and waiting for one loses nothing."""
        if self._phase == ADVERTISE:
            return self._gathering.missing
        return len(self._context.invited) - len(self._commits if self._phase == COMMIT else self._uploaded)

    def _step(self) -> tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]]:
        """How the current phase takes an answer, and how it ends."""
        steps: tuple[tuple[Callable[[str, Message, Bulk], None], Callable[[], Ask | Opened]], ...] = (
            (self._accept_manifest, self._ask_for_commits),
            (self._accept_commit, self._ask_for_uploads),
            (self._accept_upload, self._open),
        )
        return dict(zip(PHASES, steps, strict=True))[self._phase]

    def _accept_manifest(self, node: str, message: Message, _bulk: Bulk) -> None:
        self._gathering.add(self._gathering.check(node, message.body))

    def _ask_for_commits(self) -> Ask:
        self._cohort, roster = self._gathering.close()
        self._layout = CircleWords.of(self._context, self._cohort)
        self._sum: Words = np.zeros(self._layout.count, WORD)
        self._phase = COMMIT
        return Ask(phase=COMMIT, messages=dict.fromkeys(self._cohort.names, say_bulky(roster)))

    def _accept_commit(self, node: str, message: Message, _bulk: Bulk) -> None:
        commit = parse(CircleCommit, message.body)
        if commit.node != node:
            raise ProtectionError(f"{node} commits for another node")
        verify_commit(self._cohort, commit)
        # Not the message itself: everybody is sent this, and what else was in it would be sent along.
        self._commits[node] = CircleCommit(node=node, upload=commit.upload, signature=commit.signature)

    def _ask_for_uploads(self) -> Ask:
        require_whole(self._context, self._commits)
        self._phase = UPLOAD
        told = say(CircleCommits(commits=[self._commits[name] for name in self._cohort.names]))
        return Ask(phase=UPLOAD, messages=dict.fromkeys(self._cohort.names, told))

    def _accept_upload(self, node: str, _message: Message, bulk: Bulk) -> None:
        if bulk.size != self._sum.nbytes or bulk.sha256 != self._commits[node].upload:
            raise ProtectionError(f"{node} uploads something else than it committed to")
        self._torn, before = True, self._torn  # A disk may fail half-way, and what was added cannot be taken back.
        for start in range(0, self._sum.size, _PIECE):
            piece = self._sum[start : start + _PIECE]
            piece += np.frombuffer(bulk.read(start * WORD.itemsize, piece.nbytes), WORD)
        self._torn = before
        self._uploaded.add(node)

    def _open(self) -> OpenedSums:
        require_whole(self._context, self._uploaded)
        if self._torn:
            raise ProtectionError("an upload could be read in part only: the sum is void")
        require_weight(self._context, int(self._sum[-1]), contributors=len(self._uploaded))
        return OpenedSums(blocks=self._layout.unpack(self._sum), cohort=self._cohort.names)
