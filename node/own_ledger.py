"""This site's own ledger, as whoever works at the site reads it."""

from __future__ import annotations

from node.config import NodeFile
from node.store import NodeStore
from secure_fl.privacy.ledger import Entry, read_site_ledger


def took_part(store: NodeStore) -> bool:
    """Whether this node has begun an attempt at any study, so that there must be a ledger."""
    return any(store.folder.glob("studies/*/cursor.json"))


def own_entries(file: NodeFile, store: NodeStore) -> tuple[Entry, ...]:
    """Every entry, verified as this site's under the consortium of its file; none where nothing can have left yet.

    Raises `MissingLedgerError`, `ForeignLedgerError`, `LedgerError` or `SchemaError`.
    """
    if not store.ledger.exists() and not took_part(store):
        return ()
    return read_site_ledger(store.ledger, authority=file.ca_pem(), site=file.node.name)
