"""With whom this site's features were compared, and how often: one file per node, over all studies, for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from node.config import DatasetSection
from node.store import read_json
from secure_fl.errors import RefusedError
from secure_fl.files import write_atomically

Counts = TypeAdapter(dict[str, dict[str, int]])  # by data and by peer


class ComparisonBook:
    """The node's file. Raises `StorageError` rather than forget."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()  # Studies run side by side.

    def add(self, data: str, peers: Mapping[str, str], *, limit: int | None) -> None:
        """One comparison more with each of `peers`, which are names and fingerprints; `RefusedError` beyond `limit`.

        Both are counted, and the larger number decides: neither a renewed certificate nor a new name begins anew.
        """
        with self._lock:
            book = read_json(self._path, Counts) or {}
            counts = book.setdefault(data, {})
            for name, fingerprint in peers.items():
                had = max(counts.get(name, 0), counts.get(fingerprint, 0))
                if limit is not None and had >= limit:
                    raise RefusedError(
                        f"{name} has been told {had} times how far this site's features are; {limit} is the most for "
                        "as many features as these",
                        advice="a study may ask for strategy.more_comparisons, and each site allow it in [policy]",
                    )
                counts[name] = counts[fingerprint] = had + 1
            write_atomically(self._path, json.dumps(book).encode(), mode=0o600)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteComparisons:
    """The book as an attempt sees it: its own data, its own peers."""

    book: ComparisonBook
    data: str
    roster: Mapping[str, str]
    limit: int | None  # None: the site agreed to any number

    def count(self, peers: Collection[str]) -> None:
        """Each of them once."""
        self.book.add(self.data, {name: self.roster[name] for name in peers}, limit=self.limit)


def data_key(section: DatasetSection, folder: Path) -> str:
    """What counts as one data set: the file or folder it is read from, by whatever id; in a simulation, the share."""
    path = str((folder / section.path).resolve()) if section.path else ""
    return path if section.share is None else f"{path}#{section.share.index}"
