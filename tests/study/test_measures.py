"""What a study says of its task's metrics, and what a site with another task does about it."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import tomli_w

from secure_fl import limits, tasks
from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.study.measures import MeasuredMetric, MetricsSection
from secure_fl.study.settings import Study
from secure_fl.tasks.base import TaskSettings
from secure_fl.tasks.breast_cancer import BreastCancer
from secure_fl.tasks.metrics import Accuracy, Auc, Metric
from tests.protect.rosters import study
from tests.tasks.test_metrics import Kappa, MissedEarly, Spots

AUC = {"name": "auc", "sums": 128, "formula": "auc", "settings": {"positive": 1, "bins": 64}}


def parsed(**metrics: Any) -> Study:
    return study(4, task={"name": "breast-cancer"}, metrics=metrics)


class Finer(BreastCancer):
    """The same task of another release."""

    metrics: ClassVar[tuple[Metric, ...]] = (Auc(bins=32), Accuracy())


class Twice(Spots):
    metrics: ClassVar[tuple[Metric, ...]] = (Auc(), Auc(bins=2))


class Odd(Metric):
    """With a name that no table could have."""

    name = "Odd one"

    def sums(self, outputs: Any, targets: Any) -> Sequence[int]:
        return 0, 1


class Named(Spots):
    metrics: ClassVar[tuple[Metric, ...]] = (Odd(),)


def test_a_completed_study_says_how_many_sums_are_opened_and_how_they_are_read() -> None:
    completed = parsed().completed()
    assert {metric.name: metric.sums for metric in completed.metrics.measured} == {"auc": 128, "sensitivity_at_90": 128}
    assert completed.metrics.of is not None
    assert completed.metrics.of[0] == MeasuredMetric.parse(AUC)
    again = Study.from_canonical(completed.canonical())
    assert again.id == completed.id == Study.parse(tomllib.loads(tomli_w.dumps(completed.to_table()))).id
    assert completed.completed().id == completed.id
    completed.check()


def test_a_file_names_the_metrics_it_wants() -> None:
    assert list(parsed(of=["auc"]).completed().metrics.sizes) == ["auc"]
    assert parsed(of=[]).completed().metrics.sizes == {}
    assert parsed(of=["auc"]).completed().id != parsed().completed().id
    with pytest.raises(UnknownNameError, match="did you mean 'auc'"):
        parsed(of=["acu"]).completed()


def test_a_task_without_metrics_has_none() -> None:
    assert study().completed().metrics.of == ()


def test_nothing_is_measured_for_nobody() -> None:
    assert parsed(share="none").completed().metrics.sizes == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sums": 129}, "takes 128 sums, and the study says 129"),
        ({"sums": 0}, "must be 1 or more"),
        ({"sums": limits.METRIC_SUMS + 1, "formula": ""}, "must be 4096 or less"),
        ({"formula": "acu"}, "there is no metric formula 'acu'"),
        ({"settings": {"bins": 64, "positive": "one"}}, "must be a"),
        ({"settings": {"bins": 10**9, "positive": 1}}, "between 2 and"),
        ({"name": "../auc"}, "does not have the form"),
        ({"more": 1}, "unknown key"),
    ],
)
def test_a_study_that_lies_about_a_metric_is_refused_on_reading(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parsed(of=[{**AUC, **change}])
    # Also where it comes from the coordinator.
    values = json.loads(parsed().canonical())
    values["metrics"]["of"] = [{**AUC, **change}]
    with pytest.raises(SettingsError, match=message):
        Study.from_canonical(json.dumps(values).encode())


@pytest.mark.parametrize(
    "of",
    [
        [AUC, AUC],
        ["auc", AUC],
        [{"name": f"m{at}", "sums": limits.METRIC_SUMS} for at in range(2)],
        [f"m{at}" for at in range(limits.METRICS + 1)],
    ],
)
def test_metrics_are_few_and_have_names_of_their_own(of: list[Any]) -> None:
    with pytest.raises(SettingsError, match=r"named twice|at most"):
        parsed(of=of)


def test_a_site_measures_nothing_that_its_own_task_does_not() -> None:
    # A lead who wants finer histograms than the task that sites have reviewed does not get them by asking.
    finer = {"name": "auc", "sums": 4096, "formula": "auc", "settings": {"positive": 1, "bins": 2048}}
    here = tasks.create("breast-cancer", {})
    with pytest.raises(SettingsError, match="what the task that is installed here does not: 4096 sums"):
        parsed(of=[finer]).metrics.require(here)
    with pytest.raises(SettingsError, match="what the task that is installed here does not"):
        parsed(of=[{"name": "auc", "sums": 128}]).metrics.require(here)  # without a word on what they come to
    with pytest.raises(UnknownNameError, match="unknown metric of the task 'births'"):
        parsed(of=[{"name": "births", "sums": 400}]).metrics.require(here)
    parsed(of=[AUC]).metrics.require(here)
    with pytest.raises(SettingsError, match="not: 4096 sums"):
        parsed(of=[finer]).check()


def test_a_site_with_another_release_of_the_task_says_so() -> None:
    there = parsed().completed().metrics
    with pytest.raises(SettingsError, match="metric 'auc'"):
        there.require(Finer(Finer.Settings()))


def test_metrics_that_no_study_can_have_are_refused_by_name() -> None:
    with pytest.raises(SettingsError, match="the same name"):
        MetricsSection().completed(Twice(TaskSettings()))
    with pytest.raises(SettingsError, match="metric 'Odd one' of the task"):
        MetricsSection().completed(Named(TaskSettings()))


def test_a_value_is_known_where_the_formula_is() -> None:
    ratio, own = MeasuredMetric.of(MissedEarly()), MeasuredMetric.of(Kappa())
    assert (ratio.formula, own.formula) == ("ratio", "")
    assert ratio.value((1, 4)) == 0.25
    assert ratio.value(None) is ratio.value((1,)) is ratio.value((1, 0)) is None
    assert own.value((1, 0, 0, 1)) is None
    section = MetricsSection(of=(ratio, own))
    assert section.need_code

    class Both(Spots):
        metrics: ClassVar[tuple[Metric, ...]] = (MissedEarly(), Kappa())

    (formula,) = section.own_formulas(Both(TaskSettings())).values()
    assert formula((1, 0, 0, 1)) == 1.0
    assert formula((0, 0, 0, 0)) is None  # and raises nothing
