"""Gradients per unit from one pass backwards, for models made of common layers.

A layer's gradient for one row follows from what went into it, a, and the slope of the loss in what came out, b: for a
linear layer it is the outer product b·aᵀ, whose norm is ‖b‖·‖a‖. So one pass backwards, in which no gradient of a
parameter is computed, has all that is needed. Whatever is not known here is left to Opacus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn import functional

from secure_fl.privacy.rows import RowLosses, Rows, UnitGradients, by_unit, total_of, trainable


class NotQuickError(Exception):
    """This model needs Opacus. Never leaves this package."""


@dataclass(frozen=True, slots=True, eq=False)
class Outer:
    """b·aᵀ for every unit, without writing it out."""

    left: Tensor  # b
    right: Tensor  # a

    def squared_norms(self, units: int) -> Tensor:  # noqa: ARG002
        """‖b‖²·‖a‖²."""
        norms = (torch.linalg.vector_norm(side, dim=1, dtype=torch.float64) for side in (self.left, self.right))
        left, right = norms
        squares: Tensor = (left * right).square()
        return squares

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_u (weights_u·b_u)·a_uᵀ, over the units of a weight above 0."""
        left, right, kept = self.left, self.right, weights > 0
        if not kept.all():
            left, right, weights = left[kept], right[kept], weights[kept]
        return (left * weights[:, None]).T @ right


@dataclass(frozen=True, slots=True, eq=False)
class Lookups:
    """The gradient of an embedding: zero but for the words that a unit has."""

    unit: Tensor  # of each entry
    word: Tensor
    values: Tensor  # (entries, width); no two entries have the same unit and word
    shape: torch.Size

    def squared_norms(self, units: int) -> Tensor:
        """Σ over a unit's words."""
        squares: Tensor = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64).square()
        return squares.new_zeros(units).index_add_(0, self.unit, squares)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Word by word, over the units of a weight above 0."""
        weight = weights[self.unit]
        kept = weight > 0
        values = self.values[kept] * weight[kept][:, None]
        return values.new_zeros(self.shape).index_add_(0, self.word[kept], values)


def quick_gradients(
    model: nn.Module, rows: Rows, losses: RowLosses, modules: Sequence[nn.Module] | None = None
) -> list[tuple[nn.Parameter, UnitGradients | None]]:
    """Every unit's gradient; `NotQuickError` unless each trainable parameter is that of a known layer, run once."""
    modules = list(model.modules()) if modules is None else modules
    layers = _layers(modules)
    seen: dict[nn.Module, tuple[Tensor, int, Tensor, GradientEdge]] = {}
    with _watched(layers, seen):
        outputs = model(rows.inputs)
    for a, version, out, _ in seen.values():
        if a._version != version or len(a) != len(rows.unit) or len(out) != len(rows.unit):
            raise NotQuickError
    total = total_of(losses, outputs, rows.targets)
    used = [layer for layer in layers if layer in seen]
    slopes = torch.autograd.grad(total, [seen[layer][3] for layer in used], allow_unused=True)
    found: _Found = {}
    for layer, b in zip(used, slopes, strict=True):
        if b is not None:
            found.update(_KNOWN[type(layer)](layer, seen[layer][0], b, rows))
    return [(parameter, found.get(parameter)) for parameter in trainable(modules)]


def _layers(modules: Sequence[nn.Module]) -> list[nn.Module]:
    layers = []
    for module in modules:
        if trainable([module]):
            # Exactly these classes: a subclass may compute anything.
            if type(module) not in _KNOWN or not _plain(module):
                raise NotQuickError
            layers.append(module)
    return layers


