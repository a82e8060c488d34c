"""The guard against the definitions by brute force, and laws that hold for every matrix."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from secure_fl.errors import ReleaseRefusedError
from secure_fl.protect.release.guard import ReleaseReport, check_release
from secure_fl.protect.release.guard_rows import OpenedAt, Opening
from tests.protect.laws import few, law
from tests.protect.release import guard_oracle as oracle

weight = st.integers(0, 5) | st.integers(1, 3)


@st.composite
def matrices(draw: st.DrawFn, *, nodes: int | None = None, least: int = 4, most: int = 5) -> list[list[int]]:
    columns = nodes or draw(st.integers(least, most))
    row = st.lists(weight, min_size=columns, max_size=columns) | st.just([1] * columns)
    return draw(st.lists(row, min_size=1, max_size=3))


@st.composite
def releases(draw: st.DrawFn) -> tuple[list[list[int]], OpenedAt, list[int] | None, list[list[int]], int]:
    """Rows, where they are opened, their recipients, public rows, colluders."""
    weights = draw(matrices())
    nodes = len(weights[0])
    colluders = draw(st.integers(0, 2))
    if draw(st.booleans()):
        return weights, "coordinator", None, draw(st.just([]) | matrices(nodes=nodes)), colluders
    recipients = draw(st.lists(st.integers(0, nodes - 1), min_size=len(weights), max_size=len(weights)))
    for row, recipient in zip(weights, recipients, strict=True):
        row[recipient] = max(1, row[recipient])
    return weights, "recipients", recipients, draw(st.just([]) | matrices(nodes=nodes)), colluders


def verdict(weights: list[list[int]], **settings: object) -> ReleaseReport | ReleaseRefusedError:
    try:
        return check_release(weights, **settings)  # type: ignore[arg-type]
    except ReleaseRefusedError as refused:
        return refused


@law
@given(releases(), st.sampled_from(["0.3", "0.5", "0.8", "1"]), st.sampled_from([None, 2, 3, 5, 4294955009]))
def test_the_verdict_is_that_of_the_definitions(
    release: tuple[list[list[int]], OpenedAt, list[int] | None, list[list[int]], int], tau: str, modulus: int | None
) -> None:
    weights, opened_at, recipients, public, colluders = release
    nodes = len(weights[0])
    settings = {
        "colluders": colluders, "tau": tau, "opened_at": opened_at, "recipients": recipients, "modulus": modulus,
        "public_rows": np.array(public, dtype=np.int64).reshape(-1, nodes),
    }  # fmt: skip
    found = verdict(weights, **settings)
    rows = [*weights, *public]
    everybody: list[int | None] = [None] * len(rows)
    owners = [*(recipients or everybody[: len(weights)]), *everybody[: len(public)]]
    if not all(oracle.supported(row, owner, colluders) for row, owner in zip(rows, owners, strict=True)):
        assert isinstance(found, ReleaseRefusedError)
        assert found.rule == "support"
        return
    members = colluders if recipients is None else max(1, colluders)
    views = oracle.views(rows, owners, members)
    leverages = {(view.coalition, view.node): view.leverage() for view in views}
    worst = max(leverages.values())
    assert any(view.in_span() for view in views) == (worst == 1)
    if worst > Fraction(tau) or worst == 1:
        assert isinstance(found, ReleaseRefusedError)
        assert found.rule == ("span" if worst == 1 else "leverage")
        assert leverages[found.coalition, found.node] == worst  # type: ignore[index]
    elif modulus is not None and any(view.in_span(modulus) for view in views):
        assert isinstance(found, ReleaseRefusedError)
        assert found.rule == "span"
        (view,) = [view for view in views if (view.coalition, view.node) == (found.coalition, found.node)]
        assert view.in_span(modulus)
    else:
        assert isinstance(found, ReleaseReport)
        assert found.leverage == worst == leverages[found.coalition, found.node]  # type: ignore[index]
        assert found.coalitions == len({view.coalition for view in views})


@few
@given(st.data(), st.integers(0, 1), st.booleans())
def test_history_is_one_stack_of_rows(data: st.DataObject, colluders: int, public: bool) -> None:
    nodes = 4
    rows = st.lists(st.integers(1, 3), min_size=nodes, max_size=nodes)
    matrices = [
        data.draw(st.lists(rows, min_size=1, max_size=2) if public else st.lists(rows, min_size=4, max_size=4))
        for _ in range(data.draw(st.integers(2, 3)))
    ]
    opened_at: OpenedAt = "coordinator" if public else "recipients"
    owners: list[int | None] = [
        owner for matrix in matrices for owner in ([None] * len(matrix) if public else range(4))
    ]
    views = oracle.views([row for matrix in matrices for row in matrix], owners, colluders if public else 1)
    worst = max(view.leverage() for view in views)
    found = verdict(matrices[0], colluders=colluders, tau=1, opened_at=opened_at, history=matrices[1:])
    if isinstance(found, ReleaseRefusedError) and found.rule != "history":
        return
    assert isinstance(found, ReleaseRefusedError) == (worst == 1)
    if isinstance(found, ReleaseReport):
        assert found.history_leverage == worst >= found.leverage


def largest(weights: np.ndarray, **settings: object) -> Fraction:
    """The largest leverage, where only the span may refuse: that is 1."""
    try:
        return check_release(weights, tau=1, **settings).leverage  # type: ignore[arg-type]
    except ReleaseRefusedError as refused:
        assume(refused.rule == "span")
        return Fraction(1)


dense = st.integers(1, 4)


@st.composite
def squares(draw: st.DrawFn) -> np.ndarray:
    nodes = draw(st.integers(4, 7))
    values = draw(st.lists(dense, min_size=nodes * nodes, max_size=nodes * nodes))
    return np.array(values).reshape(nodes, nodes)


@law
@given(squares(), st.randoms(use_true_random=False))
def test_who_is_listed_first_does_not_matter(square: np.ndarray, dice: object) -> None:
    order = list(range(len(square)))
    dice.shuffle(order)  # type: ignore[attr-defined]
    shuffled = square[np.ix_(order, order)]
    assert largest(shuffled, colluders=1) == largest(square, colluders=1)
    sums = square[: len(square) // 2]
    opened = {"colluders": 1, "opened_at": "coordinator"}
    assert largest(sums[::-1][:, order], **opened) == largest(sums, **opened)


@law
@given(squares(), st.lists(st.integers(1, 9), min_size=7, max_size=7))
def test_the_scale_of_a_row_does_not_matter(square: np.ndarray, scales: list[int]) -> None:
    scaled = square * np.array(scales[: len(square)])[:, None]
    assert largest(scaled, colluders=1) == largest(square, colluders=1)


@law
@given(squares(), st.integers(1, 2))
def test_one_more_row_and_one_more_colluder_never_hide_anything(square: np.ndarray, colluders: int) -> None:
    public = np.ones((1, len(square)), dtype=np.int64)
    alone = largest(square, colluders=1)
    assert alone <= largest(square, colluders=1, public_rows=public)
    sums = {"colluders": 1, "opened_at": "coordinator"}
    assert largest(square[:1], **sums) <= largest(square[:2], **sums)
    if len(square) > 4:
        assert alone <= largest(square, colluders=2)


def test_the_oracle_can_tell() -> None:
    (view,) = [view for view in oracle.views([[1, 1, 1]], [None], 1) if view.node == 2 and view.coalition == (0,)]
    assert view.leverage() == Fraction(1, 2)
    assert not view.in_span()
    assert oracle.rank([[1, 1], [1, 3]]) == 2
    assert oracle.rank([[1, 1], [1, 3]], 2) == 1


def test_an_opening_of_another_kind_counts_as_history() -> None:
    earlier = Opening(weights=[[1, 1, 1, 1]], opened_at="coordinator")
    report = check_release(np.ones((4, 4), dtype=np.int64), colluders=1, history=[earlier])
    assert report.history_leverage == Fraction(1, 3)
