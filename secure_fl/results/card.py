"""A model's card: where it comes from, how good it is and what it cost in privacy, beside the model's file.

`model.json` is for programs, `model.md` says the same for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from secure_fl.files import sha256_of, write_atomically
from secure_fl.results.record import StudyRecord
from secure_fl.results.wording import OWN_ROWS, counted
from secure_fl.rounds import RoundKind

CARD_VERSION = 1
GLOBAL = "global"  # as the name of a model
_SHOWN_SITES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The facts. What is not known is None, never 0."""

    study: str
    study_id: str
    task: str
    task_settings: Mapping[str, Any]
    strategy: str
    protection: str
    privacy: Mapping[str, Any] | None  # mode, unit, epsilon and delta; None without differential privacy
    rounds: int
    planned_rounds: int
    outcome: str
    sites: tuple[str, ...]
    parameters: int
    shared_parameters: int
    model: str  # whose: "global", or a site's name
    names: str  # of the tensors: "torch", as in a state dict, or "blocks", as in a checkpoint
    simulated: bool
    metrics: Mapping[str, float]  # measured on this model
    written: str
    own_metrics: Mapping[str, float] = field(default_factory=dict)  # measured on the sites' own models instead
    counted: Mapping[str, str] = field(default_factory=dict)  # of each metric: over which rows, or whose mean it is
    sha256: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    version: int = CARD_VERSION

    @classmethod
    def of(
        cls,
        record: StudyRecord,
        *,
        metrics: Mapping[str, float | None],
        own_metrics: Mapping[str, float | None] | None = None,
        model: str = GLOBAL,
        names: str = "torch",
        simulated: bool = False,
        epsilon: float | None = None,
        now: datetime | None = None,
    ) -> Self:
        """From a study's record. `epsilon` is what was spent, where that is known; else it is what was agreed."""
        settings = json.loads(record.settings) if record.settings else {}
        privacy = settings.get("privacy", {})
        private = None
        if privacy.get("mode", "none") != "none":
            spent = privacy.get("epsilon") if epsilon is None else epsilon
            private = {"mode": privacy["mode"], "unit": privacy.get("unit"), "epsilon": spent}
            private["delta"] = privacy.get("delta")
        found, own = _known(metrics), _known(own_metrics or {})
        return cls(
            study=record.study,
            study_id=record.study_id,
            task=record.task,
            task_settings=settings.get("task", {}).get("settings", {}),
            strategy=record.strategy,
            protection=record.protection,
            privacy=private,
            rounds=sum(entry.kind is RoundKind.TRAIN for entry in record.rounds),
            planned_rounds=record.planned_rounds,
            outcome=record.outcome,
            sites=record.roster,
            parameters=record.parameters,
            shared_parameters=record.shared_parameters,
            model=model,
            names=names,
            simulated=simulated,
            metrics=found,
            own_metrics=own,
            counted={name: counted(name) if model == GLOBAL else OWN_ROWS for name in (*found, *own)},
            written=(now or datetime.now(UTC)).isoformat(timespec="seconds"),
            versions={name: metadata.version(name) for name in ("secure-fl", "torch")},
        )

    @property
    def privacy_in_words(self) -> str:
        """What the study promises about single records, or in a simulation what it would have cost."""
        if self.privacy is None:
            return "none; nothing limits how much the model can reveal about single records"
        cost = "epsilon {epsilon:.3g} with delta {delta:g} for each {unit}".format(**self.privacy)
        if self.simulated:
            return f"{self.privacy['mode']}, {cost}; simulated noise comes from a seed and protects nobody"
        return f"{self.privacy['mode']}, at most {cost}, enforced by each site"

    def write(self, model: Path) -> Path:
        """Write the card beside the file of the model; returns the page for people. Raises `StorageError`."""
        digest = sha256_of(model).hex()
        facts = {**asdict(self), "sha256": digest}
        write_atomically(model.with_suffix(".json"), json.dumps(facts, indent=2).encode())
        page = model.with_suffix(".md")
        write_atomically(page, self._page(model.name, digest).encode())
        return page

    def _page(self, file: str, digest: str) -> str:
        whose = "the global model" if self.model == GLOBAL else f"the model of {self.model}"
        trained = f"{self.rounds} of {self.planned_rounds} rounds, {self.outcome}"
        measured, own = self._in_words(self.metrics), self._in_words(self.own_metrics)
        sites = ", ".join(self.sites[:_SHOWN_SITES]) + (" …" if len(self.sites) > _SHOWN_SITES else "")
        tensors = "as in torch: `load_state_dict`, or `secure_fl.load_model`"
        if self.names != "torch":
            tensors = (
                "named `block/tensor`, since the task was missing where it was exported; see `secure_fl.load_model`"
            )
        lines = (
            f"# {self.study}",
            "",
            f"- file: `{file}`, {whose}, sha256 `{digest}`",
            f"- study: `{self.study_id}`" + (" (simulated sites)" if self.simulated else ""),
            f"- trained: {trained}" + ("" if self.rounds else ": **untrained**"),
            f"- task: {self.task} {json.dumps(dict(self.task_settings))}, strategy: {self.strategy}",
            f"- protection: {self.protection}",
            f"- differential privacy: {self.privacy_in_words}",
            f"- measured: {measured or ('nothing of this model' if own else 'nothing that sites shared')}",
            *([f"- measured on the models that sites predict with, **not on this one**: {own}"] if own else []),
            f"- parameters: {self.parameters}, shared: {self.shared_parameters}",
            f"- tensors: {tensors}",
            f"- {len(self.sites)} sites: {sites}",
            f"- written: {self.written}, " + ", ".join(f"{name} {text}" for name, text in self.versions.items()),
        )
        return "\n".join(lines) + "\n"

    def _in_words(self, metrics: Mapping[str, float]) -> str:
        """Together what is counted alike."""
        groups: dict[str, list[str]] = {}
        for name, value in metrics.items():
            groups.setdefault(self.counted[name], []).append(f"{name.replace('_', ' ')} {value:.4f}")
        return "; ".join(f"{', '.join(said)} ({how})" for how, said in groups.items())


def _known(metrics: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if value is not None}
