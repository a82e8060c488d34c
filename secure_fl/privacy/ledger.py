"""A site's ledger: an append-only, hash-chained, signed list of what left the node.

One JSON object per line. Entry 0 carries the site's certificate, an entry "renewed" its successor; every entry names
the SHA-256 of the line before it and is signed by the key bound to the certificate in force. So an entry that is
changed, removed or moved breaks the chain, and one that is added needs the site's key. A small file beside it, with the
ending `.end`, says how far the ledger went when it was written last: an old copy, or one whose last lines are gone,
would give a site back what it has spent. Whoever cuts both, or writes the whole chain anew with the site's own key, is
found out by others: peers witness how far a ledger went (secure_fl/privacy/witness.py).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from secure_fl.errors import (
    CertificateError,
    ForeignLedgerError,
    LedgerError,
    MissingLedgerError,
    SchemaError,
    SecureFLError,
    StorageError,
)
from secure_fl.identity.certificates import Certificate, TrustStore, utc_now
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.identity.signing import SigningKey, verify

log = logging.getLogger(__name__)

LEDGER_VERSION = 2
_DOMAIN = "ledger"
_START = "0" * 64
_LONGEST = 10**9  # lines of a ledger: whatever is said to lie beyond is not repeated
_MALFORMED = (SecureFLError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

# What an entry can say, in the words of the person who reads it.
OPENED = "opened"  # the site's certificate
RENEWED = "renewed"  # its next one
APPROVED = "approved"  # somebody here agreed to a study
PLANNED = "planned"  # a round is about to use the data
SENT = "sent"  # something of it is about to leave
CANCELLED = "cancelled"  # nothing of it left
REFUSED = "refused"  # the site would not do what it was asked
KINDS = frozenset((OPENED, RENEWED, APPROVED, PLANNED, SENT, CANCELLED, REFUSED))

# Version 1 had other words for three of them, and "released" meant that nothing had left.
_FIRST_WORDS = {"reserved": PLANNED, "spent": SENT, "released": CANCELLED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One verified line."""

    sequence: int
    time: str
    kind: str
    facts: Mapping[str, Any]
    version: int = LEDGER_VERSION
    digest: str = ""  # SHA-256 of the line

    @property
    def moment(self) -> datetime:
        """When it was written, by the site's clock. Raises `ValueError` for no time, or one without a zone."""
        moment = datetime.fromisoformat(self.time)
        if moment.tzinfo is None:
            raise ValueError("a time without a zone")
        return moment


