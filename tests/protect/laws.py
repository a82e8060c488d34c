"""What the property tests of this package have in common."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector

# No deadline: the machines that run the tests are shared, and a slow example is not a wrong one.
law = settings(deadline=None, max_examples=60)
few = settings(deadline=None, max_examples=20)

names = st.text("abcxyz_.0", min_size=1, max_size=5).filter(lambda name: name[0] not in "_." and ".." not in name)
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, *, least: int = 0) -> Layout:
    """Up to four blocks of up to three tensors, empty ones among them."""
    return Layout(
        tuple(
            BlockShape(
                name=block,
                tensors=tuple(
                    TensorShape(name=tensor, shape=draw(shapes))
                    for tensor in draw(st.lists(names, unique=True, max_size=3))
                ),
            )
            for block in draw(st.lists(names, unique=True, min_size=least, max_size=4))
        )
    )


@st.composite
def models(draw: st.DrawFn, *, least: int = 0) -> tuple[Layout, dict[str, Vector]]:
    """A layout and values for it: any bit pattern, NaN included."""
    layout = draw(layouts(least=least))
    raw = draw(st.binary(min_size=4 * layout.size, max_size=4 * layout.size))
    return layout, layout.unflatten(raw)
