"""[rounds]: how long sites are waited for, and whether circles wait for each other."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError
from secure_fl.settings import Settings
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.merging import MergeSettings
from secure_fl.study.turns import Pace


class RoundsSection(Settings):
    """Time limits in seconds and, for `mode = "buffered"`, when what circles opened is merged and how."""

    # "sync": a round is one of all circles. "buffered": each circle trains whenever it is free, and is merged when its
    # last member has uploaded; `study.rounds` is then the most turns that any one circle takes.
    mode: Literal["sync", "buffered"] = "sync"
    deadline: float = Field(600.0, gt=0, le=7 * 86400)  # the first phase, training included
    phase_deadline: float = Field(60.0, gt=0, le=86400)  # every later phase
    gather: float = Field(60.0, ge=0, le=86400)  # waiting for sites before a round
    attempts: int = Field(3, ge=1, le=100)
    # How long to keep waiting after the deadline while too few sites have answered to open the uploads.
    patience: float = Field(7 * 86400.0, ge=0, le=366 * 86400)
    # Buffered only: after how many versions the study ends (default: `study.rounds`), how many turns make one,
    # how long the first of them waits for the others, and how many versions old a turn may be.
    flushes: int | None = Field(None, ge=1, le=1_000_000)
    buffer: int = Field(1, ge=1, le=512)
    flush_after: float | None = Field(None, gt=0, le=7 * 86400)
    staleness: int = Field(256, ge=0, le=100_000)  # so many that circles five times slower are not dropped
    # How an opened turn enters the model: an average of every circle's last model ("cache"), its change ("delta"), or
    # a step towards its model ("mix"); how much less it counts for each version that it is old; and a factor.
    merge: Literal["cache", "delta", "mix"] = "cache"
    discount: Literal["root", "paper", "none"] = "root"
    rate: float = Field(1.0, gt=0, le=10)

    @property
    def is_buffered(self) -> bool:
        """Whether circles do not wait for each other."""
        return self.mode == "buffered"

    def pace(self, turns: int) -> Pace:
        """What a schedule needs, in a study whose circles take at most so many turns."""
        return Pace(
            turns=turns,
            flushes=self.flushes or turns,
            buffer=self.buffer,
            flush_after=self.flush_after,
            staleness=self.staleness,
        )

    @property
    def merging(self) -> MergeSettings:
        """How opened turns enter the model."""
        return MergeSettings(kind=self.merge, discount=self.discount, rate=self.rate)


def require_buffered(rounds: RoundsSection, strategy: Strategy, *, recovery: bool, robust: str) -> None:
    """Raise `SettingsError` where a study's circles cannot go each at its own pace."""
    if not rounds.is_buffered:
        return
    if strategy.asks is not RequestKind.SUM:
        raise SettingsError(
            f"strategy {strategy.name!r} combines sites, which have to be there together",
            advice='write rounds.mode = "sync", or a strategy that asks for sums',
        )
    if recovery or robust != "none":
        raise SettingsError(
            'rounds.mode = "buffered" merges one whole circle at a time: neither recovery nor robust means',
            advice='write recovery = false and robust = "none", or rounds.mode = "sync"',
        )
