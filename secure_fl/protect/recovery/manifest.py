"""What a node says of itself in a masked round, beside its name and blocks: two fresh keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.messages import parse_exactly
from secure_fl.protect.cohort.signed import SignedCohort, require_usable
from secure_fl.protect.contract import RoundContext
from secure_fl.rpc.protect_recovery_pb2 import RecoveryManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryAdvert:
    """One node's keys, verified."""

    mask_key: bytes  # opened when the node drops out
    envelope_key: bytes  # never opened


class RecoveryManifests:
    """The extension of a manifest."""

    protocol = "masked"

    def write(self, *, mask_key: X25519PrivateKey, envelope_key: X25519PrivateKey) -> bytes:
        """As it is signed and sent."""
        said = RecoveryManifest(
            mask_key=mask_key.public_key().public_bytes_raw(),
            envelope_key=envelope_key.public_key().public_bytes_raw(),
        )
        return said.SerializeToString(deterministic=True)

    def read(self, _context: RoundContext, name: str, extension: bytes, /) -> RecoveryAdvert:
        """Two keys that everybody can use."""
        said = parse_exactly(RecoveryManifest, extension)
        require_usable(name, said.mask_key, said.envelope_key)
        return RecoveryAdvert(mask_key=said.mask_key, envelope_key=said.envelope_key)

    def keys(self, said: RecoveryAdvert, /) -> tuple[bytes, ...]:
        """Both."""
        return said.mask_key, said.envelope_key


MANIFESTS = RecoveryManifests()
RecoveryCohort: TypeAlias = SignedCohort[RecoveryAdvert]
