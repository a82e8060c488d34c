"""`masked`: sums of whole circles by pairwise masks. Opens those, and nothing but those.

Members of a circle agree on a mask for each pair of them; one adds it, the other subtracts it. Only the sum of the
whole circle is free of masks, so that there is nothing to recover, no survivor list, and no check to get wrong.
docs/masked.md has the messages, the argument and the limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError
from secure_fl.protect.contract import Contribution, CoordinatorHalf, Host, NodeHalf, Protection, RoundContext
from secure_fl.protect.masked.coordinator import CircleCoordinator
from secure_fl.protect.masked.node import CircleNode
from secure_fl.protect.masked.phases import COMMIT, PHASES
from secure_fl.protect.primitives.packing import WORD, Packing


class Masked(Protection):
    """Nobody sees an update; sites need not trust the coordinator for that."""

    name: ClassVar[str] = "masked"
    payload_version: ClassVar[int] = 5
    coordinator_sees_updates: ClassVar[bool] = False
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.SUM: PHASES}
    carrier: ClassVar[str] = COMMIT

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half."""
        _require_circle(context)
        return CircleNode(context, contribution, host)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half."""
        _require_circle(context)
        return CircleCoordinator(context)

    def largest_upload(self, context: RoundContext) -> int:
        """Packed words of every block, and the weight."""
        packing = Packing(bits=context.bits, contributors=len(context.invited))
        return WORD.itemsize * (sum(packing.words(shape.size) for shape in context.layout) + 1)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:  # noqa: ARG002
        """Everybody."""
        return nodes

    def explain(self, kind: RequestKind) -> tuple[str, ...]:  # noqa: ARG002
        """What each party learns."""
        return (
            "Each site hides its update under masks that it agrees on with every other site of its circle. The masks "
            "cancel in the total of the whole circle and nowhere else, so the coordinator learns that total, never one "
            "site's part, even if it cheats.",
            "The same sites are added up in every round, so comparing rounds tells nothing about one of them.",
            "The coordinator sees which blocks each site holds. A site's weight is hidden in the total.",
            "Other sites see the shared model only. If some sites secretly help the coordinator, together they can "
            "work out the total of the remaining sites in that circle.",
        )


def _require_circle(context: RoundContext) -> None:
    if not context.whole:
        raise ProtectionError("masks within a circle open the whole circle only")
    if context.staleness is not None:
        # Work from versions that nobody compares: one site could have been shown a model of its own.
        raise ProtectionError("masks within a circle open work from one version of the model only")
