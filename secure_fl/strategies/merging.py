"""How sums of circles that open at different times become one step of the model.

Each circle trains from the newest version when it is free, so that others publish versions while it trains. When its
sum is opened it is `staleness` versions old. `Merging` makes of such arrivals the mean change that `Strategy.step` is
given, as if all had been opened in one round:

delta  rate·Σ_c β_c·d(τ_c)·Δ_c: each change counts once, by how much of the study it is. It is not divided by the
       β of those who came: where few circles arrive, the model takes a small step (FedBuff)
cache  Σ_c β_c·d(τ_c)·(M_c − w) / Σ_c β_c·d(τ_c) over the last model M_c = base + Δ_c of every circle so far
mix    w ← w + rate·d(τ_c)·(M_c − w), one arrival after the other (FedAsync): an arrival counts alike, however many
       sites it has and whatever they weigh

τ_c counts the versions published since the one that circle c trained from; d makes old news count less. A block that a
circle did not send counts as the global one: it adds no change, and in *cache* its β stays in the divisor. So it is
with AiFed's layers, (6) with weights that add up to 1.

β_c is the circle's part of what all sites of the study weigh, so that circles which are all fresh merge to the ratio of
sums that a synchronous round opens. What a circle weighs is opened with its sum, Σω, and so known of those that were
heard. Whoever was not heard yet counts as sites that weigh what the others do on average:

       β_c = share_c·ω_c / (Σ share·ω / Σ share), over the last arrival of every circle so far

share_c is its part of the sites, ω_c = Σω/sites what one of them weighs on average. Where all weigh alike β_c is
share_c, bit for bit. Of one flush Σ β is at most 1: a merged change is no larger than the changes that were opened.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import DTYPE, RESERVED, Blocks, Vector
from secure_fl.errors import RoundError, SettingsError
from secure_fl.strategies.state import State

Kind: TypeAlias = Literal["cache", "delta", "mix"]
Discount: TypeAlias = Literal["root", "paper", "none"]
Bases: TypeAlias = Callable[[int], Blocks]  # the shared blocks of a version

# What merging remembers stands in a strategy's `State` under names that no block and no strategy has.
_MEMORY = f"{RESERVED}merging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One circle's opened sum."""

    circle: int
    base: int  # the version it trained from
    staleness: int  # versions published since
    share: float  # its sites among all sites of the study
    weight: float  # what one of them weighs on average, at most 1 (`encoding.weights.whole_weight`)
    change: Aggregate  # per block that was sent and opened, the mean of its sites' changes

    def __post_init__(self) -> None:
        if min(self.circle, self.base, self.staleness) < 0:
            raise RoundError("circles, versions and staleness are counted from 0")
        if not 0 < self.share <= 1:  # Written so that NaN is refused too.
            raise RoundError(f"a circle is a share of the study's sites, above 0 and at most 1, not {self.share}")
        if not 0 < self.weight <= 1:
            raise RoundError(f"a site's weight is above 0 and at most 1, not {self.weight}")

    @property
    def version(self) -> int:
        """The newest version when it arrived."""
        return self.base + self.staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSettings:
    """What a study says of merging. A strategy that is defined by how it merges goes by its own settings instead."""

    kind: Kind = "cache"
    discount: Discount = "root"
    rate: float = 1.0


