"""Hostile messages out of good ones: field by field along the descriptors, and byte by byte along the wire."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from secure_fl.rpc.protect_none_pb2 import PlainCombination, PlainUpload

M = TypeVar("M", bound=Message)

_NAMES = (
    "", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\\b", "con\x00cealed", "two\nlines", "\r",
    "\x1b[2J\x1b[31m", "\u202egnp.exe", "\u2028", "naïve", "ﬀ" * 40, "🏥", "%s%n%d", "{0}", "${HOME}",
    "'; DROP TABLE studies; --",
    "a" * 64, "A" * 64, "a" * 128, "a" * 129, "0" * 64, "site-01", "none", "upload", "open", "@metrics",
    "Refused", "LateMessage", "NotConnected", "SecureFL", "__class__", "nan", "-1",
)  # fmt: skip
_INTEGERS = (0, 1, 2, 3, 127, 128, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)
_DOUBLES = (0.0, -0.0, 0.5, 1.0, 1.0000001, -1.0, 2.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), -float("inf"))
_LENGTHS = (0, 1, 31, 32, 33, 63, 64, 65, 256)
_MANY = (3, 40, 257, 600)
_JSON: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 10**400, 0.5, -0.0, 1e308, "", "..", "\ud800", "two\nlines", "os:system",
    "a" * 300, [], [[]], {}, {"\ud800": 1}, [0] * 300, {"a": {"b": {"c": [1, {"d": None}]}}},
)  # fmt: skip
_WIDTH = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
}


class Structured:
    """Changes fields of valid messages: what arrives decodes, and is wrong inside."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def mutate(self, message: M) -> M:
        """A copy with one to three fields changed."""
        changed = type(message)()
        changed.CopyFrom(message)
        for _ in range(self._rng.choice((1, 1, 1, 2, 3))):
            owner, field = self._rng.choice(list(_places(changed)))
            self._change(owner, field)
        return changed

    def _change(self, owner: Message, field: FieldDescriptor) -> None:
        if self._rng.random() < 0.08:
            owner.ClearField(field.name)
        elif _is_map(field):
            self._change_map(owner, field)
        elif field.is_repeated:
            self._change_list(owner, field)
        elif field.message_type is not None:
            # In a oneof this is a body of another kind, empty; elsewhere the same one without its content.
            owner.ClearField(field.name)
            getattr(owner, field.name).SetInParent()
        else:
            setattr(owner, field.name, self._value(field, getattr(owner, field.name)))

    def _change_map(self, owner: Message, field: FieldDescriptor) -> None:
        entries = getattr(owner, field.name)
        value = cast(Descriptor, field.message_type).fields_by_name["value"]
        for _ in range(self._rng.choice(_MANY)):
            name = f"{self._rng.choice(_NAMES)}{self._rng.randrange(1000)}"
            entries[name] = self._value(value, 0)

    def _change_list(self, owner: Message, field: FieldDescriptor) -> None:
        items = getattr(owner, field.name)
        count = self._rng.choice(_MANY)
        if field.message_type is not None:
            template = items[0] if len(items) and self._rng.random() < 0.5 else GetMessageClass(field.message_type)()
            items.extend([template] * count)
        elif len(items) and self._rng.random() < 0.6:
            items[self._rng.randrange(len(items))] = self._value(field, items[0])
        else:
            items.extend([self._value(field, None)] * count)

    def _value(self, field: FieldDescriptor, before: Any) -> Any:
        rng = self._rng
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return rng.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return rng.choice(_DOUBLES)
            case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_STRING:
                return self._text(before or "")
            case FieldDescriptor.CPPTYPE_STRING:
                return self._octets(field, before or b"")
        low, high = _WIDTH[field.cpp_type]
        near = (before or 0) + rng.choice((-1, 1))
        value = near if rng.random() < 0.3 else rng.choice((*_INTEGERS, -1, -(2**31)))
        return min(max(value, low), high)

    def _text(self, before: str) -> str:
        rng = self._rng
        if rng.random() < 0.01:
            return "long" * 25_000
        if before and rng.random() < 0.3:
            position = rng.randrange(len(before))
            return before[:position] + rng.choice(("", "\n", "\x00", "/", "..", "A")) + before[position + 1 :]
        return rng.choice(_NAMES)

    def _octets(self, field: FieldDescriptor, before: bytes) -> bytes:
        rng = self._rng
        if field.name == "settings" and rng.random() < 0.9:
            return self._settings(before)
        if field.name == "body" and rng.random() < 0.9:
            return self._body(before)
        if before and rng.random() < 0.4:
            return _flip(rng, before)
        return rng.randbytes(rng.choice(_LENGTHS)) if rng.random() < 0.99 else bytes(300_000)

    def _body(self, before: bytes) -> bytes:
        """What a protection says, changed within its own format."""
        kind: type[PlainUpload | PlainCombination] = self._rng.choice((PlainUpload, PlainCombination))
        inner = kind()
        try:
            inner.ParseFromString(before)
        except DecodeError:
            return before
        return self.mutate(inner).SerializeToString()

    def _settings(self, before: bytes) -> bytes:
        """A study, changed within its JSON."""
        try:
            values = json.loads(before)
        except ValueError:
            return before
        return json.dumps(mutate_json(self._rng, values)).encode()


