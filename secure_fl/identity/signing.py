"""Ed25519 signatures over strings that mean one thing only."""

from __future__ import annotations

from typing import NoReturn, Self, final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from secure_fl.errors import IdentityError, SignatureError

_P = 2**255 - 19
_Y8 = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826

# The y coordinates of the eight points of small order, and the two encodings that are not reduced modulo p.
# OpenSSL accepts them as public keys, and under them one signature fits every message (RFC 8032 leaves this
# to the application): whoever enrolled such a key could disown everything signed with it.
_SMALL_ORDER = frozenset((0, 1, _P - 1, _Y8, _P - _Y8, _P, _P + 1))
_SIGN_BIT = 1 << 255


def transcript(domain: str, *fields: bytes) -> bytes:
    """Encode `fields` for signing, so that no two lists and no two domains yield the same bytes.

    Every part carries its length (8 bytes, little-endian), so the encoding can be read back in one way only;
    the first part names the purpose, so a signature made for one is worth nothing for another.
    """
    parts = (f"secure-fl/{domain}/v1".encode(), *fields)
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


@final
class SigningKey:
    """An Ed25519 private key that shows itself only in `to_pem`."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        """A fresh key from the system's CSPRNG."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Read an unencrypted PKCS #8 key; raise `IdentityError` for anything else."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # Neither the cause nor its text is passed on: both may quote the file.
            raise IdentityError("the signing key cannot be read: not an unencrypted PKCS #8 PEM file") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise IdentityError("the signing key is not an Ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """The private key as unencrypted PKCS #8, for a file of mode 0600 and nowhere else."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    def sign(self, domain: str, *fields: bytes) -> bytes:
        """Sign `transcript(domain, *fields)`."""
        return self._key.sign(transcript(domain, *fields))

    def __repr__(self) -> str:
        return f"SigningKey(public={self.public.hex()})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a SigningKey is never pickled")


def verify(public: bytes, signature: bytes, domain: str, *fields: bytes) -> None:
    """Raise `SignatureError` unless `signature` over these fields was made by the owner of `public`."""
    if int.from_bytes(public, "little") & ~_SIGN_BIT in _SMALL_ORDER:
        raise SignatureError("the public key is of small order: anybody could sign for it")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, transcript(domain, *fields))
    except (InvalidSignature, ValueError):
        raise SignatureError(f"the signature for {domain!r} does not verify") from None