def _plain(module: nn.Module) -> bool:
    """Whether its options are those that are known here."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.groups == 1 and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq and not module.sparse
    return True


@contextmanager
def _watched(
    layers: list[nn.Module], seen: dict[nn.Module, tuple[Tensor, int, Tensor, GradientEdge]]
) -> Iterator[None]:
    def watch(layer: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        if layer in seen or len(inputs) != 1:
            raise NotQuickError
        a = inputs[0].detach()
        # The edge stands for the output as it is now, also if the next layer changes it in place.
        seen[layer] = (a, a._version, out.detach(), get_gradient_edge(out))

    hooks = [layer.register_forward_hook(watch) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_Found = dict[Tensor, UnitGradients | None]


def _linear(layer: nn.Linear, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    a, b = a.reshape(len(a), -1, a.shape[-1]), b.reshape(len(b), -1, b.shape[-1])
    found: _Found = {}
    if a.shape[1] == 1 and rows.single:
        found[layer.weight] = Outer(b[:, 0], a[:, 0])
    else:
        # Written out: norms of sums of outer products lose all accuracy where the terms cancel.
        found[layer.weight] = by_unit(torch.bmm(b.transpose(1, 2), a), rows)
    if layer.bias is not None:
        found[layer.bias] = by_unit(b.sum(dim=1), rows)
    return found


def _conv2d(layer: nn.Conv2d, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    return _convolution(layer, _patches(layer, a), b.flatten(2), rows)


def _conv1d(layer: nn.Conv1d, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    return _convolution(layer, _patches(layer, a.unsqueeze(2)), b, rows)


def _patches(layer: nn.Conv1d | nn.Conv2d, pictures: Tensor) -> Tensor:
    """What each place of the output is made from: (rows, inputs of a place, places). A sequence has height 1."""
    flat = len(layer.kernel_size) == 1
    return functional.unfold(
        pictures,
        kernel_size=(1,) * flat + layer.kernel_size,
        dilation=(1,) * flat + layer.dilation,
        padding=(0,) * flat + tuple(int(side) for side in layer.padding),
        stride=(1,) * flat + layer.stride,
    )


def _convolution(layer: nn.Conv1d | nn.Conv2d, patches: Tensor, b: Tensor, rows: Rows) -> _Found:
    weight = torch.bmm(b, patches.transpose(1, 2)).view(len(b), *layer.weight.shape)
    found: _Found = {layer.weight: by_unit(weight, rows)}
    if layer.bias is not None:
        found[layer.bias] = by_unit(b.sum(dim=2), rows)
    return found


def _embedding(layer: nn.Embedding, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    words, slopes = a.reshape(len(a), -1), b.reshape(len(b), -1, b.shape[-1])
    if not rows.single:
        slopes = slopes * rows.share().to(b.dtype)[:, None, None]
    owner = rows.unit[:, None].expand_as(words)
    counted = torch.ones_like(words, dtype=torch.bool) if layer.padding_idx is None else words != layer.padding_idx
    # A word that a unit has twice is one entry, so that its norm is that of what is added.
    keys, entry = torch.unique(owner[counted] * layer.num_embeddings + words[counted], return_inverse=True)
    values = slopes.new_zeros(len(keys), slopes.shape[-1]).index_add_(0, entry, slopes[counted])
    unit = torch.div(keys, layer.num_embeddings, rounding_mode="floor")
    return {layer.weight: Lookups(unit, keys % layer.num_embeddings, values, layer.weight.shape)}


def _layer_norm(layer: nn.LayerNorm, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    size = [len(a), -1, *layer.normalized_shape]
    normal = functional.layer_norm(a, layer.normalized_shape, eps=layer.eps)
    return _scale_and_shift(layer.weight, layer.bias, (b * normal).reshape(size).sum(1), b.reshape(size).sum(1), rows)


def _group_norm(layer: nn.GroupNorm, a: Tensor, b: Tensor, rows: Rows) -> _Found:
    normal = functional.group_norm(a, layer.num_groups, eps=layer.eps)
    size = [*a.shape[:2], -1]
    return _scale_and_shift(layer.weight, layer.bias, (b * normal).reshape(size).sum(2), b.reshape(size).sum(2), rows)


def _scale_and_shift(weight: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor, rows: Rows) -> _Found:
    found: _Found = {weight: by_unit(scale, rows)}
    if bias is not None:
        found[bias] = by_unit(shift, rows)
    return found


_KNOWN: dict[type[nn.Module], Callable[[Any, Tensor, Tensor, Rows], _Found]] = {
    nn.Linear: _linear,
    nn.Conv1d: _conv1d,
    nn.Conv2d: _conv2d,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.GroupNorm: _group_norm,
}
