"""`encrypted`: homomorphic encryption (BFV, by SEAL) under a key that the sites of an attempt share. Exact and small.

One upload per site, at any time, and nobody holds a share of anything. What it costs is trust: docs/encrypted.md says
who could read what, and why a site has to name this protection in its policy before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from secure_fl import settings as toml
from secure_fl.aggregation import RequestKind
from secure_fl.protect.cohort.signed import require_few, threshold
from secure_fl.protect.combining import CombineContribution, CombineHost, CombiningNodeHalf, CombiningProtection
from secure_fl.protect.contract import Contribution, CoordinatorHalf, Host, NodeHalf, RoundContext
from secure_fl.protect.encrypted.combine_coordinator import CombineCoordinator
from secure_fl.protect.encrypted.groups import value_limit, weight_values
from secure_fl.protect.encrypted.node import EncryptedCombiningNode, EncryptedNode
from secure_fl.protect.encrypted.opener import TOTAL
from secure_fl.protect.encrypted.phases import COMBINE, SUM
from secure_fl.protect.encrypted.sum_coordinator import SumCoordinator
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.past import ROUND_BY_ROUND
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.uploads.phases import UPLOAD

HONEST_COORDINATOR = "honest-coordinator"
_READERS = (
    "WHO COULD READ AN UPDATE: the coordinator together with any one site, or two sites together. Nobody else: "
    "not the coordinator alone, and no site alone."
)
_READERS_IF_TRUSTED = (
    "WHO COULD READ AN UPDATE: the coordinator alone, by calling one update a sum. No site alone could."
)


class EncryptedSettings(toml.Settings):
    """What a study may choose."""

    # Whoever decrypts adds the signed uploads up, or has it from a site that did. Otherwise sites decrypt what the
    # coordinator says is a sum, which may be one site's update: each site has to agree to that.
    recompute: bool = True


class Encrypted(CombiningProtection):
    """The coordinator adds up what it cannot read. Sites decrypt sums, and each its own combination."""

    name: ClassVar[str] = "encrypted"
    payload_version: ClassVar[int] = 1
    coordinator_sees_updates: ClassVar[bool] = False
    own_pace: ClassVar[bool] = True
    by_name_only: ClassVar[bool] = True
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.SUM: SUM, RequestKind.COMBINE: COMBINE}
    carrier: ClassVar[str] = UPLOAD
    Settings: ClassVar[type[toml.Settings]] = EncryptedSettings
    settings: EncryptedSettings

    @property
    def exceptions(self) -> tuple[str, ...]:
        """Without `recompute` the coordinator may have any upload decrypted as a sum."""
        return () if self.settings.recompute else (HONEST_COORDINATOR,)

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half of a sum."""
        return EncryptedNode(context, contribution, host, recompute=self.settings.recompute)

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """The coordinator half of a sum."""
        return SumCoordinator(context, recompute=self.settings.recompute)

    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half of a combine."""
        return EncryptedCombiningNode(context, contribution, host, recompute=self.settings.recompute)

    def combining_coordinator(self, context: RoundContext, earlier: Sequence[OpenedRow]) -> CoordinatorHalf:
        """The coordinator half of a combine."""
        return CombineCoordinator(context, earlier, recompute=self.settings.recompute)

    def largest_upload(self, context: RoundContext) -> int:
        """Every block and weight in a group of its own, the totals of all of them, or a key for everybody."""
        terms = Terms.of(context)
        weight = weight_values(0, value_limit(context.bits)).size
        values = [context.layout[block].size + weight for block in context.layout.names] or [weight]
        upload = sum(terms.body_bytes(count) + terms.seeds_bytes(count) for count in values)
        replies = len(context.invited) * (8 * len(context.invited) + 1024)
        keys = len(context.invited) * (terms.chunk_bytes + 1024)
        return max(upload, TOTAL.itemsize * sum(values), replies, keys)

    def quorum(self, nodes: int, *, colluders: int, min_cohort: int) -> int:
        """Enough to agree on one list of uploads, and that there is somebody on each of the two sides."""
        return max(min_cohort, threshold(nodes, max(1, colluders)))

    def require_room(self, kind: RequestKind, *, nodes: int, bits: int) -> None:
        """Parameters that hold every result exactly, and few enough nodes to seal the key to all of them."""
        require_few(nodes)
        Terms.among(kind, nodes=nodes, bits=bits)

    def explain(self, kind: RequestKind) -> tuple[str, ...]:
        """What each party learns."""
        recompute = self.settings.recompute
        sums = (
            "The coordinator receives each update encrypted under a key that it never has. Two sites decrypt the sum, "
            "and the coordinator learns it once both say the same."
        )
        combinations = (
            "The coordinator combines updates that it cannot read. It sees who weighs whom how much, and opens "
            "nothing. Each site decrypts its own combination."
        )
        checked = "Before a site decrypts, it has added the signed uploads up, or has it from a site that did."
        trusting = (
            "EXCEPTION: sites decrypt what the coordinator says is a sum. A site has to agree: [policy] exceptions, "
            f"{HONEST_COORDINATOR}."
        )
        return (
            # First, because the report shows this sentence alone.
            _READERS if recompute else _READERS_IF_TRUSTED,
            sums if kind is RequestKind.SUM else combinations,
            checked if recompute else trusting,
            "The key is made by one site for one attempt, sealed to the others, and forgotten when the attempt is "
            "over. The coordinator sees which blocks each site holds.",
            ROUND_BY_ROUND,
        )
