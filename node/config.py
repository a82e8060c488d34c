"""The node's file: what a site decides. Never sent anywhere."""

from __future__ import annotations

import re
from os.path import normpath
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, model_validator

from secure_fl import protect, strategies, tasks
from secure_fl.identity.party_file import DialingFile, DialingSection
from secure_fl.operations.monitoring import MonitoringSection
from secure_fl.settings import PathText, Settings, nearest, require_known
from secure_fl.study.exceptions import require_exception
from secure_fl.tasks import files as task_files
from secure_fl.tasks.partition import PartitionSettings

_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")
_DEVICES = ("cpu", "cuda", "hpu", "mps", "mtia", "xla", "xpu")  # torch's words; what is there, only torch knows


def _device(text: str) -> str:
    kind, colon, number = text.partition(":")
    if kind not in _DEVICES or (colon and not (number.isascii() and number.isdigit())):
        close = nearest(kind, _DEVICES)
        raise ValueError(f'must be "cpu", "cuda" or such as "cuda:1"{f"; did you mean {close!r}?" if close else ""}')
    return text


def _study_hash(text: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise ValueError("must be a study's hash, 64 hexadecimal digits in lower case (`secure-fl study check`)")
    return text


Device: TypeAlias = Annotated[str, AfterValidator(_device)]
StudyHash: TypeAlias = Annotated[str, AfterValidator(_study_hash)]


class NodeSection(DialingSection):
    """Who this node is, which coordinator, and no other, it talks to, and what it trains on."""

    name: str
    device: Device = "cpu"
    threads: int = Field(0, ge=0)  # torch threads of the training process; 0: torch decides


class ShareSection(Settings):
    """Only in simulations: which part of a task's common data set this site holds."""

    index: int = Field(ge=0)
    of: int = Field(ge=1)
    seed: int = 0
    partition: PartitionSettings = PartitionSettings()


class DatasetSection(Settings):
    """Local data under the id by which studies name it."""

    path: PathText = ""
    format: str = ""
    # For differential privacy: about how many records, or groups, there are to train on. Rounded and kept as it is: the
    # true number is private, and this one is used in the open.
    units: int | None = Field(None, ge=1, le=10**12)
    share: ShareSection | None = None


def _task_files(listed: tuple[str, ...]) -> list[tuple[str, str]]:
    """Of the entries of [policy] tasks: `FOLDER/FILE.py:Class` as the name in studies, `FILE:Class`, and the path."""
    try:
        return [found for entry in listed if (found := task_files.parse_entry(entry)) is not None]
    except ValueError as error:
        raise ValueError(f"[policy] tasks: {error}") from None


class PolicySection(Settings):
    """What this site agrees to. The defaults allow nothing that shows an update to anybody."""

    protections: tuple[str, ...] = Field(default_factory=protect.hiding)
    strategies: tuple[str, ...] = ()  # empty: all
    # Tasks that are no installed id: "FILE.py:Class", a file beside this one, or "module:Class" on the Python path.
    tasks: tuple[PathText, ...] = ()
    datasets: tuple[str, ...] = ()  # ids that studies may use; empty: all of this file
    min_cohort: int = Field(3, ge=2)
    colluders: int = Field(1, ge=0)
    epsilon: float | None = Field(None, gt=0)  # the most that all studies together may spend on one data set
    delta: float | None = Field(None, gt=0, lt=1)
    model_bytes: int = Field(2**30, ge=1)  # the largest shared model this site fetches
    upload_parameters: int | None = Field(None, ge=1)  # the most of a model that leaves in one round
    # Seconds: the first answer of an attempt, or the word that there is none, leaves at a multiple of this after it was
    # announced, so that the time training took does not show. 0: at once.
    answer_after: float = Field(0.0, ge=0, le=86400)
    exceptions: tuple[str, ...] = ()  # from what is promised; `study show` names and explains those of a study
    metrics: Literal["none", "aggregate", "per-node"] = "aggregate"
    approve: Literal["ask", "listed"] = "ask"  # listed: only `approved` below counts, not `secure-fl node approve`
    approved: tuple[StudyHash, ...] = ()

    @model_validator(mode="after")
    def _known_words(self) -> Self:
        """A misspelt word would allow nothing, and the site would learn it from a study's lead, weeks later."""
        for protection in self.protections:
            require_known("[policy] protection", protection, protect.known())
        for strategy in self.strategies:
            require_known("[policy] strategy", strategy, strategies.known())
        for exception in self.exceptions:
            require_exception(exception)
        names = [name for name, _ in _task_files(self.tasks)]
        if twice := {name for name in names if names.count(name) > 1 or name in self.tasks}:
            raise ValueError(f"[policy] tasks: {min(twice)} stands for more than one entry")
        if (self.epsilon is None) != (self.delta is None):
            raise ValueError("[policy] epsilon and delta are a limit together: write both, or neither")
        return self


class SimulationSection(Settings):
    """Only in simulations: repeatable randomness. One person holds every site's secrets there anyway."""

    seed: int
    seconds: float = Field(0.0, ge=0, le=3600)  # training takes at least so long; the rest is slept
    slowdown: float = Field(1.0, ge=1, le=1000)  # and then so many times longer, as on a slower machine


class NodeFile(DialingFile):
    """Everything a node needs to start."""

    node: NodeSection
    datasets: dict[str, DatasetSection] = Field(default_factory=dict)
    policy: PolicySection = PolicySection()
    monitoring: MonitoringSection = MonitoringSection()
    simulation: SimulationSection | None = None

    @model_validator(mode="after")
    def _simulates_here_only(self) -> Self:
        # The seed is the study's: every site's masks could be computed by whoever knows the study.
        if self.simulation is not None and self.node.coordinator.rpartition(":")[0] not in _THIS_MACHINE:
            raise ValueError("[simulation] makes every secret predictable; it goes with a coordinator on this machine")
        return self

    @model_validator(mode="after")
    def _known_datasets(self) -> Self:
        for name in self.policy.datasets:
            require_known("data set in [policy] datasets", name, self.datasets)
        return self

    @model_validator(mode="after")
    def _sound_budgets(self) -> Self:
        """A limit that limits nothing is found before a study relies on it."""
        if self.policy.delta is None:
            return self
        for name, dataset in self.datasets.items():
            if dataset.units is not None and self.policy.delta * dataset.units >= 1:
                raise ValueError(
                    f"[policy] delta = {self.policy.delta:g} allows to publish one of the {dataset.units} units of "
                    f"[datasets.{name}] as it is; write far less than 1 / {dataset.units}"
                )
        paths = [normpath(one.path) for one in self.datasets.values() if one.path and one.share is None]
        if twice := sorted({path for path in paths if paths.count(path) > 1}):
            raise ValueError(f"{twice[0]} stands under two ids of [datasets], and each would have a budget of its own")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """As any party's file; and from then on the tasks in files that it names can be loaded."""
        file = super().read(path)
        for name, where in file.task_files.items():
            task_files.register(name, task_files.TaskFile(path=where))
        return file

    @property
    def task_files(self) -> dict[str, Path]:
        """By the name that a study uses: the file at this site that has the task."""
        return {name: self.path(where) for name, where in _task_files(self.policy.tasks)}

    def allows_task(self, name: str) -> bool:
        """Whether the site itself named this code: an installed package, a file, or a module."""
        modules = [entry for entry in self.policy.tasks if not _task_files((entry,))]
        return name in modules or name in self.task_files or tasks.is_installed_id(name)

    @property
    def dialing(self) -> DialingSection:
        """The section that names the coordinator."""
        return self.node
