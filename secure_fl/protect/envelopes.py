"""Shares on their way to a peer, through a coordinator that must not read, swap or replay them.

Key: HKDF of the two envelope keys, salted with the round's transcript ρ and directed (sender, recipient). Each share is
sealed on its own by AES-256-GCM; its kind and group are in the nonce and the associated data, so one that is moved to
another recipient, kind or group does not open. Both keys live for one round and every nonce is used once.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.errors import ProtectionError
from secure_fl.identity.signing import transcript
from secure_fl.protect.masks import agree
from secure_fl.protect.shamir import SHARE_BYTES

SEALED_BYTES = SHARE_BYTES + 16
KEY_KIND = b"key"


class Envelopes:
    """What passes in one direction between two nodes."""

    def __init__(self, mine: X25519PrivateKey, theirs: bytes, *, rho: bytes, sender: str, recipient: str) -> None:
        self._direction = (rho, sender.encode(), recipient.encode())
        self._peer = sender
        self._cipher = AESGCM(agree(mine, theirs, salt=rho, info=transcript("envelope", *self._direction)))

    def seal(self, share: bytes, *, kind: bytes, position: int) -> bytes:
        """Seal the share at `position` of the envelope: 0 is the mask key's, then one per group."""
        return self._cipher.encrypt(_nonce(position), share, self._context(kind))

    def open(self, sealed: bytes, *, kind: bytes, position: int) -> bytes:
        """The share, if its sender sealed it for this recipient, kind and group in this very round."""
        try:
            return self._cipher.decrypt(_nonce(position), sealed, self._context(kind))
        except (InvalidTag, ValueError):
            raise ProtectionError(f"an envelope of {self._peer} does not open") from None

    def _context(self, kind: bytes) -> bytes:
        return transcript("share", *self._direction, kind)


def _nonce(position: int) -> bytes:
    return position.to_bytes(12, "little")
