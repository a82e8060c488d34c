"""What circles that do not wait weigh against each other: the ratio of sums that one round of all of them opens.

Sites' weights are never shown. What is opened is Σω of a circle, and that is what its arrival counts by.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import nn

from coordinator.bulk_files import BulkFiles
from coordinator.merging import CircleSums
from coordinator.shared_model import OpenedTurn, SharedModel
from coordinator.store import Store
from node.encoding import encode
from node.training.jobs import Result
from secure_fl import tasks
from secure_fl.blocks import Blocks
from secure_fl.checkpoints import save_arrays
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.metrics import METRICS_BLOCK, SiteMetrics
from secure_fl.protect.contract import OpenedSums
from secure_fl.randomness import KeyStream
from secure_fl.rounds import RoundKind
from secure_fl.strategies.site import Site
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.submission import start_of_study
from secure_fl.study.turns import Turn
from secure_fl.tasks.base import LocalData, Source, Split, Task
from tests.protect.rosters import study

_BEGINS = 5.0


class _Offsets(nn.Module):
    """How far its value is from what each row says: the value may be trained to anything, in one step."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.full((width,), _BEGINS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.value - inputs[:, :1]


class _Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = _Offsets(2), _Offsets(4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.layer(inputs), self.head(inputs)], dim=1)


class Aims(Task):
    """Four classes, and two blocks that training at a learning rate of 1 takes to where the site's rows say."""

    kind: ClassVar[Literal["classification", "regression"]] = "classification"

    def model(self) -> nn.Module:
        return _Both()

    def load(self, source: Source) -> LocalData:
        raise AssertionError

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.square().sum(dim=1).mean() / 2


def rows(counts: Sequence[int], aim: float) -> LocalData:
    """So many rows of each class."""
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    split = Split(inputs=torch.full((len(targets), 1), aim), targets=targets)
    return LocalData(train=split, test=split)


class Players:
    """A study of circles of five, at the coordinator, and its sites as far as their integers."""

    def __init__(self, folder: Path, *, circles: int, **sections: dict[str, Any]) -> None:
        own: dict[str, Any] = {
            "task": {"name": f"{__name__}:Aims"},
            "protection": {"kind": "masked", "reference_samples": 100, "clip": 16.0, "bits": 20},
            "study": {"rounds": 9},
        }
        made = study(5 * circles, **{**own, **sections}).completed()
        start, self._store, files = start_of_study(made), Store.in_folder(folder), BulkFiles(folder / "study")
        files.put_pieces(start.first_model().sha256, start.layout.pieces(start.blocks))
        files.first.write_bytes(start.first_model().to_json())
        self._store.add_study(made.id, made.canonical(), now=0.0)
        self.resolved, self._files = ResolvedStudy.of(made), files
        self.model = SharedModel(self.resolved, self._store, files)
        self.circles = self.resolved.division.circles
        assert [len(circle) for circle in self.circles] == [5] * circles
        self._trained = folder / "trained.safetensors"

    def close(self) -> None:
        self._store.close()

    def values(self) -> Blocks:
        return {
            name: np.array(v) for name, v in self._files.model(self.model.layout, self.model.current.object).items()
        }

    def later(self) -> None:
        """Another version with the same values."""
        self.model.adopt(self.model.unchanged())
        self._store.add_model(self.resolved.id, self.model.current)

    def opened(
        self, circle: int, counts: Sequence[int], aims: Sequence[float], *, asked: tuple[str, ...] | None = None
    ) -> OpenedSums:
        """What a circle opens whose members train on so many rows of each class: fit, weigh, encode, add up."""
        resolved = self.resolved
        blocks: dict[str, BlockSum] = {}
        for name, aim in zip(self.circles[circle], aims, strict=True):
            site = Site(
                task=tasks.create(resolved.study.task.name, {}),
                data=rows(counts, aim),
                training=resolved.strategy.settings,
                initial=self.values(),
                received=self.values(),
                personal={},
                combination={},
                seed=1,
                asked=asked,
            )
            save_arrays(self._trained, resolved.strategy.fit(site))
            kept = encode(
                resolved,
                round_context(
                    resolved, number=1, attempt=1, kind=RoundKind.TRAIN, base_model=b"", shared=self.model.layout,
                    invited=self.circles[circle], asked=asked or (),
                ),
                Result(samples=site.samples, metrics=SiteMetrics(), richness=resolved.strategy.richness(site)),
                base=b"",
                trained=self._trained,
                stream=KeyStream(name.encode().ljust(32)),
                check_size=lambda _: None,
            )  # fmt: skip
            weight = kept.weight
            for block, values in kept.blocks.items():
                if block == METRICS_BLOCK:
                    continue
                mine = BlockSum(total=values.astype(np.int64), weight=weight, contributors=1)
                before = blocks.get(block, BlockSum(total=np.zeros_like(mine.total), weight=0, contributors=0))
                blocks[block] = BlockSum(
                    total=before.total + mine.total,
                    weight=before.weight + weight,
                    contributors=before.contributors + 1,
                )
        return OpenedSums(blocks=blocks, cohort=self.circles[circle])

    def turn(self, circle: int, opened: OpenedSums, *, base: int = 0, asked: tuple[str, ...] = ()) -> OpenedTurn:
        share = len(self.circles[circle]) / sum(map(len, self.circles))
        return OpenedTurn(turn=Turn(circle=circle, number=1, base=base), opened=opened, share=share, asked=asked)


