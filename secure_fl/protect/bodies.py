"""Protobuf messages as the bodies of messages or, where they may be long, as their bulk."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from google.protobuf.message import Message as Protobuf

from secure_fl.limits import PAYLOAD_BYTES
from secure_fl.protect.contract import Message


def say(message: Protobuf, *, bulk: bytes | memoryview = b"", digest: bytes = b"") -> Message:
    """As a body, with bulk beside it."""
    return Message(body=message.SerializeToString(deterministic=True), bulk=bulk, digest=digest)


def as_bulk(array: npt.NDArray[Any]) -> bytes | memoryview:
    """An array where it lies: it may be as large as the model, and there is to be one of it."""
    return array.data.cast("B") if array.size else b""


def say_bulky(message: Protobuf) -> Message:
    """As a body or, where that would be too long, as bulk."""
    raw = message.SerializeToString(deterministic=True)
    return Message(body=raw) if len(raw) <= PAYLOAD_BYTES // 2 else Message(bulk=raw)


def read_bulky(message: Message) -> bytes:
    """The inverse."""
    return message.body or bytes(message.bulk)
