"""AiFed: circles arrive when they are ready, send the layers that matter, and count by how rich their labels are.

ALMU, at the site: which layers are sent (`gating`).
AGMA, at the coordinator: β ∝ n·LIS·LIR. n·LIR is the site's own hidden weight (`richness`), LIS = (e/2)^−τ the discount
of an arrival that is τ versions old (`merging`, where the study chooses).

The paper's site decides for itself which layers it sends. Who is in a layer's sum then changes from round to round, and
the difference of two sums tells something about a site that came or went. So by default it is a whole circle that sends
a layer or does not, and the coordinator says which from what everybody may know: how far each layer moved in what was
opened before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from secure_fl.blocks import Blocks
from secure_fl.strategies.base import Aggregate, LocalTraining, State
from secure_fl.strategies.fedasa import outputs
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.gating import Dissimilarities, consistency, dissimilarities, gate, movement, threshold
from secure_fl.strategies.richness import by_entropy, by_labels

if TYPE_CHECKING:
    from torch import Tensor

    from secure_fl.strategies.site import Site

_MOVED = "moved"  # what the coordinator remembers
_TURN = "turn"  # what the site remembers: how often it has sent before
CHANGING_COHORTS = "changing-cohorts"  # the exception of `protect.past`


class AiFedSettings(LocalTraining):
    """FedAvg's settings, which layers are sent, and what a site counts by."""

    # Who decides what is sent: the coordinator from public facts, or each site; "rank": by how much it changed there.
    gating: Literal["public", "site", "rank", "none"] = "none"
    keep: float = Field(0.5, gt=0, le=1)  # "public" and "rank": the part of all parameters that is sent at most
    full_every: int = Field(4, ge=0)  # every so many turns everything is sent; 0: never
    richness: Literal["entropy", "labels", "none"] = "entropy"
    # "site": the paper names neither α. With these AT is 0.5 at first, 0.95 after ten versions and 0.99 after fifteen;
    # rc of layers that learn was between 0.7 and 0.99 on `digits`. Half of this α held nothing back in twenty rounds.
    alpha_round: float = Field(0.3, ge=0)
    alpha_accuracy: float = 1.0
    stimuli: int = Field(50, ge=3)  # Q


