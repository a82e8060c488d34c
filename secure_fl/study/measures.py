"""What a study measures and who may see it: `[metrics]`, and the metrics that its task declares.

A study says, and its hash covers, how many sums each metric has and by which formula they become a value. So a
coordinator that has none of the task's code knows what it opens, and a site measures nothing that was not approved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from secure_fl import limits
from secure_fl.errors import SettingsError
from secure_fl.settings import Settings, require_known
from secure_fl.tasks.metrics import Formula, Metric, built_in, formula_of, value_of

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task


class MeasuredMetric(Settings):
    """One metric of the task, as `completed` writes it: how many sums of it are opened, and what they come to."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")
    sums: int = Field(ge=1, le=limits.METRIC_SUMS)
    formula: str = ""  # "": only the task's code knows it
    settings: dict[str, int | float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_formula(self) -> Self:
        if self.formula:
            try:
                built_in(self.formula, self.settings, size=self.sums)
            except SettingsError as error:
                raise ValueError(error.message) from None
        return self

    @classmethod
    def of(cls, metric: Metric) -> Self:
        """What a study says of a task's metric. Raises `SettingsError` for a name or size that no study can have."""
        formula, settings = formula_of(metric)
        values = {"name": metric.name, "sums": metric.size, "formula": formula, "settings": settings}
        return cls.parse(values, where=f"metric {metric.name!r} of the task")

    def value(self, sums: Sequence[int] | None) -> float | None:
        """What so many sums come to, where that is known without the task's code."""
        if not self.formula or sums is None or len(sums) != self.sums:
            return None
        return value_of(built_in(self.formula, self.settings, size=self.sums), sums)


# Told apart by hand, so that a mistake in a table is said to be one there.
_Wanted: TypeAlias = Annotated[
    Annotated[str, Tag("name")] | Annotated[MeasuredMetric, Tag("metric")],
    Discriminator(lambda value: "name" if isinstance(value, str) else "metric"),
]


class MetricsSection(Settings):
    """What a site may say about how well a model does; a site's own policy wins."""

    share: Literal["none", "aggregate", "per-node"] = "aggregate"
    # With "aggregate" a loss or squared error above this makes the round's mean unknown rather than wrong.
    ceiling: float = Field(16.0, gt=0)
    # Which metrics of the task; all that it declares, if not set. A file has their names, `completed` the rest.
    of: tuple[_Wanted, ...] | None = None

    @field_validator("of")
    @classmethod
    def _few(cls, of: tuple[str | MeasuredMetric, ...] | None) -> tuple[str | MeasuredMetric, ...] | None:
        names = [_name(item) for item in of or ()]
        if len(set(names)) != len(names):
            raise ValueError("a metric is named twice")
        sums = sum(item.sums for item in of or () if isinstance(item, MeasuredMetric))
        if len(names) > limits.METRICS or sums > limits.METRIC_SUMS:
            raise ValueError(f"at most {limits.METRICS} metrics with {limits.METRIC_SUMS} sums together")
        return of

    @property
    def measured(self) -> tuple[MeasuredMetric, ...]:
        """The metrics of a completed study; none where nothing is shared."""
        if self.share == "none":
            return ()
        return tuple(item for item in self.of or () if isinstance(item, MeasuredMetric))

    @property
    def sizes(self) -> Mapping[str, int]:
        """By metric, how many sums it has."""
        return {metric.name: metric.sums for metric in self.measured}

    def completed(self, task: Task) -> Self:
        """With everything written out that the task says of the metrics which are wanted."""
        declared = {metric.name: metric for metric in task.metrics}
        if len(declared) != len(task.metrics):
            raise SettingsError(
                "two metrics of the task have the same name", advice="give one of them another name (docs/tasks.md)"
            )
        wanted = tuple(declared) if self.of is None else tuple(_name(item) for item in self.of)
        for name in wanted:
            require_known("metric of the task", name, declared)
        values = self.model_dump(mode="python") | {"of": [_written_out(declared[name]) for name in wanted]}
        return self.parse(values, where="metrics")

    @property
    def need_code(self) -> bool:
        """Whether some metric's value is known only where the task's code is."""
        return any(not metric.formula for metric in self.measured)

    def own_formulas(self, task: Task) -> dict[str, Formula]:
        """The formulas that only the task's code has, by metric. They never raise."""
        wanted = {metric.name for metric in self.measured if not metric.formula}
        return {metric.name: partial(value_of, metric.value) for metric in task.metrics if metric.name in wanted}

    def require(self, task: Task) -> None:
        """Raise `SettingsError` unless the task's code that is installed here measures exactly what the study says."""
        there = {metric.name: metric for metric in task.metrics}
        for item in self.of or ():
            require_known("metric of the task", _name(item), there)
            if isinstance(item, MeasuredMetric) and MeasuredMetric.of(there[item.name]) != item:
                raise SettingsError(
                    f"the study says of metric {item.name!r} what the task that is installed here does not: "
                    f"{item.sums} sums, formula {item.formula or '(the task’s own)'!r}",
                    advice="install the task that the study was made with, or make the study anew with this one",
                )


def _name(item: str | MeasuredMetric) -> str:
    return item if isinstance(item, str) else item.name


def _written_out(metric: Metric) -> dict[str, Any]:
    return MeasuredMetric.of(metric).model_dump(mode="python")
