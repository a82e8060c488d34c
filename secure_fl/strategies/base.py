"""What a strategy is: a node half and a coordinator half that meet only through aggregates.

The coordinator half has one method, `step`, and its only source of news is an `Aggregate`: per block a weighted
mean over a cohort. There is no type in this contract that carries one node's update to the coordinator, so a
strategy that wants one does not type-check; it has to ask for a *sum* or, for attention, a *combine*, whose result
only the recipient sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.protect.base import Combine, Request, Sum
from secure_fl.settings import Settings

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site
    from secure_fl.tasks.base import Task

Array: TypeAlias = npt.NDArray[np.float32]

SHIPPED_TENSOR = "values"  # the one tensor of a shipped block

__all__ = [
    "SHIPPED_TENSOR",
    "Aggregate",
    "Array",
    "BlockMean",
    "Combine",
    "LocalTraining",
    "Request",
    "Strategy",
    "Sum",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMean:
    """One opened block: the weighted mean of its cohort's updates."""

    mean: Vector
    contributors: int


class Aggregate(Mapping[str, BlockMean]):
    """Per-block means of one round. A block whose cohort was below its minimum is absent."""

    __slots__ = ("_means",)

    def __init__(self, means: Mapping[str, BlockMean]) -> None:
        self._means = dict(means)

    def __getitem__(self, block: str) -> BlockMean:
        return self._means[block]

    def __iter__(self) -> Iterator[str]:
        return iter(self._means)

    def __len__(self) -> int:
        return len(self._means)


class LocalTraining(Settings):
    """How a node trains; every strategy has these settings and may add its own."""

    epochs: int = Field(2, ge=1, le=1000)
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)


class Strategy(ABC):
    """One paper, one file: node half and coordinator half side by side."""

    name: ClassVar[str]
    Settings: ClassVar[type[LocalTraining]] = LocalTraining
    # Whether the shared blocks alone are a model that can be used, exported and scored on its own.
    has_global_model: ClassVar[bool] = True
    # For *combine*: whether nodes weigh their peers by the distance of their `features`.
    attention: ClassVar[bool] = False
    # Reserved blocks that the coordinator makes once (`ship`) and sends with the shared model. No node returns them.
    shipped: ClassVar[tuple[str, ...]] = ()
    # What `fit` notes at the site for the site alone (`Site.note`), and what it means.
    notes: ClassVar[Mapping[str, str]] = {}

    def __init__(self, settings: LocalTraining) -> None:
        self.settings = settings

    @abstractmethod
    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        """Which blocks leave a node, and as what. `head` names the blocks a task regards as its head."""

    def request_for(self, task: Task, layout: Layout) -> Request:
        """The request for a task's model, whose blocks are `layout`; `SettingsError` if the strategy cannot use it."""
        return self.request(layout, task.head(layout.names))

    @property
    def exceptions(self) -> tuple[str, ...]:
        """What a promise to sites does not hold for under these settings, by name: each site has to agree to each."""
        return ()

    @abstractmethod
    def explain(self) -> tuple[str, ...]:
        """What leaves a site and what stays, in sentences for a site operator."""

    # --- node half ------------------------------------------------------------------------------------------

    @abstractmethod
    def fit(self, site: Site) -> Blocks:
        """Train on the site's data and return the change of every shared block it holds."""

    def inference(self, site: Site) -> Blocks:
        """The model this site predicts with now: what it received, completed by what it keeps."""
        return {**site.initial, **site.personal, **site.received}

    def compares(self, number: int) -> bool:  # noqa: ARG002
        """With `attention`: whether distances are opened in round `number`, or the last ones count again."""
        return self.attention

    def features(self, site: Site) -> Vector:
        """In a round that compares: by what, after `fit`. It is never shown; see `protect.sketch`."""
        raise NotImplementedError

    def attend(self, me: str, squared_distances: Mapping[str, float]) -> Mapping[str, float]:  # noqa: ARG002
        """For *combine*: how much this node wants of everybody who uploaded, in any unit. The node decides.

        It is told the squared distances of features, of those it has been compared with; 0 without `attention`. Runs
        outside training.
        """
        return dict.fromkeys(squared_distances, 1.0)

    # --- coordinator half -----------------------------------------------------------------------------------

    def ship(self, task: Task, seed: int) -> Mapping[str, Array]:  # noqa: ARG002
        """The blocks named in `shipped`: made before the first round, the same for everybody, never changed."""
        return {}

    def step(self, current: Blocks, aggregate: Aggregate) -> Blocks:
        """The next shared blocks: w ← w + mean of the changes. A block that was not opened keeps its value."""
        return {
            name: vector + aggregate[name].mean if name in aggregate else vector for name, vector in current.items()
        }
