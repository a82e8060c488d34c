"""The vocabulary of the one idea: what a strategy may ask of all sites together, and what it gets back.

A strategy asks for a `Sum` or a `Combine` over named blocks, and sees an `Aggregate`. There is no word here for one
site's update, so nobody who speaks only these can ask for one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, TypeAlias

from secure_fl.blocks import Vector


class RequestKind(Enum):
    """The two things an aggregation may ask for."""

    SUM = "sum"
    COMBINE = "combine"


@dataclass(frozen=True, slots=True)
class Sum:
    """Per block, over the nodes that hold it: Σ ω·x and Σ ω, opened to the coordinator."""

    blocks: tuple[str, ...]
    kind: ClassVar[RequestKind] = RequestKind.SUM


@dataclass(frozen=True, slots=True)
class Combine:
    """Per recipient i: Σ_j w_ij·x_j with small non-negative integers w_ij, opened only at node i."""

    blocks: tuple[str, ...]
    kind: ClassVar[RequestKind] = RequestKind.COMBINE


Request: TypeAlias = Sum | Combine


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
