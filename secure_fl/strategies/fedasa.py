"""FedASA (Deng et al.): each site shares the front of its model as deep as it resembles a model everybody knows.

m*_k = argmin_m mean over x in D_aux of ‖g_aux^ℓ(x) − g_k^m(x)‖², among the depths the site can afford             (8)
θ(o) ← Σ_k N_k·θ_k(o) / Σ_k N_k over the sites with o among their m*_k cells; nobody: θ(o) stays                   (9)
loss = cross-entropy + weight·entropy of the prediction; literally, (12) is another thing                     (10)–(12)
θ_k moves with rate η_g, φ_k with η_h                                                                            (13)

The paper's server computes m*_k from every site's whole model. Here it ships the auxiliary inputs and g_aux^ℓ(x) with
the shared blocks, and the site compares its own features with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from secure_fl.blocks import Blocks, Layout, zeros
from secure_fl.errors import SettingsError
from secure_fl.strategies.base import Array, LocalTraining, Request, Strategy, Sum

if TYPE_CHECKING:
    from torch import Tensor, nn

    from secure_fl.strategies.site import Loss, Site
    from secure_fl.tasks.base import Task

INPUTS, TARGETS = "@auxiliary-inputs", "@auxiliary-features"
_DEPTH, _ROUNDS = "depth", "rounds taken"  # what the site remembers


class FedASASettings(LocalTraining):
    """`learning_rate` is η_g, that of the shared part."""

    personal_rate: float | None = Field(None, gt=0)  # η_h; without it as η_g
    alignment_rounds: int = Field(1, ge=1)  # t_0: how many rounds a site chooses its depth anew
    depths: tuple[int, ...] = ()  # m to choose from; none given: all
    budget: int | None = Field(None, ge=1)  # parameters that may leave a site in a round; its own policy may say less
    entropy: float = Field(0.1, ge=0)
    literal_loss: bool = False  # (12) as printed
    membership: Literal["declared", "hidden"] = "declared"
    # The auxiliary model: ℓ, how it trains, and how many of its inputs are shipped.
    auxiliary_cells: int = Field(2, ge=0)
    auxiliary_epochs: int = Field(20, ge=0, le=1000)
    auxiliary_rate: float = Field(1e-3, gt=0)
    auxiliary_samples: int = Field(20, ge=1)


class FedASA(Strategy):
    """One sum over the cells, each with the cohort of the sites that go as deep. Kept: φ_k and m*_k."""

    name = "fedasa"
    Settings = FedASASettings
    settings: FedASASettings
    defaults: ClassVar[Mapping[str, Any]] = {"task.name": "bearings"}  # the only one here whose model has cells
    has_global_model = False
    partial = True
    shipped = (INPUTS, TARGETS)
    notes: ClassVar[Mapping[str, str]] = {
        "depth": "how many cells a site shares, m*",
        "distance": "mean squared distance to the auxiliary features, after so many cells",
    }

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:  # noqa: ARG002
        """All of `layout`, as a sum: see `request_for`, which hands over the cells alone."""
        return Sum(blocks=layout.model.names)

    def request_for(self, task: Task, layout: Layout) -> Request:
        """The task's cells; `SettingsError` where it has none, or no auxiliary data."""
        cells = task.cells(layout.names)
        if not cells:
            raise SettingsError(
                "strategy 'fedasa' shares cells and this task's model has none",
                advice='use a task that has, as bearings with task.network = "cells"',
            )
        deepest = max((*self.settings.depths, self.settings.auxiliary_cells))
        if min(self.settings.depths, default=0) < 0 or deepest >= len(cells):
            raise SettingsError(f"strategy.depths and auxiliary_cells count cells, and the model has {len(cells) - 1}")
        from secure_fl.tasks.base import Task

        if task.kind != "classification" or type(task).auxiliary is Task.auxiliary:
            raise SettingsError("strategy 'fedasa' needs a classification task that has auxiliary data")
        shared = layout.select(cells)
        if self._hides and self.settings.budget is not None and shared.size > self.settings.budget:
            raise SettingsError(
                f"with hidden membership every site sends all {shared.size} parameters, more than strategy.budget"
            )
        return self.request(shared, ())

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Zeros count towards a cell's minimum cohort and hide nobody in it."""
        return ("hidden-membership",) if self._hides else ()

    @property
    def declares(self) -> bool:
        """Unless which cells a site shares is hidden."""
        return not self._hides

    @property
    def _hides(self) -> bool:
        return self.settings.membership == "hidden"

    def explain(self) -> tuple[str, ...]:
        """For `study show`."""
        which = "which ones is visible."
        if self._hides:
            which = (
                "the site sends zeros for the others, so that no message says which. EXCEPTION: whoever sends zeros "
                "counts as a contributor. A block that only one site chose is opened as that site's own change, if "
                "without its name. A site has to agree: [policy] exceptions."
            )
        return (
            f"Leaves: the change of the first blocks of the model, as many as the site chooses; {which}",
            "Stays: the data and the rest of the model. The coordinator sends auxiliary inputs, which are no site's "
            "data, and its own model's outputs for them. Each site compares its model with these locally and shows the "
            "result to nobody.",
        )

    # --- node half ------------------------------------------------------------------------------------------

    def charged_epochs(self, number: int | None = None) -> int | None:  # noqa: ARG002
        """All of them: the head and the cells that stay shape those that leave."""
        return self.settings.epochs

    @property
    def private_notes(self) -> tuple[str, ...]:
        """For `study show`."""
        return (
            "Noise is added to all training, also of the blocks that stay: they shape those that leave. How deep a "
            "site shares follows from its model under noise and from the auxiliary inputs, which are public.",
        )

    def fit(self, site: Site) -> Blocks:
        """Algorithm 1, lines 21–24; in a site's first t_0 rounds also line 6, on the model it has just trained."""
        depth, rounds = self.depth(site), site.state.get(_ROUNDS, 0)
        site.load(self.inference(site))
        self._train(site, _shared(site, depth))
        if rounds < self.settings.alignment_rounds:
            depth = self.align(site)
        shared = _shared(site, depth)
        site.note("depth", {"m*": depth})
        site.personal = site.blocks(name for name in site.layout.names if name not in shared)
        site.state = {_DEPTH: depth, _ROUNDS: rounds + 1}
        return {**(zeros(site.layout.select(_cells(site))) if self._hides else {}), **site.change(shared)}

    def inference(self, site: Site) -> Blocks:
        """θ_k sampled from the shared blocks, as deep as the site goes, and its own φ_k."""
        sampled = {name: site.received[name] for name in _shared(site, self.depth(site))}
        return site.complete(site.personal, sampled)

    def depth(self, site: Site) -> int:
        """m*_k; before a site has chosen, everything is shared."""
        return int(site.state.get(_DEPTH, len(_cells(site)) - 1))

    def align(self, site: Site) -> int:
        """(8) on the model as it is now, over the depths that fit the budget; always over the least of them."""
        import torch

        cells = _cells(site)
        inputs, targets = (torch.tensor(site.shipped[name], device=site.device) for name in (INPUTS, TARGETS))
        found = distances(targets, outputs(site.task, site.model, cells, inputs))
        site.note("distance", {str(cell): distance for cell, distance in enumerate(found)})
        budgets = [budget for budget in (self.settings.budget, site.budget) if budget is not None]
        sizes = [site.layout.select(cells if self._hides else cells[: m + 1]).size for m in range(len(cells))]
        allowed = sorted(set(self.settings.depths)) or range(len(cells))
        affordable = [m for m in allowed if all(sizes[m] <= budget for budget in budgets)] or [min(allowed)]
        return min(affordable, key=lambda m: (found[m], m))

    def _train(self, site: Site, shared: Sequence[str]) -> None:
        """(13)."""
        personal = [name for name in site.layout.names if name not in shared]
        optimizer = site.optimizer(shared)
        rate = self.settings.personal_rate or self.settings.learning_rate
        if parameters := site.parameters(personal):
            optimizer.add_param_group({"params": parameters, "lr": rate})
        site.model.train()
        for batch in site.batches():
            site.descend(optimizer, batch, loss=self.loss)

    @property
    def loss(self) -> Loss:
        """Cross-entropy and the entropy of the prediction, or (12) as it is printed."""
        return literal_loss if self.settings.literal_loss else self._loss

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(logits, targets) + self.settings.entropy * entropy(logits).mean()

    # --- coordinator half -----------------------------------------------------------------------------------

    def ship(self, task: Task, seed: int) -> Mapping[str, Array]:
        """Auxiliary inputs and g_aux^ℓ of them, from a model that is trained here on the task's auxiliary data."""
        import torch

        from secure_fl.strategies.site import Site
        from secure_fl.tasks.base import LocalData
        from secure_fl.tasks.model_blocks import initial_blocks, seeded

        rows = task.auxiliary(seed)
        if rows is None:
            raise SettingsError("strategy 'fedasa' needs a task that has auxiliary data")
        training = LocalTraining(
            epochs=max(1, self.settings.auxiliary_epochs),
            batch_size=self.settings.batch_size,
            optimizer="adam",
            learning_rate=self.settings.auxiliary_rate,
        )
        _, initial = initial_blocks(task, seed)
        with seeded(seed):
            coordinator = Site(
                task=task,
                data=LocalData(train=rows, test=rows),
                training=training,
                initial=initial,
                received={},
                personal={},
                combination={},
                seed=seed,
            )
            coordinator.load(initial)
            coordinator.train(epochs=self.settings.auxiliary_epochs)
        # Evenly through the rows, so that every class and load is there.
        inputs = rows.inputs[torch.linspace(0, len(rows) - 1, min(len(rows), self.settings.auxiliary_samples)).long()]
        after = outputs(task, coordinator.model, _cells(coordinator), inputs)[self.settings.auxiliary_cells]
        return {INPUTS: inputs.numpy(), TARGETS: after.numpy()}


