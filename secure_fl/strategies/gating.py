"""Which blocks are worth sending: by how much they moved, or by whether a layer still sees the data as before.

rc = Pearson(RDA of the received layer, RDA of the trained layer)²                                      AiFed (8)
AT = 1/(1 + e^−(α_r·r̂ + α_acc·δ_acc)); a layer is sent if rc ≥ AT                                        AiFed (9)

An RDA, a representational dissimilarity array, has the distances of a layer's outputs for Q pairs of inputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.blocks import Vector

Dissimilarities: TypeAlias = npt.NDArray[np.float64]

if TYPE_CHECKING:
    from torch import Tensor


def gate(
    moved: Mapping[str, float], sizes: Mapping[str, int], *, keep: float, turn: int, full_every: int
) -> tuple[str, ...]:
    """The blocks to send, in the order of `sizes`: those that moved most, within `keep` of all parameters.

    A block that does not fit any more is passed over for smaller ones; at least one is sent. All are sent every
    `full_every`-th turn, counted from 0 (with 0 in no turn), and while it is not known of each how far it has `moved`.

    >>> gate({"body": 0.1, "neck": 0.3, "head": 0.2}, {"body": 6, "neck": 3, "head": 1}, keep=0.5, turn=1, full_every=4)
    ('neck', 'head')
    """
    if (full_every and turn % full_every == 0) or not sizes.keys() <= moved.keys():
        return tuple(sizes)
    room = keep * sum(sizes.values())
    chosen: set[str] = set()
    for name in sorted(sizes, key=lambda each: -moved[each]):  # of equals, the earlier in the model
        if sizes[name] <= room or not chosen:
            chosen.add(name)
            room -= sizes[name]
    return tuple(name for name in sizes if name in chosen)


def movement(change: Vector) -> float:
    """How far a block moved, per coordinate: the root of the mean square; 0 where it is no number."""
    if not change.size:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        moved = float(np.sqrt(np.mean(np.square(change, dtype=np.float64))))
    return moved if math.isfinite(moved) else 0.0


def dissimilarities(outputs: Tensor, firsts: Tensor, seconds: Tensor) -> Dissimilarities:
    """The RDA of a layer: Euclidean distances of the rows `firsts` of its outputs to the rows `seconds`."""
    found = (outputs[firsts] - outputs[seconds]).double().norm(dim=1)
    return np.asarray(found.cpu().numpy(), np.float64)


def consistency(before: Dissimilarities, after: Dissimilarities) -> float:
    """rc: the squared correlation of two RDAs. Where one does not vary: 1 if they are the same, otherwise 0."""
    if np.array_equal(before, after):
        return 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        one, other = before - before.mean(), after - after.mean()
        spread = float((one @ one) * (other @ other))
        if not (math.isfinite(spread) and spread > 0):
            return 0.0
        return min(1.0, float(one @ other) ** 2 / spread)


def threshold(*, alpha_round: float, version: int, alpha_accuracy: float, gained: float) -> float:
    """AT, for a model trained from `version` r̂ whose accuracy training changed by `gained`, δ_acc."""
    exponent = alpha_round * version + alpha_accuracy * gained
    # Without e to a large power, which would overflow.
    return 1 / (1 + math.exp(-exponent)) if exponent >= 0 else math.exp(exponent) / (1 + math.exp(exponent))
