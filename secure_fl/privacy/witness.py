"""What sites saw of each other's ledgers: so that none can cut or rewrite its own unnoticed.

In every attempt a site signs how long its ledger is and the hash of its last line, and its peers note it. Whoever later
shows a ledger without that line has changed its history, even if every signature in it is right: the site's own key
signed both. A note convinces anybody who has the consortium's CA, whoever kept it.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from secure_fl.errors import SecureFLError, StorageError, WitnessError
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import Certificate, TrustStore
from secure_fl.identity.ledger_head import LedgerHead, verify_head
from secure_fl.privacy.ledger import Entry

_VERSION = 1
_MOST_OF_ONE_SITE = 250  # about 1.3 kB each; all of them are verified when a node starts


@dataclass(frozen=True, slots=True, kw_only=True)
class WitnessNote:
    """A head that a site signed, and when somebody saw it. `SignatureError` or `ValueError` unless the site did."""

    head: LedgerHead
    study: str
    round: int
    attempt: int
    time: datetime  # by the clock of whoever noted it
    certificate: Certificate
    signature: bytes

    def __post_init__(self) -> None:
        if self.certificate.name != self.head.site or self.time.tzinfo is None:
            raise ValueError("a note has its site's certificate and a time with a zone")
        verify_head(
            self.certificate.signing_public,
            self.signature,
            self.head,
            study=self.study,
            round=self.round,
            attempt=self.attempt,
        )

    @property
    def said(self) -> tuple[LedgerHead, str, int, int]:
        """What the site signed."""
        return self.head, self.study, self.round, self.attempt

    def __str__(self) -> str:
        return (
            f"{self.head.site} signed that line {self.head.length} of its ledger is {self.head.head[:16]}…"
            f" (study {self.study[:12]}, round {self.round}, noted {self.time.astimezone(UTC):%Y-%m-%d %H:%M} UTC)"
        )

    def line(self) -> bytes:
        """As it stands in a file."""
        facts = {
            "version": _VERSION,
            "site": self.head.site,
            "length": self.head.length,
            "head": self.head.head,
            "study": self.study,
            "round": self.round,
            "attempt": self.attempt,
            "time": self.time.isoformat(timespec="milliseconds"),
            "fingerprint": self.certificate.fingerprint,
            "certificate": base64.b64encode(self.certificate.der).decode(),
            "signature": self.signature.hex(),
        }
        return json.dumps(facts, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """The inverse of `line`, verified; raises `SecureFLError`, `ValueError`, `KeyError` or `TypeError`."""
        if facts["version"] != _VERSION:
            raise ValueError("another version")
        return cls(
            head=LedgerHead(site=facts["site"], length=int(facts["length"]), head=facts["head"]),
            study=facts["study"],
            round=int(facts["round"]),
            attempt=int(facts["attempt"]),
            time=datetime.fromisoformat(facts["time"]),
            certificate=_certificate(base64.b64decode(facts["certificate"], validate=True)),
            signature=bytes.fromhex(facts["signature"]),
        )


class WitnessFile:
    """`witness.jsonl`: the heads that this node's peers showed it. Any thread may use it.

    A head is noted once, however often it is shown. Of one site at most 250 are kept: beyond that, every second of the
    older half goes. A newer head fixes every line before it, so what is lost is how finely an old forgery can be dated.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._notes: dict[str, list[WitnessNote]] = defaultdict(list)
        for note in _read(path, drop_torn=True) if path.exists() else ():
            self._notes[note.head.site].append(note)

    def note(self, note: WitnessNote) -> tuple[WitnessNote, ...]:
        """Keep a note, durably; return those kept before that contradict it. Raises `StorageError`."""
        return tuple(before for before, _ in self.note_all((note,)))

    def note_all(self, notes: Sequence[WitnessNote]) -> tuple[tuple[WitnessNote, WitnessNote], ...]:
        """Keep notes, at most one of a site, in one write; return each with those kept before that contradict it."""
        with self._lock:
            same = [
                [one for one in self._notes[note.head.site] if one.head.length == note.head.length] for note in notes
            ]
            found = list(zip(notes, same, strict=True))
            # By attempt, and not by head alone: each says that the site took part, and must have planned it.
            new = [note for note, known in found if not any(one.said == note.said for one in known)]
            if new:
                self._append(new)
            crowded = False
            for note in new:
                known = self._notes[note.head.site]
                known.append(note)
                if len(known) > _MOST_OF_ONE_SITE:
                    self._notes[note.head.site], crowded = _thinned(known), True
            if crowded:
                write_atomically(self._path, b"".join(one.line() for one in self._all()), mode=0o600)
            return tuple((one, note) for note, known in found for one in known if one.head != note.head)

    def _append(self, notes: Sequence[WitnessNote]) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            size = self._path.stat().st_size if self._path.exists() else 0
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                try:
                    file.write(b"".join(note.line() for note in notes))
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._path, size)  # Half a line would spoil the next one.
                    raise
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written ({error.strerror})") from error

    def _all(self) -> Iterator[WitnessNote]:
        for notes in self._notes.values():
            yield from notes


