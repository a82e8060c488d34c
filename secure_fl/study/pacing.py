"""[rounds]: how long sites are waited for, and whether circles, or single sites, wait for each other."""

from __future__ import annotations

from typing import Literal, Protocol

from pydantic import Field

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError
from secure_fl.settings import Settings
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.merging import MergeSettings
from secure_fl.study.filling import Filling
from secure_fl.study.turns import Pace


class RoundsSection(Settings):
    """Time limits in seconds and, for `mode = "buffered"`, when what circles opened is merged and how."""

    # "sync": a round is one of all circles. "buffered": each circle trains whenever it is free, and is merged when its
    # last member has uploaded; `study.rounds` is then the most turns that any one circle takes.
    mode: Literal["sync", "buffered"] = "sync"
    # Buffered only: who goes at its own pace. "circle": each circle. "site": each site, where all of them agree to sums
    # of changing sites; a flush is then of `buffer` sites, and `study.rounds` is the number of flushes.
    unit: Literal["circle", "site"] = "circle"
    deadline: float = Field(600.0, gt=0, le=7 * 86400)  # the first phase, training included
    phase_deadline: float = Field(60.0, gt=0, le=86400)  # every later phase
    gather: float = Field(60.0, ge=0, le=86400)  # waiting for sites before a round
    attempts: int = Field(3, ge=1, le=100)
    # How long to keep waiting after the deadline while too few sites have answered to open the uploads.
    patience: float = Field(7 * 86400.0, ge=0, le=366 * 86400)
    # Buffered only: after how many versions the study ends (default: `study.rounds`), how many turns make one
    # (of sites: at least the minimum cohort), how long the first of them waits for the others (of sites: how long the
    # minimum cohort waits for more), and how many versions old a turn may be.
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

    @property
    def by_sites(self) -> bool:
        """Whether single sites do not wait for each other."""
        return self.is_buffered and self.unit == "site"

    def pace(self, turns: int) -> Pace:
        """What a schedule needs, in a study whose circles take at most so many turns."""
        return Pace(
            turns=turns,
            flushes=self.flushes or turns,
            buffer=self.buffer,
            flush_after=self.flush_after,
            staleness=self.staleness,
        )

    def filling(self, least: int) -> Filling:
        """When a flush of single sites closes, of which nothing is opened with fewer than `least`."""
        return Filling(wanted=max(self.buffer, least), flush_after=self.flush_after)

    @property
    def merging(self) -> MergeSettings:
        """How opened turns enter the model."""
        return MergeSettings(kind=self.merge, discount=self.discount, rate=self.rate)

    def weighing(self, words: str) -> str:
        """How much sites count in a sum, in words that change with it: with the unit "site" old work counts less."""
        return f"{words}, less by age" if self.by_sites else words


class _Protected(Protocol):
    """What is asked here of [protection]."""

    @property
    def kind(self) -> str: ...
    @property
    def recovery(self) -> bool: ...
    @property
    def robust(self) -> str: ...


def require_buffered(rounds: RoundsSection, strategy: Strategy, protection: _Protected, *, turns: int) -> None:
    """Raise `SettingsError` where a study's circles, or its sites, cannot do what is asked of them at their pace."""
    if rounds.unit == "site" and not rounds.is_buffered:
        raise SettingsError(
            'rounds.unit = "site" is for buffered rounds',
            advice='write rounds.mode = "buffered", or leave the unit out',
        )
    if strategy.asks_circles and protection.recovery:
        raise SettingsError(
            f"strategy {strategy.name!r} asks whole circles for some of the blocks, and with recovery there are none",
            advice="write protection.recovery = false, or let each site send all blocks or decide itself (of aifed: "
            'gating = "none", "rank" or "site")',
        )
    if not rounds.is_buffered:
        return
    if strategy.asks is not RequestKind.SUM:
        raise SettingsError(
            f"strategy {strategy.name!r} combines sites, which have to be there together",
            advice='write rounds.mode = "sync", or a strategy that asks for sums',
        )
    if rounds.by_sites:
        _require_sites(rounds, strategy, protection, turns=turns)
    elif protection.recovery or protection.robust != "none":
        raise SettingsError(
            'rounds.mode = "buffered" merges one whole circle at a time: neither recovery nor robust means',
            advice='write recovery = false and robust = "none", or rounds.mode = "sync"',
        )


_OLDEST = 256  # versions that a site names in each attempt, at most


def _require_sites(rounds: RoundsSection, strategy: Strategy, protection: _Protected, *, turns: int) -> None:
    able = [name for name in protect.known() if protect.describe(name, recovery=True).own_pace]
    if protection.kind not in able or not protection.recovery or protection.robust != "none":
        raise SettingsError(
            'rounds.unit = "site" opens sums of whoever is done, from versions that the sites check',
            advice=f"write protection.kind = {' or '.join(map(repr, able))}, recovery = true and robust = 'none'",
        )
    # A change counts once and is then forgotten. Whatever keeps or moves towards a site's model would have to open it.
    merging = strategy.merging(rounds.merging, largest=1.0)
    if merging.kind != "delta":
        raise SettingsError(
            f'rounds.unit = "site" adds up changes, and strategy {strategy.name!r} merges otherwise here',
            advice='write rounds.merge = "delta", or a strategy that leaves the merging to the study',
        )
    if rounds.flushes not in (None, turns):
        raise SettingsError(
            'with rounds.unit = "site" a round is a flush, and rounds.flushes says another number than study.rounds',
            advice="leave rounds.flushes out",
        )
    if rounds.staleness > _OLDEST:
        raise SettingsError(
            f'with rounds.unit = "site" rounds.staleness is at most {_OLDEST}: sites name that many versions',
            advice=f"write rounds.staleness = {_OLDEST} or less",
        )
