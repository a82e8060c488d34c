"""The node's half of `sealed`. A node is an uploader, a holder of others' keys and, in a combine, a recipient.

advertise   uploader    say which blocks I hold and under which fresh keys, signed
upload      uploader    verify everybody; y = a·s + e + Δ·x for each group of blocks; share s among the holders; sign y
score       holder      shares of distances between sketches, each sealed to its recipient
row         recipient   open my distances, weigh my peers, sign the row
open        holder      verify uploads and rows, run the guard, decide for ever, and only then give shares of Σ w·s
deliver     recipient   open my combination
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from secure_fl.encoding.integers import BlockSum
from secure_fl.protect.combining import CombineContribution, CombineHost
from secure_fl.protect.contract import Contribution, Host, RoundContext
from secure_fl.protect.sealed.holder import CombineHolder, Holder
from secure_fl.protect.sealed.party import DIGESTED, SealedParty
from secure_fl.protect.sealed.phases import COMBINE, SUM
from secure_fl.protect.sealed.recipient import SealedRecipient
from secure_fl.protect.sealed.uploader import Uploader
from secure_fl.protect.uploads.comparing import ask_for_row, score
from secure_fl.protect.uploads.phases import Forwards
from secure_fl.protect.uploads.statements import NO_DIGESTS


class SealedNode(Forwards):
    """One node in one attempt at a sum."""

    def __init__(self, context: RoundContext, contribution: Contribution, host: Host) -> None:
        self.party = SealedParty(context, host)
        uploader, holder = Uploader(self.party, contribution), Holder(self.party)
        super().__init__(SUM, (uploader.advertise, uploader.upload, holder.open))


class SealedCombiningNode(Forwards):
    """One node in one attempt at a combine; with `recompute` it believes no combination that it did not form itself."""

    def __init__(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost, *, recompute: bool = False
    ) -> None:
        self.party = SealedParty(context, host, digests=DIGESTED if recompute else NO_DIGESTS)
        uploader = Uploader(self.party, contribution, host)
        holder = CombineHolder(self.party, host.history)
        self._recipient = SealedRecipient(self.party)
        super().__init__(
            COMBINE,
            (
                uploader.advertise,
                uploader.upload,
                partial(score, self.party),
                partial(ask_for_row, self.party, contribution.attend),
                holder.open,
                self._recipient.deliver,
            ),
        )

    def combination(self) -> Mapping[str, BlockSum]:
        """What was opened here."""
        return self._recipient.combination
