"""The coordinator's half of `sealed`, as far as a sum and a combine have it in common: elements, shares and holders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.bodies import say_bulky
from secure_fl.protect.contract import Ask, Bulk, Message
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.field import ELEMENT, Elements, read_elements
from secure_fl.protect.sealed.groups import sealed_groups
from secure_fl.protect.sealed.shares import SEED_BYTES, VECTOR_BYTES
from secure_fl.protect.uploads.coordinator import UploadCoordinator
from secure_fl.protect.uploads.phases import UPLOAD
from secure_fl.protect.uploads.statements import Uploads
from secure_fl.rpc.protect_sealed_pb2 import SealedOpening
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit, UploadEnvelope, UploadRow

PIECE = 1 << 18  # elements read at a time


class SealedCoordinator(UploadCoordinator):
    """The coordinator in one attempt."""

    def _ask_for_uploads(self) -> Ask:
        self._cohort, roster = self._gathered()
        return self._ask(UPLOAD, dict.fromkeys(self._cohort.names, say_bulky(roster)))

    def _upload_bytes(self, node: str) -> int:
        return ELEMENT.itemsize * sum(group.size for group in sealed_groups(self._context, self._cohort, node))

    def _share_bytes(self, node: str, place: int) -> Sequence[int]:
        share = SEED_BYTES if place < self._cohort.threshold else VECTOR_BYTES
        return [share + TAG_BYTES] * len(self._cohort.groups_of(node))

    def _check_values(self, _node: str, _commit: UploadCommit, bulk: Bulk) -> None:
        for _ in _pieces(bulk):
            pass

    # --- open -------------------------------------------------------------------------------------------------

    def _openings(
        self, uploads: Uploads, *, rows: Sequence[UploadRow] = (), earlier: Sequence[UploadRow] = ()
    ) -> dict[str, Message]:
        """What each holder is asked to open."""
        messages = {}
        for holder in self._cohort.names:
            envelopes = [
                UploadEnvelope(peer=name, key_shares=self._envelopes[name][holder].key_shares) for name in uploads.names
            ]
            opening = SealedOpening(commits=uploads.commits.values(), envelopes=envelopes, rows=rows, earlier=earlier)
            messages[holder] = say_bulky(opening)
        self._envelopes.clear()
        return messages

    def _require_holders(self, have: int) -> None:
        if have < self._cohort.threshold:
            raise CohortTooSmallError(have=have, need=self._cohort.threshold, what="holders")


def _pieces(bulk: Bulk) -> Iterator[Elements]:
    """An upload in pieces, each of elements below q."""
    for offset in range(0, bulk.size, ELEMENT.itemsize * PIECE):
        raw = bulk.read(offset, min(ELEMENT.itemsize * PIECE, bulk.size - offset))
        yield read_elements(raw)
