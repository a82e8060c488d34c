"""DP-SGD in a site: noise on everything, groups that count once, no step too many, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from secure_fl import strategies
from secure_fl.blocks import Blocks
from secure_fl.errors import DataError, UnaccountedTrainingError
from secure_fl.privacy import dp_sgd, noise
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.privacy.per_unit import PerUnitGradients, row_losses
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Split, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks
from tests.privacy.test_noise import require_gaussian
from tests.privacy.test_per_unit import Given, rows_of

# --- a site under noise -----------------------------------------------------------------------------------------

MECHANISM = Mechanism(unit="record", units=20, sampling=0.2, noise=1.5, clip=0.4, epoch_steps=5)
PLAIN = LocalTraining(epochs=1, learning_rate=1.0, momentum=0.0)


class Wide(Given):
    """Many parameters, so that one step shows much noise."""

    size = (10_000, 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Grouped(Split):
    """Rows that belong to groups."""

    groups: Tensor | None = None


def rows(count: int, task: Given, *, scale: float = 1.0, groups: list[int] | None = None) -> Split:
    x = scale * torch.randn(count, task.size[0], generator=torch.Generator().manual_seed(3))
    targets = torch.arange(count) % 2
    return Grouped(inputs=x, targets=targets, groups=None if groups is None else torch.tensor(groups))


def site(
    split: Split,
    task: Given,
    mechanism: Mechanism | None = MECHANISM,
    *,
    seed: bytes | None = b"seed",
    training: LocalTraining = PLAIN,
    reserved: int = 1000,
) -> Site:
    initial = initial_blocks(task, 0)[1]
    here = Site(
        task=task, data=LocalData(train=split, test=split), training=training, initial=initial, received=initial,
        personal={}, combination={}, seed=0, privacy=mechanism, privacy_seed=seed, reserved_steps=reserved,
    )  # fmt: skip
    here.load(initial)
    return here


GIVEN, WIDE = Given(TaskSettings()), Wide(TaskSettings())


def flat(blocks: Blocks) -> npt.NDArray[np.float64]:
    return np.concatenate([blocks[name] for name in sorted(blocks)]).astype(np.float64)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size take far longer with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def noise_of_a_run() -> npt.NDArray[np.float64]:
    """What four steps of a real run add to a model that its data do not move: every record's gradient is zero."""
    here = site(rows(20, WIDE, scale=0.0), WIDE, replace(MECHANISM, epoch_steps=4))
    here.train(loss=lambda outputs, _: outputs.mean() * 0)
    return flat(here.change(here.layout.names)) * (MECHANISM.sampling * MECHANISM.units)


def test_a_run_adds_gaussian_noise_of_the_stated_size() -> None:
    require_gaussian(noise_of_a_run(), deviation=1.5 * 0.4 * math.sqrt(4))


