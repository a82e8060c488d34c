"""Sites that a study goes on without, because they were found to cheat."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from secure_fl.errors import StorageError, StudyAbortedError
from secure_fl.events import Listener, SiteLeftOut
from secure_fl.files import write_atomically
from secure_fl.results.record import LeftOut
from secure_fl.threads import in_thread


class LeftOutSites:
    """Who is not invited any more. It is on disk before the next attempt is planned, so a restart forgets nobody."""

    def __init__(self, study_id: str, folder: Path, listener: Listener) -> None:
        self._study_id = study_id
        self._path = folder / "left_out.json"
        self._listener = listener
        self.sites: tuple[LeftOut, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Whoever is left out."""
        return frozenset(site.node for site in self.sites)

    def load(self) -> None:
        """Read what an earlier life of the coordinator found. Raises `StorageError`. Blocks."""
        if not self._path.exists():
            return
        try:
            self.sites = tuple(LeftOut(**entry) for entry in json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise StorageError(f"{self._path}: cannot be read ({type(error).__name__})") from error

    async def add(self, number: int, blamed: Mapping[str, str]) -> None:
        """Leave out whoever is blamed in an attempt at a round. Raises `StorageError`."""
        found = tuple(
            LeftOut(node=node, round=number, what=what)
            for node, what in sorted(blamed.items())
            if node not in self.names
        )
        if not found:
            return
        self.sites += found
        await in_thread(self._save)
        for site in found:
            self._listener(SiteLeftOut(study_id=self._study_id, round=site.round, node=site.node, what=site.what))

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, json.dumps([asdict(site) for site in self.sites], indent=1).encode())

    def require_others(self, roster: frozenset[str], *, minimum: int) -> None:
        """Raise `StudyAbortedError` if, without them, the study can never have enough sites."""
        left = len(roster - self.names)
        if self.names and left < minimum:
            raise StudyAbortedError(
                f"without {', '.join(sorted(self.names))} {left} sites are left, and at least {minimum} are needed",
                advice="the report says what they did; agree on a study with other sites",
            )
