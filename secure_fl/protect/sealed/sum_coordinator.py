"""The coordinator of a sealed sum: adds uploads it cannot read as they arrive, and opens the sum with the sum's key."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.cohort.minima import require_weight
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Ask, Bulk, Message, OpenedSums, RoundContext
from secure_fl.protect.primitives.field import ELEMENT, Elements, add, read_elements
from secure_fl.protect.sealed.coordinator import PIECE, SealedCoordinator
from secure_fl.protect.sealed.groups import SealedGroup, group_values, sealed_groups
from secure_fl.protect.sealed.manifest import MANIFESTS
from secure_fl.protect.sealed.phases import SUM
from secure_fl.protect.sealed.ring import Product
from secure_fl.protect.sealed.shares import VECTOR_BYTES, interpolate
from secure_fl.protect.sealed.terms import Terms
from secure_fl.protect.uploads.coordinator import Step
from secure_fl.protect.uploads.phases import ADVERTISE, OPEN, UPLOAD
from secure_fl.protect.uploads.statements import NO_DIGESTS
from secure_fl.rpc.protect_sealed_pb2 import SealedSums


class SumCoordinator(SealedCoordinator):
    """One sum per group in memory, never an upload."""

    def __init__(self, context: RoundContext) -> None:
        super().__init__(context, MANIFESTS, digests=NO_DIGESTS)
        self._terms = Terms.of(context)
        self._sums: dict[int, Elements] = {}
        self._torn = False
        self._shares: dict[str, list[Elements]] = {}  # by holder

    def _step(self) -> Step:
        steps: tuple[Step, ...] = (
            (self._accept_manifest, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_openings),
            (self._accept_shares, self._open),
        )
        return dict(zip(SUM, steps, strict=True))[self._phase]

    @property
    def missing(self) -> int:
        """How many have to answer yet: of a circle everybody, and in the end enough holders.

        Once uploads are in and keys are shared, nothing is lost by waiting.
        """
        if self._phase == ADVERTISE:
            return self._missing_manifests
        if self._phase == UPLOAD:
            return len(self._context.invited) - len(self._commits) if self._context.whole else 0
        return max(0, self._cohort.threshold - len(self._shares))

    def _ask_for_uploads(self) -> Ask:
        ask = super()._ask_for_uploads()
        self._sums = {g.index: np.zeros(group_values(self._context, g), ELEMENT) for g in self._cohort.groups}
        return ask

    def _accept_upload(self, node: str, message: Message, bulk: Bulk) -> None:
        super()._accept_upload(node, message, bulk)
        self._torn, before = True, self._torn  # A disk may fail half-way, and what was added cannot be taken back.
        for group in sealed_groups(self._context, self._cohort, node):
            self._add(group, bulk)
        self._torn = before

    def _add(self, group: SealedGroup, bulk: Bulk) -> None:
        total = self._sums[group.group.index]
        for start in range(0, group.size, PIECE):
            part = total[start : start + PIECE]
            raw = bulk.read(ELEMENT.itemsize * (group.start + start), part.nbytes)
            add(part, read_elements(raw))

    def _ask_for_openings(self) -> Ask:
        if self._torn:
            raise ProtectionError("an upload could be read in part only: the sums are void")
        self._uploads = self._uploaded()
        self._opened = self._cohort.releasable(self._cohort.groups, self._uploads.names)
        messages = self._openings(self._uploads)
        self._phase = OPEN
        return Ask(phase=OPEN, messages=messages)

    def _accept_shares(self, node: str, message: Message, _bulk: Bulk) -> None:
        shares = parse(SealedSums, message.body).shares
        if len(shares) != len(self._opened) or any(len(share) != VECTOR_BYTES for share in shares):
            raise ProtectionError(f"{node} gave too many or too few shares")
        self._shares[node] = [read_elements(share) for share in shares]

    def _open(self) -> OpenedSums:
        self._require_holders(len(self._shares))
        blocks: dict[str, BlockSum] = {}
        for position, group in enumerate(self._opened):
            shares = {self._cohort.index(holder): held[position] for holder, held in self._shares.items()}
            key = interpolate(shares, threshold=self._cohort.threshold)
            elements = self._sums.pop(group.index)  # one group at a time
            Product(key).unseal(elements, seed=SealedGroup.seed_of(self._cohort, group))
            blocks |= self._decode(group, elements)
        cohort = self._uploads.names
        return OpenedSums(blocks=blocks, cohort=cohort, bases=self._bases(cohort))

    def _decode(self, group: Group, elements: Elements) -> Mapping[str, BlockSum]:
        count = sum(name in self._uploads.commits for name in group.holders)
        weight = self._terms.decode_weight(elements[-1:])
        require_weight(self._context, weight, contributors=count)
        blocks: dict[str, BlockSum] = {}
        start = 0
        for block in group.blocks:
            size = self._context.layout[block].size
            total = self._terms.decode(elements[start : start + size], weights=count)
            blocks[block] = BlockSum(total=total, weight=weight, contributors=count)
            start += size
        return blocks
