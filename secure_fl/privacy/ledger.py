"""A site's ledger: an append-only, hash-chained, signed list of what left the node.

One JSON object per line. Entry 0 carries the site's certificate, an entry "renewed" its successor; every entry names
the SHA-256 of the line before it and is signed by the key bound to the certificate in force. So an entry that is
changed, removed or moved breaks the chain, and one that is added needs the site's key. Cutting off the tail is what a
chain alone cannot show.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from secure_fl.errors import LedgerError, SchemaError, SecureFLError, StorageError
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.identity.signing import SigningKey, verify

LEDGER_VERSION = 1
_DOMAIN = "ledger"
_START = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One verified line."""

    sequence: int
    time: str
    kind: str
    facts: Mapping[str, Any]


class Ledger:
    """The node's own ledger, open for appending."""

    def __init__(
        self,
        path: Path,
        *,
        certificate: Certificate,
        key: SigningKey,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._path = path
        self._key = key
        self._now = now
        self._next = 0
        self._head = _START
        self._lock = threading.Lock()
        self._whole = True  # false while half a line may stand at the end
        self._owner: Certificate | None = None
        self._recover()
        mine = {"name": certificate.name, "certificate": certificate.pem.decode()}
        if self._owner is None:
            self.append("opened", mine)
        elif self._owner.name != certificate.name:
            raise LedgerError(f"{path} belongs to {self._owner.name!r}, not to {certificate.name!r}")
        elif self._owner.signing_public != key.public:
            self.append("renewed", mine)  # From here on the new key signs; the chain goes on.

    def append(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Add an entry; it is on disk when this returns. Raises `StorageError`. Any thread may call it."""
        with self._lock:  # Attempts at several studies write at the same time, and each entry names the one before.
            self._append(kind, facts)

    def _append(self, kind: str, facts: Mapping[str, Any]) -> None:
        if not self._whole:
            self._recover()
        body = {
            "version": LEDGER_VERSION,
            "sequence": self._next,
            "previous": self._head,
            "time": self._now().isoformat(timespec="milliseconds"),
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
        except OSError as error:
            # Half a line may be there now; whoever writes next drops it, since it was never acknowledged.
            raise StorageError(f"{self._path}: cannot be written ({error.strerror})") from error
        self._next += 1
        self._head = hashlib.sha256(line).hexdigest()
        self._whole = True

    def _recover(self) -> None:
        """Find the end of the chain, and drop a last line that a crash left without its newline.

        Raises `SchemaError` for a newer version and `LedgerError` for what is no ledger; the file is left as it is.
        """
        if not self._path.exists():
            return
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read ({error.strerror})") from error
        whole, newline, torn = content.rpartition(b"\n")
        if whole:
            lines = whole.split(b"\n")
            try:
                entry = json.loads(lines[-1])
                newer, sequence = entry["version"] > LEDGER_VERSION, int(entry["sequence"])
                owners = [line for line in lines if line is lines[0] or b'"kind": "renewed"' in line]
                owner = None if newer else _owner(json.loads(owners[-1]))
            except (SecureFLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise LedgerError(f"{self._path}: its first or last line is not an entry") from None
            if newer:
                raise SchemaError(f"{self._path} was written by a newer version")
            self._owner = owner
            self._next, self._head = sequence + 1, hashlib.sha256(lines[-1]).hexdigest()
        if torn:
            with self._path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        self._whole = True


def read_ledger(path: Path) -> Iterator[Entry]:
    """Every entry, verified against the chain and the certificate in force.

    The caller checks the certificates in entries "opened" and "renewed" against the consortium's CA. Raises
    `LedgerError` naming the first bad entry, and `SchemaError` for a genuine one that a newer version wrote.
    """
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from None
    if lines == [b""]:
        raise LedgerError(f"{path}: it is empty")
    previous = _START
    owner: Certificate | None = None
    for number, line in enumerate(lines):
        try:
            body = json.loads(line)
            signature = bytes.fromhex(body.pop("signature"))
            if body["sequence"] != number or body["previous"] != previous:
                raise LedgerError("out of order")
            if line != _line(body, signature):
                raise LedgerError("rewritten")  # It may mean the same, but the site did not write it.
            if owner is None or body["kind"] == "renewed":
                owner = _successor(owner, _owner(body))
            verify(owner.signing_public, signature, _DOMAIN, _canonical(body))
            newer = body["version"] > LEDGER_VERSION
            entry = Entry(sequence=number, time=body["time"], kind=body["kind"], facts=body["facts"])
        except (SecureFLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise LedgerError(f"{path}: entry {number} is not genuine") from None
        if newer:
            raise SchemaError(f"{path}: entry {number} was written by a newer version")
        yield entry
        previous = hashlib.sha256(line).hexdigest()


def _owner(entry: Mapping[str, Any]) -> Certificate:
    """Whose key signs from this entry on."""
    return Certificate.from_pem(entry["facts"]["certificate"].encode())


def _successor(owner: Certificate | None, renewed: Certificate) -> Certificate:
    """A site may renew its keys, but a ledger never passes to another site."""
    if owner is not None and owner.name != renewed.name:
        raise LedgerError("another site")
    return renewed


def _line(body: Mapping[str, Any], signature: bytes) -> bytes:
    return json.dumps({**body, "signature": signature.hex()}, sort_keys=True).encode()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
