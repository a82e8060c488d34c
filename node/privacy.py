"""What a study costs at this site, and what its ledger says about that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from node.config import NodeFile
from secure_fl.errors import RefusedError
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.privacy.spending import RELATION
from secure_fl.settings import section_name
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study

if TYPE_CHECKING:
    from secure_fl.privacy.filter import BudgetFilter
    from secure_fl.privacy.plan import PrivacyPlan

_LIBRARIES = ("dp-accounting", "opacus", "secure-fl", "torch")
# What no ε of this site covers, whatever the study.
_NEVER_COVERED = (
    "that the site took part, in which studies and rounds, and when",
    "sizes and timing of messages",
    "runs for tuning or trying out that are not in this ledger",
)


def limit_of(file: NodeFile) -> BudgetFilter | None:
    """What the site allows for each data set over all studies; None where its file names no limit."""
    policy = file.policy
    if policy.epsilon is None or policy.delta is None:
        return None
    from secure_fl.privacy.filter import BudgetFilter

    return BudgetFilter(epsilon=policy.epsilon, delta=policy.delta)


def plan_here(file: NodeFile, study: Study) -> PrivacyPlan | None:
    """The study's plan at this site; None without differential privacy.

    Raises `RefusedError` where the site has not said how many units its data set has, `SettingsError` where no
    sensible noise is enough.
    """
    if study.privacy.mode == "none":
        return None
    name = study.task.dataset_id
    units = file.datasets[name].units if name in file.datasets else None
    if units is None:
        where = section_name("datasets", name)
        raise RefusedError(
            f"the study adds noise, and this site has not said about how many {study.privacy.unit}s {where} has",
            advice=f"write units = N under {where}: about as many as there are to train on, rounded, since "
            "the number itself is private and this one is not",
        )
    return study.privacy_plan(units=units)


@dataclass(frozen=True, slots=True)
class SitePrivacy:
    """One study at this site."""

    file: NodeFile
    resolved: ResolvedStudy

    @property
    def mechanism(self) -> Mechanism | None:
        """The constants that training runs with; None without differential privacy."""
        plan = plan_here(self.file, self.resolved.study)
        return None if plan is None else plan.mechanism

    def epochs(self, number: int, *, trains: bool) -> int:
        """Passes over the data under noise in a round."""
        return (self.resolved.strategy.charged_epochs(number) or 0) if trains else 0

    def facts(self, number: int, *, trains: bool, found: Mapping[str, str]) -> dict[str, Any] | None:
        """Everything from which ε of a round can be recomputed; `found` is what the training process says of the data.

        None without differential privacy.
        """
        plan = plan_here(self.file, self.resolved.study)
        if plan is None:
            return None
        study, policy, mechanism = self.resolved.study, self.file.policy, plan.mechanism
        limit = limit_of(self.file)
        events = mechanism.cost(self.epochs(number, trains=trains))
        return {
            "mode": study.privacy.mode,
            "unit": mechanism.unit,
            "group_rows": mechanism.group_rows,
            "units": mechanism.units,
            "clip": mechanism.clip,
            "delta": plan.delta,
            "promise": {"epsilon": plan.epsilon, "delta": plan.delta},
            "relation": RELATION,
            "events": [event.facts() for event in events],
            "order": None if limit is None else limit.order,
            "policy": {"epsilon": policy.epsilon, "delta": policy.delta},
            "randomness": "system" if self.file.simulation is None else "seeded",
            "libraries": {name: _version(name) for name in _LIBRARIES},
            "not_covered": [*_NEVER_COVERED, *self._not_covered()],
            **{name: found.get(name, "unknown") for name in ("preprocessing", "split", "fingerprint", "code")},
        }

    def _not_covered(self) -> tuple[str, ...]:
        study = self.resolved.study
        shared = study.metrics.share
        return () if shared == "none" else (f"measurements, which leave without noise (metrics.share = {shared!r})",)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
