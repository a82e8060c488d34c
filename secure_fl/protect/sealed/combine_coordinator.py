"""The coordinator of a sealed combine: forms combinations of what it cannot read, and opens none of them.

Uploads rest on disk, and one recipient's combination is formed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from secure_fl.errors import CohortTooSmallError
from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.combining import OpeningAsk
from secure_fl.protect.contract import Ask, Message, RoundContext
from secure_fl.protect.primitives.envelopes import TAG_BYTES
from secure_fl.protect.primitives.field import ELEMENT, read_elements, weighted_sum
from secure_fl.protect.release.history import OpenedRow
from secure_fl.protect.sealed.coordinator import PIECE, SealedCoordinator
from secure_fl.protect.sealed.groups import group_values, sealed_groups, served_groups
from secure_fl.protect.sealed.manifest import MANIFESTS, answers_to_open
from secure_fl.protect.sealed.party import DIGESTED
from secure_fl.protect.sealed.phases import COMBINE
from secure_fl.protect.sealed.shares import VECTOR_BYTES
from secure_fl.protect.uploads.coordinator import RowsCoordinator, Step, WhenAsked
from secure_fl.protect.uploads.phases import DELIVER, OPEN, SCORE
from secure_fl.protect.uploads.statements import NO_DIGESTS
from secure_fl.rpc.protect_sealed_pb2 import SealedDelivery


class CombineCoordinator(RowsCoordinator, SealedCoordinator):
    """It sees who weighs whom how much; with `recompute` it hands on uploads, and recipients combine them."""

    def __init__(self, context: RoundContext, earlier: Sequence[OpenedRow], *, recompute: bool = False) -> None:
        super().__init__(context, MANIFESTS, earlier, digests=DIGESTED if recompute else NO_DIGESTS)
        self._recompute = recompute

    def _step(self) -> Step:
        steps: tuple[Step, ...] = (
            (self._accept_manifest, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_scores),
            (self._accept_replies, self._ask_for_rows),
            (self._accept_row, self._ask_for_rows_to_open),
            (self._accept_replies, self._ask_to_deliver),
            (self._accept_receipt, self._sent),
        )
        return dict(zip(COMBINE, steps, strict=True))[self._phase]

    @property
    def missing(self) -> int:
        """How many holders have to answer yet. Uploads are in and keys are shared: nothing is lost by waiting."""
        if self._phase == OPEN:
            return max(0, self._answers_to_open - len(self._replies))
        return self._missing_scores if self._phase == SCORE else 0

    @property
    def _answers_to_open(self) -> int:
        return answers_to_open(self._cohort, self._context.colluders)

    def _reply_length(self, recipient: str) -> int:
        if self._phase == SCORE:
            return super()._reply_length(recipient)
        return VECTOR_BYTES * len(served_groups(self._cohort, self._rows[recipient].row)) + TAG_BYTES

    # --- open -------------------------------------------------------------------------------------------------

    def _ask_for_openings(self) -> Ask:
        rows, earlier = list(self._rows.values()), self._earlier_rows()
        messages = self._openings(self._uploads, rows=rows, earlier=earlier)
        self._phase = OPEN
        opens = {name: dict(row.row) for name, row in self._rows.items()}
        return OpeningAsk(phase=OPEN, messages=messages, opens=opens)

    # --- deliver ----------------------------------------------------------------------------------------------

    def _ask_to_deliver(self) -> Ask:
        if self.missing:
            raise CohortTooSmallError(have=len(self._replies), need=self._answers_to_open, what="holders")
        return self._ask(DELIVER, WhenAsked(tuple(self._rows), self._delivery))

    def _delivery(self, recipient: str) -> Message:
        row = dict(self._rows[recipient].row)
        body = SealedDelivery(
            commits=self._uploads.commits.values(), rows=list(self._rows.values()), replies=self._replies_for(recipient)
        )
        served = served_groups(self._cohort, row)
        return say(body, bulk=b"".join(part for group in served for part in self._group_bulk(group, row)))

    def _group_bulk(self, group: Group, row: Mapping[str, int]) -> Iterator[bytes]:
        """Σ w·y of one group or, where recipients recompute it, every y in it."""
        names = sorted(row)
        size = group_values(self._context, group)
        if self._recompute:
            for name in names:
                yield self._read(name, group, 0, size)
            return
        for start in range(0, size, PIECE):
            count = min(PIECE, size - start)
            vectors = (read_elements(self._read(name, group, start, count)) for name in names)
            yield weighted_sum([row[name] for name in names], vectors, size=count).tobytes()

    def _read(self, name: str, group: Group, start: int, count: int) -> bytes:
        mine = next(g for g in sealed_groups(self._context, self._cohort, name) if g.group == group)
        return self._bulks[name].read(ELEMENT.itemsize * (mine.start + start), ELEMENT.itemsize * count)