def outputs(task: Task, model: nn.Module, cells: Sequence[str], inputs: Tensor) -> list[Tensor]:
    """g^m(x) for m = 0, …, M: what comes out of each of the blocks `cells`, flattened, in evaluation mode."""
    import torch

    from secure_fl.tasks.base import evaluating

    modules = task.blocks(model)
    caught: dict[str, Tensor] = {}
    hooks = [
        modules[name].register_forward_hook(
            lambda _, __, out, name=name: caught.__setitem__(name, out.detach().flatten(1))
        )
        for name in cells
    ]
    try:
        with evaluating(model), torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return [caught[name] for name in cells]


def distances(targets: Tensor, features: Sequence[Tensor]) -> list[float]:
    """The mean over samples of ‖g_aux^ℓ(x) − g^m(x)‖², for every m."""
    return [float(((targets - found) ** 2).sum(dim=1).mean()) for found in features]


def entropy(logits: Tensor) -> Tensor:
    """Of each row's prediction, in nats."""
    scores = logits.log_softmax(dim=1)
    return -(scores.exp() * scores).sum(dim=1)


def literal_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """(12) as printed: the cross-entropy of a softmax of a softmax, plus e to the entropy."""
    from torch.nn import functional

    return functional.cross_entropy(logits.softmax(dim=1), targets) + entropy(logits).exp().mean()


def _cells(site: Site) -> tuple[str, ...]:
    return site.task.cells(site.layout.names)


def _shared(site: Site, depth: int) -> tuple[str, ...]:
    """o_0 and as many cells."""
    return _cells(site)[: depth + 1]
