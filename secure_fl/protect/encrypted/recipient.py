"""A node in the last phases of a combine: it checks the whole matrix, adds halves up, and opens its own combination."""

from __future__ import annotations

import hashlib

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say
from secure_fl.protect.contract import Message
from secure_fl.protect.encrypted.groups import group_values, serves, wanted
from secure_fl.protect.encrypted.party import EncryptedParty
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.encrypted.statements import require_vouched, sign_vouch
from secure_fl.protect.release.combinations import check_rows
from secure_fl.protect.release.history import History
from secure_fl.protect.uploads.manifest import opened_before
from secure_fl.protect.uploads.recipient import Recipient, combined_blocks
from secure_fl.protect.uploads.statements import Rows, Uploads, known_rows
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpening, EncryptedVouches


class EncryptedRecipient(Recipient):
    """With `recompute` it believes no half that nobody added up; without, whatever the coordinator says."""

    def __init__(self, party: EncryptedParty, history: History, *, recompute: bool) -> None:
        self._party = party
        self._history = history
        self._recompute = recompute
        self._half = b""  # of its own side and row
        self._checked = b""  # the digest of the matrix that it checked

    def check(self, message: Message) -> Message:
        """The guard over the complete matrix, remembered; then this side's half for itself and for some others."""
        party = self._party
        said = parse(EncryptedCheck, message.body)
        uploads = party.uploads(said.commits)
        rows = Rows(party.context, party.cohort, uploads, said.rows)
        # Also what this node was not asked to open, but somebody here was.
        shown = [(row.node, dict(row.row)) for row in said.earlier]
        earlier = known_rows(opened_before(party.cohort), [*self._history.earlier(), *shown])
        check_rows(rows.of, nodes=uploads.names, colluders=party.context.colluders, earlier=earlier)
        self._history.opened(rows.of)
        self._checked = rows.digest
        answer = EncryptedVouches()
        if self._recompute:
            for recipient, half in self._added(message.bulk, uploads, rows).items():
                if recipient == party.name:
                    self._half = half
                    continue
                digest = hashlib.sha256(half).digest()
                answer.vouches.append(
                    sign_vouch(party.me, party.cohort, rows.digest, side=party.side, half=digest, recipient=recipient)
                )
        return say(answer)

    def _added(self, bulk: bytes | memoryview, uploads: Uploads, rows: Rows) -> dict[str, bytes]:
        """Σ w·half for every recipient that this node handles."""
        party = self._party
        handled = party.sides.handled(party.name, rows.of, present=uploads.names)
        added: dict[str, list[bytes]] = {recipient: [] for recipient in handled}
        for group, halves in party.halves(bulk, uploads, wanted(party.cohort, rows.of, handled)):
            for recipient in handled:
                row = rows.of[recipient]
                if serves(group, row):
                    parts = [(weight, halves[name]) for name, weight in sorted(row.items())]
                    added[recipient].append(party.add(parts, values=group_values(party.context, group)))
        return {recipient: b"".join(parts) for recipient, parts in added.items()}

    def _open(self, message: Message) -> dict[str, BlockSum]:
        party = self._party
        said = parse(EncryptedOpening, message.body)
        uploads = party.uploads(said.commits)
        rows = Rows(party.context, party.cohort, uploads, said.rows)
        row = rows.of.get(party.name)
        if row is None or rows.digest != self._checked:
            raise ProtectionError("a combination was sent that this node did not ask for, or did not check")
        body, mask = self._halves(said, memoryview(message.bulk), uploads, rows)
        opened: dict[str, BlockSum] = {}
        position = 0
        for group in party.cohort.groups:
            if not serves(group, row):
                continue
            values = group_values(party.context, group)
            part = slice(position, position + party.terms.body_bytes(values))
            position = part.stop
            totals = party.cipher.open(body[part], mask[part], values=values, weight=sum(row.values()))
            opened |= combined_blocks(party.context, group, totals, row)
        if position != len(body):
            raise ProtectionError("a combination of the wrong length arrived")
        return opened

    def _halves(
        self, said: EncryptedOpening, bulk: memoryview, uploads: Uploads, rows: Rows
    ) -> tuple[memoryview, memoryview]:
        party = self._party
        if not self._recompute:
            size = len(bulk) // 2
            return bulk[:size], bulk[size:]
        require_vouched(
            party.cohort,
            rows.digest,
            said.vouches,
            among=party.sides.vouchers(party.name, uploads.names),
            side=party.side.other,
            half=hashlib.sha256(bulk).digest(),
            recipient=party.name,
        )
        if len(bulk) != len(self._half):
            raise ProtectionError("the other half has another length than this one")
        mine = memoryview(self._half)
        return (mine, bulk) if party.side is Side.BODIES else (bulk, mine)
