"""A study under differential privacy: whether its parts allow it, and what it costs at a site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from secure_fl import strategies
from secure_fl.errors import SettingsError
from secure_fl.strategies.base import Strategy

if TYPE_CHECKING:
    from secure_fl.privacy.plan import PrivacyPlan
    from secure_fl.study.settings import Study
    from secure_fl.tasks.base import Task


def require_private(study: Study, strategy: Strategy, task: Task) -> None:
    """Raise `SettingsError` or `NotPrivateError` unless noise can bound what leaves. Nothing to say without privacy."""
    privacy = study.privacy
    if privacy.mode == "none":
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
    if strategy.charged_epochs() is None:
        able = [name for name in strategies.known() if _charges(name)]
        raise SettingsError(
            f"strategy {strategy.name!r} does not say what shapes its update, so that no noise can bound it",
            advice=f"strategies that do: {', '.join(able)}",
        )
    if study.protection.reference_samples is not None:
        raise SettingsError(
            "protection.reference_samples weighs a site by its number of records, which no noise covers",
            advice="leave it out under differential privacy: every site then counts the same",
        )
    from secure_fl.privacy.readiness import require_layers, require_preprocessing

    require_preprocessing(task)
    require_layers(task.model())


def plan_at(study: Study, strategy: Strategy, *, units: int) -> PrivacyPlan | None:
    """What a study costs at a site that declares so many units; None without differential privacy.

    Raises `SettingsError` where no sensible noise is enough.
    """
    privacy = study.privacy
    if privacy.mode == "none":
        return None
    from secure_fl.privacy.plan import PrivacyPlan

    return PrivacyPlan.make(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        rounds=study.study.rounds,
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