@pytest.mark.parametrize("factor", [0.0, 0.1, 0.9, 1.1])
def test_a_run_with_less_or_more_noise_is_found_out(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = noise.gaussians
    monkeypatch.setattr(noise, "gaussians", lambda stream, count: factor * honest(stream, count))
    with pytest.raises(AssertionError):
        require_gaussian(noise_of_a_run(), deviation=1.5 * 0.4 * math.sqrt(4))


@pytest.mark.parametrize("count", [0, 1, 19, 20, 400])
def test_neither_steps_nor_divisor_tell_how_many_units_there_are(count: int) -> None:
    here = site(rows(count, GIVEN), GIVEN)
    here.train(epochs=3)
    assert here.noised_steps == 15
    mean = {"head": here.blocks()["head"] - here.initial["head"]}
    assert np.isfinite(flat(mean)).all()
    assert flat(mean).any()  # noise, if nothing else


def test_the_step_is_the_clipped_sum_over_the_expected_batch() -> None:
    quiet = replace(MECHANISM, noise=1e-9, sampling=1.0, epoch_steps=1)
    split = rows(7, GIVEN)
    here = site(split, GIVEN, quiet)
    sums = PerUnitGradients(here.model).clipped_sum(rows_of(split.inputs, split.targets), row_losses(GIVEN), 0.4)
    here.train()
    expected = -np.concatenate([total.numpy().ravel() for _, total in sums]) / 20
    assert here.change(("head",))["head"] == pytest.approx(expected, abs=1e-6)


def test_groups_are_sampled_whole_and_count_once() -> None:
    groups = [5, 5, 5, 9, 9, 2]
    quiet = replace(MECHANISM, noise=1e-9, sampling=1.0, epoch_steps=1, unit="group", group_rows=3)
    split = rows(6, GIVEN, groups=groups)
    here = site(split, GIVEN, quiet)
    by_unit = rows_of(split.inputs, split.targets, [1, 1, 1, 2, 2, 0])
    sums = PerUnitGradients(here.model).clipped_sum(by_unit, row_losses(GIVEN), 0.4)
    here.train()
    expected = -np.concatenate([total.numpy().ravel() for _, total in sums]) / 20
    assert here.change(("head",))["head"] == pytest.approx(expected, abs=1e-6)


def test_of_a_large_group_a_few_rows_count_chosen_among_its_own() -> None:
    few = replace(MECHANISM, sampling=0.5, unit="group", group_rows=3)
    for owners in ([0] * 9 + [1] * 2 + [2] * 5, [2, 0, 1, 0, 0, 2, 0, 1, 0, 0, 2, 0, 2, 0, 2, 0]):
        split = rows(16, GIVEN, groups=owners)
        training = dp_sgd.NoisyTraining(
            few, model=GIVEN.model(), split=split, reserved_steps=0, randomness=noise.PrivateRandomness(b"few")
        )
        seen = np.zeros(16)
        for sample in training.samples(400):
            sizes = np.bincount(sample.unit, minlength=sample.units)
            assert len(sizes) == sample.units
            assert sample.units == 0 or sizes.min() >= 1
            for unit in range(sample.units):
                mine = sample.rows[sample.unit == unit]
                whole = np.flatnonzero(np.array(owners) == owners[mine[0]])
                assert set(mine) <= set(whole)
                assert len(set(mine)) == min(3, len(whole))
                seen[mine] += 1
        # 2000 steps, each group in half of them: a row of the group of nine counts in a sixth.
        for owner, size in ((0, 9), (1, 2), (2, 5)):
            expected = 1000 * min(3, size) / size
            assert np.abs(seen[np.array(owners) == owner] - expected).max() < 5 * math.sqrt(expected)


def test_groups_need_a_task_that_has_them() -> None:
    with pytest.raises(DataError, match="group"):
        site(rows(4, GIVEN), GIVEN, replace(MECHANISM, unit="group"))


@pytest.mark.parametrize("extra", [{"momentum": 0.9}, {"weight_decay": 0.1}, {"optimizer": "adam"}])
def test_the_optimizer_acts_on_the_noised_gradient(extra: dict[str, Any]) -> None:
    training = LocalTraining.model_validate({**PLAIN.model_dump(), **extra})
    here = site(rows(20, GIVEN), GIVEN, training=training)
    reference = site(rows(20, GIVEN), GIVEN)
    optimizer = here.optimizer()
    copy = nn.Parameter(torch.tensor(flat(here.initial), dtype=torch.float32))
    decay = training.weight_decay
    theirs: torch.optim.Optimizer = torch.optim.SGD([copy], lr=1.0, momentum=training.momentum, weight_decay=decay)
    if training.optimizer == "adam":
        theirs = torch.optim.Adam([copy], lr=1.0, weight_decay=decay)
    for step, same in zip(here.batches(), reference.batches(), strict=True):
        reference.load(here.blocks())
        reference.backward(same)  # the same sample, the same noise, the same weights
        copy.grad = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
        here.descend(optimizer, step)
        theirs.step()
        assert flat(here.blocks()) == pytest.approx(copy.detach().numpy().astype(float), abs=1e-6)


def test_a_penalty_is_added_after_clipping_and_noise() -> None:
    """With nothing in the data, a step is −η·(noise + ∇penalty): the penalty whole, however small the clip."""
    tiny = replace(MECHANISM, clip=1e-9, epoch_steps=1)
    here = site(rows(0, GIVEN), GIVEN, tiny, training=LocalTraining(epochs=1, learning_rate=0.25, momentum=0.0))
    anchor = [p + 1.0 for p in here.snapshot()]
    here.train(penalty=here.pull(anchor, 0.5))
    assert here.change(("head",))["head"] == pytest.approx(0.25, abs=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------


def test_a_step_beyond_the_reservation_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(rows(20, GIVEN), GIVEN, reserved=7)
    computed: list[int] = []
    honest = PerUnitGradients.clipped_sum

    def counted(self: PerUnitGradients, *args: Any) -> Any:
        computed.append(1)
        return honest(self, *args)

    monkeypatch.setattr(PerUnitGradients, "clipped_sum", counted)
    with pytest.raises(UnaccountedTrainingError, match="7 that were reserved"):
        here.train(epochs=2)
    assert len(computed) == here.noised_steps == 7


def test_nothing_is_reserved_unless_somebody_says_so() -> None:
    split, initial = rows(4, GIVEN), initial_blocks(GIVEN, 0)[1]
    here = Site(
        task=GIVEN, data=LocalData(train=split, test=split), training=PLAIN, initial=initial, received=initial,
        personal={}, combination={}, seed=0, privacy=MECHANISM,
    )  # fmt: skip
    with pytest.raises(UnaccountedTrainingError):
        here.train()


def test_a_sample_is_good_for_one_step() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    sample = next(iter(here.batches()))
    here.descend(here.optimizer(), sample)
    with pytest.raises(UnaccountedTrainingError, match="same sample"):
        here.descend(here.optimizer(), sample)


def test_a_site_tries_its_model_out_without_a_trace() -> None:
    groups = [0, 0, 0, 1, 1, 2]
    for mechanism in (MECHANISM, replace(MECHANISM, unit="group", group_rows=2)):
        here = site(rows(6, GIVEN, groups=groups), GIVEN, mechanism, reserved=0)
        here.try_noise()
        assert here.noised_steps == 0
        assert not here.change(("head",))["head"].any()


def test_rows_that_were_not_sampled_are_refused() -> None:
    here, plain = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN, None)
    with pytest.raises(UnaccountedTrainingError, match="not sampled"):
        here.descend(here.optimizer(), next(iter(plain.batches())))
    with pytest.raises(UnaccountedTrainingError, match="all rows"):
        next(iter(here.batches(rows=torch.arange(3))))
    with pytest.raises(UnaccountedTrainingError):
        plain.descend(plain.optimizer(), next(iter(here.batches())))


def test_after_a_free_part_nothing_trains_under_noise_and_nothing_is_taken() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    here.train(free=True)
    assert here.noised_steps == 0
    with pytest.raises(UnaccountedTrainingError, match="without noise"):
        here.train()
    with pytest.raises(UnaccountedTrainingError, match="without noise"):
        here.change(("head",))


def test_a_free_part_aside_leaves_no_trace() -> None:
    here, other = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN)
    with here.aside():
        here.train(free=True)
        assert not np.array_equal(here.blocks()["head"], here.initial["head"])
    here.train()
    other.train()
    assert np.array_equal(here.change(("head",))["head"], other.change(("head",))["head"])


