"""A model's layout crosses the wire unchanged, and a hostile one is refused before anything is allocated."""

from __future__ import annotations

import pytest
from hypothesis import given

from secure_fl import limits
from secure_fl.blocks import Layout
from secure_fl.errors import LayoutMismatchError, MalformedMessageError
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import layout_from_wire, layout_to_wire
from tests.protect.laws import law, layouts

LARGEST = 2**64 - 1


def entry(*shapes: tuple[int, ...], name: str = "body", dtype: str = "<f4") -> pb.BlockEntry:
    tensors = [pb.TensorEntry(name=f"t{i}", shape=shape) for i, shape in enumerate(shapes)]
    return pb.BlockEntry(name=name, dtype=dtype, tensors=tensors)


@law
@given(layouts())
def test_a_layout_survives_the_wire(layout: Layout) -> None:
    message = pb.ModelRef(blocks=layout_to_wire(layout))
    assert layout_from_wire(parse(pb.ModelRef, message.SerializeToString()).blocks) == layout


def test_a_model_at_its_bounds_passes() -> None:
    assert layout_from_wire([entry((limits.OBJECT_BYTES // 4,))]).size * 4 == limits.OBJECT_BYTES
    assert layout_from_wire([entry((1,) * limits.DIMENSIONS)]).size == 1
    assert len(layout_from_wire([entry(name=f"b{i}") for i in range(limits.BLOCKS)]).shapes) == limits.BLOCKS


@pytest.mark.parametrize(
    "entries",
    [
        [entry((limits.OBJECT_BYTES // 4 + 1,))],
        [entry((limits.OBJECT_BYTES // 4,)), entry((1,), name="head")],
        # Products that wrap to something small in 64 bits.
        [entry((2**32, 2**32))],
        [entry((2**63, 2, 1))],
        [entry((LARGEST,) * limits.DIMENSIONS)],
        [entry((2**62,), (2**62,), (2**62,), (2**62,))],
    ],
)
def test_a_model_that_is_too_large_is_refused_however_it_is_written(entries: list[pb.BlockEntry]) -> None:
    with pytest.raises(MalformedMessageError, match="too large"):
        layout_from_wire(entries)


@pytest.mark.parametrize("name", ["", "..", "a/b", "a..b", "/", "n" * (limits.NAME_CHARS + 1)])
def test_a_block_has_a_plain_name(name: str) -> None:
    with pytest.raises(MalformedMessageError, match="no proper name"):
        layout_from_wire([entry((1,), name=name)])


@pytest.mark.parametrize("dtype", ["", ">f4", "<f8", "<f2", "O", "|V4"])
def test_a_block_is_little_endian_float32(dtype: str) -> None:
    with pytest.raises(MalformedMessageError, match="float32"):
        layout_from_wire([entry((1,), dtype=dtype)])


def test_counts_are_bounded() -> None:
    with pytest.raises(MalformedMessageError, match="too many dimensions"):
        layout_from_wire([entry((1,) * (limits.DIMENSIONS + 1))])
    with pytest.raises(MalformedMessageError, match="too many tensors"):
        layout_from_wire([entry(*[(0,)] * (limits.TENSORS + 1))])
    with pytest.raises(MalformedMessageError, match="too many blocks"):
        layout_from_wire([entry(name=f"b{i}") for i in range(limits.BLOCKS + 1)])
    long = pb.TensorEntry(name="t" * (limits.NAME_CHARS + 1), shape=(1,))
    with pytest.raises(MalformedMessageError, match="name is too long"):
        layout_from_wire([pb.BlockEntry(name="body", dtype="<f4", tensors=[long])])


def test_two_blocks_of_one_name_are_refused() -> None:
    with pytest.raises(LayoutMismatchError, match="same name"):
        layout_from_wire([entry((1,)), entry((2,))])
