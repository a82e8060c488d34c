"""X25519 between two parties: which public keys are acceptable, and the keys that two of them have in common."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from secure_fl.errors import ProtectionError
from secure_fl.randomness import derive_key

# The u-coordinates of small order on Curve25519 and its twist: with such a key everybody would know what is agreed.
_FIELD = 2**255 - 19
_ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
_ORDER_8_TOO = 39382357235489614581723060781553021112529911719440698176882885853963445705823
_SMALL_ORDER = frozenset({0, 1, _FIELD - 1, _ORDER_8, _ORDER_8_TOO})


def usable(public: bytes) -> bool:
    """Whether `agree` takes this key, whoever holds the other one: X25519 clears the small orders alike for all."""
    # RFC 7748: the last bit is ignored, and values of p and more are reduced.
    return len(public) == 32 and int.from_bytes(public, "little") % 2**255 % _FIELD not in _SMALL_ORDER


def agree(mine: X25519PrivateKey, theirs: bytes, *, salt: bytes, info: bytes) -> bytes:
    """A 32-byte key that two parties share, bound to a transcript (`salt`) and to one purpose (`info`)."""
    return derive_key(exchange(mine, theirs), info, salt=salt)


def exchange(mine: X25519PrivateKey, theirs: bytes) -> bytes:
    """What two keys have in common. No key itself: only `derive_key` makes one of it."""
    try:
        return mine.exchange(X25519PublicKey.from_public_bytes(theirs))
    except ValueError:  # a point of small order: everybody would know the key
        raise ProtectionError("a public key is not acceptable") from None
