"""Opened sums and versions beside plain floats: whatever the order of arrivals, the gate, the ages and the crashes.

The coordinator's own schedule, store, files and merging, without messages. A site's change is known for each of its
turns, so that an oracle without integers, memory on disk or float32 can say what every version has to be.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import nn

from coordinator.buffered import stand
from coordinator.bulk_files import BulkFiles
from coordinator.shared_model import OpenedTurn, SharedModel
from coordinator.store import Attempt, Store
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.update import encode_update
from secure_fl.errors import StaleTurnError
from secure_fl.protect.contract import OpenedSums
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.results.record import RoundRecord
from secure_fl.rounds import RoundKind
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.submission import start_of_study
from secure_fl.study.turns import Turn, Turns
from secure_fl.tasks.base import LocalData, Source, Task
from tests.protect.rosters import study

Floats = npt.NDArray[np.float64]

CIRCLES, SITES = 3, 5  # of each circle
TURNS = 8
BITS = 20
# A site's integer is within one of what it stands for, and it weighs at least half; so is what float32 loses, below 4.
EXACT = 3 * 2.0 / 2 ** (BITS - 1) + 1e-6


class Blocks3(Task):
    """Three blocks of different size. Nobody trains it."""

    kind: ClassVar[Literal["classification", "regression"]] = "regression"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 3), nn.Linear(3, 1))

    def load(self, source: Source) -> LocalData:
        raise AssertionError


def change_of(site: str, turn: int, block: str, size: int) -> Floats:
    """What a site found in its turn, for one block."""
    seed = hashlib.sha256(f"{site}/{turn}/{block}".encode()).digest()
    return np.random.default_rng(list(seed)).uniform(-0.5, 0.5, size)


def weight_of(site: str, turn: int) -> int:
    """What it weighs, in 64ths."""
    return 32 + hashlib.sha256(f"{site}/{turn}".encode()).digest()[0] % 33


def age(kind: str, staleness: int) -> float:
    return {"root": 1 / math.sqrt(1 + staleness), "paper": math.pow(2 / math.e, staleness), "none": 1.0}[kind]


class Flushes(RuleBasedStateMachine):
    """Circles begin and open in any order; flushes and crashes come at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.store: Store | None = None

    @initialize(
        merge=st.sampled_from(["cache", "delta", "mix"]),
        discount=st.sampled_from(["root", "paper", "none"]),
        gating=st.sampled_from(["public", "none"]),
        buffer=st.integers(1, 3),
        staleness=st.integers(1, 4),
    )
    def start(self, merge: str, discount: str, gating: str, buffer: int, staleness: int) -> None:
        self.merge, self.discount, self.rate = merge, discount, 0.5 if merge == "mix" else 1.0
        rounds = {"mode": "buffered", "merge": merge, "discount": discount, "buffer": buffer, "staleness": staleness}
        strategy: dict[str, Any] = {"name": "aifed", "gating": gating, "keep": 0.6, "full_every": 3}
        own: dict[str, Any] = {
            "study": {"rounds": TURNS},
            "task": {"name": f"{__name__}:Blocks3"},
            "protection": {"kind": "masked", "reference_samples": 100, "clip": 2.0, "bits": BITS},
            "rounds": {**rounds, "flushes": 12, **({"rate": self.rate} if merge == "mix" else {})},
        }
        made = study(CIRCLES * SITES, strategy=strategy, **own).completed()
        begun, files = start_of_study(made), BulkFiles(self.folder / "study")
        files.put_pieces(begun.first_model().sha256, begun.layout.pieces(begun.blocks))
        files.first.write_bytes(begun.first_model().to_json())
        self.resolved = ResolvedStudy.of(made)
        self.store = Store.in_folder(self.folder)
        self.store.add_study(made.id, made.canonical(), now=0.0)
        self.circles = self.resolved.division.circles
        assert [len(circle) for circle in self.circles] == [SITES] * CIRCLES
        self.versions = [{name: vector.astype(np.float64) for name, vector in begun.blocks.items()}]
        self.heard: dict[int, tuple[Turn, float]] = {}  # by circle: its last merged turn, and what its sites weigh
        self.last: dict[int, dict[str, Floats]] = {}  # by circle: the model of it
        self.asked: dict[Turn, tuple[str, ...]] = {}  # as a turn was first asked
        self.opened: dict[Turn, OpenedSums] = {}  # in the buffer
        self.merged: list[Turn] = []
        self.dropped: list[Turn] = []
        self.restart()

    # --- the coordinator ------------------------------------------------------------------------------------

    def restart(self) -> None:
        """A coordinator that knows what is on disk, and nothing else."""
        if self.store is not None:
            self.store.close()
        self.store = Store.in_folder(self.folder)
        self.files = BulkFiles(self.folder / "study")
        self.model = SharedModel(self.resolved, self.store, self.files)
        taken, under_way = stand(self.store.turns(self.resolved.id), self.circles)
        for turn, asked in under_way.items():
            assert asked == self.asked[turn], "a turn asks for the same in every life"
        limits = self.resolved.study.rounds
        self.turns = Turns(CIRCLES, limits.pace(TURNS))
        self.turns.resume(version=self.model.current.version, taken=taken, under_way=under_way)
        self.opened.clear()

    @rule()
    def crashes(self) -> None:
        self.restart()
        assert self.model.current.version == len(self.versions) - 1

    @rule(circle=st.integers(0, CIRCLES - 1))
    def begins(self, circle: int) -> None:
        turn = self.turns.begin(circle)
        if turn is None:
            return
        assert turn not in self.asked, "no turn is taken twice"
        self.asked[turn] = self.model.asked(turn.number - 1)
        self.current_store.begin_attempt(self.attempt(turn))

    @rule(circle=st.integers(0, CIRCLES - 1))
    def opens(self, circle: int) -> None:
        turn = self.turns.under_way(circle)
        if turn is None:
            return
        if self.turns.opened(turn, now=0.0):
            self.opened[turn] = self.sum_of(turn)
        else:
            self.drop(turn)

    @precondition(lambda self: self.opened)
    @rule(
        late=st.booleans(),
        killed=st.sampled_from(["not", "not", "before it is committed", "after it was committed"]),
    )
    def flushes(self, late: bool, killed: str) -> None:
        due = self.turns.due(now=0.0) or (tuple(self.opened) if late else ())  # or the first has waited long enough
        if not due:
            return
        total = sum(map(len, self.circles))
        self.files.prune(newest=self.turns.version, versions=set(), objects=self.needed())
        decoded, stored = self.model.merge(
            [
                OpenedTurn(
                    turn=turn, opened=self.opened[turn], share=len(self.circles[turn.circle]) / total,
                    asked=self.asked[turn],
                )
                for turn in due
            ]
        )  # fmt: skip
        if killed == "before it is committed":
            self.restart()
            return
        record = RoundRecord(number=stored.version, kind=RoundKind.TRAIN, attempts=1, seconds=0.0, nodes=())
        self.current_store.commit_round([self.attempt(turn) for turn in due], record, stored, alone=False)
        self.expect(due)
        self.merged += due
        if killed == "after it was committed":
            self.restart()
        else:
            self.model.adopt(stored)
            for turn in due:
                del self.opened[turn]
            for turn in self.turns.flushed(due):
                self.opened.pop(turn, None)
                self.drop(turn)
        assert set(decoded.means) <= set().union(*(self.asked[turn] or self.model.layout.model.names for turn in due))
        self.compare()

    def needed(self) -> set[bytes]:
        """The objects that what goes on needs, as `Publication` keeps them."""
        versions = {0, self.turns.version, max(0, self.turns.version - 1), *self.turns.bases}
        return {self.model.version(number).object for number in versions}

    def drop(self, turn: Turn) -> None:
        self.current_store.abort_attempt(self.attempt(turn), StaleTurnError.code)
        self.dropped.append(turn)

    @property
    def current_store(self) -> Store:
        assert self.store is not None
        return self.store

    def attempt(self, turn: Turn) -> Attempt:
        """Circles' turns of one number are attempts beside each other."""
        return Attempt(
            study_id=self.resolved.id,
            number=turn.number,
            attempt=1 + turn.circle,
            kind=RoundKind.TRAIN,
            invited=self.circles[turn.circle],
            model_version=turn.base,
            started=0.0,
            asked=self.asked[turn],
        )

    # --- the sites ------------------------------------------------------------------------------------------

    def sum_of(self, turn: Turn) -> OpenedSums:
        """What the circle's sites uploaded, added up. They keep it, so that it is the same after a crash."""
        blocks: dict[str, BlockSum] = {}
        layout = self.model.layout.model
        for site in self.circles[turn.circle]:
            weight = weight_of(site, turn.number)
            change = {
                name: change_of(site, turn.number, name, layout[name].size).astype(np.float32)
                for name in self.asked[turn] or layout.names
            }
            stream = UnsafeSeededRandomness(1, site, str(turn.number))
            found, _ = encode_update(change, layout=layout, codec=self.resolved.codec, weight=weight, stream=stream)
            for name, values in found.items():
                before = blocks.get(name)
                blocks[name] = BlockSum(
                    total=values.astype(np.int64) + (0 if before is None else before.total),
                    weight=weight + (0 if before is None else before.weight),
                    contributors=1 + (0 if before is None else before.contributors),
                )
        return OpenedSums(blocks=blocks, cohort=self.circles[turn.circle])

    # --- the oracle -----------------------------------------------------------------------------------------

    def expect(self, due: tuple[Turn, ...]) -> None:
        """The next version, in plain floats, from the formulas of `secure_fl.strategies.merging`."""
        newest, current = len(self.versions) - 1, self.versions[-1]
        means: dict[Turn, dict[str, Floats]] = {}
        for turn in due:
            sites = self.circles[turn.circle]
            weights = [weight_of(site, turn.number) / 64 for site in sites]
            self.heard[turn.circle] = turn, float(np.mean(weights))
            means[turn] = {
                name: np.average(
                    [change_of(site, turn.number, name, vector.size) for site in sites], axis=0, weights=weights
                )
                for name, vector in current.items()
                if not self.asked[turn] or name in self.asked[turn]
            }
            base = self.versions[turn.base]
            self.last[turn.circle] = {name: base[name] + mean for name, mean in means[turn].items()}
        average = np.mean([weight for _, weight in self.heard.values()])
        part = {circle: weight / average / CIRCLES for circle, (_, weight) in self.heard.items()}
        moved = {name: np.zeros_like(vector) for name, vector in current.items()}
        if self.merge == "delta":
            for turn in due:
                for name, mean in means[turn].items():
                    moved[name] += part[turn.circle] * age(self.discount, newest - turn.base) * mean
        elif self.merge == "mix":
            for turn in due:
                for name in means[turn]:
                    way = self.last[turn.circle][name] - current[name] - moved[name]
                    moved[name] += self.rate * age(self.discount, newest - turn.base) * way
        else:
            counts = {c: part[c] * age(self.discount, newest - self.heard[c][0].base) for c in self.last}
            for circle, counted in counts.items():
                for name, vector in self.last[circle].items():
                    moved[name] += counted / sum(counts.values()) * (vector - current[name])
        largest = self.resolved.largest_mean
        self.versions.append({name: current[name] + np.clip(moved[name], -largest, largest) for name in current})

    def compare(self) -> None:
        found = self.files.model(self.model.layout, self.model.current.object)
        assert self.model.current.version == len(self.versions) - 1
        for name, expected in self.versions[-1].items():
            np.testing.assert_allclose(found[name], expected, rtol=0, atol=EXACT * len(self.versions))

    def teardown(self) -> None:
        """Left alone, the study ends, and every turn that began was merged once, or dropped once."""
        if self.store is None:
            return
        if hasattr(self, "turns"):
            for _ in range(60):
                if self.turns.is_over:
                    break
                for circle in range(CIRCLES):
                    self.begins(circle)
                    self.opens(circle)
                self.flushes(True, "not")
            assert self.turns.is_over
            ended = [*self.merged, *self.dropped]
            assert len(ended) == len(set(ended))
            unmerged = {turn for turn in self.asked if turn not in ended}
            assert all(self.turns.under_way(turn.circle) == turn or turn in self.opened for turn in unmerged)
            if self.turns.version < self.resolved.study.rounds.pace(TURNS).flushes:
                assert not unmerged
        self.store.close()
        self.temporary.cleanup()


# Without shrinking, which would take longer than a test may: thirty steps can be read.
Flushes.TestCase.settings = settings(
    deadline=None,
    max_examples=20,
    stateful_step_count=30,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
TestFlushes = pytest.mark.timeout(300)(Flushes.TestCase)