TRAINING = {"learning_rate": 1.0, "momentum": 0.0, "epochs": 1, "batch_size": 1000}

# Rows of each of four classes. n = (100, 200, 100), and LIR is the entropy of the labels: 2, 1 and 1.5 bits.
LABELS = ((25, 25, 25, 25), (100, 100, 0, 0), (50, 25, 25, 0))


@pytest.mark.parametrize("sends", [(True, True, True), (True, False, True)])
def test_aifeds_vector_from_the_sites_labels_to_the_next_version(tmp_path: Path, sends: tuple[bool, ...]) -> None:
    """β ∝ n·LIS·LIR is (.491526, .361644, .146830): n·LIR arrives as opened weights, LIS is the discount by age.

    A layer that the second circle does not send counts as the global one there, which is 5.
    """
    strategy = {"name": "aifed", "gating": "public", **TRAINING}
    rounds = {"merge": "cache", "discount": "paper", "buffer": 3}
    players = Players(tmp_path, circles=3, strategy=strategy, rounds=rounds)
    turns = []
    for base in range(4):
        for circle, (counts, age, aim) in enumerate(zip(LABELS, (0, 1, 3), (1.0, 2.0, 3.0), strict=True)):
            if 3 - age == base:
                asked = () if sends[circle] else ("head",)
                sums = players.opened(circle, counts, [aim] * 5, asked=asked or None)
                assert {block.weight for block in sums.blocks.values()} == {5 * (64, 64, 48)[circle]}
                turns.append(players.turn(circle, sums, base=base, asked=asked))
        if base < 3:
            players.later()
    _, stored = players.model.merge(turns)
    players.model.adopt(stored)
    found = players.values()
    players.close()
    step = 16 / 2**19 * 64 / 48
    assert found["head"] == pytest.approx([1.655304] * 4, abs=step)
    assert found["layer"] == pytest.approx([1.655304 if all(sends) else 2.740237] * 2, abs=step)


@pytest.mark.parametrize("merge", ["cache", "delta"])
def test_a_flush_of_all_fresh_circles_is_the_round_of_all_sites(tmp_path: Path, merge: str) -> None:
    """What is opened of two circles with unlike weights, merged; and added up, as a synchronous round has it."""
    counts, aims = ((90, 0, 0, 0), (65, 0, 0, 0)), ([1.0, 2.0, 3.0, 4.0, 5.0], [11.0, 3.0, 7.0, 9.0, 6.0])
    made: dict[str, Blocks] = {}
    for mode in ("buffered", "sync"):
        players = Players(
            tmp_path / mode,
            circles=2,
            strategy={"name": "fedavg", **TRAINING},
            rounds={"mode": mode, "merge": merge, "buffer": 2},
        )
        opened = [players.opened(circle, counts[circle], aims[circle]) for circle in (0, 1)]
        if mode == "buffered":
            turns = [players.turn(circle, sums) for circle, sums in enumerate(opened)]
            decoded, stored = players.model.merge(turns)
        else:
            total = CircleSums(players.resolved.codec, robust=False)
            for sums in opened:
                total.add(sums)
            decoded = players.model.decode(total.total(), training=True)
            stored = players.model.step(decoded.means)
        assert decoded.means["layer"].contributors == 10
        players.model.adopt(stored)
        made[mode] = players.values()
        players.close()
    weights = [round(0.64 * sum(each)) for each in counts]
    assert weights == [58, 42]
    expected = np.average([aim for mine in aims for aim in mine], weights=np.repeat(weights, 5))
    for name, vector in made["buffered"].items():
        np.testing.assert_allclose(vector, made["sync"][name], rtol=0, atol=2e-6)
        assert vector == pytest.approx(expected, abs=1e-3)
        assert abs(expected - np.mean([aim for mine in aims for aim in mine])) > 0.1
