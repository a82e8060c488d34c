"""Who holds which rows when a common data set plays the part of many sites.

A partition is one array: the owner of every row. Shares are therefore disjoint and cover the data by
construction, and every simulated site computes the same array from the same seed without asking anybody.
This module knows NumPy only, so that a study file can be read without loading torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from secure_fl.errors import DataError, SettingsError
from secure_fl.settings import Settings

Array: TypeAlias = npt.NDArray[Any]
Indices: TypeAlias = npt.NDArray[np.int64]

_BY_LABEL = frozenset({"dirichlet", "pathological", "rotated-pathological"})
_MAX_DRAWS = 1000


class PartitionSettings(Settings):
    """How a simulation divides a common data set among its nodes, and what each node keeps for testing."""

    kind: Literal["iid", "dirichlet", "pathological", "rotated", "rotated-pathological", "natural"] = "iid"
    # Below 0.001 the draws are one-hot to machine precision: nothing changes any more.
    alpha: float = Field(default=0.5, ge=0.001)
    classes: int = Field(default=2, ge=1)
    domains: int = Field(default=4, ge=1)
    degrees: float = Field(default=360, gt=0, le=360)  # of which the domains have equal steps
    # Two is the least that leaves a row on both sides of the cut into training and test.
    min_samples: int = Field(default=10, ge=2)
    test_fraction: float = Field(default=0.2, gt=0, lt=1)

    @property
    def rotated(self) -> bool:
        """Whether nodes see turned images, so that only an image task can use this partition."""
        return self.kind in {"rotated", "rotated-pathological"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a common data set that simulated site `index` out of `of` holds."""

    index: int
    of: int
    partition: PartitionSettings
    seed: int

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.of:
            raise SettingsError(f"share {self.index} of {self.of}: the index counts from 0 to of - 1")
        if self.seed < 0:
            raise SettingsError(f"seed {self.seed}: a seed is not negative")


def assign(
    targets: Array,
    share: Share,
    *,
    classification: bool,
    sites: Array | None = None,
    groups: Array | None = None,
) -> Indices:
    """The rows that `share` holds, ascending.

    With `groups`, a group (a patient) has one owner, by the label of its first row. Otherwise sites would be tested on
     patients that others train on, and results would be too good. "natural" goes by `sites` alone.

    Raises `SettingsError` when the partition does not fit the data: labels that a regression does not have,
    site labels that are missing, or fewer than `min_samples` rows for some node.
    """
    settings = share.partition
    if settings.kind in _BY_LABEL and not classification:
        raise SettingsError(
            f"partition {settings.kind!r} divides by class and this task is a regression",
            advice="use iid, rotated or natural",
        )
    if len(targets) < share.of * settings.min_samples:
        raise SettingsError(
            f"{len(targets)} rows cannot give each of {share.of} nodes min_samples = {settings.min_samples}",
            advice="use fewer nodes or a smaller min_samples",
        )
    if groups is None or settings.kind == "natural":
        owner = _owner_function(settings.kind)(targets, share, sites)
    else:
        _, first, group = np.unique(groups, return_index=True, return_inverse=True)
        owner = _owner_function(settings.kind)(targets[first], share, None)[group]
    smallest = int(_sizes(owner, share.of).min())
    if smallest < settings.min_samples:
        raise SettingsError(
            f"partition {settings.kind!r}: a node with {smallest} rows, min_samples = {settings.min_samples}",
            advice="use fewer nodes or a smaller min_samples",
        )
    return np.flatnonzero(owner == share.index)


def rotation(share: Share) -> float:
    """The angle, in degrees, by which this site's images are turned: one per domain, nodes taking turns."""
    settings = share.partition
    if not settings.rotated:
        return 0.0
    return share.index % settings.domains * settings.degrees / settings.domains


def rotate_images(images: npt.NDArray[np.float32], angle: float) -> npt.NDArray[np.float32]:
    """`images` (n, h, w) turned counter-clockwise by `angle` degrees, same shape. Quarter turns are exact."""
    quarters, rest = divmod(angle % 360, 90)
    if rest == 0:
        turned = np.ascontiguousarray(np.rot90(images, k=int(quarters), axes=(1, 2)))
        if turned.shape != images.shape:
            raise DataError(f"images of {images.shape[1]}x{images.shape[2]} pixels are not square and cannot turn")
        return turned
    from scipy import ndimage

    # Linear interpolation: a spline of higher order overshoots and would leave the images' value range.
    # "grid-constant" fades pixels at the border into the black outside; "constant" drops them whole.
    rotated: npt.NDArray[np.float32] = ndimage.rotate(
        images, angle, axes=(1, 2), reshape=False, order=1, mode="grid-constant"
    )
    return rotated


