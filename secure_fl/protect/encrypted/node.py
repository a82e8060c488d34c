"""The node's half of `encrypted`.

advertise   say which blocks I hold and under which fresh keys, signed
key         one site: verify everybody, make the attempt's key, seal it to each of them
upload      verify everybody, take the key, encrypt my values, sign both halves of what I send
score       shares of distances between sketches, each sealed to its recipient       (where distances are opened)
row         open my distances, weigh my peers, sign the row                          (combine)
check       verify uploads and rows, run the guard, add up the half of my side, sign what I saw and what came of it
open        take the other half's sum from somebody who added it up, decrypt         (sum: two sites)
deliver     the same for my own combination                                          (combine: everybody)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from secure_fl.encoding.integers import BlockSum
from secure_fl.protect.combining import CombineContribution, CombineHost
from secure_fl.protect.contract import Contribution, Host, RoundContext
from secure_fl.protect.encrypted.opener import Opener
from secure_fl.protect.encrypted.party import EncryptedParty
from secure_fl.protect.encrypted.phases import COMBINE, SUM
from secure_fl.protect.encrypted.recipient import EncryptedRecipient
from secure_fl.protect.encrypted.uploader import Uploader
from secure_fl.protect.uploads.comparing import ask_for_row, score
from secure_fl.protect.uploads.phases import Forwards


class EncryptedNode(Forwards):
    """One node in one attempt at a sum."""

    def __init__(self, context: RoundContext, contribution: Contribution, host: Host, *, recompute: bool) -> None:
        self.party = EncryptedParty(context, host)
        uploader = Uploader(self.party, contribution)
        opener = Opener(self.party, recompute=recompute)
        super().__init__(SUM, (uploader.advertise, uploader.make_key, uploader.upload, opener.check, opener.open))


class EncryptedCombiningNode(Forwards):
    """One node in one attempt at a combine."""

    def __init__(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost, *, recompute: bool
    ) -> None:
        self.party = EncryptedParty(context, host)
        uploader = Uploader(self.party, contribution, host)
        self._recipient = EncryptedRecipient(self.party, host.history, recompute=recompute)
        super().__init__(
            COMBINE,
            (
                uploader.advertise,
                uploader.make_key,
                uploader.upload,
                partial(score, self.party),
                partial(ask_for_row, self.party, contribution.attend),
                self._recipient.check,
                self._recipient.deliver,
            ),
        )

    def combination(self) -> Mapping[str, BlockSum]:
        """What was opened here."""
        return self._recipient.combination
