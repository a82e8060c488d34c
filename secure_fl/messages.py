"""Protobuf messages as they arrive: decoded, or refused without repeating any of what was in them."""

from __future__ import annotations

from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtoMessage

from secure_fl.errors import MalformedMessageError

P = TypeVar("P", bound=ProtoMessage)


def parse(kind: type[P], raw: bytes) -> P:
    """Decode `raw`, or raise `MalformedMessageError`."""
    message = kind()
    try:
        message.ParseFromString(raw)
    except DecodeError:
        raise MalformedMessageError(f"a {kind.__name__} does not decode") from None
    return message


def parse_exactly(kind: type[P], raw: bytes) -> P:
    """Decode `raw` if it is the one canonical encoding of a message and holds nothing unknown; `MalformedMessageError`.

    For what is signed and passed on as bytes: nobody can say the same thing twice in different words.
    """
    message = parse(kind, raw)
    message.DiscardUnknownFields()
    if message.SerializeToString(deterministic=True) != raw:
        raise MalformedMessageError(f"a {kind.__name__} is not in its canonical encoding")
    return message


def require(condition: bool, what: str) -> None:
    """Raise `MalformedMessageError` unless `condition` holds."""
    if not condition:
        raise MalformedMessageError(what)