# --- the owner of every row -------------------------------------------------------------------------------

_OwnerFunction: TypeAlias = Callable[[Array, Share, Array | None], Indices]


def _owner_function(kind: str) -> _OwnerFunction:
    return {
        "iid": _iid,
        "rotated": _iid,
        "dirichlet": _dirichlet,
        "pathological": _pathological,
        "rotated-pathological": _pathological,
        "natural": _natural,
    }[kind]


def _iid(targets: Array, share: Share, _sites: Array | None) -> Indices:
    """Rows at random, in shares whose sizes differ by at most one."""
    return _generator(share.seed).permutation(np.arange(len(targets)) % share.of)


def _dirichlet(targets: Array, share: Share, _sites: Array | None) -> Indices:
    """Each class spread over the nodes in Dirichlet(alpha) proportions (Hsu et al., arXiv:1909.06335)."""
    rng = _generator(share.seed)
    rows = _rows_by_class(targets, rng)
    totals = np.array([len(members) for members in rows])[:, None]
    alpha = np.full(share.of, share.partition.alpha)
    for _ in range(_MAX_DRAWS):
        # Cut points rather than rounded sizes, so that every row of a class goes to exactly one node.
        cuts = np.rint(np.cumsum(rng.dirichlet(alpha, size=len(rows)), axis=1) * totals).astype(np.int64)
        cuts[:, -1:] = totals
        counts = np.diff(cuts, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= share.partition.min_samples:
            break
    else:
        raise SettingsError(
            f"{_MAX_DRAWS} draws of Dirichlet({share.partition.alpha:g}) never gave each of {share.of} nodes "
            f"min_samples = {share.partition.min_samples} of {len(targets)} rows",
            advice="raise simulation.alpha, lower simulation.min_samples or use fewer nodes",
        )
    owner = np.empty(len(targets), np.int64)
    for members, sizes in zip(rows, counts, strict=True):
        owner[members] = np.repeat(np.arange(share.of), sizes)
    return owner


def _pathological(targets: Array, share: Share, _sites: Array | None) -> Indices:
    """Each node sees `classes` classes only (after McMahan et al. 2017, arXiv:1602.05629, section 3).

    Classes are dealt like cards rather than cut from a label-sorted list: a cut that falls inside a class
    would hand some nodes one class more than the study says.
    """
    rng = _generator(share.seed)
    rows = _rows_by_class(targets, rng)
    each = share.partition.classes
    if not each <= len(rows) <= share.of * each:
        raise SettingsError(
            f"{share.of} nodes with {each} classes each cannot hold the data's {len(rows)} classes",
            advice=f"set simulation.classes between {-(-len(rows) // share.of)} and {len(rows)}",
        )
    holds = np.zeros((share.of, len(rows)), np.bool_)
    for hand in holds:
        # The classes fewest nodes hold so far, ties at random: every class is dealt, and evenly.
        hand[np.lexsort((rng.random(len(rows)), holds.sum(axis=0)))[:each]] = True
    owner = np.empty(len(targets), np.int64)
    for label, members in enumerate(rows):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        owner[members] = holders[np.arange(len(members)) % len(holders)]
    return owner


def _natural(targets: Array, share: Share, sites: Array | None) -> Indices:
    """Rows stay with the site they came from; more sites than nodes are grouped, each one whole."""
    if sites is None:
        raise SettingsError(
            "partition 'natural' divides by site and these data carry no site labels",
            advice="use iid, dirichlet or pathological, or data with a site label per row",
        )
    if len(sites) != len(targets):
        raise DataError(f"{len(sites)} site labels for {len(targets)} rows")
    labels, rank = np.unique(sites, return_inverse=True)
    if len(labels) < share.of:
        raise SettingsError(
            f"the data come from {len(labels)} sites and the study has {share.of} nodes",
            advice=f"use at most {len(labels)} nodes",
        )
    return rank % share.of


def _rows_by_class(targets: Array, rng: np.random.Generator) -> list[Indices]:
    """The rows of each class, classes in ascending order, rows shuffled."""
    return [rng.permutation(np.flatnonzero(targets == label)) for label in np.unique(targets)]


def _sizes(owner: Indices, nodes: int) -> Indices:
    return np.bincount(owner, minlength=nodes)


def _generator(seed: int, *path: int) -> np.random.Generator:
    """A reproducible stream. It shuffles data; nothing secret is ever drawn from it."""
    # A spawn key, not a longer seed: NumPy pads seeds with zeros, so [seed] and [seed, 0] are one stream.
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=path)))
