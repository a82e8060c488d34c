"""A site's ledger: an append-only, hash-chained, signed list of what left the node.

One JSON object per line. Entry 0 carries the site's certificate; every entry names the SHA-256 of the line before
it and is signed by the key bound to that certificate. So an entry that is changed, removed or moved breaks the
chain, and one that is added needs the site's key. Cutting off the tail is what a chain alone cannot show.
"""

from __future__ import annotations

import hashlib
import json
import os
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
        self._whole = True  # false while half a line may stand at the end
        self._recover()
        if self._next == 0:
            self.append("opened", {"name": certificate.name, "certificate": certificate.pem.decode()})

    def append(self, kind: str, facts: Mapping[str, Any]) -> None:
        """Add an entry; it is on disk when this returns. Raises `StorageError`."""
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

        Raises `SchemaError` for a newer version and `LedgerError` for what this key cannot continue; the file is
        then left as it is.
        """
        if not self._path.exists():
            return
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read ({error.strerror})") from error
        whole, newline, torn = content.rpartition(b"\n")
        if whole:
            first, last = whole.split(b"\n", 1)[0], whole.rsplit(b"\n", 1)[-1]
            try:
                entry = json.loads(last)
                newer, sequence = entry["version"] > LEDGER_VERSION, int(entry["sequence"])
                owner = b"" if newer else _owner(json.loads(first))
            except (SecureFLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
                raise LedgerError(f"{self._path}: its first or last line is not an entry") from None
            if newer:
                raise SchemaError(f"{self._path} was written by a newer version")
            if owner != self._key.public:
                # Entries under a second key would break the chain for everybody who reads it.
                raise LedgerError(
                    f"{self._path} belongs to another signing key",
                    advice="after a renewal of the keys move the ledger away, and keep it; a new one begins",
                )
            self._next, self._head = sequence + 1, hashlib.sha256(last).hexdigest()
        if torn:
            with self._path.open("r+b") as file:
                file.truncate(len(whole) + len(newline))
        self._whole = True


def read_ledger(path: Path) -> Iterator[Entry]:
    """Every entry, verified against the chain and the certificate in entry 0.

    The caller checks that certificate against the consortium's CA. Raises `LedgerError` naming the first bad entry,
    and `SchemaError` for a genuine one that a newer version wrote.
    """
    try:
        lines = path.read_bytes().removesuffix(b"\n").split(b"\n")
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from None
    if lines == [b""]:
        raise LedgerError(f"{path}: it is empty")
    previous, public = _START, b""
    for number, line in enumerate(lines):
        try:
            body = json.loads(line)
            signature = bytes.fromhex(body.pop("signature"))
            if body["sequence"] != number or body["previous"] != previous:
                raise LedgerError("out of order")
            if line != _line(body, signature):
                raise LedgerError("rewritten")  # It may mean the same, but the site did not write it.
            if number == 0:
                public = _owner(body)
            verify(public, signature, _DOMAIN, _canonical(body))
            newer = body["version"] > LEDGER_VERSION
            entry = Entry(sequence=number, time=body["time"], kind=body["kind"], facts=body["facts"])
        except (SecureFLError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise LedgerError(f"{path}: entry {number} is not genuine") from None
        if newer:
            raise SchemaError(f"{path}: entry {number} was written by a newer version")
        yield entry
        previous = hashlib.sha256(line).hexdigest()


def _owner(opening: Mapping[str, Any]) -> bytes:
    """The public key that signs a ledger, from its first entry."""
    return Certificate.from_pem(opening["facts"]["certificate"].encode()).signing_public


def _line(body: Mapping[str, Any], signature: bytes) -> bytes:
    return json.dumps({**body, "signature": signature.hex()}, sort_keys=True).encode()


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
