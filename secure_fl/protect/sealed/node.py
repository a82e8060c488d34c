"""The node's half of `sealed`. A node is an uploader, a holder of others' keys and, in a combine, a recipient.

advertise   uploader    say which blocks I hold and under which fresh keys, signed
upload      uploader    verify everybody; y = a·s + e + Δ·x for each group of blocks; share s among the holders; sign y
score       holder      shares of distances between sketches, each sealed to its recipient
row         recipient   open my distances, weigh my peers, sign the row
open        holder      verify uploads and rows, run the guard, decide for ever, and only then give shares of Σ w·s
deliver     recipient   open my combination
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.protect.combining import CombineContribution, CombineHost
from secure_fl.protect.contract import Contribution, Host, Message, RoundContext
from secure_fl.protect.sealed.holder import CombineHolder, Holder
from secure_fl.protect.sealed.party import Party
from secure_fl.protect.sealed.phases import COMBINE, SUM
from secure_fl.protect.sealed.recipient import Recipient
from secure_fl.protect.sealed.uploader import CombineUploader, Uploader


class _Phases:
    """Time runs forwards only; a restart forgets how far, but not what was decided."""

    def __init__(self, phases: Sequence[str], acts: Sequence[Callable[[Message], Message]]) -> None:
        self._todo = dict(zip(phases, acts, strict=True))

    def answer(self, phase: str, message: Message) -> Message:
        """Answer a phase that is still to come. Those before it, left out or not, are over."""
        if phase not in self._todo:
            raise ProtectionError(f"phase {phase!r} is not the next one")
        act = self._todo[phase]
        phases = list(self._todo)
        for over in phases[: phases.index(phase) + 1]:
            del self._todo[over]
        return act(message)


class SealedNode(_Phases):
    """One node in one attempt at a sum."""

    def __init__(self, context: RoundContext, contribution: Contribution, host: Host) -> None:
        self.party = Party(context, host)
        uploader, holder = Uploader(self.party, contribution), Holder(self.party)
        super().__init__(SUM, (uploader.advertise, uploader.upload, holder.open))


class SealedCombiningNode(_Phases):
    """One node in one attempt at a combine; with `recompute` it believes no combination that it did not form itself."""

    def __init__(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost, *, recompute: bool = False
    ) -> None:
        self.party = Party(context, host, digested=recompute)
        uploader = CombineUploader(self.party, contribution, host)
        holder = CombineHolder(self.party, host.history)
        self._recipient = Recipient(self.party, contribution.attend)
        super().__init__(
            COMBINE,
            (
                uploader.advertise,
                uploader.upload,
                holder.score,
                self._recipient.row,
                holder.open,
                self._recipient.deliver,
            ),
        )

    def combination(self) -> Mapping[str, BlockSum]:
        """What was opened here."""
        return self._recipient.combination
