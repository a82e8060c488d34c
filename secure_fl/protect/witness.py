"""What sites show each other of their ledgers: what a protection asks of the node it runs in.

A site that cut or rewrote its ledger would look clean, were it not for its peers: in every attempt it signs how far its
ledger goes, and they note it. A protection carries these words and checks who signed them; keeping them is the node's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from secure_fl.identity.certificates import Certificate
from secure_fl.identity.ledger_head import LedgerHead


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownHead:
    """How far a peer's ledger goes, by its own verified signature."""

    head: LedgerHead
    certificate: Certificate
    signature: bytes


class Witness(Protocol):
    """A site's own ledger, and its notes of others'."""

    def head(self) -> LedgerHead:
        """How far this site's ledger goes now, on disk: what was planned for the attempt is in it."""
        ...

    def saw(self, shown: Sequence[ShownHead], *, study: str, round: int, attempt: int) -> None:  # noqa: A002
        """Note what peers showed in an attempt. Raises `StorageError`, and nothing for what contradicts earlier notes.

        Durable when it returns.
        """
        ...


def no_ledger(site: str) -> LedgerHead:
    """What a site without a disk shows: tests and measurements."""
    return LedgerHead(site=site, length=1, head="0" * 64)
