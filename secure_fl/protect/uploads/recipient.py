"""A node as a recipient of a combine, at its end: it takes what nobody else opens."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from secure_fl.encoding.integers import BlockSum, Totals
from secure_fl.encoding.weights import WEIGHT_UNITS
from secure_fl.errors import SecureFLError
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Message, RoundContext

log = logging.getLogger(__name__)


class Recipient(ABC):
    """Opens the row that it asked for."""

    combination: Mapping[str, BlockSum] = {}

    def deliver(self, message: Message) -> Message:
        """Take its combination. The coordinator does not learn whether it opened: that would be an oracle."""
        try:
            self.combination = self._open(message)
        except SecureFLError as error:
            log.warning("the combination does not open: %s", error.message)
        return Message()

    @abstractmethod
    def _open(self, message: Message) -> dict[str, BlockSum]:
        """What is opened; raises `SecureFLError` where nothing may be believed."""


def combined_blocks(context: RoundContext, group: Group, totals: Totals, row: Mapping[str, int]) -> dict[str, BlockSum]:
    """The blocks of a group in its opened totals, one after the other."""
    weight, start = WEIGHT_UNITS * sum(row.values()), 0
    opened: dict[str, BlockSum] = {}
    for block in group.blocks:
        end = start + context.layout[block].size
        opened[block] = BlockSum(total=totals[start:end], weight=weight, contributors=len(row))
        start = end
    return opened
