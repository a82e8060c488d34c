"""What a node remembers of a sealed attempt: its keys, whom it met, what it uploaded, what it decided.

On disk it is encrypted under a key that only the node's signing key yields: a copy of the state folder alone opens no
share. It is erased when the attempt is over, and with it every envelope that was sealed to this node.
"""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from secure_fl.errors import ProtectionError
from secure_fl.identity.member import Member
from secure_fl.messages import parse
from secure_fl.protect.contract import Memory, RoundContext
from secure_fl.randomness import Randomness, derive_key
from secure_fl.rpc.protect_sealed_pb2 import SealedMemory

_NONCE_BYTES = 12


class SealedMemories:
    """The memory as it is now; every change is on disk before the call returns."""

    def __init__(self, memory: Memory, me: Member, context: RoundContext, randomness: Randomness) -> None:
        self._disk = memory
        self._randomness = randomness
        self._binding = context.binding
        # Ed25519 signatures are deterministic, and this one is never shown.
        self._cipher = AESGCM(derive_key(me.key.sign("sealed memory", context.binding), b"sealed memory"))
        stored = memory.load()
        self.restored = stored is not None
        if stored is None:
            self.now = SealedMemory(envelope_key=randomness.bytes(32), reply_key=randomness.bytes(32))
        else:
            self.now = self._read(stored)

    def keep(self, *, roster: bytes, upload: bytes) -> None:
        """Before the upload is sent."""
        self.now.roster, self.now.upload = roster, upload
        self._save()

    def decide(self, phase: str, digest: bytes) -> None:
        """Bind this node to one question of a phase for ever, before it is answered; `ProtectionError` for another."""
        decided = self.now.decided.get(phase)
        if decided is None:
            self.now.decided[phase] = digest
            self._save()
        elif not hmac.compare_digest(decided, digest):
            raise ProtectionError(f"this node has answered another question in phase {phase!r} of this attempt")

    def _save(self) -> None:
        nonce = self._randomness.bytes(_NONCE_BYTES)
        plain = self.now.SerializeToString()
        self._disk.save(nonce + self._cipher.encrypt(nonce, plain, self._binding))

    def _read(self, stored: bytes) -> SealedMemory:
        try:
            plain = self._cipher.decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], self._binding)
        except (InvalidTag, ValueError):
            raise ProtectionError("what this node remembers of the attempt is damaged or of another attempt") from None
        return parse(SealedMemory, plain)
