"""How far a site's ledger goes, in a form that the site signs: what its peers note, and anybody can verify later."""

from __future__ import annotations

from dataclasses import dataclass

from secure_fl.identity.signing import SigningKey, verify

_DOMAIN = "ledger head"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerHead:
    """How far a site's ledger goes: so many lines, the last of which has this SHA-256. It fixes all before it."""

    site: str
    length: int
    head: str

    def __post_init__(self) -> None:
        if self.length < 1 or len(self.head) != 64 or not set(self.head) <= set("0123456789abcdef"):
            raise ValueError("a ledger's head is a length from 1 on and a SHA-256")


def sign_head(key: SigningKey, head: LedgerHead, *, study: str, round: int, attempt: int) -> bytes:  # noqa: A002
    """A site's word for how far its ledger goes, at one attempt."""
    return key.sign(_DOMAIN, *_fields(head, study, round, attempt))


def verify_head(
    public: bytes,
    signature: bytes,
    head: LedgerHead,
    *,
    study: str,
    round: int,  # noqa: A002
    attempt: int,
) -> None:
    """Raise `SignatureError` unless whoever has this key said so, at this attempt."""
    verify(public, signature, _DOMAIN, *_fields(head, study, round, attempt))


def _fields(head: LedgerHead, study: str, number: int, attempt: int) -> tuple[bytes, ...]:
    numbers = (part.to_bytes(8, "little") for part in (number, attempt, head.length))
    return head.site.encode(), study.encode(), *numbers, bytes.fromhex(head.head)
