"""Metrics that a task declares: additive, exact where they can be, and within a stated bound where they cannot."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, f1_score, mean_absolute_error, r2_score, roc_auc_score, roc_curve
from torch import Tensor, nn

from node.training.rehearsal import rehearse
from secure_fl.errors import DataError, SettingsError
from secure_fl.strategies.site import Site
from secure_fl.strategies.training import LocalTraining
from secure_fl.tasks import metrics
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.metrics import (
    F1,
    R2,
    Accuracy,
    Auc,
    BalancedAccuracy,
    Mae,
    Metric,
    Sensitivity,
    Specificity,
    built_in,
    formula_of,
    value_of,
)
from secure_fl.tasks.model_blocks import InitialBlocks, layout_of
from secure_fl.tasks.tally import Tally
from tests.protect.laws import law


class MissedEarly(Metric):
    """As in docs/tasks.md."""

    name = "missed_early"

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        early, missed = targets == 1, outputs.argmax(dim=1) == 0
        return (early & missed).sum(), early.sum()


class Kappa(Metric):
    """With a formula of its own."""

    name = "kappa"
    size = 4

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        said = outputs.argmax(dim=1)
        return [((said == a) & (targets == b)).sum() for a in (0, 1) for b in (0, 1)]

    def value(self, sums: Sequence[int]) -> float | None:
        a, b, c, d = sums
        return 2 * (a * d - b * c) / ((a + b) * (b + d) + (a + c) * (c + d))


CLASSIFYING: tuple[Metric, ...] = (
    Accuracy(), Auc(), Auc(positive=0, bins=7), BalancedAccuracy(), F1(), F1(positive=0), Sensitivity(),
    Sensitivity(at_specificity=0.55), Specificity(), MissedEarly(), Kappa(),
)  # fmt: skip
MEASURING: tuple[Metric, ...] = (Mae(ceiling=4), R2(ceiling=4))


def classified(seed: int, rows: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = scale * torch.randn(rows, 2, generator=generator)
    noise = scale * torch.randn(rows, generator=generator)
    return outputs, (outputs[:, 1] - outputs[:, 0] + noise > 0).long()


def measured(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(rows, 1, generator=generator)
    return outputs, outputs + 0.3 * torch.randn(rows, 1, generator=generator)


def counted(metric: Metric, outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
    tally = Tally([metric])
    tally.add(outputs, targets)
    return tally.sums[metric.name]


# --- laws -------------------------------------------------------------------------------------------------------


@law
@given(st.integers(0, 2**30), st.integers(1, 40), st.integers(1, 40), st.sampled_from([*CLASSIFYING, *MEASURING]))
def test_sums_of_two_sites_are_the_sums_of_their_rows_together(
    seed: int, here: int, there: int, metric: Metric
) -> None:
    outputs, targets = (measured if metric in MEASURING else classified)(seed, here + there)
    both = [
        a + b
        for a, b in zip(
            counted(metric, outputs[:here], targets[:here]),
            counted(metric, outputs[here:], targets[here:]),
            strict=True,
        )
    ]
    assert tuple(both) == counted(metric, outputs, targets)
    assert len(both) == metric.size


@law
@given(
    st.integers(0, 2**30), st.integers(10, 300), st.sampled_from([0.01, 1.0, 5.0, 60.0]), st.sampled_from([2, 16, 64])
)
def test_auc_is_within_its_own_bound_of_the_exact_one(seed: int, rows: int, scale: float, bins: int) -> None:
    outputs, targets = classified(seed, rows, scale)
    if 0 < int(targets.sum()) < len(targets):
        metric = Auc(bins=bins)
        sums = counted(metric, outputs, targets)
        value, error = metric.value(sums), metric.error(sums)
        exact = roc_auc_score(targets, (outputs[:, 1] - outputs[:, 0]).double())
        assert value is not None
        assert error is not None
        assert abs(value - exact) <= error + 1e-12


def test_the_bound_is_small_for_a_model_that_has_learnt_something() -> None:
    sums = counted(Auc(), *classified(0, 5000, 3.0))
    assert (Auc().error(sums) or 1) < 0.02
    # With one bin on each side of even odds there is little left of the curve, and the bound says so.
    assert (Auc(bins=2).error(counted(Auc(bins=2), *classified(0, 5000, 3.0))) or 0) > 0.1


def test_scores_in_order_give_the_exact_area_where_every_bin_has_one_row() -> None:
    odds = torch.tensor([-3.0, -1.0, -0.2, 0.3, 1.5, 4.0])
    outputs, targets = torch.stack((torch.zeros(6), odds), dim=1), torch.tensor([0, 1, 0, 1, 0, 1])
    assert Auc().error(counted(Auc(), outputs, targets)) == 0
    assert Auc().value(counted(Auc(), outputs, targets)) == pytest.approx(6 / 9)


def test_auc_of_one_class_among_three_is_one_against_the_rest() -> None:
    generator = torch.Generator().manual_seed(4)
    outputs, targets = torch.randn(400, 3, generator=generator), torch.randint(3, (400,), generator=generator)
    outputs[range(400), targets] += 1
    metric = Auc(positive=2, bins=512)
    odds = outputs[:, 2] - torch.logsumexp(outputs[:, :2], dim=1)
    sums = counted(metric, outputs, targets)
    assert metric.value(sums) == pytest.approx(roc_auc_score(targets == 2, odds), abs=metric.error(sums) or 0)
    assert metric.name == "auc_of_2"


# --- against scikit-learn ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_decisions_are_counted_as_scikit_learn_counts_them(seed: int) -> None:
    outputs, targets = classified(seed, 101)
    said = outputs.argmax(dim=1)
    for metric, exact in (
        (Accuracy(), float((said == targets).double().mean())),
        (F1(), f1_score(targets, said)),
        (F1(positive=0), f1_score(targets, said, pos_label=0)),
        (BalancedAccuracy(), balanced_accuracy_score(targets, said)),
        (Specificity(), float((said[targets == 0] == 0).double().mean())),
    ):
        assert metric.value(counted(metric, outputs, targets)) == pytest.approx(exact), metric.name


@pytest.mark.parametrize("wanted", [0.5, 0.55, 0.9, 0.99])
def test_sensitivity_is_a_point_of_the_roc_curve_with_the_wanted_specificity(wanted: float) -> None:
    outputs, targets = classified(1, 2000)
    metric = Sensitivity(at_specificity=wanted, bins=1024)
    found = metric.value(counted(metric, outputs, targets))
    alarms, hits, _ = roc_curve(targets, (outputs[:, 1] - outputs[:, 0]).double())
    best = hits[1 - alarms >= wanted].max()
    assert found is not None
    # Thresholds are borders of bins, so it can only be lower, and with many bins not by much.
    assert best - 0.02 <= found <= best + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_errors_are_what_scikit_learn_says_up_to_rounding(seed: int) -> None:
    outputs, targets = measured(seed, 200)
    assert Mae(ceiling=4).value(counted(Mae(ceiling=4), outputs, targets)) == pytest.approx(
        mean_absolute_error(targets, outputs), abs=4 / 2**17
    )
    assert R2(ceiling=8).value(counted(R2(ceiling=8), outputs, targets)) == pytest.approx(
        r2_score(targets, outputs), abs=2e-3
    )


def test_an_error_beyond_the_ceiling_counts_as_the_ceiling() -> None:
    outputs, targets = torch.tensor([[0.0], [100.0]]), torch.zeros(2, 1)
    assert Mae(ceiling=2).value(counted(Mae(ceiling=2), outputs, targets)) == pytest.approx(1.0)


@pytest.mark.parametrize("metric", [*CLASSIFYING, *MEASURING], ids=lambda metric: metric.name)
def test_no_rows_have_no_value(metric: Metric) -> None:
    assert value_of(metric.value, (0,) * metric.size) is None


# --- what a study says ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [each for each in (*CLASSIFYING, *MEASURING) if each.name != "kappa"])
def test_a_value_is_known_from_the_study_alone(metric: Metric) -> None:
    outputs, targets = (measured if metric in MEASURING else classified)(3, 50)
    formula, settings = formula_of(metric)
    sums = counted(metric, outputs, targets)
    assert built_in(formula, settings, size=metric.size)(sums) == metric.value(sums)


def test_a_formula_of_ones_own_is_not_taken_for_another() -> None:
    assert formula_of(Kappa()) == ("", {})
    assert formula_of(MissedEarly()) == ("ratio", {})


def test_a_metric_that_only_scores_otherwise_keeps_its_formula() -> None:
    class Distances(Auc):
        def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().sums(-outputs, targets)

    assert formula_of(Distances(bins=8)) == ("auc", {"positive": 1, "bins": 8})


@pytest.mark.parametrize(
    ("formula", "settings", "size"),
    [
        ("auc", {"positive": 1, "bins": 64}, 127), ("auc", {"bins": 1}, 2), ("auc", {"bins": 10**9}, 2),
        ("auc", {"bins": 64.0}, 128), ("auc", {"bins": True}, 2), ("auc", {"boxes": 64}, 128), ("acu", {}, 2),
        ("ratio", {}, 3), ("f1", {"positive": -1}, 2), ("mae", {"ceiling": 0}, 2), ("mae", {"ceiling": math.inf}, 2),
        ("mae", {"ceiling": math.nan}, 2), ("sensitivity", {"at_specificity": 1.0}, 128), ("mae", {}, 2),
    ],
)  # fmt: skip
def test_a_study_cannot_name_a_formula_that_is_none(formula: str, settings: dict[str, Any], size: int) -> None:
    with pytest.raises(SettingsError):
        built_in(formula, settings, size=size)


def test_values_need_no_torch() -> None:
    program = f"import sys, {metrics.__name__} as m; print(m.Auc(bins=2).value((3, 1, 1, 3)), 'torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["0.75", "False"]


# --- at a site --------------------------------------------------------------------------------------------------


class Faulty(Metric):
    """Returns whatever it was given."""

    name = "faulty"

    def __init__(self, found: Any) -> None:
        self._found = found

    def sums(self, outputs: Tensor, targets: Tensor) -> Any:
        if isinstance(self._found, Exception):
            raise self._found
        return self._found


@pytest.mark.parametrize(
    "found",
    [(1,), (1, 2, 3), (-1, 2), (0.5, 2), (math.nan, 1), (math.inf, 1), ("1", 2), (True, 1), (2**45, 1), RuntimeError()],
)
def test_sums_that_are_none_never_leave_and_others_do(found: Any, caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally([Faulty(found), Accuracy()])
    with caplog.at_level(logging.WARNING):
        tally.add(*classified(0, 5))
    assert list(tally.sums) == ["pooled_accuracy"]


def test_a_metric_that_failed_on_one_batch_stays_unknown() -> None:
    tally = Tally([Accuracy(), MissedEarly()])
    outputs, targets = classified(0, 5)
    tally.add(outputs, targets)
    tally.add(outputs * math.nan, targets)
    tally.add(outputs, targets)
    assert tally.sums == {}


class Spots(Task):
    kind = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (Auc(bins=4), MissedEarly())

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(features=nn.Linear(3, 4), head=nn.Linear(4, 2)))

    def load(self, source: Source) -> LocalData:
        raise NotImplementedError


class Broken(Spots):
    metrics: ClassVar[tuple[Metric, ...]] = (Auc(bins=4), Faulty((1, 2, 3)))


@pytest.mark.parametrize("batch_size", [1, 7, 1024])
def test_a_task_measures_what_it_declares_whatever_the_batches(batch_size: int) -> None:
    torch.manual_seed(0)
    task, split = Spots(TaskSettings()), Split(inputs=torch.randn(20, 3), targets=torch.randint(2, (20,)))
    model = task.model()
    found = task.evaluate(model, split, batch_size).sums
    outputs = model(split.inputs).detach()
    assert found == {metric.name: counted(metric, outputs, split.targets) for metric in task.metrics}
    assert sum(found["auc"]) == 20


@pytest.mark.parametrize(("kind", "works"), [(Spots, True), (Broken, False)])
def test_a_metric_that_does_not_work_is_found_before_the_study(kind: type[Task], works: bool) -> None:
    task = kind(TaskSettings())
    rows = Split(inputs=torch.randn(20, 3), targets=torch.randint(2, (20,)))
    layout = layout_of(task, task.model())
    site = Site(
        task=task, data=LocalData(train=rows, test=rows), training=LocalTraining(),
        initial=InitialBlocks(task, 0, layout), received={}, personal={}, combination={}, seed=0,
    )  # fmt: skip
    if works:
        assert "20 rows to train on" in rehearse(site)
    else:
        with pytest.raises(DataError, match="fail on the first test rows: faulty"):
            rehearse(site)


def test_counts_are_exact_beyond_what_floats_hold() -> None:
    # 2⁶⁰ + 1 and 2⁶⁰ are the same number in double precision: the one row that is worse would be lost.
    below, above = (2**60, 0), (1, 2**60)
    assert Auc(bins=2).value((*below, *above)) == 1 - 2**60 / (2 * 2**60 * (2**60 + 1))
    assert Auc(bins=2).value((1, 0, 1, 2**53)) == ((2**53) * 2 + 1) / (2 * (2**53 + 1))
