"""What nodes sign after their manifest where uploads rest: what they uploaded, and what they want of it opened."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from secure_fl.errors import ProtectionError
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript, verify
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.release.combinations import require_row, row_total
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.uploads.manifest import UploadCohort
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit, UploadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """How many digests a node signs besides that of its whole upload."""

    fixed: int = 0
    per_group: int = 0

    def of(self, cohort: UploadCohort, node: str) -> int:
        """In one node's commit."""
        return self.fixed + self.per_group * len(cohort.groups_of(node))


NO_DIGESTS = Digests()


def sign_commit(me: Member, cohort: UploadCohort, upload: bytes, digests: Sequence[bytes]) -> UploadCommit:
    """This is my one upload of the round, with the digests that the protection asks for."""
    signature = me.key.sign(f"{cohort.protocol} upload", cohort.rho, me.name.encode(), upload, *digests)
    return UploadCommit(node=me.name, upload=upload, digests=digests, signature=signature)


def verify_commit(cohort: UploadCohort, commit: UploadCommit, *, digests: Digests) -> None:
    """Raise unless a member of the cohort signed it, with as many digests as the round asks for."""
    if commit.node not in cohort.peers:
        raise ProtectionError("an upload comes from outside the round")
    signed = [commit.upload, *commit.digests]
    if len(commit.digests) != digests.of(cohort, commit.node) or {*map(len, signed)} != {32}:
        raise ProtectionError(f"{commit.node} has too many or too few digests, or they are none")
    fields = (cohort.rho, commit.node.encode(), *signed)
    verify(cohort.public_key(commit.node), commit.signature, f"{cohort.protocol} upload", *fields)


class Uploads:
    """Who uploaded what, as everybody is told and can verify."""

    def __init__(self, cohort: UploadCohort, commits: Sequence[UploadCommit], *, digests: Digests = NO_DIGESTS) -> None:
        self.names = tuple(commit.node for commit in commits)
        if list(self.names) != sorted(set(self.names)):
            raise ProtectionError("uploads are repeated or out of order")
        for commit in commits:
            verify_commit(cohort, commit, digests=digests)
        require_cohort(self.names, cohort.minimum, what="uploads")
        cohort.require_whole(self.names)
        self.commits: Mapping[str, UploadCommit] = {commit.node: commit for commit in commits}
        # Each commit is one field: in a flat list one node's digests could pass for another node and its upload.
        signed = (transcript("upload", commit.node.encode(), commit.upload, *commit.digests) for commit in commits)
        self.digest = hashlib.sha256(transcript(f"{cohort.protocol} uploads", cohort.rho, *signed)).digest()


def sign_row(me: Member, cohort: UploadCohort, uploads: Uploads, row: Mapping[str, int]) -> UploadRow:
    """This is what I want opened at me, of just these uploads."""
    signature = me.key.sign(f"{cohort.protocol} row", cohort.rho, uploads.digest, me.name.encode(), _row_bytes(row))
    return UploadRow(node=me.name, row=row, signature=signature)


class Rows:
    """The complete matrix of what is opened, every row signed by its recipient."""

    def __init__(
        self, context: RoundContext, cohort: UploadCohort, uploads: Uploads, rows: Sequence[UploadRow]
    ) -> None:
        recipients = [row.node for row in rows]
        if not recipients or recipients != sorted(set(recipients)) or not set(recipients) <= set(uploads.names):
            raise ProtectionError("rows are missing, repeated, out of order, or of somebody who did not upload")
        total = row_total(len(context.invited))
        for row in rows:
            verify_row(cohort, uploads, row)
            require_row(row.row, uploaded=uploads.names, total=total)
            require_cohort(row.row, cohort.minimum, what="combination")
        self.of: Mapping[str, Mapping[str, int]] = {row.node: dict(row.row) for row in rows}
        fields = (field for name, row in self.of.items() for field in (name.encode(), _row_bytes(row)))
        self.digest = hashlib.sha256(transcript(f"{cohort.protocol} matrix", uploads.digest, *fields)).digest()


def verify_row(cohort: UploadCohort, uploads: Uploads, row: UploadRow) -> None:
    """Raise `SignatureError` unless its recipient asked for this row, of these uploads."""
    fields = (cohort.rho, uploads.digest, row.node.encode(), _row_bytes(row.row))
    verify(cohort.public_key(row.node), row.signature, f"{cohort.protocol} row", *fields)


def score_purpose(uploads: Uploads) -> bytes:
    """Of a holder's reply with shares of distances."""
    return b"score" + uploads.digest


def open_purpose(rows: Rows) -> bytes:
    """Of a holder's reply with shares of keys."""
    return b"open" + rows.digest


def row_hash(recipient: str, row: Mapping[str, int]) -> bytes:
    """What a manifest says of a row that was opened before."""
    return hashlib.sha256(transcript("opened row", recipient.encode(), _row_bytes(row))).digest()


def known_rows(hashes: Collection[bytes], candidates: Iterable[OpenedRow]) -> list[OpenedRow]:
    """The rows behind `hashes`, among the candidates; `ProtectionError` unless every one is there."""
    found = {row_hash(*candidate): candidate for candidate in candidates}
    if not found.keys() >= set(hashes):
        raise ProtectionError("a site has opened rows before that are not shown")
    return [found[digest] for digest in sorted(hashes)]


def _row_bytes(row: Mapping[str, int]) -> bytes:
    return transcript("row", *(f"{name}={weight}".encode() for name, weight in sorted(row.items())))
