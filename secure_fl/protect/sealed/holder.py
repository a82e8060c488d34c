"""A node as a holder of others' keys: verify what is to be opened, decide for ever, and only then give shares."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import read_bulky, say, say_bulky
from secure_fl.protect.contract import Message
from secure_fl.protect.primitives.field import Elements, weighted_sum
from secure_fl.protect.release.combinations import check_rows
from secure_fl.protect.release.history import History
from secure_fl.protect.sealed.groups import served_groups
from secure_fl.protect.sealed.party import SealedParty
from secure_fl.protect.sealed.ring import DEGREE
from secure_fl.protect.sealed.shares import expand_share
from secure_fl.protect.uploads.comparing import sealed_replies
from secure_fl.protect.uploads.manifest import opened_before
from secure_fl.protect.uploads.party import from_everybody, question
from secure_fl.protect.uploads.phases import OPEN
from secure_fl.protect.uploads.statements import Rows, Uploads, known_rows, open_purpose
from secure_fl.rpc.protect_sealed_pb2 import SealedOpening, SealedSums
from secure_fl.rpc.protect_uploads_pb2 import UploadEnvelope


class Holder:
    """In a sum. Also after a restart: shares rest in their envelopes, and what was decided in its memory."""

    def __init__(self, party: SealedParty) -> None:
        self._party = party

    def open(self, message: Message) -> Message:
        """Shares of Σ s over everybody who uploaded, for each group whose sum may be released."""
        party = self._party
        said = parse(SealedOpening, read_bulky(message))
        uploads = party.uploads(said.commits)
        if said.rows:
            raise ProtectionError("a sum has no rows")
        opened = party.cohort.releasable(party.cohort.groups, uploads.names)
        shares = self._key_shares(uploads, said.envelopes)
        sums = [
            weighted_sum([1] * len(present), (shares[name, group.index] for name in present), size=DEGREE)
            for group in opened
            for present in [[name for name in uploads.names if name in group.holders]]
        ]
        party.decide(OPEN, question(uploads.digest, said.envelopes))
        party.note_opened(uploads, opened)
        return say(SealedSums(shares=[total.tobytes() for total in sums]))

    def _key_shares(self, uploads: Uploads, envelopes: Sequence[UploadEnvelope]) -> dict[tuple[str, int], Elements]:
        """This holder's shares of everybody's keys, by uploader and group."""
        shares: dict[tuple[str, int], Elements] = {}
        for envelope in from_everybody(uploads, envelopes):
            groups = self._party.cohort.groups_of(envelope.peer)
            if len(envelope.key_shares) != len(groups):
                raise ProtectionError(f"{envelope.peer} shared too many or too few keys")
            for group, sealed in zip(groups, envelope.key_shares, strict=True):
                plain = self._party.unseal(sealed, envelope.peer, purpose=group.label)
                shares[envelope.peer, group.index] = expand_share(plain)
        return shares


class CombineHolder(Holder):
    """In a combine: shares of combinations that the guard lets through."""

    def __init__(self, party: SealedParty, history: History) -> None:
        super().__init__(party)
        self._history = history

    def open(self, message: Message) -> Message:
        """Shares of each recipient's Σ w·s, sealed to it, once the guard has passed the complete matrix."""
        party = self._party
        said = parse(SealedOpening, read_bulky(message))
        uploads = party.uploads(said.commits)
        rows = Rows(party.context, party.cohort, uploads, said.rows)
        # Also what this node was not asked to open, but somebody here was.
        shown = [(row.node, dict(row.row)) for row in said.earlier]
        earlier = known_rows(opened_before(party.cohort), [*self._history.earlier(), *shown])
        check_rows(rows.of, nodes=uploads.names, colluders=party.context.colluders, earlier=earlier)
        shares = self._key_shares(uploads, said.envelopes)
        plain = {}
        for recipient, row in rows.of.items():
            totals = [
                weighted_sum(list(row.values()), (shares[name, group.index] for name in row), size=DEGREE)
                for group in served_groups(party.cohort, row)
            ]
            plain[recipient] = b"".join(total.tobytes() for total in totals)
        party.decide(OPEN, question(rows.digest, said.envelopes))
        self._history.opened(rows.of)
        return say_bulky(sealed_replies(party, plain, purpose=open_purpose(rows)))