class AiFed(FedAvg):
    """FedAvg's training. Kept at the site: what was not sent yet, block by block."""

    name = "aifed"
    Settings = AiFedSettings
    settings: AiFedSettings
    defaults: ClassVar[Mapping[str, Any]] = {"rounds.mode": "buffered"}
    counts_unsent = True  # "layers not sent count as the current global layer"
    notes: ClassVar[Mapping[str, str]] = {
        "consistency": "rc of each block: 1 if it sees the data after training as it did before",
        "threshold": "AT: blocks with a smaller rc were not sent",
    }

    def __init__(self, settings: AiFedSettings | None = None) -> None:
        super().__init__(settings)
        self.partial = self.settings.gating in ("site", "rank")

    @property
    def declares(self) -> bool:
        """No: what a site sends changes from round to round, and cannot be declared once."""
        return False

    @property
    def asks_circles(self) -> bool:
        """With gating "public" only."""
        return self.settings.gating == "public"

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Where each site decides what it sends, sums of the same block differ by single sites."""
        return (CHANGING_COHORTS,) if self.partial else ()

    @property
    def weighs_by(self) -> str:
        """Samples, and how rich their labels are."""
        richness = self.settings.richness
        return {"entropy": "samples times label entropy", "labels": "samples times labels", "none": "samples"}[richness]

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        every = self.settings.full_every
        leaves = {
            "public": "the blocks that the coordinator asks a whole circle for: those that moved most so far.",
            "rank": "the blocks that changed most at this site; which ones is visible.",
            "site": "the blocks that see this site's data after training about as before; which ones is visible.",
            "none": "every block of the model.",
        }[self.settings.gating]
        exception = (
            f"EXCEPTION ({CHANGING_COHORTS}): each site decides what it sends. If a site sends a block in one round "
            "and not in the next, the difference of the two results tells something about that site. A site has to "
            "agree: [policy] exceptions."
        )
        return (
            f"Leaves: the change of {leaves}",
            *([f"Every {every} turns all blocks are sent."] if every and self.settings.gating != "none" else []),
            "Stays: the data, how many samples there are of each label, and what was not sent yet.",
            *([exception] if self.partial else []),
        )

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them. Nothing under "site", whose gate looks at single rows without noise: refused under noise."""
        return None if self.settings.gating == "site" else self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training. Which blocks are sent follows from what was opened before, or from "
            "changes that are under noise already.",
            "Off: weights by labels. How many a site has of each is private.",
        )

    # --- node half ------------------------------------------------------------------------------------------

    def fit(self, site: Site) -> Blocks:
        """FedAvg's training; then what is sent of it, with what was not sent before."""
        change = super().fit(site)
        turn = int(site.state.get(_TURN, 0))
        site.state = {_TURN: turn + 1}
        if self.settings.gating == "site":
            return {name: change[name] for name in self._consistent(site, turn)}
        # What is held back is not lost: it is averaged with the next change. Not added to it, as after a step of the
        # optimiser: the shared block has hardly moved, so both are the same change found twice, and would go too far.
        for name, vector in change.items():
            if (unsent := site.personal.get(_unsent(name))) is not None:
                np.add(vector, unsent, out=vector)
                np.multiply(vector, 0.5, out=vector)
        sent = self._sent(site, change, turn)
        site.personal = {_unsent(name): vector for name, vector in change.items() if name not in sent}
        return {name: change[name] for name in sent}

    def _sent(self, site: Site, change: Blocks, turn: int) -> tuple[str, ...]:
        settings = self.settings
        if settings.gating == "rank":
            moved = {name: movement(vector) for name, vector in change.items()}
            sizes = {name: vector.size for name, vector in change.items()}
            return gate(moved, sizes, keep=settings.keep, turn=turn, full_every=settings.full_every)
        return site.layout.names if site.asked is None else site.layout.select(site.asked).names

    def _consistent(self, site: Site, turn: int) -> tuple[str, ...]:
        """(8) and (9): the layers with rc ≥ AT; at least the one that is most consistent."""
        settings, names = self.settings, site.layout.names
        if settings.full_every and turn % settings.full_every == 0:
            return names
        # Pairs of neighbours in a random order of the site's training rows.
        order = site.draw(1.0)[: settings.stimuli + 1]
        trained = site.blocks()
        after, reached = self._seen(site, order)
        site.load(site.received)
        before, began = self._seen(site, order)
        site.load(trained)
        found = {name: consistency(before[name], after[name]) for name in names}
        least = threshold(
            alpha_round=settings.alpha_round,
            version=max(0, (site.round or 1) - 1),
            alpha_accuracy=settings.alpha_accuracy,
            gained=reached - began,
        )
        site.note("consistency", found)
        site.note("threshold", {"AT": least})
        return tuple(name for name in names if found[name] >= least) or (max(names, key=lambda name: found[name]),)

    @staticmethod
    def _seen(site: Site, order: Tensor) -> tuple[dict[str, Dissimilarities], float]:
        """The RDA of every block of the model as it is, for neighbours in `order`; and its accuracy where it trains."""
        import torch

        inputs, names = site.data.train.inputs[order].to(site.device), site.layout.names
        firsts = torch.arange(len(order))
        found = outputs(site.task, site.model, names, inputs)
        arrays = {name: dissimilarities(each, firsts, firsts.roll(-1)) for name, each in zip(names, found, strict=True)}
        return arrays, site.task.evaluate(site.model, site.data.train).accuracy or 0.0

    def richness(self, site: Site) -> float:
        """LIR, as a part of the most there can be. Under noise, and where there are no labels, 1."""
        if self.settings.richness == "none" or site.task.kind != "classification" or site.privacy is not None:
            return 1.0
        _, counts = np.unique(site.data.train.targets.numpy(), return_counts=True)
        count = by_entropy if self.settings.richness == "entropy" else by_labels
        return count(counts.tolist(), _classes(site))

    # --- coordinator half -----------------------------------------------------------------------------------

    def step(self, current: Blocks, aggregate: Aggregate, state: State) -> tuple[Blocks, State]:
        """FedAvg's; remembers how far each block moved when it was opened last."""
        blocks, state = super().step(current, aggregate, state)
        moved = {**state.values.get(_MOVED, {}), **{name: movement(aggregate[name].mean) for name in aggregate}}
        return blocks, State(values={**state.values, _MOVED: moved}, vectors=state.vectors)

    def asked(
        self, layout_names: tuple[str, ...], sizes: Mapping[str, int], state: State, turn: int
    ) -> tuple[str, ...] | None:
        """With gating "public": the blocks that moved most, within `keep` of all parameters."""
        if self.settings.gating != "public":
            return None
        return gate(
            state.values.get(_MOVED, {}),
            {name: sizes[name] for name in layout_names},
            keep=self.settings.keep,
            turn=turn,
            full_every=self.settings.full_every,
        )


def _classes(site: Site) -> int:
    """How many classes the model tells apart: rows of its last tensor, a bias or weights with a row for each.

    Nothing is computed with the model, which others chose: a site must not fall silent over what it does to a row.
    """
    return site.layout[site.head[-1]].tensors[-1].shape[0]


def _unsent(block: str) -> str:
    return f"{block}: unsent"
