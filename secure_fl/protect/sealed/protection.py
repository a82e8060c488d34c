"""`sealed`: one upload, of which sums open at the coordinator and combinations at their recipients, guarded.

Key-homomorphic masks from ring-LWE: y = a·s + e + Δ·x. Adding uploads adds keys, and a key opens only as a combination
that enough holders were shown and found harmless. docs/sealed.md has the construction, the argument and the limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from secure_fl import settings as toml
from secure_fl.aggregation import RequestKind
from secure_fl.protect.cohort.signed import require_few, threshold
from secure_fl.protect.combining import CombineContribution, CombineHost, CombiningNodeHalf, CombiningProtection
from secure_fl.protect.contract import Contribution, CoordinatorHalf, Host, NodeHalf, RoundContext
from secure_fl.protect.past import ROUND_BY_ROUND
from secure_fl.protect.primitives.field import ELEMENT
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.sealed.combine_coordinator import CombineCoordinator
from secure_fl.protect.sealed.node import SealedCombiningNode, SealedNode
from secure_fl.protect.sealed.phases import COMBINE, SUM
from secure_fl.protect.sealed.shares import VECTOR_BYTES
from secure_fl.protect.sealed.sum_coordinator import SumCoordinator
from secure_fl.protect.sealed.terms import Terms
from secure_fl.protect.uploads.phases import UPLOAD

UNVERIFIED = "unverified-combinations"


class SealedSettings(toml.Settings):
    """What a study may choose."""

    # Recipients of a combination download the uploads in it and combine them themselves. Otherwise they believe the
    # coordinator, which can then steer each of them: a site has to agree to that.
    recompute: bool = True


class Sealed(CombiningProtection):
    """Nobody sees an update; what opens, and where, is decided by the sites that hold the keys."""

    name: ClassVar[str] = "sealed"
    payload_version: ClassVar[int] = 3
    coordinator_sees_updates: ClassVar[bool] = False
    own_pace: ClassVar[bool] = True
    bits: ClassVar[int] = 20
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.SUM: SUM, RequestKind.COMBINE: COMBINE}
    carrier: ClassVar[str] = UPLOAD
    Settings: ClassVar[type[toml.Settings]] = SealedSettings
    settings: SealedSettings

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Without `recompute` nobody but the coordinator knows whether a combination is one of the uploads."""
        return () if self.settings.recompute else (UNVERIFIED,)

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half of a sum; with something in its memory it goes on where it was."""
        return SealedNode(context, contribution, host)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half of a sum."""
        return SumCoordinator(context)

    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half of a combine."""
        return SealedCombiningNode(context, contribution, host, recompute=self.settings.recompute)

    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> CoordinatorHalf:
        """The coordinator half of a combine."""
        return CombineCoordinator(context, earlier, recompute=self.settings.recompute)

    def largest_upload(self, context: RoundContext) -> int:
        """Every block and weight in groups of their own, or a holder's answer to everybody about all of them."""
        groups = len(context.layout.names) + 1
        elements = ELEMENT.itemsize * (context.layout.size + groups)
        replies = len(context.invited) * (groups * VECTOR_BYTES + 1024)
        return max(elements, replies)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to interpolate keys, too."""
        return max(min_cohort, threshold(nodes, colluders))

    def combine_quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to notice a bent share, too."""
        return max(min_cohort, min(threshold(nodes, colluders) + colluders, nodes))

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:
        """A scale of at least 1, and few enough nodes to share keys with all of them."""
        require_few(nodes)
        Terms.among(kind, nodes=nodes, bits=bits)

    def noise(self, context: RoundContext) -> int:
        """What the errors of all uploads can add up to."""
        return Terms.of(context).noise

    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """What each party learns."""
        sums = (
            "The coordinator receives each update under a key that is shared among the sites. It learns the sum and "
            "how many sites are in it, not an update, even if it cheats.",
        )
        combinations = (
            "The coordinator combines updates under keys that are shared among the sites. It sees who weighs whom how "
            "much, and opens nothing.",
            "Each site opens its own combination, and nobody else's. That takes the other sites, which hold parts of "
            "the keys. They check first that neither a combination nor the difference of two shows one site's model, "
            "even to as many sites that work together as the study reckons with (`protection.colluders`).",
            "Each site recomputes its own mixture and checks it against the signed uploads."
            if self.settings.recompute
            else "EXCEPTION: each site believes what the coordinator says its combination is. A coordinator that lies "
            "steers the site's model. A site has to agree: [policy] exceptions, unverified-combinations.",
        )
        return (
            *(sums if kind is RequestKind.SUM else combinations),
            "The coordinator sees which blocks each site holds. A site may leave once it has uploaded.",
            ROUND_BY_ROUND,
        )
