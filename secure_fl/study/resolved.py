"""A study with everything its names stand for, made once: identity, strategy, protection, what its rounds ask for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.protect.contract import Protection
from secure_fl.protect.declarations import Declaring
from secure_fl.rounds import RoundKind
from secure_fl.strategies.base import Strategy
from secure_fl.study.circles import Circle
from secure_fl.study.division import Division
from secure_fl.study.settings import Study

DECLARING = Declaring()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedStudy:
    """What both processes work with. It needs no torch: which blocks a request has is for the task to say."""

    study: Study
    canonical: bytes
    id: str
    strategy: Strategy
    protection: Protection
    request: RequestKind  # of training rounds
    codec: FixedPoint
    division: Division  # who is opened together in a sum

    @classmethod
    def of(cls, study: Study) -> Self:
        """Raises `SettingsError` where a name or a setting is unknown here, or parts of the study do not fit together.

        Each process looks for itself: what its promises rest on must not depend on whoever wrote the study, or on a
        coordinator, having looked.
        """
        study.check_parts()
        return cls(
            study=study,
            canonical=study.canonical(),
            id=study.id,
            strategy=(strategy := study.make_strategy()),
            protection=study.make_protection(),
            request=strategy.asks,
            codec=study.codec(),
            division=Division(study),
        )

    def request_in(self, kind: RoundKind) -> RequestKind:
        """What a round asks for. A closing evaluation opens measurements only, and those as a sum."""
        return self.request if kind is not RoundKind.EVALUATE else RequestKind.SUM

    def circles_in(self, kind: RoundKind) -> tuple[Circle, ...]:
        """The circles of a round; none where it opens something for whoever is there."""
        if kind is RoundKind.DECLARE or self.request_in(kind) is not RequestKind.SUM:
            return ()
        return self.division.circles

    def circle_of(self, site: str, kind: RoundKind) -> Circle:
        """The circle in which a site takes part in a round; empty where it opens something for whoever is there."""
        return next((circle for circle in self.circles_in(kind) if site in circle), ())

    def phases(self, kind: RoundKind) -> tuple[str, ...]:
        """The phases of a round, in order."""
        return self.protection_in(kind).phases(self.request_in(kind))

    def protection_in(self, kind: RoundKind) -> Protection:
        """How answers leave a site in a round: a declaration is no update, and is not hidden."""
        return DECLARING if kind is RoundKind.DECLARE else self.protection

    def leaves_once(self, kind: RoundKind) -> bool:
        """Whether what a site computed for a round leaves it in one attempt only, come of that what may.

        Where the sites of a sum may change, two attempts with the same integers and one site more or less would show
        that site's. A circle is opened whole or not at all: it may try as often as it likes.
        """
        sums = self.request_in(kind) is RequestKind.SUM and self.study.protection.recovery
        return sums and not self.protection.coordinator_sees_updates

    @property
    def largest_step(self) -> float:
        """How far one round can move a coordinate of the shared model."""
        return self.strategy.largest_step(self.largest_mean)

    @property
    def largest_mean(self) -> float:
        """The largest coordinate that a mean of sites' changes can have."""
        protection = self.study.protection
        lightest = WEIGHT_UNITS
        if protection.reference_samples is not None or self.study.rounds.by_sites:
            lightest = weight_floor(self.study.min_cohort(self.request), protection.colluders)
        return self.codec.largest_mean(lightest=lightest)
