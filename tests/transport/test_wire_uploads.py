"""An upload's id binds everything in its header, and its signature binds the id to the node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

from secure_fl import limits
from secure_fl.errors import MalformedMessageError, SignatureError
from secure_fl.identity.signing import SigningKey
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import (
    check_upload_header,
    chunks,
    file_chunks,
    reference,
    sign_upload_header,
    upload_id,
    verify_upload_header,
)
from tests.protect.laws import few, law
from tests.transport.messages import DIGEST, upload_header

STUDY = "5a" * 32

KEY = SigningKey.generate()


def sealed(header: pb.UploadHeader | None = None) -> pb.UploadHeader:
    header = header or upload_header()
    sign_upload_header(header, KEY)
    return header


# --- the id -----------------------------------------------------------------------------------------------------

Where = tuple[str, ...]


def leaves(kind: Any, prefix: Where = ()) -> Iterator[Where]:
    """Every field of a message that holds a value, those of inner messages included."""
    for field in kind.fields:
        if field.message_type is not None:
            yield from leaves(field.message_type, (*prefix, field.name))
        else:
            yield (*prefix, field.name)


# Read from the schema, so that a field added to the contract is covered without being added here.
BOUND = [path for path in leaves(pb.UploadHeader.DESCRIPTOR) if path not in {("upload_id",), ("signature",)}]

WHOLE = {
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_STRING: st.text(max_size=8),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
}


def at(header: pb.UploadHeader, path: Where) -> tuple[Any, FieldDescriptor]:
    message: Any = header
    for name in path[:-1]:
        message = getattr(message, name)
        message = message[0] if isinstance(message, Sequence) else message
    return message, message.DESCRIPTOR.fields_by_name[path[-1]]


def put(message: Any, field: FieldDescriptor, value: object) -> None:
    if isinstance(getattr(message, field.name), list | tuple | MutableSequence):
        getattr(message, field.name)[:] = [value]
    else:
        setattr(message, field.name, value)


def test_the_schema_is_walked() -> None:
    assert ("metrics", "sums", "values") in BOUND
    assert {("study_id",), ("round",), ("payload", "body"), ("bulk", "sha256"), ("metrics", "loss")} <= set(BOUND)


@law
@given(st.sampled_from(BOUND), st.data())
def test_the_id_changes_with_any_field(path: Where, data: st.DataObject) -> None:
    header, other = upload_header(), upload_header()
    for each in (header, other):
        message, field = at(each, path)
        put(message, field, data.draw(WHOLE[field.type]))
    same = header.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
    assert (upload_id(header) == upload_id(other)) == same


@pytest.mark.parametrize(
    "path", [path for path in BOUND if path[0] == "metrics" and path[1] not in {"samples", "sums"}]
)
def test_a_measurement_of_zero_is_not_one_that_is_missing(path: Where) -> None:
    present, absent = upload_header(), upload_header()
    message, field = at(present, path)
    setattr(message, field.name, 0.0)
    message, field = at(absent, path)
    message.ClearField(field.name)
    assert upload_id(present) != upload_id(absent)


def test_the_id_ignores_itself_and_the_signature() -> None:
    header = upload_header()
    before = upload_id(header)
    assert upload_id(sealed(header)) == before == header.upload_id


def test_the_id_covers_fields_of_a_later_version() -> None:
    later = pb.UploadHeader()
    later.ParseFromString(upload_header().SerializeToString() + b"\xfa\x01\x01x")  # field 31, one byte
    assert upload_id(later) != upload_id(upload_header())


# --- signatures -------------------------------------------------------------------------------------------------


def test_an_upload_verifies_under_its_senders_key_only() -> None:
    header = sealed()
    check_upload_header(header)
    verify_upload_header(header, KEY.public)
    with pytest.raises(SignatureError):
        verify_upload_header(header, SigningKey.generate().public)


def test_a_signature_for_another_purpose_is_worth_nothing() -> None:
    header = sealed()
    header.signature = KEY.sign("ledger", header.upload_id)
    with pytest.raises(SignatureError):
        verify_upload_header(header, KEY.public)


@few
@given(st.integers(0, 8 * limits.SIGNATURE_BYTES - 1))
def test_a_signature_with_one_bit_flipped_does_not_verify(bit: int) -> None:
    header = sealed()
    signature = bytearray(header.signature)
    signature[bit // 8] ^= 1 << bit % 8
    header.signature = bytes(signature)
    with pytest.raises(SignatureError):
        verify_upload_header(header, KEY.public)


def test_a_header_changed_after_signing_is_refused_whether_or_not_its_id_is_mended() -> None:
    header = sealed()
    header.round += 1
    with pytest.raises(MalformedMessageError, match="does not match its content"):
        check_upload_header(header)
    header.upload_id = upload_id(header)
    check_upload_header(header)
    with pytest.raises(SignatureError):
        verify_upload_header(header, KEY.public)


# --- bounds -----------------------------------------------------------------------------------------------------


def _set(path: str, value: object) -> Callable[[pb.UploadHeader], None]:
    def change(header: pb.UploadHeader) -> None:
        message, field = at(header, tuple(path.split(".")))
        put(message, field, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("study_id", ".."),
        _set("metrics.sums.name", "a/b"),
        _set("metrics.sums.values", 1 << limits.METRIC_SUM_BITS),
        lambda header: header.metrics.sums[0].values.extend(range(limits.METRIC_SUMS)),
        lambda header: header.metrics.sums.extend(header.metrics.sums[0] for _ in range(limits.METRICS)),
        _set("phase", "../upload"),
        _set("phase", ""),
        _set("phase", "p" * (limits.NAME_CHARS + 1)),
        _set("phase", "reveal"),  # and the payload says "upload"
        _set("payload.phase", "a/b"),
        _set("payload.protection", "a..b"),
        _set("payload.protection", ""),
        _set("payload.body", bytes(limits.PAYLOAD_BYTES + 1)),
        _set("bulk.sha256", DIGEST[:-1]),
        _set("bulk.size", limits.OBJECT_BYTES + 1),
        _set("bulk.size", 2**64 - 1),
        lambda header: header.ClearField("bulk"),
        lambda header: header.ClearField("payload"),
    ],
)
def test_headers_out_of_bounds_are_refused_though_signed(change: Callable[[pb.UploadHeader], None]) -> None:
    header = upload_header()
    change(header)
    with pytest.raises(MalformedMessageError):
        check_upload_header(sealed(header))


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(65)])
def test_a_signature_has_64_bytes(signature: bytes) -> None:
    header = sealed()
    header.signature = signature
    with pytest.raises(MalformedMessageError, match="not signed"):
        check_upload_header(header)


@pytest.mark.parametrize("identifier", [b"", bytes(32), DIGEST * 2])
def test_an_id_of_the_senders_choosing_is_refused(identifier: bytes) -> None:
    header = sealed()
    header.upload_id = identifier
    with pytest.raises(MalformedMessageError, match="does not match"):
        check_upload_header(header)


# --- chunks -----------------------------------------------------------------------------------------------------


async def read(path: Path, offset: int = 0) -> list[pb.Chunk]:
    return [chunk async for chunk in file_chunks(path, study_id=STUDY, offset=offset)]


@law
@given(st.binary(max_size=40), st.integers(0, 45), st.integers(1, 9))
def test_chunks_cover_the_content_exactly(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, offset: int, size: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "chunks.bin"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "CHUNK_BYTES", size)
        from_memory = list(chunks(content, study_id=STUDY, offset=offset))
        from_disk = asyncio.run(read(path, offset))
        for parts in (from_memory, from_disk):
            assert all(part.study_id == STUDY for part in parts)
            assert b"".join(part.data for part in parts) == content[offset:]
            assert all(0 < len(part.data) <= size for part in parts)
            position = offset
            for part in parts:
                assert part.offset == position
                position += len(part.data)


def test_a_chunk_is_one_mebibyte(tmp_path: Path) -> None:
    content = bytes(2 * limits.MIB + 1)
    (tmp_path / "bulk").write_bytes(content)
    for parts in (list(chunks(content, study_id=STUDY)), asyncio.run(read(tmp_path / "bulk"))):
        assert [len(part.data) for part in parts] == [limits.MIB, limits.MIB, 1]


def test_a_reference_is_digest_and_size() -> None:
    # SHA-256 of "abc": FIPS 180-4, first example.
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert reference(b"abc") == pb.ObjectRef(sha256=bytes.fromhex(expected), size=3)