def read_witness(path: Path, *, authority: bytes) -> tuple[WitnessNote, ...]:
    """Every note of a file, each signed under a certificate of the consortium whose CA is `authority` (PEM).

    Raises `WitnessError` that names the first line which is not: a note that nobody signed accuses nobody.
    """
    notes = tuple(_read(path))
    trust = TrustStore(authority)
    for number, note in enumerate(notes, 1):
        certificate = note.certificate
        # Only who issued it: the signature was checked when it was noted, and the two clocks may have differed.
        moment = min(max(note.time, certificate.not_before), certificate.not_after)
        try:
            trust.check(certificate, role="node", now=moment)
        except SecureFLError as error:
            raise WitnessError(f"{path}: line {number}: {error.message}") from None
    return notes


def missing_from(entries: Sequence[Entry], site: str, notes: Iterable[WitnessNote]) -> list[tuple[int, str]]:
    """What a site once showed and its ledger no longer has: for each, the entry from which on it differs, and words.

    The earliest difference first; of a cut, what shows that most is missing.
    """
    found = []
    for note in sorted(notes, key=lambda note: (-note.head.length, note.time)):
        length = note.head.length
        if note.head.site != site:
            continue
        if length > len(entries):
            found.append(
                (len(entries), f"the ledger ends after {len(entries)} lines: it was cut, or is an old copy; {note}")
            )
        elif entries[length - 1].digest != note.head.head:
            found.append((length - 1, f"the ledger was rewritten at or before line {length}; {note}"))
    return sorted(found, key=lambda one: one[0])


def two_stories(notes: Iterable[WitnessNote]) -> list[tuple[WitnessNote, WitnessNote]]:
    """Pairs in which one site signed different lines for the same place: it keeps two ledgers."""
    first: dict[tuple[str, int], WitnessNote] = {}
    pairs: dict[LedgerHead, tuple[WitnessNote, WitnessNote]] = {}
    for note in notes:
        before = first.setdefault((note.head.site, note.head.length), note)
        if before.head != note.head:
            pairs.setdefault(note.head, (before, note))
    return list(pairs.values())


@lru_cache(maxsize=1024)
def _certificate(der: bytes) -> Certificate:
    """Parsed once: a site shows the same one for years."""
    return Certificate.from_der(der)


def _read(path: Path, *, drop_torn: bool = False) -> Iterator[WitnessNote]:
    """The notes of a file; with `drop_torn`, without a last line that a crash left half written."""
    try:
        content = path.read_bytes()
        whole, newline, torn = content.rpartition(b"\n")
        if torn and drop_torn:
            os.truncate(path, len(whole) + len(newline))
            torn = b""
    except OSError as error:
        raise WitnessError(f"{path}: cannot be read ({error.strerror})") from None
    lines = whole.split(b"\n") if newline else []
    for number, line in enumerate([*lines, torn] if torn else lines, 1):
        try:
            yield WitnessNote.from_facts(json.loads(line))
        except (SecureFLError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise WitnessError(f"{path}: line {number} is not what a site signed") from None


def _thinned(notes: Sequence[WitnessNote]) -> list[WitnessNote]:
    """Without every second of the older half, but for each study's first and last, and contradictions.

    A history that branched off long ago can grow as long as one likes: what convicts it are the old notes.
    """
    ordered = sorted(notes, key=lambda note: note.head.length)
    kept = {note.head for pair in two_stories(ordered) for note in pair}
    for study in {note.study for note in ordered}:
        of_study = [note for note in ordered if note.study == study]
        kept |= {of_study[0].head, of_study[-1].head}
    half = len(ordered) // 2
    older = [note for place, note in enumerate(ordered[:half]) if place % 2 == 0 or note.head in kept]
    return older + ordered[half:]