class Ledger:
    """The node's own ledger, open for appending.

    What is there already must be this site's, under a certificate of the consortium whose CA is `authority` (PEM).
    `expected` says that this site has taken part in studies, so that there must be a ledger.
    """

    def __init__(
        self,
        path: Path,
        *,
        certificate: Certificate,
        key: SigningKey,
        authority: bytes,
        expected: bool = False,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._path = path
        self._key = key
        self._now = now
        self._site = certificate.name
        self._next = 0
        self._size = 0  # bytes that are known to be on disk
        self._head = _START
        self._last: datetime | None = None
        self._lock = threading.Lock()
        self._whole = True  # false while something may stand at the end that nobody was told of
        expected = expected or end_of(path).exists()
        owner = self._recover(authority, expected=expected) if expected or path.exists() else None
        if owner != certificate:
            # Whoever reads it asks whether the certificate was valid when it was entered.
            moment = now()
            TrustStore(authority).check(certificate, role="node", now=moment)
            self._last = moment if self._last is None else max(self._last, moment)
        mine = {"name": certificate.name, "certificate": certificate.pem.decode()}
        if owner is None:
            log.info("%s: a new ledger begins; nothing counts as sent or spent here yet", path)
            self.append(OPENED, mine)
        elif owner != certificate:
            self.append(RENEWED, mine)  # From here on the new key signs; the chain goes on.

    @property
    def head(self) -> LedgerHead:
        """How far the ledger goes now, on disk."""
        with self._lock:
            return LedgerHead(site=self._site, length=self._next, head=self._head)

    def append(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Add an entry; it is on disk when this returns. Raises `StorageError`. Any thread may call it."""
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of entry")
        with self._lock:  # Attempts at several studies write at the same time, and each entry names the one before.
            self._append(kind, facts)

    def _append(self, kind: str, facts: Mapping[str, Any]) -> None:
        if not self._whole:
            self._cut()
        # A clock that was set back must not make the ledger look rearranged: time stands still until it catches up.
        moment = self._now() if self._last is None else max(self._now(), self._last)
        body = {
            "version": LEDGER_VERSION,
            "sequence": self._next,
            "previous": self._head,
            "time": moment.isoformat(timespec="milliseconds"),
            "kind": kind,
            "facts": dict(facts),
        }
        signature = self._key.sign(_DOMAIN, _canonical(body))
        line = _line(body, signature)
        self._whole = False
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(line + b"\n")
                file.flush()
                os.fsync(file.fileno())
            digest = hashlib.sha256(line).hexdigest()
            _note_end(self._path, self._next + 1, digest)
        except OSError as error:
            # A line, or half of one, may be there now; whoever writes next drops it, since it was never acknowledged.
            raise StorageError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._next += 1
        self._size += len(line) + 1
        self._head = digest
        self._last = moment
        self._whole = True

    def _cut(self) -> None:
        """Drop what a failed write left: it was never acknowledged, so nothing rests on it."""
        try:
            if self._path.exists():
                with self._path.open("r+b") as file:
                    file.truncate(self._size)
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._whole = True

    def _recover(self, authority: bytes, *, expected: bool) -> Certificate | None:
        """Verify what is there, find its end, and drop a last line that a crash left without its newline.

        Returns whose key signed last. Raises what `read_site_ledger` does; the file is then left as it is.
        """
        end, content = _end(self._path), _content(self._path)
        whole, newline, torn = content.rpartition(b"\n")
        owner = None
        if newline:
            entries = _of_site(self._path, _verified(self._path, whole.split(b"\n")), authority, self._site)
            _require_end(self._path, entries, end)
            owner = _owner(next(entry.facts for entry in reversed(entries) if entry.kind in (OPENED, RENEWED)))
            self._next, self._head, self._last = len(entries), entries[-1].digest, entries[-1].moment
        elif expected:
            raise MissingLedgerError(f"{self._path}: it is empty")
        self._size = len(whole) + len(newline)
        if torn:
            self._cut()
        return owner


def read_site_ledger(path: Path, *, authority: bytes, site: str | None = None) -> tuple[Entry, ...]:
    """Every entry of a site's ledger, oldest first: what everybody who relies on a ledger reads it with.

    1. Every line is genuine: the chain holds, and each is signed by the key in force.
    2. Every certificate in it is from the consortium whose CA is `authority` (PEM), was valid when it was entered, and
       bears the name `site`; without one, the same name throughout. Whether it has expired since does not matter.
    3. Time does not run backwards.
    4. It goes as far as the file beside it says, where there is one: only the site itself has it.

    Raises `MissingLedgerError` where there is none, `ForeignLedgerError` for one of another consortium or site,
    `SchemaError` for a newer version's, and `LedgerError` that names the first bad entry for anything else.
    """
    end = _end(path)  # Read first: a node may be writing, and its ledger then goes further.
    entries = _of_site(path, read_ledger(path), authority, site)
    _require_end(path, entries, end)
    return entries


def end_of(path: Path) -> Path:
    """The file that says how far the ledger at `path` went when it was written last."""
    return path.with_suffix(".end")


def _note_end(path: Path, length: int, digest: str) -> None:
    """Note how far the ledger goes. In place and without waiting for the disk: an older note does no harm."""
    descriptor = os.open(end_of(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, f"{length:>12} {digest}\n".encode(), 0)
    finally:
        os.close(descriptor)


def _end(path: Path) -> tuple[int, str] | None:
    """How many entries there were, and the digest of the last; None where nobody noted it, as releases before did."""
    try:
        noted = end_of(path).read_text(encoding="ascii").split()
        if not noted:
            return None  # made, and not written to the disk before the power failed
        length, digest = noted
        return int(length), digest
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LedgerError(f"{end_of(path)}: cannot be read ({type(error).__name__})") from None


def _require_end(path: Path, entries: Sequence[Entry], end: tuple[int, str] | None) -> None:
    if end is None:
        return
    length, digest = end
    if len(entries) < length:
        raise LedgerError(
            f"{path}: its last {length - len(entries)} of {length} entries are missing: it was cut, or is an old copy",
            advice="put the newest copy back. If there is none, keep this one for the auditor and start with an empty "
            "state folder (docs/operations.md, backup and restore)",
        )
    if length < 1 or entries[length - 1].digest != digest:
        raise LedgerError(f"{path}: entry {length - 1} is not the one that was written last")


def read_ledger(path: Path) -> Iterator[Entry]:
    """Every entry, verified against the chain and the certificate in force, whoever's it is.

    That the certificates are the consortium's is for `read_site_ledger` to say. Raises `LedgerError` naming the first
    bad entry, and `SchemaError` for a genuine one that a newer version wrote.
    """
    content = _content(path)
    lines = content.removesuffix(b"\n").split(b"\n")
    if lines == [b""]:
        raise LedgerError(f"{path}: it is empty")
    yield from _verified(path, lines, torn=not content.endswith(b"\n"))


def has_entries(path: Path) -> bool:
    """Whether a line of the file looks like an entry, genuine or not. One is enough: whoever damages a ledger stays
    accused of it. An empty file may have been a ledger. Raises as `read_ledger` does where nothing can be read.
    """
    content = _content(path)
    return not content or any(_looks_like_entry(line) for line in content.splitlines())


def _looks_like_entry(line: bytes) -> bool:
    try:
        body = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(body, dict) and {"sequence", "previous", "signature"} <= body.keys()


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise MissingLedgerError(f"{path}: there is no ledger") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from None


def _verified(path: Path, lines: Sequence[bytes], *, torn: bool = False) -> Iterator[Entry]:
    """Lines as entries, as long as each is signed and names the one before; `torn`: no newline ends the last."""
    previous, version = _START, 1
    owner: Certificate | None = None
    for number, line in enumerate(lines):
        digest = hashlib.sha256(line).hexdigest()
        try:
            body = json.loads(line)
            signature = bytes.fromhex(body.pop("signature"))
            if body["sequence"] != number or body["previous"] != previous:
                raise LedgerError("out of order")
            if line != _line(body, signature):
                raise LedgerError("rewritten")  # It may mean the same, but the site did not write it.
            if owner is None or body["kind"] == RENEWED:
                owner = _successor(owner, _owner(body["facts"]))
            verify(owner.signing_public, signature, _DOMAIN, _canonical(body))
            if body["version"] < version:
                raise LedgerError("an older version after a newer one")
            if not isinstance(body["facts"], dict):
                raise LedgerError("no facts")
            version, kind = body["version"], body["kind"]
            if version == 1:
                kind = _FIRST_WORDS.get(kind, kind)
            entry = Entry(
                sequence=number, time=body["time"], kind=kind, facts=body["facts"], version=version, digest=digest
            )
        except _MALFORMED:
            why = _why(line, number, torn=torn and number == len(lines) - 1)
            raise LedgerError(f"{path}: entry {number} is not genuine{why}") from None
        if version > LEDGER_VERSION:
            raise SchemaError(f"{path}: entry {number} was written by a newer version")
        yield entry
        previous = digest


def _why(line: bytes, number: int, *, torn: bool) -> str:
    """The likely reason why a line is not the entry that belongs there; nothing where its text does not tell."""
    try:
        says = json.loads(line)["sequence"]
    except _MALFORMED:
        return ": the last line is half written (a copy made while the node wrote, or the file was cut)" if torn else ""
    if isinstance(says, int) and number < says < _LONGEST:
        return f": the line there is numbered {says}, so that {says - number} before it are missing"
    return ""


def _of_site(path: Path, entries: Iterable[Entry], authority: bytes, site: str | None) -> tuple[Entry, ...]:
    """The entries, once their certificates are the consortium's and the site's, and their times in order."""
    trust = TrustStore(authority)  # Without revocations: a certificate that was taken back later was good until then.
    read: list[Entry] = []
    last: datetime | None = None
    for entry in entries:
        try:
            moment = entry.moment
            backwards = last is not None and moment < last
        except (ValueError, TypeError):
            raise LedgerError(f"{path}: entry {entry.sequence} has no time") from None
        if backwards and entry.version > 1:  # Version 1 wrote down whatever the clock said.
            raise LedgerError(f"{path}: entry {entry.sequence} is earlier than the one before it")
        if (entry.kind == OPENED) != (entry.sequence == 0) or entry.kind not in KINDS:
            raise LedgerError(f"{path}: entry {entry.sequence} is of a kind that has no place there")
        if entry.kind in (OPENED, RENEWED):
            site = _require_certificate(path, entry, trust, site)
        last = moment
        read.append(entry)
    return tuple(read)


def _require_certificate(path: Path, entry: Entry, trust: TrustStore, site: str | None) -> str:
    """The name on the certificate of an entry, once the consortium stands behind it at that time."""
    certificate = _owner(entry.facts)
    try:
        trust.check(certificate, role="node", now=entry.moment)
    except CertificateError as error:
        raise ForeignLedgerError(f"{path}: entry {entry.sequence}: {error.message}") from None
    if site is not None and certificate.name != site:
        raise ForeignLedgerError(f"{path} belongs to {certificate.name!r}, not to {site!r}")
    return certificate.name


def _owner(facts: Mapping[str, Any]) -> Certificate:
    """Whose key signs from this entry on."""
    return Certificate.from_pem(facts["certificate"].encode())


def _successor(owner: Certificate | None, renewed: Certificate) -> Certificate:
    """A site may renew its keys, but a ledger never passes to another site."""
    if owner is not None and owner.name != renewed.name:
        raise LedgerError("another site")
    return renewed


def _line(body: Mapping[str, Any], signature: bytes) -> bytes:
    return json.dumps({**body, "signature": signature.hex()}, sort_keys=True).encode()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
