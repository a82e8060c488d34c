"""Messages through a coordinator that must not read, swap or replay them.

Key: HKDF of what two X25519 keys have in common, salted with the round's transcript ρ, for one sender, one recipient
and one purpose. AES-256-GCM under it seals one message, or the same one again; so one that is moved to another round,
recipient or purpose does not open.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.errors import ProtectionError
from secure_fl.identity.signing import transcript
from secure_fl.protect.primitives.agreement import exchange
from secure_fl.randomness import derive_key

TAG_BYTES = 16

_NONCE = bytes(12)  # a key is used once


class Envelopes:
    """One private key in one round. What it has in common with a peer's is computed once."""

    def __init__(self, mine: X25519PrivateKey, *, rho: bytes) -> None:
        self._mine = mine
        self._rho = rho
        self._common: dict[bytes, bytes] = {}

    def seal(self, plain: bytes, *, theirs: bytes, sender: str, recipient: str, purpose: bytes) -> bytes:
        """Seal `plain`; the purpose says what it is, down to the group it belongs to or the question it answers."""
        cipher, context = self._cipher(theirs, sender, recipient, purpose)
        return cipher.encrypt(_NONCE, plain, context)

    def unseal(self, sealed: bytes, *, theirs: bytes, sender: str, recipient: str, purpose: bytes) -> bytes:
        """What `sender` sealed for `recipient` and this purpose in this very round, or `ProtectionError`."""
        cipher, context = self._cipher(theirs, sender, recipient, purpose)
        try:
            return cipher.decrypt(_NONCE, sealed, context)
        except (InvalidTag, ValueError):
            raise ProtectionError(f"what {sender} sealed does not open") from None

    def _cipher(self, theirs: bytes, sender: str, recipient: str, purpose: bytes) -> tuple[AESGCM, bytes]:
        if theirs not in self._common:
            self._common[theirs] = exchange(self._mine, theirs)
        context = transcript("envelope", self._rho, sender.encode(), recipient.encode(), purpose)
        return AESGCM(derive_key(self._common[theirs], context, salt=self._rho)), context
