"""Which sites of a study agreed to sums of changing sites, as they signed it: passed on to those who were not there."""

from __future__ import annotations

import threading
from pathlib import Path

from secure_fl.errors import StorageError
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.protect.cohort.agreements import agreement_in
from secure_fl.rpc.protect_cohort_pb2 import Agreement, Agreements, Manifest


class KnownAgreements:
    """One study's. On disk before the manifest that brought one is acknowledged, so a restart forgets none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "agreements.bin"
        self._lock = threading.Lock()
        # By site, the first one: it holds for the whole study. A site makes itself as many certificates for its key as
        # it likes, and only other sites ask who issued them; all of them together would be too long to pass on.
        self._known: dict[str, Agreement] = {}

    def load(self) -> None:
        """Read what an earlier life of the coordinator was given. Raises `StorageError`. Blocks."""
        if not self._path.exists():
            return
        try:
            found = parse(Agreements, self._path.read_bytes()).agreements
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be read ({error.strerror})") from error
        self._known = {Certificate.from_der(agreement.certificate).name: agreement for agreement in reversed(found)}

    def add(self, manifest: bytes) -> None:
        """From a manifest that was accepted. Raises `StorageError`. Blocks."""
        said = parse(Manifest, manifest)
        with self._lock:
            if said.node in self._known:
                return
            self._known[said.node] = agreement_in(said)
            write_atomically(self._path, self.passed_on)

    @property
    def passed_on(self) -> bytes:
        """All of them, as sites are told."""
        known = [self._known[name] for name in sorted(self._known)]
        return Agreements(agreements=known).SerializeToString(deterministic=True)