def mutate_json(rng: random.Random, values: Any) -> Any:
    """One value somewhere in a tree of tables replaced, removed or added."""
    table = values
    while isinstance(table, dict) and table:
        key = rng.choice(list(table))
        if isinstance(table[key], dict) and table[key] and rng.random() < 0.85:
            table = table[key]
            continue
        match rng.randrange(4):
            case 0:
                del table[key]
            case 1:
                table[rng.choice(_NAMES)] = rng.choice(_JSON)
            case _:
                table[key] = rng.choice(_JSON)
        return values
    return rng.choice(_JSON)


class Octets:
    """Changes serialised messages without knowing what they mean."""

    def __init__(self, rng: random.Random, corpus: list[bytes]) -> None:
        self._rng = rng
        self._corpus = corpus
        self._ways: tuple[Callable[[bytes], bytes], ...] = (
            lambda raw: _flip(rng, raw),
            lambda raw: _flip(rng, _flip(rng, _flip(rng, raw))),
            lambda raw: raw[: rng.randrange(len(raw) + 1)],
            self._splice,
            self._insert,
            self._duplicate,
            lambda _raw: rng.randbytes(rng.randrange(1, 200)),
            self._unknown,
            self._groups,
            self._long_length,
        )

    def mutate(self, raw: bytes) -> bytes:
        """Other bytes."""
        return self._rng.choice(self._ways)(raw)

    def _splice(self, raw: bytes) -> bytes:
        other = self._rng.choice(self._corpus)
        return raw[: self._rng.randrange(len(raw) + 1)] + other[self._rng.randrange(len(other) + 1) :]

    def _insert(self, raw: bytes) -> bytes:
        position = self._rng.randrange(len(raw) + 1)
        return raw[:position] + self._rng.randbytes(self._rng.randrange(1, 20)) + raw[position:]

    def _duplicate(self, raw: bytes) -> bytes:
        """The same message twice in one: the last value of every field wins, lists double."""
        return raw + raw

    def _unknown(self, raw: bytes) -> bytes:
        """Fields that no version of the protocol has, behind valid ones."""
        content = self._rng.randbytes(self._rng.choice((0, 5, 200)))
        number = self._rng.choice((15, 99, 2**29 - 1))
        return raw + varint(number << 3 | 2) + varint(len(content)) + content

    def _groups(self, raw: bytes) -> bytes:
        """Groups in groups, closed or not: a parser without a limit would run out of stack."""
        depth = self._rng.choice((3, 99, 101, 5_000))
        closing = b"\x7c" * depth if self._rng.random() < 0.7 else b""
        return raw + b"\x7b" * depth + closing

    def _long_length(self, raw: bytes) -> bytes:
        """A length that the message does not have."""
        length = self._rng.choice((len(raw) + 1, 2**31 - 1, 2**32, 2**63, 2**64 - 1))
        return raw + varint(self._rng.randrange(1, 8) << 3 | 2) + varint(length) + b"x"


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _flip(rng: random.Random, raw: bytes) -> bytes:
    if not raw:
        return b"\x80"
    changed = bytearray(raw)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    """Every field, set or not, of a message and of the messages that are set in it."""
    for each in message.DESCRIPTOR.fields:
        field = cast(FieldDescriptor, each)
        yield message, field
        if field.message_type is None or _is_map(field):
            continue
        if field.is_repeated:
            for item in list(getattr(message, field.name))[:3]:
                yield from _places(item)
        elif message.HasField(field.name):
            yield from _places(getattr(message, field.name))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry
