"""Sites and a coordinator in one process, without messages: production's training, encoding, merging and schedule.

What is opened is the exact sum of the sites' integers, byte for byte what `masked` and `encrypted` open: protections
change who can see what, and nothing of the result. So a simulation of hundreds of versions needs no cryptography.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from secure_fl import strategies
from secure_fl.aggregation import Aggregate
from secure_fl.bench.virtual import Clock, Profile
from secure_fl.blocks import Blocks, Layout
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.steps import require_step
from secure_fl.encoding.update import decode_sums, encode_update
from secure_fl.encoding.weights import WEIGHT_UNITS, aged_weight, quantise_weight, weight_floor, whole_weight
from secure_fl.errors import SettingsError
from secure_fl.protect.declarations import pace_of
from secure_fl.protect.primitives.packing import WORD, Packing
from secure_fl.protect.release.guard import releasable
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.strategies.base import State, Strategy
from secure_fl.strategies.merging import Arrival, MergeSettings, discount, own_part, with_own_part
from secure_fl.strategies.site import Site
from secure_fl.study.circles import divide, in_order
from secure_fl.study.start import start_of
from secure_fl.study.turns import Pace, Turn, Turns
from secure_fl.tasks.base import LocalData, PartitionSettings, Share, Source, Split, Task

Members: TypeAlias = tuple[int, ...]  # sites by number

BITS = 16
COLLUDERS = 1
_SO_MANY = WEIGHT_UNITS**2 + COLLUDERS + 1  # sites among whom no weight needs a floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """One way to train: a strategy, who is opened together, and when."""

    name: str
    strategy: str = "fedavg"
    settings: Mapping[str, object] = field(default_factory=dict)
    # Who is opened together: "speed" and "random" circles, or each site alone.
    circles: Literal["random", "speed", "sites"] = "random"
    # How opened turns enter the model; None: those of a flush are one sum, as in a synchronous round.
    merge: MergeSettings | None = None
    # The part of the circles that begin together and are waited for, drawn anew each time. None: whoever is free.
    drawn: float | None = None
    buffer: int = 1  # turns that make a flush, where nobody is waited for
    one_sum: bool = False  # those of a flush are opened as one sum, to which old work adds less: `rounds.unit = "site"`
    staleness: int = 256  # as `rounds.staleness`


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The model after so many uploads: bytes of all sites together, virtual seconds, accuracy on common test rows."""

    uploads: int
    bytes_up: int
    bytes_down: int
    seconds: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of one method."""

    points: tuple[Point, ...]
    staleness: dict[int, int]  # how many merged turns were so many versions old
    turns: tuple[int, ...]  # merged, by circle
    dropped: tuple[int, ...]  # too stale, by circle
    clipped: int  # coordinates


class Federation:
    """The data of all simulated sites under one seed. Methods are compared on one and the same federation."""

    def __init__(
        self, task: Task, source: Source, *, sites: int, labels: tuple[int, int], seed: int, row_seconds: float
    ) -> None:
        alone = Share(index=0, of=1, partition=PartitionSettings(), seed=seed)
        whole = task.load(Source(path=source.path, format=source.format, share=alone))
        self.task = task
        self.test = whole.test
        self.seed = seed
        self.row_seconds = row_seconds
        rows = by_labels(whole.train.targets.numpy(), sites=sites, labels=labels, seed=seed)
        train = whole.train
        self.data = tuple(
            LocalData(train=Split(inputs=train.inputs[mine], targets=train.targets[mine]), test=whole.test)
            for mine in map(torch.from_numpy, rows)
        )
        self.largest = max(len(data.train) for data in self.data)

    def training_seconds(self, site: int, epochs: int) -> float:
        """What training takes at a site of slowness 1."""
        return self.row_seconds * len(self.data[site].train) * epochs


def by_labels(
    targets: npt.NDArray[np.int64], *, sites: int, labels: tuple[int, int], seed: int
) -> list[npt.NDArray[np.int64]]:
    """Rows of each site, which holds between `labels[0]` and `labels[1]` labels. Every row has one owner.

    As in the partition "pathological", but not every site holds equally many labels.
    """
    rng = np.random.default_rng([seed, 2])
    known = np.unique(targets)
    if not 1 <= labels[0] <= labels[1] <= len(known):
        raise SettingsError(f"sites cannot hold {labels[0]} to {labels[1]} of {len(known)} labels")
    holds = np.zeros((sites, len(known)), np.bool_)
    for hand in holds:  # The labels that fewest sites hold so far, ties at random.
        many = int(rng.integers(labels[0], labels[1] + 1))
        hand[np.lexsort((rng.random(len(known)), holds.sum(axis=0)))[:many]] = True
    if not holds.any(axis=0).all():
        raise SettingsError("some labels would be at no site", advice="use more sites, or more labels at each")
    owner = np.empty(len(targets), np.int64)
    for index, label in enumerate(known):
        rows = rng.permutation(np.flatnonzero(targets == label))
        holders = rng.permutation(np.flatnonzero(holds[:, index]))
        owner[rows] = holders[np.arange(len(rows)) % len(holders)]
    found = [np.flatnonzero(owner == site) for site in range(sites)]
    if not all(len(rows) for rows in found):
        raise SettingsError("there are too few rows for so many sites", advice="use fewer sites")
    return found


def circles_of(method: Method, federation: Federation, profiles: Sequence[Profile], *, size: int) -> list[Members]:
    """Who is opened together: circles of at least `size`, as `study.circles` divides a roster."""
    sites = len(federation.data)
    if method.circles == "sites":
        return [(site,) for site in range(sites)]
    names = {f"site-{site:03d}": site for site in range(sites)}
    order = list(names)
    if method.circles == "random":
        order = [order[place] for place in np.random.default_rng([federation.seed, 3]).permutation(sites)]
    else:  # As `study.division` does it: by what sites say of their training, then by name.
        order.sort(key=lambda name: (_pace(federation, profiles, names[name]), name))
    sizes = [len(circle) for circle in divide(order, colluders=COLLUDERS, at_least=size)]
    return [tuple(names[name] for name in circle) for circle in in_order(order, sizes=sizes)]


def _pace(federation: Federation, profiles: Sequence[Profile], site: int) -> int:
    return pace_of(federation.training_seconds(site, 1) * profiles[site].slowness)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """What a turn's sum will be once it is opened."""

    turn: Turn
    sums: dict[str, BlockSum]
    bytes_up: int
    bytes_down: int


class Course:
    """One method on one federation, from the initial model until so many updates were uploaded."""

    def __init__(self, federation: Federation, method: Method, profiles: Sequence[Profile], *, size: int) -> None:
        self._federation, self._method, self._profiles = federation, method, profiles
        self._strategy: Strategy = strategies.create(method.strategy, method.settings)
        if self._strategy.partial and method.circles != "sites":
            raise SettingsError(f"{method.name}: sites that each decide what they send are in no circle's sum")
        self.circles = circles_of(method, federation, profiles, size=size)
        self._wave = None if method.drawn is None else max(1, round(method.drawn * len(self.circles)))
        # A synchronous round of drawn sites opens one sum of them. Otherwise sums are those of circles.
        together = self._wave if method.circles == "sites" and method.merge is None else None
        together = method.buffer if method.one_sum else together
        self._packing = Packing(bits=BITS, contributors=together or max(map(len, self.circles)))
        self._codec = FixedPoint(bits=BITS, clip=federation.task.clip)
        self._size = size
        # Single sites that are merged one by one, which nothing hides, weigh what they weigh.
        bare = method.circles == "sites" and method.merge is not None and not method.one_sum
        self._among = _SO_MANY if bare else size
        start = start_of(federation.task, self._strategy, federation.seed)
        self._layout: Layout = start.layout
        self._versions: dict[int, Blocks] = {0: start.blocks}
        self._state = State()
        largest = self._codec.largest_mean(lightest=weight_floor(self._among, COLLUDERS))
        self._largest_step = self._strategy.largest_step(largest)
        self._merging = None if method.merge is None else self._strategy.merging(method.merge, largest=largest)
        self._clock: Clock[_Opened] = Clock()
        self._rng = np.random.default_rng([federation.seed, 4])
        sites = len(federation.data)
        self._personal: list[Blocks] = [{}] * sites
        self._memory: list[dict[str, object]] = [{}] * sites
        self._has = [-1] * sites  # the newest version that each site has
        self._trained = [0] * sites
        self._asked: Counter[int] = Counter()  # turns that each circle has begun
        self._waiting: dict[Turn, _Opened] = {}
        self._staleness: Counter[int] = Counter()
        self._merged: Counter[int] = Counter()
        self._dropped: Counter[int] = Counter()
        self._clipped = 0

    def run(self, *, updates: int) -> Outcome:
        """Train until `updates` were uploaded. Measured at the first version after each further upload per site.

        So every method is measured about equally often for its work: the best of many values is larger than of few.
        """
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # Networks are small, and sums of several threads differ between machines.
        try:
            return self._run(updates)
        finally:
            torch.set_num_threads(before)

    def _run(self, updates: int) -> Outcome:
        buffer = self._method.buffer if self._wave is None else self._wave
        pace = Pace(turns=updates, flushes=updates, buffer=buffer, staleness=self._method.staleness)
        turns = Turns(len(self.circles), pace)
        points, uploads, up, down = [self._point(0, 0, 0)], 0, 0, 0
        self._begin(turns, range(len(self.circles)))
        while self._clock and uploads < updates:
            opened = self._clock.next()
            uploads += len(self.circles[opened.turn.circle])
            up, down = up + opened.bytes_up, down + opened.bytes_down
            if turns.opened(opened.turn, now=self._clock.now):
                self._waiting[opened.turn] = opened
            else:
                self._dropped[opened.turn.circle] += 1
            due = turns.due(now=self._clock.now)
            if due:
                self._flush(turns, due)
                if uploads // len(self._has) > points[-1].uploads // len(self._has):
                    points.append(self._point(uploads, up, down))
            if self._wave is None or due:
                self._begin(turns, range(len(self.circles)))
        every = range(len(self.circles))
        return Outcome(
            points=tuple(points),
            staleness=dict(sorted(self._staleness.items())),
            turns=tuple(self._merged[circle] for circle in every),
            dropped=tuple(self._dropped[circle] for circle in every),
            clipped=self._clipped,
        )

    @property
    def model(self) -> Blocks:
        """The newest version."""
        return self._versions[max(self._versions)]

    # --- turns ----------------------------------------------------------------------------------------------

    def _begin(self, turns: Turns, circles: Iterable[int]) -> None:
        if self._wave is not None:
            circles = sorted(self._rng.permutation(len(self.circles))[: self._wave].tolist())
        for circle in circles:
            if (turn := turns.begin(circle)) is not None:
                self._train(turn)

    def _train(self, turn: Turn) -> None:
        """What a turn will bring, computed when it begins: everything it depends on is there by then."""
        members, base = self.circles[turn.circle], self._versions[turn.base]
        asked = self._gate(turn.circle)
        sums: dict[str, BlockSum] = {}
        slowest, uploaded, received = 0.0, 0, 0
        for site in members:
            blocks, weight = self._update(site, base, asked, version=turn.base)
            _add(sums, blocks, weight)
            sent, fetched = self._bytes(blocks), self._fetched(site, turn.base)
            training = self._federation.training_seconds(site, self._strategy.settings.epochs)
            seconds = self._profiles[site].seconds(training=training, received=fetched, sent=sent)
            slowest, uploaded, received = max(slowest, seconds), uploaded + sent, received + fetched
        opened = _Opened(turn=turn, sums=sums, bytes_up=uploaded, bytes_down=received)
        self._clock.after(slowest, opened)

    def _gate(self, circle: int) -> tuple[str, ...]:
        """Which blocks the circle sends."""
        names, sizes = self._layout.names, {shape.name: shape.size for shape in self._layout}
        asked = self._strategy.asked(names, sizes, own_part(self._state), self._asked[circle])
        self._asked[circle] += 1
        return names if asked is None else self._layout.select(asked).names

    def _fetched(self, site: int, version: int) -> int:
        """Bytes: the version, unless the site has it; before that the first one, if the site has none yet."""
        has, self._has[site] = self._has[site], version
        return 4 * self._layout.size * ((version != has) + (has < 0 < version))

    def _bytes(self, blocks: Iterable[str]) -> int:
        """What a member uploads under `masked`: packed words, and one for the weight."""
        return WORD.itemsize * (sum(self._packing.words(self._layout[name].size) for name in blocks) + 1)

    def _update(
        self, number: int, base: Blocks, asked: tuple[str, ...], *, version: int
    ) -> tuple[dict[str, npt.NDArray[np.int32]], int]:
        """A site's integers and its weight, of what it trains from this version."""
        federation, turn = self._federation, self._trained[number]
        self._trained[number] += 1
        seed = int(np.random.SeedSequence([federation.seed, number, turn]).generate_state(1)[0])
        site = Site(
            task=federation.task,
            data=federation.data[number],
            training=self._strategy.settings,
            initial=base,
            received=base,
            personal=self._personal[number],
            combination={},
            seed=seed,
            round=version + 1,  # as a node says it: gates count versions
            asked=None if asked == self._layout.names else asked,
            state=self._memory[number],
        )
        change = {
            name: np.nan_to_num(vector, nan=0, posinf=0, neginf=0) for name, vector in self._strategy.fit(site).items()
        }
        self._personal[number], self._memory[number] = site.personal, site.state
        weight = quantise_weight(
            site.samples,
            reference_samples=federation.largest,
            min_cohort=self._among,
            colluders=COLLUDERS,
            richness=self._strategy.richness(site),
        )
        stream = UnsafeSeededRandomness(federation.seed, str(number), str(turn))
        blocks, clipped = encode_update(change, layout=self._layout, codec=self._codec, weight=weight, stream=stream)
        self._clipped += clipped
        return blocks, weight

    # --- versions -------------------------------------------------------------------------------------------

    def _flush(self, turns: Turns, due: tuple[Turn, ...]) -> None:
        version, opened = turns.version, [self._waiting.pop(turn) for turn in due]
        for turn in due:
            self._staleness[version - turn.base] += 1
            self._merged[turn.circle] += 1
        current = self._versions[version]
        mean, remembered = self._mean(current, version, opened)
        blocks, own = self._strategy.step(current, mean, own_part(remembered))
        require_step(current, blocks, self._layout, largest=self._largest_step)
        self._state = with_own_part(remembered, own)
        self._versions[version + 1] = blocks
        turns.flushed(due)
        under_way = map(turns.under_way, range(len(self.circles)))
        needed = {version + 1, *(turn.base for turn in (*under_way, *self._waiting) if turn is not None)}
        self._versions = {number: values for number, values in self._versions.items() if number in needed}

    def _mean(self, current: Blocks, version: int, opened: Sequence[_Opened]) -> tuple[Aggregate, State]:
        if self._merging is None:
            return self._decoded(opened), self._state
        sites = len(self._has)
        if self._method.one_sum:
            stream = UnsafeSeededRandomness(self._federation.seed, "joining", str(version))
            joined = [self._aged(version, each, stream) for each in opened]
            alone = Arrival(
                circle=0,
                base=version,
                staleness=0,
                share=len(joined) / sites,
                weight=sum(map(self._whole, joined)) / (WEIGHT_UNITS * len(joined)),
                change=self._decoded(joined),
            )
            return self._merging.merged(current, [alone], self._versions.__getitem__, self._state)
        arrivals = [
            Arrival(
                circle=each.turn.circle,
                base=each.turn.base,
                staleness=version - each.turn.base,
                share=len(self.circles[each.turn.circle]) / sites,
                weight=self._whole(each) / (WEIGHT_UNITS * len(self.circles[each.turn.circle])),
                change=decode_sums(each.sums, self._codec),
            )
            for each in opened
        ]
        return self._merging.merged(current, arrivals, self._versions.__getitem__, self._state)

    def _whole(self, opened: _Opened) -> float:
        return whole_weight(opened.sums, sites=len(self.circles[opened.turn.circle]))

    def _decoded(self, opened: Sequence[_Opened]) -> Aggregate:
        whole = sum(map(self._whole, opened)) if self._strategy.counts_unsent else None
        return decode_sums(self._together(opened), self._codec, whole=whole)

    def _aged(self, version: int, opened: _Opened, stream: UnsafeSeededRandomness) -> _Opened:
        """As a site joins a flush at its own pace: it lowers its own weight by the age of its work."""
        kind = "none" if self._merging is None else self._merging.discount
        part = discount(kind, version - opened.turn.base)
        sums: dict[str, BlockSum] = {}
        for name, block in opened.sums.items():
            weight = aged_weight(block.weight, part, min_cohort=self._size, colluders=COLLUDERS)
            values = block.total.astype(np.int32)
            mine = self._codec.reweighed(values, before=block.weight, after=weight, stream=stream)
            sums[name] = BlockSum(total=mine, weight=weight, contributors=1)
        return replace(opened, sums=sums)

    def _together(self, joined: Sequence[_Opened]) -> dict[str, BlockSum]:
        """One sum of all these. Of blocks that not every site sends, those that the guard lets through."""
        total: dict[str, BlockSum] = {}
        for each in joined:
            _pool(total, each.sums)
        if not self._strategy.partial:
            return total
        sites = [str(each.turn.circle) for each in joined]
        senders = {
            name: [site for site, each in zip(sites, joined, strict=True) if name in each.sums] for name in total
        }
        # Measurements are opened of all of them.
        passed = releasable([sites, *senders.values()], nodes=sites, colluders=COLLUDERS, minimum=self._size)
        return {name: total[name] for name, passes in zip(senders, passed[1:], strict=True) if passes}

    def _point(self, uploads: int, up: int, down: int) -> Point:
        data, task = self._federation.data[0], self._federation.task
        site = Site(
            task=task, data=data, training=self._strategy.settings, initial={}, received={}, personal={},
            combination={}, seed=0,
        )  # fmt: skip
        accuracy = site.evaluate(self.model).accuracy
        if accuracy is None:
            raise SettingsError("this bench compares accuracies, and the task has none", advice="use a classification")
        return Point(uploads=uploads, bytes_up=up, bytes_down=down, seconds=self._clock.now, accuracy=accuracy)


def _add(sums: dict[str, BlockSum], blocks: Mapping[str, npt.NDArray[np.int32]], weight: int) -> None:
    _pool(sums, {name: BlockSum(total=values, weight=weight, contributors=1) for name, values in blocks.items()})


def _pool(sums: dict[str, BlockSum], more: Mapping[str, BlockSum]) -> None:
    """Add sums to sums, exactly."""
    for name, block in more.items():
        before = sums.get(name)
        if before is None:
            sums[name] = BlockSum(
                total=block.total.astype(np.int64), weight=block.weight, contributors=block.contributors
            )
            continue
        sums[name] = BlockSum(
            total=before.total + block.total,
            weight=before.weight + block.weight,
            contributors=before.contributors + block.contributors,
        )
