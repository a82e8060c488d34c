"""The coordinator of an encrypted sum: two sites open it, and it believes what both of them say."""

from __future__ import annotations

import hashlib

import numpy as np

from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import CohortTooSmallError, OverflowInvariantError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.minima import require_weight
from secure_fl.protect.contract import Ask, Bulk, Message, OpenedSums, RoundContext
from secure_fl.protect.encrypted.coordinator import EncryptedCoordinator
from secure_fl.protect.encrypted.groups import DIGESTS, group_values
from secure_fl.protect.encrypted.opener import TOTAL
from secure_fl.protect.encrypted.party import MANIFESTS
from secure_fl.protect.encrypted.phases import CHECK, SUM
from secure_fl.protect.encrypted.sides import Side
from secure_fl.protect.uploads.coordinator import Step, WhenAsked
from secure_fl.protect.uploads.phases import OPEN
from secure_fl.rpc.protect_encrypted_pb2 import EncryptedCheck, EncryptedOpened, EncryptedOpening


class SumCoordinator(EncryptedCoordinator):
    """Uploads rest on disk; in memory are the two halves of the sum."""

    def __init__(self, context: RoundContext, *, recompute: bool) -> None:
        super().__init__(context, MANIFESTS, digests=DIGESTS)
        self._prepare(context, recompute=recompute)
        self._said: dict[str, bytes] = {}  # by opener, the digest of the totals
        self._totals: Bulk | None = None

    def _step(self) -> Step:
        steps: tuple[Step, ...] = (
            (self._accept_manifest, self._ask_for_key),
            (self._accept_key, self._ask_for_uploads),
            (self._accept_upload, self._ask_for_checks),
            (self._accept_check, self._ask_to_open),
            (self._accept_totals, self._open),
        )
        return dict(zip(SUM, steps, strict=True))[self._phase]

    @property
    def _missing_later(self) -> int:
        """One of each side and, for the list of uploads, enough who were shown it."""
        if self._phase == CHECK and not self._recompute:
            return 0
        answered = self._said if self._phase == OPEN else self._vouches
        sides = {self._sides.of(name) for name in answered if name in self._openers}
        checkers = 0 if self._phase == OPEN or self._context.whole else self._cohort.threshold - len(answered)
        return max(len(Side) - len(sides), checkers)

    # --- check ------------------------------------------------------------------------------------------------

    def _ask_for_checks(self) -> Ask:
        """In a circle openers only: everybody else knows already. Otherwise everybody, to agree on who is in it."""
        self._uploads = self._uploaded()
        self._openers = self._sides.openers(self._uploads.names, spare=not self._context.whole)
        if len({self._sides.of(name) for name in self._openers}) < len(Side):
            raise CohortTooSmallError(have=1, need=len(Side), what="openers")
        groups = self._cohort.releasable(self._cohort.groups, self._uploads.names)
        self._opened = [(group, [name for name in self._uploads.names if name in group.holders]) for group in groups]
        asked = self._openers if self._context.whole else self._uploads.names
        return self._ask(CHECK, WhenAsked(asked if self._recompute or not self._context.whole else (), self._check))

    def _check(self, name: str) -> Message:
        body = EncryptedCheck(commits=self._uploads.commits.values())
        if name not in self._openers or not self._recompute:
            return say(body)
        return say(body, bulk=self._parts(self._sides.of(name), self._opened))

    def _accept_check(self, node: str, message: Message, _bulk: Bulk) -> None:
        self._take_vouches(node, message, self._uploads.digest, [""] if self._recompute else [])

    # --- open -------------------------------------------------------------------------------------------------

    def _ask_to_open(self) -> Ask:
        if missing := self._missing_later:
            have = len(self._vouches)
            raise CohortTooSmallError(have=have, need=have + missing, what="checkers")
        self._halves = {
            side: b"".join(self._sum(side, group, dict.fromkeys(names, 1)) for group, names in self._opened)
            for side in Side
        }
        asked = [name for name in self._openers if name in self._vouches or not self._recompute]
        return self._ask(OPEN, WhenAsked(asked, self._opening))

    def _opening(self, name: str) -> Message:
        vouches = [vouch for mine in self._vouches.values() for vouch in mine]
        body = EncryptedOpening(commits=self._uploads.commits.values(), vouches=vouches)
        if self._recompute:
            return say(body, bulk=self._halves[self._sides.of(name).other])
        return say(body, bulk=self._halves[Side.BODIES] + self._halves[Side.SEEDS])

    def _accept_totals(self, node: str, message: Message, bulk: Bulk) -> None:
        digest = parse(EncryptedOpened, message.body).totals
        values = sum(group_values(self._context, group) for group, _ in self._opened)
        speaks = self._sides.of(node) is Side.BODIES
        if bulk.size != (TOTAL.itemsize * values if speaks else 0):
            raise ProtectionError(f"{node} opened too much or too little")
        if speaks and hashlib.sha256(bulk.read(0, bulk.size)).digest() != digest:
            raise ProtectionError(f"{node} opened something else than it says")
        self._said[node] = digest
        if speaks:
            self._totals = bulk

    def _open(self) -> OpenedSums:
        if self._missing_later or self._totals is None:
            raise CohortTooSmallError(have=len(self._said), need=len(Side), what="openers")
        if len(set(self._said.values())) != 1:
            raise ProtectionError("the sites that opened the sum do not agree: it is void")
        # A copy that may be written to: circles' sums are added up in place.
        totals = np.frombuffer(self._totals.read(0, self._totals.size), TOTAL).astype(np.int32)
        blocks: dict[str, BlockSum] = {}
        start = 0
        for group, names in self._opened:
            sizes = [(block, self._context.layout[block].size) for block in group.blocks]
            values = group_values(self._context, group)
            part = totals[start : start + values]
            start += values
            if np.abs(part.astype(np.int64)).max(initial=0) > len(names) * self._terms.packing.limit:
                raise OverflowInvariantError("an opened sum is larger than its contributors can have made it")
            held = sum(size for _, size in sizes)
            weight = int(part[held:].sum())
            require_weight(self._context, weight, contributors=len(names))
            place = 0
            for block, size in sizes:
                blocks[block] = BlockSum(total=part[place : place + size], weight=weight, contributors=len(names))
                place += size
        cohort = self._uploads.names
        return OpenedSums(blocks=blocks, cohort=cohort, bases=self._bases(cohort))
