"""The coordinator of an encrypted combine: hands on halves and forms those that a recipient must not see the parts of.

It opens nothing, and each combination is decrypted at its recipient.
"""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.protect.bodies import say
from secure_fl.protect.combining import OpeningAsk
from secure_fl.protect.contract import Ask, Bulk, Message, RoundContext
from secure_fl.protect.encrypted.coordinator import EncryptedCoordinator
from secure_fl.protect.encrypted.groups import DIGESTS, serves, wanted
from secure_fl.protect.encrypted.party import MANIFESTS
from secure_fl.protect.encrypted.phases import CHECK, COMBINE
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.uploads.coordinator import RowsCoordinator, Step, WhenAsked
from secure_fl.protect.uploads.phases import DELIVER, SCORE
from secure_fl.protect.uploads.statements import Rows
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpening


class CombineCoordinator(RowsCoordinator, EncryptedCoordinator):
    """It sees who weighs whom how much."""

    def __init__(self, context: RoundContext, earlier: Sequence[OpenedRow], *, recompute: bool) -> None:
        super().__init__(context, MANIFESTS, earlier, digests=DIGESTS)
        self._prepare(context, recompute=recompute)

    def _step(self) -> Step:
        steps: tuple[Step, ...] = (
            (self._accept_manifest, self._ask_for_key),
            (self._accept_key, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_scores),
            (self._accept_replies, self._ask_for_rows),
            (self._accept_row, self._ask_for_rows_to_open),
            (self._accept_check, self._ask_to_deliver),
            (self._accept_receipt, self._sent),
        )
        return dict(zip(COMBINE, steps, strict=True))[self._phase]

    @property
    def _missing_later(self) -> int:
        """Scores; and somebody who can be served. Nobody waits for a recipient or a voucher that is gone."""
        if self._phase == SCORE:
            return self._missing_scores
        return int(self._phase == CHECK and not self._served_rows())

    # --- check ------------------------------------------------------------------------------------------------

    def _ask_for_openings(self) -> Ask:
        names = self._uploads.names
        self._matrix = Rows(self._context, self._cohort, self._uploads, list(self._rows.values()))
        self._handled = {name: self._sides.handled(name, self._rows, present=names) for name in names}
        self._phase = CHECK
        opens = {name: dict(row) for name, row in self._matrix.of.items()}
        return OpeningAsk(phase=CHECK, messages=WhenAsked(names, self._check), opens=opens)

    def _check(self, name: str) -> Message:
        body = EncryptedCheck(
            commits=self._uploads.commits.values(), rows=list(self._rows.values()), earlier=self._earlier_rows()
        )
        if not self._recompute:
            return say(body)
        needed = wanted(self._cohort, self._matrix.of, self._handled[name])
        return say(body, bulk=self._parts(self._sides.of(name), needed))

    def _accept_check(self, node: str, message: Message, _bulk: Bulk) -> None:
        vouched = [name for name in self._handled[node] if name != node] if self._recompute else []
        self._take_vouches(node, message, self._matrix.digest, vouched)

    # --- deliver ----------------------------------------------------------------------------------------------

    def _served_rows(self) -> list[str]:
        """Recipients that have their own half, and for whose other half somebody vouches."""
        vouched = {vouch.recipient for mine in self._vouches.values() for vouch in mine}
        return [name for name in self._rows if name in self._vouches and (name in vouched or not self._recompute)]

    def _ask_to_deliver(self) -> Ask:
        return self._ask(DELIVER, WhenAsked(self._served_rows(), self._delivery))

    def _delivery(self, recipient: str) -> Message:
        vouches = [vouch for mine in self._vouches.values() for vouch in mine if vouch.recipient == recipient]
        body = EncryptedOpening(commits=self._uploads.commits.values(), rows=list(self._rows.values()), vouches=vouches)
        sides = (self._sides.of(recipient).other,) if self._recompute else tuple(Side)
        row = self._matrix.of[recipient]
        groups = [group for group in self._cohort.groups if serves(group, row)]
        return say(body, bulk=b"".join(self._sum(side, group, row) for side in sides for group in groups))
