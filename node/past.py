"""The sums that a site was part of, over all its studies, in one file that is read before anything new is opened."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

from pydantic import TypeAdapter

from node.store import read_json
from secure_fl.files import write_atomically
from secure_fl.protect.past import Known, Row
from secure_fl.protect.release.circles import spanning

_Kept = TypeAdapter(tuple[tuple[tuple[str, ...], ...], tuple[str, ...]])  # rows, and who agreed


class PastSums:
    """Rows that span all sums so far, and who agreed to be shown by them. Several studies write to it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def known(self) -> Known:
        """Everything so far. Raises `StorageError`."""
        kept = read_json(self._path, _Kept)
        return Known() if kept is None else Known(rows=kept[0], agreed=frozenset(kept[1]))

    def add(self, row: Row, agreed: Iterable[str]) -> None:
        """A sum that is about to be opened, and who agreed to what it shows. Durable when it returns."""
        with self._lock:
            known = self.known()
            rows, everybody = spanning((*known.rows, row)), known.agreed | frozenset(agreed)
            if (rows, everybody) != (known.rows, known.agreed):
                write_atomically(self._path, json.dumps((rows, sorted(everybody))).encode(), mode=0o600)
