"""What a node says of itself in a circle, beside its name and blocks: one fresh key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.messages import parse_exactly
from secure_fl.protect.cohort.signed import SignedCohort, require_usable
from secure_fl.protect.contract import RoundContext
from secure_fl.rpc.protect_masked_pb2 import CircleManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleAdvert:
    """One node's key, verified."""

    mask_key: bytes


class CircleManifests:
    """The extension of a manifest."""

    protocol = "circle"

    def write(self, mask_key: X25519PrivateKey) -> bytes:
        """As it is signed and sent."""
        said = CircleManifest(mask_key=mask_key.public_key().public_bytes_raw())
        return said.SerializeToString(deterministic=True)

    def read(self, _context: RoundContext, name: str, extension: bytes, /) -> CircleAdvert:
        """A key that everybody can use."""
        said = parse_exactly(CircleManifest, extension)
        require_usable(name, said.mask_key)
        return CircleAdvert(mask_key=said.mask_key)

    def keys(self, said: CircleAdvert, /) -> tuple[bytes, ...]:
        """The one."""
        return (said.mask_key,)


MANIFESTS = CircleManifests()
CircleCohort: TypeAlias = SignedCohort[CircleAdvert]
