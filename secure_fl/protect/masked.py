"""`masked`: secure aggregation by pairwise masks with recovery. Opens sums, and nothing but sums.

After Bonawitz et al. (2017), with three things that a malicious coordinator makes necessary: what nodes believe of each
other is signed by enrolled identities, survivors are agreed on before anything opens, and each group of blocks with its
own cohort has seeds of its own. docs/masked.md has the messages, the argument and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from secure_fl.identity.member import Member
from secure_fl.protect.base import Contribution, CoordinatorHalf, NodeHalf, RequestKind, RoundContext
from secure_fl.protect.fixed_point import FixedPoint
from secure_fl.protect.masked_coordinator import MaskedCoordinator, largest_upload
from secure_fl.protect.masked_node import MaskedNode
from secure_fl.protect.memory import Memory, OpenedRow
from secure_fl.protect.signed_cohort import require_few, threshold
from secure_fl.randomness import Randomness


class Masked:
    """Nobody sees an update; sites need not trust the coordinator for that."""

    name: ClassVar[str] = "masked"
    serves: ClassVar[frozenset[RequestKind]] = frozenset({RequestKind.SUM})
    coordinator_sees_updates: ClassVar[bool] = False
    payload_version: ClassVar[int] = 1
    bits: ClassVar[int] = 16
    carrier: ClassVar[str] = "upload"

    def phases(self, kind: RequestKind) -> tuple[str, ...]:  # noqa: ARG002
        """Five, always."""
        return ("advertise", "share", "upload", "consistency", "unmask")

    def node(
        self,
        context: RoundContext,
        me: Member,
        contribution: Contribution,
        randomness: Randomness,
        memory: Memory | None = None,  # noqa: ARG002
    ) -> NodeHalf:
        """The node half."""
        return MaskedNode(context, me, contribution, randomness)

    def coordinator(
        self,
        context: RoundContext,
        earlier: Sequence[OpenedRow] = (),  # noqa: ARG002
    ) -> CoordinatorHalf:
        """The coordinator half."""
        return MaskedCoordinator(context)

    def largest_upload(self, context: RoundContext) -> int:
        """Packed words of every block."""
        return largest_upload(context)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to open shares, too."""
        return max(min_cohort, threshold(nodes, colluders))

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:  # noqa: ARG002
        """At least one value per word, and few enough nodes for a complete graph."""
        FixedPoint(bits=bits, clip=1.0).require_room(contributors=nodes, ring_bits=32)
        require_few(nodes)

    def noise(self, context: RoundContext) -> int:  # noqa: ARG002
        """None: sums are exact."""
        return 0

    def explain(self, kind: RequestKind) -> tuple[str, ...]:  # noqa: ARG002
        """What each party learns."""
        return (
            "The coordinator receives each update under masks that only the sum of all sites removes. It learns the "
            "sum and how many sites are in it, not an update, even if it cheats.",
            "The coordinator sees which blocks each site holds. A site's weight is hidden in the sum of a round.",
            "This holds round by round. Two rounds, or two attempts at one, whose sites differ by one show that "
            "site's weight and, as far as they stay the same, its update and its measurements.",
            "Other sites see the shared model only. The coordinator together with `protection.colluders` of them "
            "learns the sum of the remaining sites.",
        )
