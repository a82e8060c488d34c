"""How a study ended, and whether a round that was announced as committed is missing from what is on disk."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import Any

from secure_fl.errors import SecureFLError, by_code
from secure_fl.results.record import RoundRecord, round_from_json
from tests.support.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What a coordinator's disk says when everything has stopped."""

    state: str
    reason: str
    records: tuple[RoundRecord, ...]
    committed: int  # rounds that somebody was told to be committed
    lost: int  # of those, missing or different in the end

    def __str__(self) -> str:
        return self.state if self.state == "finished" else f"{self.state}: {self.reason}"

    @property
    def is_typed(self) -> bool:
        """Whether the study finished, or ended for a reason that has a name."""
        if self.state == "finished":
            return not self.reason
        return self.state == "aborted" and by_code(self.reason) is not SecureFLError


def ending(fed: Federation) -> Ending:
    """Read from the files alone; what was announced comes from the listener and from the nodes' sessions."""
    with contextlib.closing(sqlite3.connect(fed.workspace.coordinator_state / "coordinator.sqlite")) as raw:
        state, reason = raw.execute("SELECT state, reason FROM studies WHERE id = ?", (fed.study.id,)).fetchone()
        rows = raw.execute("SELECT number, attempt, record FROM rounds WHERE state = 'committed' ORDER BY number")
        facts = {(number, attempt): round_from_json(json.loads(record)) for number, attempt, record in rows}
        # Parts of a committed round that other circles opened.
        merged = set(raw.execute("SELECT number, attempt FROM rounds WHERE state = 'merged'").fetchall())
    records = tuple(facts.values())
    if state == "running":
        failures = [fields["code"] for kind, fields in fed.events if kind == "study-failed"]
        state, reason = ("aborted", failures[-1]) if failures else (state, "")
    kept = {record.number: _plain(record) for record in records}
    announced: list[dict[str, Any]] = [fields for kind, fields in fed.events if kind == "round-committed"]
    lost = {
        fields["number"]
        for fields in announced
        if kept.get(fields["number"]) != json.loads(json.dumps({k: v for k, v in fields.items() if k != "study_id"}))
    }
    told = set().union(*(network.committed for network in fed.networks))
    lost |= {number for number, _ in told - facts.keys() - merged}
    committed = {fields["number"] for fields in announced} | {number for number, _ in told}
    return Ending(state=state, reason=reason, records=records, committed=len(committed), lost=len(lost))


def _plain(record: RoundRecord) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(asdict(record)))
    return plain
