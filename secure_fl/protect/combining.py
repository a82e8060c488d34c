"""The contract of a protection that also opens combinations: for each recipient i, Σ_j w_ij·x_j, at node i only.

It is a protection like any other (`contract`) with a second pair of halves. What they have beyond the first:

* a node says how it weighs those who uploaded (`CombineContribution.attend`), as a row of small integers
  (`release.combinations`), possibly by the distances of features, of which it gives a sketch;
* how often this site's features were compared with a peer's counts (`Comparisons`), over all studies;
* what was opened earlier in the study counts (`release.guard`): a node keeps that on its disk (`History`), the
  coordinator is told when its half is made;
* before answers open anything, the coordinator half says what (`OpeningAsk.opens`), and that is kept;
* in the end each node has its combination, and the coordinator knows who was served.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import (
    Ask,
    Contribution,
    CoordinatorHalf,
    Host,
    NodeHalf,
    Opened,
    Protection,
    RoundContext,
)
from secure_fl.protect.release.comparisons import Comparisons
from secure_fl.protect.release.history import CombinationRows, History, OpenedRow

# From the squared distances to everybody who uploaded, oneself included, to integer weights over them.
Attention: TypeAlias = Callable[[Mapping[str, float]], Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineContribution(Contribution):
    """One node's input to a combine: also how it weighs its peers and, where distances are opened, its features."""

    attend: Attention
    sketch: Integers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CombineHost(Host):
    """What a node offers to a protection in a combine."""

    history: History
    comparisons: Comparisons


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningAsk(Ask):
    """The start of a phase whose answers open combinations."""

    opens: CombinationRows


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationsSent(Opened):
    """The end of a combine. The coordinator learns that each recipient was served, and nothing more."""

    recipients: tuple[str, ...]


@runtime_checkable
class CombiningNodeHalf(NodeHalf, Protocol):
    """One node in one attempt at a combine."""

    def combination(self) -> Mapping[str, BlockSum]:
        """After the last phase: what was opened here. Empty where nothing was."""
        ...


class CombiningProtection(Protection):
    """A protection that serves combinations, too."""

    @abstractmethod
    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half of a combine, as `node` makes that of a sum."""

    @abstractmethod
    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> CoordinatorHalf:
        """The coordinator half of a combine; `earlier` is what other attempts of the study opened, each row once."""

    def combine_quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """How many of `nodes` have to stay to the end for combinations to open: as for a sum, if not overridden."""
        return self.quorum(nodes, colluders=colluders, min_cohort=min_cohort)


def node_half(protection: Protection, context: RoundContext, contribution: Contribution, host: CombineHost) -> NodeHalf:
    """The node half that the round needs. Raises `ProtectionError` where the protection does not serve it."""
    if context.kind is RequestKind.SUM:
        return protection.node(context, contribution, host)
    if not isinstance(contribution, CombineContribution):
        raise ProtectionError("a combine needs to know how this node weighs its peers")
    return _combining(protection).combining_node(context, contribution, host)


def coordinator_half(
    protection: Protection, context: RoundContext, earlier: Sequence[OpenedRow] = ()
) -> CoordinatorHalf:
    """The coordinator half that the round needs. Raises `ProtectionError` where the protection does not serve it."""
    if context.kind is RequestKind.SUM:
        return protection.coordinator(context)
    return _combining(protection).combining_coordinator(context, earlier)


def _combining(protection: Protection) -> CombiningProtection:
    if not isinstance(protection, CombiningProtection):
        raise ProtectionError(f"protection {protection.name!r} opens no combinations")
    return protection
