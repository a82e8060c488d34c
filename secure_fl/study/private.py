"""A study under differential privacy: whether its parts allow it, and what it costs at a site."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from secure_fl import strategies
from secure_fl.errors import SettingsError
from secure_fl.settings import Settings
from secure_fl.strategies.base import Strategy

if TYPE_CHECKING:
    from secure_fl.privacy.plan import PrivacyPlan
    from secure_fl.tasks.base import Task


class PrivacySection(Settings):
    """Differential privacy: what the study may cost at each site, and about whom (docs/privacy.md)."""

    mode: Literal["none", "dp-sgd", "distributed"] = "none"
    unit: Literal["record", "group"] = "record"
    epsilon: float | None = Field(None, gt=0, allow_inf_nan=False)
    delta: float | None = Field(None, gt=0, lt=1)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)  # the largest norm of one unit's gradient
    group_rows: int = Field(4, ge=1, le=10_000)  # of one group, that count in a step
    spare_attempts: int = Field(2, ge=0, le=100_000)  # trainings beyond one a round that the noise is enough for
    rationale: str = Field("", max_length=4000)  # why this much: for whoever reads a site's audit


def require_charged(privacy: PrivacySection, strategy: Strategy) -> None:
    """Raise `SettingsError` unless the study says what it costs and its strategy what shapes an update.

    Nothing to say without privacy. This much is known without code of the task: a node asks it of every offer.
    """
    if privacy.mode == "none":
        if privacy.epsilon is not None or privacy.delta is not None:
            raise SettingsError(
                'privacy.epsilon or privacy.delta is set, and privacy.mode is "none": no noise would be added',
                advice='write mode = "dp-sgd" under [privacy], or leave both out',
            )
        return
    if privacy.mode != "dp-sgd":
        raise SettingsError(
            f"privacy.mode {privacy.mode!r} is not available in this version", advice='use mode = "dp-sgd" or "none"'
        )
    if privacy.epsilon is None or privacy.delta is None:
        raise SettingsError(
            "privacy.epsilon and privacy.delta say what the study may cost, and one of them is missing",
            advice="for example epsilon = 3.0 and delta = 1e-5; delta is far below 1 / (number of records of a site)",
        )
    _require_range(privacy.delta, strategy.settings.batch_size)
    if strategy.charged_epochs() is None:
        _name_setting(strategy)
        able = [name for name in strategies.known() if _charges(name)]
        raise SettingsError(
            f"strategy {strategy.name!r} does not say what shapes its update, so that no noise can bound it",
            advice=f"strategies that do: {', '.join(able)}",
        )


def require_private(privacy: PrivacySection, strategy: Strategy, task: Task) -> None:
    """Raise `SettingsError` or `NotPrivateError` unless noise can bound what leaves. Nothing to say without privacy."""
    require_charged(privacy, strategy)
    if privacy.mode == "none":
        return
    if privacy.unit == "group" and not task.may_have_groups:
        raise SettingsError(
            f'privacy.unit = "group": rows of task {type(task).__name__} never belong to a group, such as a patient',
            advice='use unit = "record", or a task that says whose each row is, as visits does',
        )
    from secure_fl.privacy.readiness import require_layers, require_preprocessing
    from secure_fl.tasks.model_blocks import seeded
    from secure_fl.tasks.own_code import made_model

    require_preprocessing(task)
    with seeded(0):  # Any seed: values do not matter, and whoever checks a study keeps torch's randomness.
        model = made_model(task)
    require_layers(model)


def _name_setting(strategy: Strategy) -> None:
    """Raise `SettingsError` where one setting alone keeps a strategy from saying what shapes its update."""
    default = type(strategy.settings)()
    for key in strategy.settings.model_fields_set:
        ours, usual = getattr(strategy.settings, key), getattr(default, key)
        other = type(strategy)(strategy.settings.model_copy(update={key: usual}))
        if other.charged_epochs() is not None:
            raise SettingsError(
                f"with strategy.{key} = {json.dumps(ours)} strategy {strategy.name!r} looks at the data without noise, "
                "so that noise cannot bound what leaves",
                advice=f"write {key} = {json.dumps(usual)}, which is what it is without the line",
            )


def _require_range(delta: float, batch_size: int) -> None:
    """Of δ, what holds at any site: none has fewer records than a batch."""
    from secure_fl.privacy.accounting import LEAST_DELTA

    if not LEAST_DELTA <= delta < 1 / batch_size:
        raise SettingsError(
            f"privacy.delta = {delta:g} is not between {LEAST_DELTA:g} and {1 / batch_size:g}, 1 / strategy.batch_size",
            advice="delta is far below 1 / (number of records of a site), for example 1e-5",
        )


def plan_at(privacy: PrivacySection, strategy: Strategy, *, rounds: int, units: int) -> PrivacyPlan | None:
    """What a study costs at a site that declares so many units; None without differential privacy.

    Raises `SettingsError` where no sensible noise is enough.
    """
    if privacy.mode == "none":
        return None
    from secure_fl.privacy.plan import PrivacyPlan

    return PrivacyPlan.make(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        rounds=rounds,
        epochs=strategy.charged_epochs() or 0,
        batch_size=strategy.settings.batch_size,
        units=units,
        spare_attempts=privacy.spare_attempts,
        unit=privacy.unit,
        clip=privacy.clip,
        group_rows=privacy.group_rows if privacy.unit == "group" else 1,
    )


def _charges(name: str) -> bool:
    return strategies.create(name, {}).charged_epochs() is not None
