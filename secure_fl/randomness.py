"""Where random bytes come from. A parameter everywhere, so that tests and simulations can repeat a run."""

from __future__ import annotations

import secrets
from typing import Protocol

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_BLOCK = 16  # bytes of an AES block; `cryptography` wants that much slack in a buffer
_ZEROS = memoryview(bytes(1 << 18))


class Randomness(Protocol):
    """A source of uniformly random bytes."""

    def bytes(self, count: int) -> bytes:
        """Return `count` fresh bytes."""
        ...


class KeyStream:
    """AES-256-CTR under a 32-byte key: a CSPRNG whose whole output is determined by the key."""

    def __init__(self, key: bytes) -> None:
        if len(key) != 32:
            raise ValueError("a key stream needs 32 bytes of key")
        # A fresh key per stream makes the zero counter block safe.
        self._zeros = _ZEROS
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes of the stream."""
        return self._encryptor.update(bytes(count))

    @staticmethod
    def buffer(count: int) -> bytearray:
        """A buffer that `fill` can put `count` bytes into, again and again."""
        return bytearray(count + _BLOCK - 1)

    def fill(self, buffer: bytearray, count: int) -> None:
        """Put the next `count` bytes of the stream at the start of `buffer`, without a copy."""
        while len(self._zeros) < count:
            self._zeros = memoryview(bytes(2 * len(self._zeros)))
        self._encryptor.update_into(self._zeros[:count], buffer)


class SystemRandomness:
    """The operating system's CSPRNG."""

    def bytes(self, count: int) -> bytes:
        """`count` bytes of `secrets`."""
        return secrets.token_bytes(count)


class UnsafeSeededRandomness(KeyStream):
    """Repeatable randomness for a simulation, in which one person holds every site's secrets anyway.

    Named unsafe because whoever knows the seed knows every byte. A deployed node never builds one.
    """

    def __init__(self, seed: int, *context: str) -> None:
        material = seed.to_bytes(16, "little", signed=True)
        for part in context:  # With its length, so that no two contexts yield the same bytes.
            encoded = part.encode()
            material += len(encoded).to_bytes(8, "little") + encoded
        super().__init__(derive_key(material, b"secure-fl simulation randomness"))


def derive_key(material: bytes, info: bytes, *, salt: bytes | None = None) -> bytes:
    """A 32-byte key from `material` by HKDF-SHA256."""
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(material)
