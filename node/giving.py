"""What a node gives to the protection that runs in it: its integers, how it weighs others, and what it remembers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from node.combining import Combining
from node.comparisons import SiteComparisons, data_key
from node.site_services import SiteServices
from node.store import AttemptMemory, StudyStore
from node.training.jobs import FEATURES
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.checkpoints import open_arrays
from secure_fl.encoding.integers import Integers
from secure_fl.protect.combining import CombineContribution, CombineHost, node_half
from secure_fl.protect.contract import Contribution, NodeHalf, Protection, RoundContext
from secure_fl.protect.release.comparisons import MORE, allowed
from secure_fl.protect.release.sketch import sketch
from secure_fl.protect.versions import Version
from secure_fl.randomness import Randomness
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.transport.wire import round_kind


@dataclass(frozen=True, slots=True)
class Giving:
    """In one attempt."""

    services: SiteServices
    resolved: ResolvedStudy
    protection: Protection  # of this attempt
    store: StudyStore
    context: RoundContext
    made_from: Version | None = None  # where sites join at their own pace: the version that was trained from
    told: tuple[Version, ...] = ()  # and those that this site was told of
    agreed: frozenset[str] = frozenset()  # and who agreed to sums of changing sites before

    def half(
        self,
        blocks: dict[str, Integers],
        weight: int,
        features: Path | None,
        *,
        randomness: Randomness,
        memory: AttemptMemory,
        seconds: float = 0.0,
    ) -> NodeHalf:
        """The protection's node half. With `features`, the file of what peers are compared by, in a round that does."""
        sketched, size = None, 0
        if features is not None:
            with open_arrays(features) as kept:
                sketched, size = sketch(kept[FEATURES]), kept[FEATURES].size
        host = CombineHost(
            me=self.services.me,
            randomness=randomness,
            memory=memory,
            history=memory,
            past=self.services.past,
            exceptions=frozenset(self.services.file.policy.exceptions),
            witness=self.services.witness,
            comparisons=self._comparisons(size),
            told=self.told,
            agreed=self.agreed,
        )
        contribution = replace(
            self._contribution(blocks, weight, sketched), seconds=self._seconds(seconds), made_from=self.made_from
        )
        return node_half(self.protection, self.context, contribution, host)

    def _contribution(self, blocks: dict[str, Integers], weight: int, sketched: Integers | None) -> Contribution:
        """For a combine also how this site weighs others."""
        if self.context.kind is RequestKind.SUM:
            return Contribution(blocks=blocks, weight=weight)
        combining = Combining(self.services.me.name, self.resolved.strategy, self.store, self.context)
        return CombineContribution(blocks=blocks, weight=weight, attend=combining.attend, sketch=sketched)

    def _seconds(self, seconds: float) -> float:
        """How long training took, where the study asks for it: no more exactly than `answer_after` would show."""
        if self.resolved.study.protection.circles != "speed":
            return 0.0
        every = self.services.file.policy.answer_after
        return math.ceil(seconds / every) * every if every else seconds

    def _comparisons(self, features: int) -> SiteComparisons:
        file, study = self.services.file, self.resolved.study
        return SiteComparisons(
            book=self.services.comparisons,
            data=data_key(file.datasets[study.task.dataset_id], file.path("")),
            roster=study.study.roster,
            limit=None if MORE in study.exceptions else allowed(features),
        )


def announced_context(resolved: ResolvedStudy, announcement: pb.PhaseAnnouncement, layout: Layout) -> RoundContext:
    """The context of an attempt, as it was announced."""
    return round_context(
        resolved,
        number=announcement.round,
        attempt=announcement.attempt,
        kind=round_kind(announcement.kind),
        base_model=announcement.model.digest,
        invited=tuple(announcement.invited),
        shared=layout,
        asked=tuple(announcement.asked),
    )
