"""The study file: what a consortium agrees on. Its hash is the study's id and what a site approves."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from secure_fl import limits, protect, strategies
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.errors import InitialModelError, SettingsError, UnknownNameError
from secure_fl.hints import shown_hints
from secure_fl.plain_text import require_plain
from secure_fl.protect.cohort.minima import smallest_cohort
from secure_fl.protect.combining import CombiningProtection
from secure_fl.protect.contract import Protection
from secure_fl.protect.past import CHANGING_COHORTS
from secure_fl.settings import Settings, nearest, read_toml
from secure_fl.strategies.base import Strategy
from secure_fl.study.circles import Circle, checked, divide, require_recovery, smallest_circle
from secure_fl.study.combinations import require_combinations
from secure_fl.study.defaults import filled, suitable
from secure_fl.study.measures import MetricsSection
from secure_fl.study.pacing import RoundsSection, require_buffered
from secure_fl.study.private import PrivacySection, plan_at, require_charged, require_private
from secure_fl.study.shorthand import Shorthand
from secure_fl.study.simulated import SimulationSection, simulated_names

if TYPE_CHECKING:
    from secure_fl.privacy.plan import PrivacyPlan
    from secure_fl.study.start import Outline
    from secure_fl.tasks.base import Task

# 1 had settings of single protections beside those all have; 2 no initial model and no circles; 3 no privacy; 4 no
# buffered rounds; 5 no metrics of the task's own
STUDY_VERSION = 6

# Under differential privacy: measurements leave without noise, so that no ε covers them.
PLAIN_METRICS = "metrics-without-noise"
BRING = "bring the model: `secure-fl study new --from MODEL`, `study submit --from MODEL`, `run --from MODEL`"

DEFAULT_CLIP = 1.0  # of a task that names none, and of a study that was not completed

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class StudySection(Settings):
    """Who, how long, from which seed."""

    name: str = "study"
    rounds: int = Field(10, ge=1, le=100_000)
    seed: int = Field(0, ge=0, lt=2**63)
    # The digest of the model that the first round begins from (`secure_fl.study.start`); `completed` writes it.
    initial: str = Field("", pattern=r"^([0-9a-f]{64})?$", description="64 hexadecimal digits")
    start: Literal["seed", "given"] = "seed"  # what makes it; or somebody brings it, to train on (`study/given.py`)
    # Site name → fingerprint of its signing key. The coordinator cannot add anybody.
    roster: dict[str, str] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or ".." in name:
            raise ValueError("a name has lower-case letters, digits, '.', '_' and '-'")
        return name

    @field_validator("roster")
    @classmethod
    def _distinct_sites(cls, roster: dict[str, str]) -> dict[str, str]:
        if len(roster) > limits.NODES:
            raise ValueError(f"at most {limits.NODES} sites")
        for site, fingerprint in roster.items():
            if not _NAME.fullmatch(site) or ".." in site:
                raise ValueError(f"{site!r} is not a site name")
            if not _FINGERPRINT.fullmatch(fingerprint):
                raise ValueError(f"{site}: a fingerprint is 64 hexadecimal digits (`secure-fl pki list`)")
        if len(set(roster.values())) != len(roster):
            raise ValueError("two sites have the same key")
        return roster


class _WithSettings(Settings):
    """A section that names something, with settings that belong to what is named. In a file all keys stand together."""

    settings: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or "settings" in values:
            return values
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        return {**own, "settings": {key: value for key, value in values.items() if key not in own}}

    @field_validator("settings")
    @classmethod
    def _plain_values(cls, settings: dict[str, Any]) -> dict[str, Any]:
        # The canonical form writes NaN, infinity and "nothing" alike: studies that differ would share an id.
        try:
            json.dumps(settings, allow_nan=False)
        except (TypeError, ValueError):
            raise ValueError("settings are text, booleans, finite numbers, and lists and tables of them") from None
        return settings


class TaskSection(_WithSettings):
    """A task installed at every site, and the id (never a path) of the local data it runs on."""

    name: str = "digits"
    dataset: str = ""

    @property
    def dataset_id(self) -> str:
        """The data set's id in the node file; the task's name unless the study says otherwise."""
        return self.dataset or self.name


class StrategySection(_WithSettings):
    """A strategy and its settings."""

    name: str = "fedavg"

    @model_validator(mode="after")
    def _known_settings(self) -> Self:
        """Refused on reading: settings of strategies need no torch. Those of tasks do, and `check` looks at them.

        A strategy of an installed package waits for `check`, too: reading what somebody offers runs nobody's code.
        """
        if strategies.is_built_in(self.name) or strategies.is_in_process(self.name):
            strategies.settings(self.name).parse(self.settings, where="strategy")
        return self


class ProtectionSection(_WithSettings):
    """How updates leave a node: what every protection is told, and the settings of the one that is named."""

    kind: str = Field(default_factory=lambda: protect.suitable(RequestKind.SUM))
    colluders: int = Field(1, ge=0, le=limits.NODES)
    min_cohort: int | None = Field(None, ge=3, le=limits.NODES)
    bits: int = Field(16, ge=4, le=24)  # default: the protection's own `bits`
    clip: float | None = Field(None, gt=0, allow_inf_nan=False)  # `completed` writes what suits the task
    reference_samples: int | None = Field(None, ge=1)
    # Which sites' updates are only ever opened together; "auto" divides the roster by name, "speed" by how long sites
    # take to train, as they declare it once before the first round.
    circles: Literal["auto", "speed"] | tuple[tuple[str, ...], ...] = "auto"
    # Sums of the sites that are there, instead of whole circles. They survive dropouts. If a site comes or goes between
    # two rounds, the difference of the two sums tells something about it.
    recovery: bool = False
    # How the means of circles become one: weighted, or so that few lying sites move it little.
    robust: Literal["none", "trimmed", "median"] = "none"

    @model_validator(mode="before")
    @classmethod
    def _suitable_bits(cls, values: Any) -> Any:
        kind = values.get("kind") if isinstance(values, Mapping) else None
        if kind not in protect.known() or "bits" in values:
            return values
        return {**values, "bits": protect.describe(kind).bits}

    @model_validator(mode="after")
    def _known_settings(self) -> Self:
        """Refused on reading, as other keys of this section are: a slip in `colluders` must not pass for a setting."""
        if self.kind not in protect.known():
            return self  # `check` says so.
        own = protect.describe(self.kind, recovery=self.recovery).Settings.model_fields
        known = (*(key for key in type(self).model_fields if key != "settings"), *own)
        for key in self.settings:
            if key not in own:
                raise UnknownNameError("key", f"protection.{key}", nearest=nearest(key, known), known=known)
        protect.create(self.kind, self.settings, recovery=self.recovery)
        return self


class Study(Shorthand):
    """A validated study. From Python: `Study.of(task="digits", rounds=5)`; from a file: `Study.read(path)`."""

    study: StudySection = StudySection()
    task: TaskSection = TaskSection()
    strategy: StrategySection = StrategySection()
    protection: ProtectionSection = ProtectionSection()
    privacy: PrivacySection = PrivacySection()
    rounds: RoundsSection = RoundsSection()
    metrics: MetricsSection = MetricsSection()
    simulation: SimulationSection = SimulationSection()

    @model_validator(mode="before")
    @classmethod
    def _suitable(cls, values: Any) -> Any:
        require_plain(values, what="the study", error=SettingsError)  # Whoever decides about it reads it in a terminal.
        return suitable(values)

    @classmethod
    @shown_hints()
    def read(cls, path: Path | str) -> Self:
        """The study in a TOML file."""
        return cls.parse(cls.read_table(Path(path)))

    @staticmethod
    def read_table(path: Path) -> dict[str, Any]:
        """A study file's content, not validated yet. An empty one is refused: what its author meant is not in it."""
        advice = "`secure-fl study new` writes a study to start from"
        if not (table := read_toml(path, missing=advice)):
            raise SettingsError(f"{path}: has no settings in it", advice=advice)
        return table

    @classmethod
    def from_canonical(cls, settings: bytes) -> Self:
        """The study the coordinator offers; its hash is checked by the caller against the id it was offered as."""
        try:
            values = json.loads(settings)
        except (ValueError, RecursionError):
            raise SettingsError("the offered study is not valid JSON") from None
        version = values.pop("version", None) if isinstance(values, dict) else None
        if isinstance(version, int) and 0 < version < STUDY_VERSION:
            raise SettingsError("the study was made by an older version of secure-fl", advice="submit it again")
        if version != STUDY_VERSION:
            raise SettingsError("the offered study has another format version", advice="upgrade the older side")
        for section, key in (("task", "name"), ("protection", "kind")):
            # Finding out what suits its strategy would import that: a site reads offers before it agrees to anything.
            if not isinstance(values.get(section), dict) or key not in values[section]:
                raise SettingsError(
                    "the offered study is not written out", advice="submit it with `secure-fl study submit`"
                )
        return cls.parse(values)

    @shown_hints()
    def completed(self) -> Self:
        """The study with every default of its task, strategy and protection, and its initial model, written out.

        This is the form whose hash is approved: another release with other defaults is then another study.
        """
        from secure_fl import tasks  # creating a task needs torch, which reading a study does not

        if (study := filled(self)) is not self:
            return study.completed()
        task, strategy = tasks.create(self.task.name, self.task.settings), self.make_strategy()
        protection = self.make_protection()
        own = {"settings": _written_out(protection.settings), "clip": self.protection.clip or task.clip}
        if self.study.start == "given" and not self.study.initial:
            raise InitialModelError('study.start is "given", and study.initial names no model', advice=BRING)
        initial = self.study.initial or self._outline(task, strategy).digest.hex()
        return self.model_copy(
            update={
                "study": self.study.model_copy(update={"initial": initial}),
                "task": self.task.model_copy(update={"settings": _written_out(task.settings)}),
                "strategy": self.strategy.model_copy(update={"settings": _written_out(strategy.settings)}),
                "protection": self.protection.model_copy(update=own),
                "metrics": self.metrics.completed(task),
            }
        )

    def _outline(self, task: Task, strategy: Strategy) -> Outline:
        from secure_fl.study.start import outline_of

        return outline_of(task, strategy, self.study.seed)

    def to_table(self) -> dict[str, Any]:
        """The study as it would stand in a TOML file."""
        table: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        for section in ("task", "strategy", "protection"):
            settings = table[section].pop("settings")
            table[section] = {key: value for key, value in table[section].items() if value != ""} | settings
        return table

    def canonical(self) -> bytes:
        """The agreed part as canonical JSON, defaults written out, the simulation left out."""
        values = self.model_dump(mode="json", exclude={"simulation"})
        return json.dumps(
            {"version": STUDY_VERSION, **values}, sort_keys=True, separators=(",", ":"), ensure_ascii=True
        ).encode()

    @property
    def id(self) -> str:
        """SHA-256 of the canonical form: what a site approves, and what every message names."""
        return hashlib.sha256(b"secure-fl study v1\x00" + self.canonical()).hexdigest()

    def circles(self, names: Collection[str] | None = None) -> tuple[Circle, ...]:
        """Who is opened together in a sum; nothing under recovery, or without a roster. Raises `SettingsError`."""
        settings, sites = self.protection, self.study.roster if names is None else names
        if settings.recovery or not sites:
            return ()
        least = max(settings.min_cohort or 0, smallest_circle(settings.colluders))
        if isinstance(settings.circles, str):
            return divide(sites, colluders=settings.colluders, at_least=least)
        return checked(settings.circles, sites, at_least=least)

    def min_cohort(self, kind: RequestKind) -> int:
        """How many contributors an opened value needs: the study's number, never below what is safe.

        Of a sum in circles these are the members of the smallest circle.
        """
        least = max(self.protection.min_cohort or 0, smallest_cohort(kind, self.protection.colluders))
        circles = self.circles() if kind is RequestKind.SUM else ()
        return max(least, min(map(len, circles), default=0))

    @property
    def versions(self) -> int:
        """How many versions of the model the study makes: one in every round, or in every flush."""
        rounds = self.study.rounds
        return self.rounds.pace(rounds).flushes if self.rounds.is_buffered else rounds

    @property
    def weighting(self) -> str:
        """How much sites count in a sum, in words that change with it."""
        reference = self.protection.reference_samples
        floor = weight_floor(self.min_cohort(RequestKind.SUM), self.protection.colluders)
        by = self.make_strategy().weighs_by
        equal = reference is None or floor == WEIGHT_UNITS
        return self.rounds.weighing("equal" if equal else f"{reference} {by}, at least {floor}")

    @property
    def declares(self) -> bool:
        """Whether circles are formed once sites have declared what they share: with only one there is no choice."""
        circles = self.protection.circles
        wanted = circles == "speed" or (circles == "auto" and self.make_strategy().declares)
        return wanted and len(self.circles()) > 1

    def can_go_on(self, sites: Collection[str]) -> bool:
        """Whether anything can still be opened with these sites alone: a whole circle, or enough for a cohort."""
        there = set(sites)
        if not self.declares and (circles := self.circles()):
            return any(there.issuperset(circle) for circle in circles)
        return len(there) >= self.min_cohort(RequestKind.SUM)

    def spare(self, kind: RequestKind, sites: int) -> int:
        """How many of `sites` may drop out of a round without voiding it; in circles, none of a circle."""
        if kind is RequestKind.SUM and not self.protection.recovery:
            return 0
        protection = self.make_protection()
        quorum = protection.quorum
        if kind is RequestKind.COMBINE and isinstance(protection, CombiningProtection):
            quorum = protection.combine_quorum
        return max(0, sites - quorum(sites, colluders=self.protection.colluders, min_cohort=self.min_cohort(kind)))

    def codec(self) -> FixedPoint:
        """The fixed-point grid of the study."""
        clip = self.protection.clip
        return FixedPoint(bits=self.protection.bits, clip=DEFAULT_CLIP if clip is None else clip)

    def make_strategy(self) -> Strategy:
        """The strategy, with its settings validated."""
        return strategies.create(self.strategy.name, self.strategy.settings)

    def make_protection(self) -> Protection:
        """The protection, with its settings validated."""
        return protect.create(self.protection.kind, self.protection.settings, recovery=self.protection.recovery)

    @property
    def exceptions(self) -> frozenset[str]:
        """The promises that this study gives up, by name: a site takes part only if its own file lists each."""
        protection = self.make_protection()
        changing = self.protection.recovery and not protection.coordinator_sees_updates
        named = {*self.make_strategy().exceptions, *protection.exceptions}
        if changing:
            named.add(CHANGING_COHORTS)
        if self.privacy.mode != "none" and self.metrics.share != "none":
            named.add(PLAIN_METRICS)
        return frozenset(named)

    def privacy_plan(self, *, units: int) -> PrivacyPlan | None:
        """What the study costs at a site that declares so many units; None without differential privacy.

        Raises `SettingsError` where no sensible noise is enough.
        """
        return plan_at(self.privacy, self.make_strategy(), rounds=self.study.rounds, units=units)

    @shown_hints()
    def check(self, *, nodes: int | None = None) -> Layout:
        """Everything that can be known without a site: names exist, parts fit together, enough sites, the first model.

        Returns the layout of the model.

        Raises `SettingsError`, or `OverflowInvariantError` where the bits do not suffice, with the first problem.
        """
        from secure_fl import tasks  # here: the registries are light, the task itself needs torch
        from secure_fl.tasks.model_blocks import initial_blocks

        strategy = self.make_strategy()
        task = tasks.create(self.task.name, self.task.settings)
        require_private(self.privacy, strategy, task)
        self.metrics.require(task)
        if self.study.initial:
            layout = self._outline(task, strategy).whole
        else:
            layout, _ = initial_blocks(task, self.study.seed)
        kind = strategy.request_for(task, layout).kind
        sites = self.check_parts(nodes=nodes)
        if kind is RequestKind.COMBINE:
            require_combinations(
                strategy,
                layout,
                task.head(layout.names),
                rounds=self.study.rounds,
                sites=sites,
                minimum=self.min_cohort(kind),
            )
        wanted = self.study.initial if self.study.start == "seed" else ""
        if wanted and wanted != self._outline(task, strategy).digest.hex():
            raise InitialModelError("study.initial is not the digest of the model that the study's seed makes here")
        return layout

    def check_parts(self, *, nodes: int | None = None) -> int:
        """The part of `check` that needs no code of the task, as both processes ask it of every study they run.

        Returns how many sites there are.
        """
        settings, strategy, protection = self.protection, self.make_strategy(), self.make_protection()
        kind, sites = strategy.asks, len(self.study.roster) if nodes is None else nodes
        require_recovery(strategy.name, strategy.exceptions, recovery=settings.recovery)
        require_charged(self.privacy, strategy)
        if self.privacy.mode != "none" and settings.reference_samples is not None:
            raise SettingsError(
                "protection.reference_samples weighs a site by its number of records, which no noise covers",
                advice="leave it out under differential privacy: every site then counts the same",
            )
        if not protection.serves(kind):
            able = [name for name in protect.known() if protect.describe(name).serves(kind)]
            raise SettingsError(
                f"strategy {strategy.name!r} needs {kind.value!r}, which protection {protection.name!r} does not serve",
                advice=f"protections that do: {', '.join(able)}",
            )
        if sites and sites < self.min_cohort(kind):
            raise SettingsError(
                f"{sites} sites, but nothing is opened with fewer than {self.min_cohort(kind)} contributors",
                advice="enrol more sites (in a simulation: --nodes)",
            )
        # Before a simulation's sites have names, only their number counts.
        circles = self.circles(self.study.roster or simulated_names(sites))
        if settings.robust != "none" and (kind is not RequestKind.SUM or len(circles) < 2 * settings.colluders + 1):
            raise SettingsError(
                f"protection.robust needs sums in at least {2 * settings.colluders + 1} circles, and there are "
                f"{len(circles) if kind is RequestKind.SUM else 0}",
                advice='enrol more sites, or write robust = "none"',
            )
        require_buffered(self.rounds, strategy, self.protection, turns=self.study.rounds)
        protection.require_room(kind, nodes=max(sites, 1), bits=settings.bits)
        return sites


def _written_out(settings: Settings) -> dict[str, Any]:
    # A default of "nothing" stays away: a TOML file has no word for it, and must give the same hash.
    return settings.model_dump(mode="json", exclude_none=True)
