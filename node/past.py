"""The sums that a site was part of, over all its studies, in one file that is read before anything new is opened."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from pydantic import TypeAdapter

from node.store import read_json
from secure_fl.files import write_atomically
from secure_fl.protect.past import Known

_Rows: TypeAlias = tuple[tuple[str, ...], ...]
# Rows, who agreed, the weighting and, since there is anything to remember of them, combinations.
_Kept = TypeAdapter(tuple[_Rows, tuple[str, ...], str] | tuple[_Rows, tuple[str, ...], str, _Rows])


class PastSums:
    """Several studies write to it, one at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()

    def known(self) -> Known:
        """Everything so far. Raises `StorageError`."""
        kept = read_json(self._path, _Kept)
        if kept is None:
            return Known()
        combined = frozenset(kept[3]) if len(kept) == 4 else frozenset()
        return Known(rows=kept[0], agreed=frozenset(kept[1]), weighting=kept[2], combined=combined)

    def decide(self, judge: Callable[[Known], Known]) -> None:
        """What `judge` makes of it is on disk when this returns; nothing else is decided meanwhile."""
        with self._lock:
            known = self.known()
            found = judge(known)
            if found != known:
                content = json.dumps((found.rows, sorted(found.agreed), found.weighting, sorted(found.combined)))
                write_atomically(self._path, content.encode(), mode=0o600)
