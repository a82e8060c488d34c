"""`sealed`: one upload, of which sums open at the coordinator and combinations at their recipients, guarded.

Key-homomorphic masks from ring-LWE: y = a·s + e + Δ·x. Adding uploads adds keys, and a key opens only as a combination
that enough holders were shown and found harmless. docs/sealed.md has the construction, the argument and the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from secure_fl.identity.member import Member
from secure_fl.protect.base import Contribution, CoordinatorHalf, NodeHalf, RequestKind, RoundContext
from secure_fl.protect.memory import Memory, OpenedRow, ProcessMemory
from secure_fl.protect.sealed_coordinator import SealedCoordinator, largest_upload
from secure_fl.protect.sealed_node import SealedNode
from secure_fl.protect.sealed_terms import Terms
from secure_fl.protect.signed_cohort import require_few, threshold
from secure_fl.randomness import Randomness


class Sealed:
    """Nobody sees an update; what opens, and where, is decided by the sites that hold the keys."""

    name: ClassVar[str] = "sealed"
    serves: ClassVar[frozenset[RequestKind]] = frozenset(RequestKind)
    coordinator_sees_updates: ClassVar[bool] = False
    payload_version: ClassVar[int] = 1
    carrier: ClassVar[str] = "upload"
    bits: ClassVar[int] = 20

    def phases(self, kind: RequestKind) -> tuple[str, ...]:
        """Three for a sum, six for a combine, of which `score` asks nobody without attention."""
        if kind is RequestKind.SUM:
            return ("advertise", "upload", "open")
        return ("advertise", "upload", "score", "row", "open", "deliver")

    def node(
        self,
        context: RoundContext,
        me: Member,
        contribution: Contribution,
        randomness: Randomness,
        memory: Memory | None = None,
    ) -> NodeHalf:
        """The node half; with something in `memory` it goes on where it was."""
        return SealedNode(context, me, contribution, randomness, memory or ProcessMemory())

    def coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow] = ()) -> CoordinatorHalf:
        """The coordinator half."""
        return SealedCoordinator(context, earlier)

    def largest_upload(self, context: RoundContext) -> int:
        """Elements, or a holder's replies."""
        return largest_upload(context)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to open keys, too."""
        return max(min_cohort, threshold(nodes, colluders))

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
            "Each site opens its own combination, and nobody else's. Before they give a part of a key, the others "
            "check that no combination, and no difference of combinations, shows one site to "
            "`protection.colluders` others.",
        )
        return (
            *(sums if kind is RequestKind.SUM else combinations),
            "The coordinator sees which blocks each site holds. A site may leave once it has uploaded.",
            "This holds round by round. Two rounds, or two attempts at one, whose sites differ by one show that "
            "site's weight and, as far as they stay the same, its update and its measurements.",
        )
