"""A model as named blocks: nothing is lost on the way to bytes and back, and no difference goes unnamed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape, Vector, zeros
from secure_fl.errors import LayoutMismatchError
from tests.protect.laws import law, layouts, models


def block(name: str, *shapes: tuple[int, ...]) -> BlockShape:
    return BlockShape(name=name, tensors=tuple(TensorShape(name=f"t{i}", shape=s) for i, s in enumerate(shapes)))


LAYOUT = Layout((block("body", (2, 3), (2,)), block("head", (4,))))


def values(layout: Layout = LAYOUT) -> dict[str, Vector]:
    return layout.unflatten(np.arange(layout.size, dtype="<f4").tobytes())


# --- there and back ---------------------------------------------------------------------------------------------


@law
@given(layouts().flatmap(lambda layout: st.tuples(st.just(layout), st.binary(max_size=4 * layout.size).map(bytes))))
def test_bytes_of_any_other_length_are_refused(case: tuple[Layout, bytes]) -> None:
    layout, raw = case
    assume(len(raw) != 4 * layout.size)
    with pytest.raises(LayoutMismatchError):
        layout.unflatten(raw)


@law
@given(models())
def test_flatten_and_unflatten_are_inverse_bit_for_bit(model: tuple[Layout, Blocks]) -> None:
    layout, blocks = model
    raw = layout.flatten(blocks)
    assert len(raw) == 4 * layout.size
    again = layout.unflatten(raw)
    assert tuple(again) == layout.names
    assert {name: vector.tobytes() for name, vector in again.items()} == {
        name: vector.tobytes() for name, vector in blocks.items()
    }


@law
@given(models())
def test_tensors_and_join_are_inverse_bit_for_bit(model: tuple[Layout, Blocks]) -> None:
    layout, blocks = model
    tensors = layout.tensors(blocks)
    assert {key: tensor.shape for key, tensor in tensors.items()} == {
        f"{shape.name}/{tensor.name}": tensor.shape for shape in layout for tensor in shape.tensors
    }
    assert layout.flatten(layout.join(tensors)) == layout.flatten(blocks)


def test_tensors_are_cut_in_order() -> None:
    tensors = LAYOUT.tensors(values())
    assert tensors["body/t0"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["body/t1"].tolist() == [6, 7]
    assert tensors["head/t0"].tolist() == [8, 9, 10, 11]


def test_a_strided_vector_is_flattened_by_value() -> None:
    every_other = np.arange(8, dtype="<f4")[::2]
    layout = Layout((block("a", (4,)),))
    assert layout.flatten({"a": every_other}) == np.array([0, 2, 4, 6], "<f4").tobytes()
    assert layout.digest({"a": every_other}) == layout.digest({"a": every_other.copy()})


def test_zeros_fit_their_layout() -> None:
    LAYOUT.check(zeros(LAYOUT))
    assert not any(vector.any() for vector in zeros(LAYOUT).values())


# --- the digest -------------------------------------------------------------------------------------------------


@law
@given(models(least=1), st.data())
def test_the_digest_changes_with_any_bit_of_any_value(model: tuple[Layout, Blocks], data: st.DataObject) -> None:
    layout, blocks = model
    assume(layout.size)
    raw = bytearray(layout.flatten(blocks))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert layout.digest(layout.unflatten(bytes(raw))) != layout.digest(blocks)


@law
@given(models(least=1), st.data())
def test_the_digest_changes_with_any_name_and_any_shape(model: tuple[Layout, Blocks], data: st.DataObject) -> None:
    layout, blocks = model
    digest = layout.digest(blocks)
    index = data.draw(st.integers(0, len(layout.shapes) - 1))
    shape = layout.shapes[index]
    variants = [replace(shape, name=f"{shape.name}-")]
    for position, tensor in enumerate(shape.tensors):
        for other in (replace(tensor, name=f"{tensor.name}-"), replace(tensor, shape=(*tensor.shape, 1))):
            tensors = (*shape.tensors[:position], other, *shape.tensors[position + 1 :])
            variants.append(replace(shape, tensors=tensors))
    for variant in variants:
        other_layout = Layout((*layout.shapes[:index], variant, *layout.shapes[index + 1 :]))
        same_values = dict(zip(other_layout.names, blocks.values(), strict=True))
        assert other_layout.digest(same_values) != digest


def test_the_digest_sees_where_one_block_ends_and_the_next_begins() -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    early = Layout((block("a", (1,)), block("b", (3,))))
    late = Layout((block("a", (3,)), block("b", (1,))))
    assert early.digest(early.unflatten(raw)) != late.digest(late.unflatten(raw))


# --- differences are named --------------------------------------------------------------------------------------


def test_another_set_of_blocks_is_named() -> None:
    with pytest.raises(LayoutMismatchError, match=r"^north has blocks body; expected body, head$"):
        LAYOUT.require(LAYOUT.select(["body"]), who="north")
    with pytest.raises(LayoutMismatchError, match=r"^north has blocks \(none\); expected body, head$"):
        LAYOUT.require(Layout(()), who="north")


def test_the_first_block_of_another_shape_is_named() -> None:
    other = Layout((block("body", (3, 2), (2,)), block("head", (5,))))
    expected = r"^block 'body' of north has shapes t0\[3, 2\], t1\[2\]; expected t0\[2, 3\], t1\[2\]$"
    with pytest.raises(LayoutMismatchError, match=expected):
        LAYOUT.require(other, who="north")


def test_a_layout_requires_itself() -> None:
    LAYOUT.require(Layout(LAYOUT.shapes), who="north")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"body": np.zeros(8, "<f4")}, r"^blocks body; expected body, head$"),
        ({"head": np.zeros(4, "<f4"), "body": np.zeros(8, "<f4")}, r"^blocks head, body; expected body, head$"),
        ({"body": np.zeros(7, "<f4"), "head": np.zeros(4, "<f4")}, r"'body' is float32\[7\]; expected float32\[8\]"),
        ({"body": np.zeros(8, "<f4"), "head": np.zeros(4, "<f8")}, r"'head' is float64\[4\]; expected float32\[4\]"),
        ({"body": np.zeros(8, "<f4"), "head": np.zeros(4, ">f4")}, r"'head' is >f4\[4\]; expected float32\[4\]"),
        ({"body": np.zeros(8, "<f4"), "head": np.zeros((2, 2), "<f4")}, r"'head' is float32\[2, 2\]; expected"),
    ],
)
def test_blocks_that_do_not_fit_are_named(wrong: dict[str, Vector], message: str) -> None:
    for use in (LAYOUT.check, LAYOUT.flatten, LAYOUT.digest):
        with pytest.raises(LayoutMismatchError, match=message):
            use(wrong)


def test_a_missing_or_misshapen_tensor_is_named() -> None:
    tensors = LAYOUT.tensors(values())
    with pytest.raises(LayoutMismatchError, match=r"^tensor 'body/t1' is missing$"):
        LAYOUT.join({key: tensor for key, tensor in tensors.items() if key != "body/t1"})
    with pytest.raises(LayoutMismatchError, match=r"^tensor 'body/t0' is \(3, 2\); expected \(2, 3\)$"):
        LAYOUT.join({**tensors, "body/t0": tensors["body/t0"].T})


def test_an_unknown_block_is_named_beside_those_there_are() -> None:
    with pytest.raises(LayoutMismatchError, match=r"no block 'tail'; it has body, head$"):
        LAYOUT["tail"]
    with pytest.raises(LayoutMismatchError, match="no block 'tail'"):
        LAYOUT.select(["body", "tail"])


def test_select_keeps_the_order_of_the_layout() -> None:
    assert LAYOUT.select(["head", "body"]).names == ("body", "head")
    assert LAYOUT.select([]).names == ()


def test_two_blocks_of_one_name_are_refused() -> None:
    with pytest.raises(LayoutMismatchError, match="same name"):
        Layout((block("a", (1,)), block("a", (2,))))
