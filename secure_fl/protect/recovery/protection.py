"""`masked`: secure aggregation by pairwise masks with recovery. Opens sums, and nothing but sums.

After Bonawitz et al. (2017), with three things that a malicious coordinator makes necessary: what nodes believe of each
other is signed by enrolled identities, survivors are agreed on before anything opens, and each group of blocks with its
own cohort has seeds of its own. docs/recovery.md has the messages, the argument and the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError
from secure_fl.protect.cohort.signed import require_few, threshold
from secure_fl.protect.contract import Contribution, CoordinatorHalf, Host, NodeHalf, Protection, RoundContext
from secure_fl.protect.past import ROUND_BY_ROUND
from secure_fl.protect.primitives.packing import WORD, Packing
from secure_fl.protect.recovery.coordinator import RecoveryCoordinator
from secure_fl.protect.recovery.node import RecoveryNode
from secure_fl.protect.recovery.phases import PHASES, UPLOAD


class MaskedWithRecovery(Protection):
    """Nobody sees an update; sites need not trust the coordinator for that."""

    name: ClassVar[str] = "masked"
    payload_version: ClassVar[int] = 4
    coordinator_sees_updates: ClassVar[bool] = False
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.SUM: PHASES}
    carrier: ClassVar[str] = UPLOAD

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half."""
        if context.staleness is not None:
            raise ProtectionError("recovery opens work from one version of the model only: nobody compares versions")
        return RecoveryNode(context, contribution, host)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half."""
        return RecoveryCoordinator(context)

    def largest_upload(self, context: RoundContext) -> int:
        """Packed words of every block, each in a group of its own."""
        packing = Packing(bits=context.bits, contributors=len(context.invited))
        return WORD.itemsize * sum(packing.words(shape.size) + 1 for shape in context.layout)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to interpolate shares, too."""
        return max(min_cohort, threshold(nodes, colluders))

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:
        """At least one value per word, and few enough nodes for a complete graph."""
        super().require_room(kind, nodes=nodes, bits=bits)
        require_few(nodes)

    def explain(self, kind: RequestKind) -> tuple[str, ...]:  # noqa: ARG002
        """What each party learns."""
        return (
            "The coordinator receives each update under masks that only the sum of all sites removes. It learns the "
            "sum and how many sites are in it, not an update, even if it cheats.",
            "The coordinator sees which blocks each site holds. A site's weight is hidden in the sum of a round.",
            ROUND_BY_ROUND,
            "Other sites see the shared model only. If some sites secretly help the coordinator, together they can "
            "work out the sum of the remaining sites.",
        )