def discount(kind: Discount, staleness: int) -> float:
    """How much of its weight is left to what is so many versions old.

    >>> [round(discount("paper", age), 6) for age in (0, 1, 3)]
    [1.0, 0.735759, 0.398297]
    """
    if staleness < 0:
        raise RoundError("staleness is counted from 0")
    if kind == "root":
        return 1 / math.sqrt(1 + staleness)
    if kind == "paper":  # AiFed (10)
        return (math.e / 2) ** -staleness
    if kind == "none":
        return 1.0
    raise SettingsError(f"there is no discount {kind!r}", advice='use "root", "paper" or "none"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Merging:
    """One study's way to merge. `largest` is the largest coordinate of a mean: no effective mean goes beyond it."""

    kind: Kind = "cache"
    discount: Discount = "root"
    rate: float = 1.0
    largest: float

    def __post_init__(self) -> None:
        discount(self.discount, 0)
        if self.kind not in ("cache", "delta", "mix"):
            raise SettingsError(f"there is no merging {self.kind!r}", advice='use "cache", "delta" or "mix"')
        if not (0 < self.rate < math.inf and 0 < self.largest < math.inf):
            raise SettingsError("the rate of merging and the largest mean are positive, finite numbers")
        if self.kind == "mix" and self.rate > 1:
            raise SettingsError(
                f'merging "mix" goes the part {self.rate:g} of the way to a circle\'s model, which is beyond it',
                advice="a rate above 0 and at most 1",
            )
        if self.kind == "cache" and self.rate != 1:
            raise SettingsError(
                'merging "cache" averages the circles\' models and has no rate',
                advice='leave the rate out, or use "delta" or "mix"',
            )

    def merged(
        self, current: Blocks, arrivals: Sequence[Arrival], bases: Bases, state: State
    ) -> tuple[Aggregate, State]:
        """The effective mean change of `current`, for `Strategy.step`, and what to remember with the next version.

        `bases` gives the versions that the arrivals trained from. `state` is what was remembered with `current`: the
        strategy's own part (see `own_part`, `with_own_part`) is left alone. Raises `RoundError` if an arrival was
        merged before, or if they do not all meet the same version.
        """
        memory = _Memory.read(state)
        _require_news(arrivals, memory)
        memory.hear(arrivals)
        if self.kind == "delta":
            change = self._delta(current, arrivals, memory)
        elif self.kind == "mix":
            change = self._mix(current, arrivals, bases)
        else:
            change = self._cache(current, arrivals, bases, memory)
        edge = _below(self.largest)
        return Aggregate(
            {
                name: BlockMean(mean=np.clip(block.mean, -edge, edge), contributors=block.contributors)
                for name, block in change.items()
            }
        ), memory.write(state)

    def _delta(self, current: Blocks, arrivals: Sequence[Arrival], memory: _Memory) -> dict[str, BlockMean]:
        merged: dict[str, BlockMean] = {}
        parts = memory.parts()
        whole = math.fsum(about.share for about in memory.about.values()) / math.fsum(parts.values())
        for arrival in sorted(arrivals, key=lambda each: each.circle):  # in whichever order they came
            part = parts[arrival.circle] * whole
            weight = np.float32(self.rate * part * discount(self.discount, arrival.staleness))
            for name in _opened(current, arrival):
                block = arrival.change[name]
                _add(merged, name, weight * block.mean, block.contributors)
        return merged

    def _mix(self, current: Blocks, arrivals: Sequence[Arrival], bases: Bases) -> dict[str, BlockMean]:
        merged: dict[str, BlockMean] = {}
        for arrival in arrivals:
            weight = np.float32(self.rate * discount(self.discount, arrival.staleness))
            base = bases(arrival.base)
            for name in _opened(current, arrival):
                way = _from_here(current[name], base[name], arrival.change[name].mean)
                if name in merged:  # From where the arrivals before have moved it.
                    way -= merged[name].mean
                _add(merged, name, weight * way, arrival.change[name].contributors)
        return merged

    def _cache(
        self, current: Blocks, arrivals: Sequence[Arrival], bases: Bases, memory: _Memory
    ) -> dict[str, BlockMean]:
        fresh = {arrival.circle: arrival for arrival in arrivals}
        version = arrivals[0].version
        for circle, arrival in fresh.items():
            base = bases(arrival.base)
            names = _opened(current, arrival)
            memory.models[circle] = {name: base[name] + arrival.change[name].mean for name in names}
            memory.about[circle] = replace(
                memory.about[circle], contributors={name: arrival.change[name].contributors for name in names}
            )
        weights = {
            circle: part * discount(self.discount, version - memory.about[circle].base)
            for circle, part in sorted(memory.parts().items())
        }
        total = math.fsum(weights.values())
        merged: dict[str, BlockMean] = {}
        if not total > 0:  # All of them trained so long ago that nothing of them counts.
            return merged
        for circle, weight in weights.items():
            part = np.float32(weight / total)
            for name, contributors in memory.about[circle].contributors.items():
                if circle in fresh:
                    way = _from_here(current[name], bases(fresh[circle].base)[name], fresh[circle].change[name].mean)
                else:
                    way = memory.models[circle][name] - current[name]
                _add(merged, name, part * way, contributors)
        return merged


def own_part(state: State) -> State:
    """What the strategy itself remembers: what `Strategy.step` is given."""
    return State(
        values={name: value for name, value in state.values.items() if not _is_memory(name)},
        vectors={name: vector for name, vector in state.vectors.items() if not _is_memory(name)},
    )


def with_own_part(state: State, own: State) -> State:
    """What `Merging.merged` returned, with what `Strategy.step` returned as the strategy's own part."""
    return State(
        values={**own.values, **{name: value for name, value in state.values.items() if _is_memory(name)}},
        vectors={**own.vectors, **{name: vector for name, vector in state.vectors.items() if _is_memory(name)}},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _About:
    """Of a circle's last arrival."""

    base: int
    share: float
    weight: float = 1.0
    contributors: Mapping[str, int] = field(default_factory=dict)  # by block of its model, where that is kept


@dataclass(slots=True, kw_only=True)
class _Memory:
    """What merging remembers: per circle its last arrival's base and weight and, for *cache*, its last model."""

    about: dict[int, _About] = field(default_factory=dict)
    models: dict[int, dict[str, Vector]] = field(default_factory=dict)

    @classmethod
    def read(cls, state: State) -> _Memory:
        kept: Mapping[str, Any] = state.values.get(_MEMORY, {})
        about = {int(circle): _About(**values) for circle, values in kept.get("models", {}).items()}
        return cls(
            about=about,
            models={
                circle: {name: state.vectors[_vector(circle, name)] for name in each.contributors}
                for circle, each in about.items()
            },
        )

    def hear(self, arrivals: Sequence[Arrival]) -> None:
        """Note who arrived."""
        for arrival in arrivals:
            self.about[arrival.circle] = _About(base=arrival.base, share=arrival.share, weight=arrival.weight)

    def parts(self) -> dict[int, float]:
        """By circle that was heard, how much all its sites weigh, in proportion.

        As parts of the largest weight, which are 1 to the last bit where sites weigh alike.
        """
        largest = max(about.weight for about in self.about.values())
        return {circle: about.share * (about.weight / largest) for circle, about in self.about.items()}

    def write(self, state: State) -> State:
        own = own_part(state)
        kept = {
            "models": {
                str(circle): {
                    "base": about.base,
                    "share": about.share,
                    "weight": about.weight,
                    "contributors": dict(about.contributors),
                }
                for circle, about in sorted(self.about.items())
            },
        }
        vectors = {
            _vector(circle, name): vector for circle, model in self.models.items() for name, vector in model.items()
        }
        return State(values={**own.values, _MEMORY: kept}, vectors={**own.vectors, **vectors})


def _require_news(arrivals: Sequence[Arrival], memory: _Memory) -> None:
    """Nothing is used twice: a circle trains from a later version each time, and comes once in a flush."""
    if not arrivals:
        raise RoundError("no circle has arrived, so that there is nothing to merge")
    if len({arrival.version for arrival in arrivals}) > 1:
        raise RoundError("arrivals that are merged together meet the same version")
    if len({arrival.circle for arrival in arrivals}) < len(arrivals):
        raise RoundError("a circle arrives once in a flush")
    for arrival in arrivals:
        before = memory.about.get(arrival.circle)
        if before is not None and arrival.base <= before.base:
            raise RoundError(f"circle {arrival.circle} has been merged already, from version {arrival.base} or a later")


def _opened(current: Blocks, arrival: Arrival) -> list[str]:
    """The blocks that a circle sent, in the model's order."""
    if unknown := [name for name in arrival.change if name not in current]:
        raise RoundError(f"circle {arrival.circle} opened {unknown[0]!r}, which the model does not have")
    return [name for name in current if name in arrival.change]


def _from_here(current: Vector, base: Vector, change: Vector) -> Vector:
    """(base + change) − current, in the order in which nothing is lost where base and current are the same."""
    return (base - current) + change


def _add(merged: dict[str, BlockMean], name: str, part: Vector, contributors: int) -> None:
    before = merged.get(name)
    if before is None:
        merged[name] = BlockMean(mean=part.astype(DTYPE, copy=False), contributors=contributors)
        return
    np.add(before.mean, part, out=before.mean)
    merged[name] = BlockMean(mean=before.mean, contributors=before.contributors + contributors)


def _below(largest: float) -> np.float32:
    """The largest float32 that is not above `largest`."""
    edge = np.float32(largest)
    return np.float32(np.nextafter(edge, np.float32(0))) if float(edge) > largest else edge


def _vector(circle: int, block: str) -> str:
    return f"{_MEMORY}/{circle}/{block}"


def _is_memory(name: str) -> bool:
    return name == _MEMORY or name.startswith(f"{_MEMORY}/")
