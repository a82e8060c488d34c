"""What a strategy is: a node half and a coordinator half that meet only through aggregates.

The coordinator half has one method, `step`, and its only source of news is an `Aggregate`: per block a weighted
mean over a cohort. There is no type in this contract that carries one node's update to the coordinator, so a
strategy that wants one does not type-check; it has to ask for a *sum* or, for attention, a *combine*, whose result
only the recipient sees.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from secure_fl.aggregation import Aggregate, BlockMean, Combine, Request, RequestKind, Sum
from secure_fl.blocks import Blocks, Layout, Vector
from secure_fl.errors import SettingsError
from secure_fl.strategies.merging import MergeSettings, Merging
from secure_fl.strategies.state import State
from secure_fl.strategies.training import Array, LocalTraining

if TYPE_CHECKING:
    from secure_fl.strategies.site import Site
    from secure_fl.tasks.base import Task

SHIPPED_TENSOR = "values"  # the one tensor of a shipped block

__all__ = [
    "SHIPPED_TENSOR",
    "Aggregate",
    "Array",
    "BlockMean",
    "Combine",
    "LocalTraining",
    "Request",
    "State",
    "Strategy",
    "Sum",
]


class Strategy(ABC):
    """One paper, one file: node half and coordinator half side by side.

    A subclass says which blocks leave a site and trains there; everything else has a default. One that shares all but
    the task's head, and keeps that at the site::

        class KeepHead(Strategy):
            name = "keep-head"

            def request(self, layout, head):
                return Sum(blocks=tuple(name for name in layout.names if name not in head))

            def explain(self):
                return ("Leaves: the change of every block but the head.", "Stays: the data and the head.")

            def fit(self, site):
                site.load(self.inference(site))
                site.train()
                site.personal = site.blocks(site.head)
                return site.change(site.received)

    Where to find what: `site.received` are the shared blocks, `site.personal` and `site.state` what this site kept,
    `aggregate[block].mean` the mean of the changes of a block that was opened.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[LocalTraining]] = LocalTraining
    # Whether the shared blocks alone are a model that can be used, exported and scored on its own.
    has_global_model: ClassVar[bool] = True
    # What its training rounds ask for; `request` says of which blocks.
    asks: ClassVar[RequestKind] = RequestKind.SUM
    # Whether a site may share some of the requested blocks only. Otherwise one that leaves a block out is refused.
    # It may follow from the settings: those of an instance count.
    partial: bool = False
    # Whether a site that leaves out a block counts in its mean as one that did not change it. Otherwise a block's mean
    # is over those who sent it.
    counts_unsent: ClassVar[bool] = False
    # For *combine*: whether nodes weigh their peers by the distance of their `features`.
    attention: ClassVar[bool] = False
    # Reserved blocks that the coordinator makes once (`ship`) and sends with the shared model. No node returns them.
    shipped: ClassVar[tuple[str, ...]] = ()
    # What `fit` notes at the site for the site alone (`Site.note`), and what it means.
    notes: ClassVar[Mapping[str, str]] = {}

    # Keys of a study and the values that this strategy suggests where the study does not say, such as
    # "rounds.mode". Its own settings have defaults in `Settings`, too; those that stand here win over the task's.
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, settings: LocalTraining | None = None) -> None:
        # Parsed, so that a setting without a default is asked for by name.
        self.settings = self.Settings.parse({}, where="strategy") if settings is None else settings

    @abstractmethod
    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        """Which blocks leave a node, and as what.

        `layout` has the blocks of the model, `head` names those that the task regards as its head. Returns a `Sum` or a
        `Combine`, as `asks` says. Raises `LayoutMismatchError` or `SettingsError` where the strategy cannot use such a
        model. Called without the task's code, too: nothing here may need torch.
        """

    def request_for(self, task: Task, layout: Layout) -> Request:
        """The request for a task's model, whose blocks are `layout`; `SettingsError` if the strategy cannot use it."""
        from secure_fl.tasks.own_code import mend, run_own

        head = run_own(lambda: tuple(task.head(layout.names)), "head", advice=mend(type(task)))
        return self.request(layout, head)

    @property
    def predicts_with_shared(self) -> bool:
        """Whether sites predict with the shared blocks alone, so that all they measure is of the global model."""
        return self.has_global_model and type(self).inference is Strategy.inference

    @property
    def declares(self) -> bool:
        """Whether sites say which of the requested blocks they share, so that those who share alike can be together."""
        return self.partial

    @property
    def asks_circles(self) -> bool:
        """Whether `asked` may leave out blocks: then there have to be circles that are asked."""
        return type(self).asked is not Strategy.asked

    @property
    def weighs_by(self) -> str:
        """In words: what a site's weight in a sum is in proportion to, where the study does not weigh all alike."""
        return "samples"

    @property
    def exceptions(self) -> tuple[str, ...]:
        """What a promise to sites does not hold for under these settings, by name: each site has to agree to each."""
        return ()

    @abstractmethod
    def explain(self) -> tuple[str, ...]:
        """What leaves a site and what stays, in sentences for a site operator."""

    # --- differential privacy -------------------------------------------------------------------------------
    #
    # Whatever influences anything that leaves a site, in this round or a later one, is trained under noise, was fixed
    # before the data were seen, or is public. What influences nothing that leaves may train freely (`Site.free`).

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Whoever trains in a way of its own says anew what that costs: what its parent said was of another `fit`."""
        super().__init_subclass__(**kwargs)
        if "fit" in vars(cls) and "charged_epochs" not in vars(cls):
            cls.charged_epochs = Strategy.charged_epochs  # type: ignore[method-assign]

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """How many passes over a site's data train under noise in round `number`; without one, the most in any round.

        `Site` puts noise on every step unless the strategy asks it not to, so this counts what `fit` does. None, the
        default: the strategy does not say what shapes its update, and is refused under differential privacy.
        """
        return None

    @property
    def private_notes(self) -> tuple[str, ...]:
        """Under differential privacy: what trains under noise, what without and never leaves. For a site operator."""
        return ()

    # --- node half ------------------------------------------------------------------------------------------

    @abstractmethod
    def fit(self, site: Site) -> Blocks:
        """Train on the site's data and return the change of every shared block it holds.

        `site` has the model, the data and what was kept (`secure_fl.strategies.site.Site`); what this leaves in
        `site.personal` and `site.state` is kept for the next round. The returned blocks are float32 vectors, some of
        those requested or all; they are clipped, weighted, rounded and protected by others. Training that goes
        astray is no reason to raise: a coordinate that is NaN or infinite counts as unchanged.
        """

    def richness(self, site: Site) -> float:  # noqa: ARG002
        """Above 0 and at most 1: by how much this site's number of samples counts in its weight.

        The product is quantised into the weight and never shown. It must not change from round to round. It has no
        effect where the study weighs all sites alike; a strategy with a richness of its own says so in `weighs_by`.
        """
        return 1.0

    def inference(self, site: Site) -> Blocks:
        """The model this site predicts with now: what it received, completed by what it keeps."""
        return site.complete(site.personal, site.received)

    def compares(self, number: int) -> bool:  # noqa: ARG002
        """With `attention`: whether distances are opened in round `number`, or the last ones count again."""
        return self.attention

    def compared(self, layout: Layout, head: tuple[str, ...]) -> tuple[str, ...]:  # noqa: ARG002
        """With `attention`: the blocks of a model that are its `features`. They may be of a model that never leaves."""
        return layout.names

    def features(self, site: Site) -> Vector:
        """In a round that compares: by what, after `fit`. It is never shown; see `protect.sketch`."""
        raise NotImplementedError

    def attend(self, me: str, squared_distances: Mapping[str, float]) -> Mapping[str, float]:  # noqa: ARG002
        """For *combine*: how much this node wants of everybody who uploaded, in any unit. The node decides.

        It is told the squared distances of features, of those it has been compared with; 0 without `attention`. Runs
        outside training.
        """
        return dict.fromkeys(squared_distances, 1.0)

    def widen(
        self,
        me: str,  # noqa: ARG002
        wanted: Mapping[str, float],
        squared_distances: Mapping[str, float],  # noqa: ARG002
        least: int,  # noqa: ARG002
    ) -> Mapping[str, float]:
        """For *combine*: what `attend` said, given that nothing opens with fewer than `least` sites."""
        return wanted

    def widest_row(self, sites: int) -> int:
        """For *combine*: how many of so many sites one may want at most, itself included."""
        return sites

    # --- coordinator half -----------------------------------------------------------------------------------

    def ship(self, task: Task, seed: int) -> Mapping[str, Array]:  # noqa: ARG002
        """The blocks named in `shipped`: made before the first round, the same for everybody, never changed."""
        return {}

    def step(self, current: Blocks, aggregate: Aggregate, state: State) -> tuple[Blocks, State]:
        """The next shared blocks, and what to remember until the next step.

        `current` are the shared blocks now, `aggregate` the means of their changes (a block that was not opened is
        absent and keeps its value), `state` what the step before returned: empty before the first. All of it is
        committed together with the round. By default w ← w + mean, and nothing to remember::

            def step(self, current, aggregate, state):
                blocks, _ = super().step(current, aggregate, state)
                return blocks, State(values={"steps": state.values.get("steps", 0) + 1})

        Elementwise and deterministic: whoever has the same input makes the same model.
        """
        moved = {
            name: vector + aggregate[name].mean if name in aggregate else vector for name, vector in current.items()
        }
        return moved, state

    def largest_step(self, largest_mean: float) -> float:
        """How far `step` can move a coordinate if no coordinate of a mean is larger than `largest_mean`.

        Sites refuse a model that moved further, so a strategy with a step of its own says here what it may do. By
        default the mean itself; after a *combine* there is none, and the shared blocks stay as they are.
        """
        return largest_mean if self.asks is RequestKind.SUM else 0.0

    def asked(
        self,
        layout_names: tuple[str, ...],  # noqa: ARG002
        sizes: Mapping[str, int],  # noqa: ARG002
        state: State,  # noqa: ARG002
        turn: int,  # noqa: ARG002
    ) -> tuple[str, ...] | None:
        """Which of the requested blocks a whole circle sends next; None, the default: all of them.

        Decided from public facts: what was opened before (`state`, as `step` returned it), how often this circle has
        been asked (`turn`, from 0), and the blocks' `sizes`. Sites find the answer in `site.asked`.
        """
        return None

    def merging(self, rounds: MergeSettings, *, largest: float) -> Merging:
        """How circles that open at different times are merged, by default as the study says.

        No coordinate of a mean, and so of what is merged, is larger than `largest`. `step` is then given the effective
        mean, and `largest_step` holds as ever. Raises `SettingsError` where there is no sum to merge.
        """
        if self.asks is not RequestKind.SUM:
            raise SettingsError(
                f"strategy {self.name!r} combines sites for each other, and only sums can be merged as they come",
                advice='use synchronous rounds ([rounds] mode = "sync") or a strategy that asks for a sum',
            )
        return Merging(kind=rounds.kind, discount=rounds.discount, rate=rounds.rate, largest=largest)
