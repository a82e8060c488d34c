"""Objects arrive whole or not at all, and go on after a broken link."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import MalformedMessageError, StorageError
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.objects import IncomingObject
from secure_fl.transport.pace import Backoff, deadline_seconds, transfer_seconds
from secure_fl.transport.wire import reference
from tests.protect.laws import law


def chunk(content: bytes, start: int, end: int) -> pb.Chunk:
    return pb.Chunk(offset=start, data=content[start:end])


def arrive(incoming: IncomingObject, sent: list[pb.Chunk]) -> None:
    for part in sent:
        incoming.write(part)
    incoming.finish(durable=True)


@law
@given(content=st.binary(min_size=1, max_size=60), cuts=st.lists(st.integers(1, 59), max_size=6))
def test_pieces_of_any_size_make_the_object(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]
) -> None:
    path = tmp_path_factory.mktemp("objects") / "object"
    incoming = IncomingObject(path, reference(content))
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    for start, end in pairwise(places):
        assert incoming.position == start
        assert not path.exists()
        incoming.write(chunk(content, start, end))
    incoming.finish(durable=False)
    assert path.read_bytes() == content
    assert [found.name for found in path.parent.iterdir()] == ["object"]


def test_an_object_without_content(tmp_path: Path) -> None:
    IncomingObject(tmp_path / "object", reference(b"")).finish(durable=True)
    assert (tmp_path / "object").read_bytes() == b""


def test_a_sender_that_begins_again_begins_again(tmp_path: Path) -> None:
    content = b"0123456789"
    incoming = IncomingObject(tmp_path / "object", reference(content))
    incoming.write(chunk(content, 0, 4))
    incoming.write(chunk(content, 0, 6))
    incoming.write(chunk(content, 6, 10))
    incoming.finish(durable=True)
    assert (tmp_path / "object").read_bytes() == content


@pytest.mark.parametrize(
    "sent",
    [
        [pb.Chunk(offset=1, data=b"1")],
        [pb.Chunk(offset=0, data=b"")],
        [pb.Chunk(offset=0, data=b"012345")],
        [pb.Chunk(offset=0, data=b"01"), pb.Chunk(offset=3, data=b"3")],
        [pb.Chunk(offset=0, data=b"0124")],
        [pb.Chunk(offset=0, data=b"012")],
    ],
    ids=["not from the start", "empty", "too long", "a gap", "other content", "too short"],
)
def test_anything_else_is_refused_and_leaves_nothing(tmp_path: Path, sent: list[pb.Chunk]) -> None:
    incoming = IncomingObject(tmp_path / "object", reference(b"0123"))
    with pytest.raises(MalformedMessageError):
        arrive(incoming, sent)
    incoming.discard()
    assert not list(tmp_path.iterdir())


def test_pauses_grow_to_a_longest_and_begin_again() -> None:
    backoff = Backoff(first=1.0, longest=5.0, jitter=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0
    assert Backoff(first=1.0, jitter=lambda: 0.0).next() == 0.5


def test_time_limits_grow_with_what_has_to_move() -> None:
    model = 4 * 500_000_000
    assert deadline_seconds(60.0, 1000) == pytest.approx(60.0, abs=0.01)
    assert deadline_seconds(60.0, model) > 60 + model / 2**21  # 2 MiB/s would suffice
    assert transfer_seconds(model) > deadline_seconds(0.0, model)


@contextmanager
def room(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_at_the_end_is_a_typed_error(tmp_path: Path) -> None:
    content = bytes(3000)  # less than a file's buffer: it is written when the object is finished
    incoming = IncomingObject(tmp_path / "object", reference(content))
    incoming.write(chunk(content, 0, 3000))
    with room(1000), pytest.raises(StorageError):
        incoming.finish(durable=True)
    assert not list(tmp_path.iterdir())