def test_noise_is_never_drawn_twice_even_aside() -> None:
    here = site(rows(0, GIVEN), GIVEN, replace(MECHANISM, epoch_steps=1))
    with here.aside():
        here.train()
        first = here.change(("head",))["head"]
    here.train()
    assert not (here.change(("head",))["head"] == first).any()
    assert here.noised_steps == 2


def test_a_free_part_that_fails_does_not_end_the_round(caplog: pytest.LogCaptureFixture) -> None:
    here, plain = site(rows(20, GIVEN), GIVEN), site(rows(20, GIVEN), GIVEN, None)
    with here.free(), here.free():
        raise ArithmeticError
    assert "without noise failed" in caplog.text
    with pytest.raises(ArithmeticError), plain.free():
        raise ArithmeticError


def test_the_public_seed_decides_neither_samples_nor_noise() -> None:
    here, same, other = (site(rows(20, GIVEN), GIVEN, seed=seed) for seed in (None, None, b"a"))
    changes = []
    for one in (here, same, other):
        one.train()
        changes.append(one.change(("head",))["head"])
    assert not (changes[0] == changes[1]).any()
    assert not (changes[0] == changes[2]).any()


def test_dropout_does_not_follow_the_public_seed() -> None:
    draws = []
    for seed in (b"a", b"a", b"b"):
        site(rows(4, GIVEN), GIVEN, seed=seed)
        draws.append(float(torch.rand(())))
    assert draws[0] == draws[1] != draws[2]


def test_the_loss_is_not_told() -> None:
    here = site(rows(20, GIVEN), GIVEN)
    assert math.isnan(here.backward(next(iter(here.batches()))))


def test_whoever_trains_in_a_way_of_its_own_says_what_it_costs() -> None:
    fedavg = type(strategies.create("fedavg", {}))

    class Own(fedavg):  # type: ignore[misc, valid-type]
        def fit(self, site: Site) -> Blocks:
            return {}

    class Same(fedavg):  # type: ignore[misc, valid-type]
        pass

    assert Own(LocalTraining()).charged_epochs() is None
    assert Same(LocalTraining()).charged_epochs() == LocalTraining().epochs
