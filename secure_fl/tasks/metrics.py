"""Metrics that a task declares beside its loss: AUC, sensitivity, F1, mean absolute error, or one of its own.

A metric is a fixed number of sums over a site's test rows, and a formula that makes one value of them. The sums are
non-negative integers, so that those of all sites can be added up under the protection, and the value is that of all
test rows together. Importing this module needs no torch: whoever only has sums can have their value.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from secure_fl import limits
from secure_fl.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

_MOST_BINS = _MOST_CLASSES = limits.METRIC_SUMS // 2

log = logging.getLogger(__name__)

Sums: TypeAlias = Sequence[int]
Formula: TypeAlias = Callable[[Sums], float | None]


class Metric(ABC):
    """Sums over rows, and their value. A metric of one's own says its name and what it adds up::

        class MissedEarly(Metric):
            name = "missed_early"

            def sums(self, outputs, targets):
                early, missed = targets == 1, outputs.argmax(dim=1) == 0
                return (early & missed).sum(), early.sum()

    The value is the first sum divided by the second, unless `value` says otherwise; other numbers of sums say `size`.
    """

    # Of a built-in metric: the word by which the study names its `value`, so that it is known without the task's code.
    formula: ClassVar[str] = ""

    @property
    @abstractmethod
    def name(self) -> str:
        """What tables call it: lower-case letters, digits and underscores."""

    @property
    def size(self) -> int:
        """How many sums there are: always the same, whatever the rows."""
        return 2

    @abstractmethod
    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor | Iterable[Tensor | int]:
        """The sums over these rows: `size` non-negative integers. Those of more rows are the sums of both parts."""

    def value(self, sums: Sums) -> float | None:
        """What the sums of all rows come to; None where they come to nothing."""
        return ratio(sums)


def ratio(sums: Sums) -> float | None:
    """The first sum divided by the second."""
    return sums[0] / sums[1] if sums[1] else None


# --- classification -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy(Metric):
    """Correct rows among all. `accuracy` of a site is always measured; this is that of all test rows together."""

    formula: ClassVar[str] = "accuracy"

    @property
    def name(self) -> str:
        """`pooled_accuracy`: unlike the mean of the sites' accuracies, in which every site counts the same."""
        return "pooled_accuracy"

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """Correct rows, rows."""
        return (outputs.argmax(dim=1) == targets).sum(), len(targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedAccuracy(Metric):
    """The mean over classes of how many of a class are recognised. Classes without a test row do not count."""

    classes: int = 2
    formula: ClassVar[str] = "balanced_accuracy"

    def __post_init__(self) -> None:
        _require_whole("classes", self.classes, 2, _MOST_CLASSES)

    @property
    def name(self) -> str:
        """`balanced_accuracy`."""
        return "balanced_accuracy"

    @property
    def size(self) -> int:
        """Recognised rows and rows, of every class."""
        return 2 * self.classes

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """Recognised rows of every class, then rows of every class."""
        right = outputs.argmax(dim=1) == targets
        members = [targets == label for label in range(self.classes)]
        return (*((right & of).sum() for of in members), *(of.sum() for of in members))

    def value(self, sums: Sums) -> float | None:
        """The mean of the classes that have rows."""
        parts = [sums[at] / rows for at, rows in enumerate(sums[self.classes :]) if rows]
        return math.fsum(parts) / len(parts) if parts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class F1(Metric):
    """The harmonic mean of precision and sensitivity of one class, where the model decides for its likeliest class."""

    positive: int = 1
    called: str = ""
    formula: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        _require_whole("positive", self.positive, 0, _MOST_CLASSES)

    @property
    def name(self) -> str:
        """As it is `called`; otherwise `f1`, or `f1_of_K` for a class other than 1."""
        return self.called or _of_class("f1", self.positive)

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """Twice the found, and that plus what was missed and what was wrongly called positive."""
        said, true = outputs.argmax(dim=1) == self.positive, targets == self.positive
        return 2 * (said & true).sum(), said.sum() + true.sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Specificity(Metric):
    """How many rows of other classes the model does not call positive."""

    positive: int = 1
    called: str = ""
    formula: ClassVar[str] = "specificity"

    def __post_init__(self) -> None:
        _require_whole("positive", self.positive, 0, _MOST_CLASSES)

    @property
    def name(self) -> str:
        """As it is `called`; otherwise `specificity`, or `specificity_of_K` for a class other than 1."""
        return self.called or _of_class("specificity", self.positive)

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """Rows rightly called negative, negative rows."""
        said, negative = outputs.argmax(dim=1) == self.positive, targets != self.positive
        return (negative & ~said).sum(), negative.sum()


class _Histograms(Metric):
    """How the scores of positive and of other rows are distributed: rows in each bin, first others, then positive.

    A score is z, the log-odds that the model gives the positive class. Bins divide z/(1 + |z|), which lies between −1
    and 1, evenly: they are narrow around even odds, and no odds are beyond the last one. A change of scale that keeps
    the order keeps the ROC curve.
    """

    positive: int
    bins: int

    @property
    def size(self) -> int:
        """Two histograms."""
        return 2 * self.bins

    def sums(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The two histograms, one after the other."""
        import torch

        scores = outputs[:, self.positive].double()
        others = torch.cat((outputs[:, : self.positive], outputs[:, self.positive + 1 :]), dim=1).double()
        odds = scores - torch.logsumexp(others, dim=1)
        place = (odds / (1 + odds.abs()) + 1) / 2
        bins = (place * self.bins).long().clamp(0, self.bins - 1)
        half = self.bins * (targets == self.positive).long()
        return torch.bincount(bins + half, minlength=2 * self.bins)

    def halves(self, sums: Sums) -> tuple[Sums, Sums]:
        """The histogram of other rows, and that of positive ones."""
        return sums[: self.bins], sums[self.bins :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Auc(_Histograms):
    """The area under the ROC curve: how often a positive row scores higher than another; equal scores count half.

    Scores are counted in `bins`, and rows in one bin count as equal. The error is at most half the fraction of
    pairs (a positive row and another) that fall into the same bin; `error` says how much that is.
    """

    positive: int = 1
    bins: int = 64
    called: str = ""
    formula: ClassVar[str] = "auc"

    def __post_init__(self) -> None:
        _require_whole("positive", self.positive, 0, _MOST_CLASSES)
        _require_whole("bins", self.bins, 2, _MOST_BINS)

    @property
    def name(self) -> str:
        """As it is `called`; otherwise `auc`, or `auc_of_K` for a class other than 1."""
        return self.called or _of_class("auc", self.positive)

    def value(self, sums: Sums) -> float | None:
        """The area; None without positive rows, or without others."""
        others, positive = self.halves(sums)
        pairs = sum(positive) * sum(others)
        if not pairs:
            return None
        below = accumulate(others, initial=0)
        # Twice the area, so that everything before the division is whole numbers.
        return sum(here * (2 * less + beside) for here, less, beside in zip(positive, below, others, strict=False)) / (
            2 * pairs
        )

    def error(self, sums: Sums) -> float | None:
        """The most by which counting in bins can have moved the value."""
        others, positive = self.halves(sums)
        pairs = sum(positive) * sum(others)
        return sum(a * b for a, b in zip(positive, others, strict=True)) / (2 * pairs) if pairs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity(_Histograms):
    """How many positive rows are found, at the lowest threshold that still has the wanted specificity.

    Thresholds are the borders of `bins`. The one that is used follows from the rows that are measured: for all sites
    together there is one, and for a site by itself its own.
    """

    at_specificity: float = 0.9
    positive: int = 1
    bins: int = 64
    called: str = ""
    formula: ClassVar[str] = "sensitivity"

    def __post_init__(self) -> None:
        _require_whole("positive", self.positive, 0, _MOST_CLASSES)
        _require_whole("bins", self.bins, 2, _MOST_BINS)
        _require_between("at_specificity", self.at_specificity, 0, 1)

    @property
    def name(self) -> str:
        """As it is `called`; otherwise `sensitivity_at_90` at a specificity of 90 %."""
        percent = f"{100 * self.at_specificity:.4g}".replace(".", "_")
        return self.called or _of_class(f"sensitivity_at_{percent}", self.positive)

    def value(self, sums: Sums) -> float | None:
        """The sensitivity; None without positive rows, or without others."""
        others, positive = self.halves(sums)
        if not (sum(positive) and sum(others)):
            return None
        found = alarms = 0
        wanted = self.at_specificity * sum(others) * (1 - 1e-12)  # 0.55 · 20 is a little more than 11.
        for here, beside in zip(reversed(positive), reversed(others), strict=True):
            if sum(others) - alarms - beside < wanted:
                break
            found, alarms = found + here, alarms + beside
        return found / sum(positive)


# --- regression -----------------------------------------------------------------------------------------------------

_STEPS = 1 << 16  # of an error, up to the ceiling
_COARSE_STEPS = 1 << 10  # of what is squared


@dataclass(frozen=True, slots=True, kw_only=True)
class Mae(Metric):
    """The mean absolute error. An error above `ceiling` counts as `ceiling`; each is rounded to 1/65536 of it."""

    ceiling: float
    formula: ClassVar[str] = "mae"

    def __post_init__(self) -> None:
        _require_between("ceiling", self.ceiling, 0, math.inf)

    @property
    def name(self) -> str:
        """`mae`."""
        return "mae"

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """Steps of errors, errors."""
        errors = _steps((outputs.double() - targets.double()).abs(), self.ceiling, _STEPS)
        return errors.sum(), errors.numel()

    def value(self, sums: Sums) -> float | None:
        """The mean, in the targets' unit."""
        mean = ratio(sums)
        return None if mean is None else mean * self.ceiling / _STEPS


@dataclass(frozen=True, slots=True, kw_only=True)
class R2(Metric):
    """The part of the targets' variance that the model explains. Targets and errors are cut off at ±`ceiling`."""

    ceiling: float
    formula: ClassVar[str] = "r2"

    def __post_init__(self) -> None:
        _require_between("ceiling", self.ceiling, 0, math.inf)

    @property
    def name(self) -> str:
        """`r2`."""
        return "r2"

    @property
    def size(self) -> int:
        """Squared errors, targets, squared targets, targets' number."""
        return 4

    def sums(self, outputs: Tensor, targets: Tensor) -> Iterable[Tensor | int]:
        """All in steps of 1/1024 of the ceiling; targets from −ceiling on, since a sum is not negative."""
        errors = _steps((outputs.double() - targets.double()).abs(), self.ceiling, _COARSE_STEPS)
        values = _steps(targets.double() + self.ceiling, 2 * self.ceiling, 2 * _COARSE_STEPS)
        return (errors * errors).sum(), values.sum(), (values * values).sum(), values.numel()

    def value(self, sums: Sums) -> float | None:
        """1 − squared errors / squared distances from the mean; None where all targets are equal."""
        errors, total, squares, count = sums
        spread = count * squares - total * total
        return 1 - count * errors / spread if spread > 0 else None


def _steps(values: Tensor, ceiling: float, steps: int) -> Tensor:
    """Values between 0 and `ceiling` as whole steps: sums of them do not depend on which rows came first."""
    return (values.clamp(0, ceiling) * (steps / ceiling)).round().long()


# --- what a study says of a metric ----------------------------------------------------------------------------------

BUILT_IN: Mapping[str, type[Metric]] = {
    kind.formula: kind for kind in (Accuracy, Auc, BalancedAccuracy, F1, Mae, R2, Sensitivity, Specificity)
}
RATIO = "ratio"


def formula_of(metric: Metric) -> tuple[str, dict[str, Any]]:
    """The built-in formula that makes the metric's value, with its settings; "" where only the task's code knows it."""
    kind = type(metric)
    for word, known in BUILT_IN.items():
        if isinstance(metric, known) and kind.value is known.value:
            names = [field.name for field in fields(known) if field.name != "called"]  # type: ignore[arg-type]
            return word, {name: getattr(metric, name) for name in names}
    return (RATIO if kind.value is Metric.value else ""), {}


def built_in(formula: str, settings: Mapping[str, Any], *, size: int) -> Formula:
    """The formula that a study names. Raises `SettingsError` unless it exists and takes `size` sums."""
    if formula == RATIO:
        needs, found = 2, ratio
    elif formula in BUILT_IN:
        try:
            metric = BUILT_IN[formula](**settings)
        except TypeError:
            raise SettingsError(f"metric formula {formula!r} has other settings than {', '.join(settings)}") from None
        needs, found = metric.size, metric.value
    else:
        raise SettingsError(f"there is no metric formula {formula!r}", advice="upgrade secure-fl here")
    if needs != size:
        raise SettingsError(f"metric formula {formula!r} takes {needs} sums, and the study says {size}")
    return found


def value_of(formula: Formula, sums: Sums) -> float | None:
    """The value of the sums; None for what is no number. Sites may have lied, so that nothing here may fail."""
    try:
        found = formula(sums)
        return None if found is None or not math.isfinite(found) else float(found)
    except Exception:
        log.warning("a metric has no value for the sums that were opened", exc_info=True)
        return None


def _of_class(name: str, positive: int) -> str:
    return name if positive == 1 else f"{name}_of_{positive}"


def _require_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise SettingsError(f"{name} of a metric is a whole number between {low} and {high}, not {value!r}")


def _require_between(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
        raise SettingsError(f"{name} of a metric lies between {low:g} and {high:g}, not {value!r}")
