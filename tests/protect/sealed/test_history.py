"""Rows that take turns over the rounds, while values hardly change: what they give away, and who stops it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError, ReleaseRefusedError, SignatureError
from secure_fl.protect.release.combinations import check_rows, rescaled, servable, steady
from secure_fl.protect.release.history import OpenedRow
from secure_fl.rpc.protect_cohort_pb2 import Roster
from secure_fl.rpc.protect_sealed_pb2 import SealedOpening
from tests.protect.cohorts import context, contribution, layout
from tests.protect.sealed.table import Table, edited, reworded

SIZE = 300
NAMES = tuple(f"n{index}" for index in range(8))
HONEST = NAMES[1:]
# Lines of the Fano plane: any two have one node in common, and all seven are independent.
LINES = ((1, 2, 3), (1, 4, 5), (1, 6, 7), (2, 4, 6), (2, 5, 7), (3, 4, 7), (3, 5, 6))
ROWS = [{"n0": 16, **{f"n{index}": 16 for index in line}} for line in LINES]
PASS = 2  # so many of them, one after the other, say little enough

Values = Mapping[str, npt.NDArray[np.int32]]


def drifting(rounds: int) -> list[Values]:
    """Everybody's values in every round: one fifth of what lasts is added anew each time."""
    dice = np.random.default_rng(5)
    lasting = {name: dice.normal(0, 6000, SIZE) for name in NAMES}
    return [
        {name: (x + dice.normal(0, 1200, SIZE)).clip(-32000, 32000).astype(np.int32) for name, x in lasting.items()}
        for _ in range(rounds)
    ]


def round_of(number: int, values: Values, row: Mapping[str, int], **settings: Any) -> Table:
    """A round in which n0 asks for `row`, and nobody for anything else."""
    about = replace(context(*NAMES, blocks=layout(body=SIZE), kind=RequestKind.COMBINE, min_cohort=4), round=number)
    everybody = {name: contribution(64, row if name == "n0" else {}, body=values[name].tolist()) for name in NAMES}
    return Table(about, everybody, **settings)


def opened_at_n0(table: Table) -> npt.NDArray[np.float64] | None:
    table.until("deliver").play()
    opened = table.nodes["n0"].combination()
    return opened["body"].total.astype(np.float64) if opened else None


def best_estimates(rows: Sequence[Mapping[str, int]], seen: Sequence[npt.NDArray[np.float64]]) -> dict[str, float]:
    """How the least-squares estimate of each node's values correlates with those of the last round."""
    named = [name for name in HONEST if any(name in row for row in rows)]
    weights = np.array([[row.get(name, 0) for name in named] for row in rows], np.float64)
    guessed = np.linalg.lstsq(weights, np.array(seen), rcond=None)[0]
    truth = drifting(len(rows))[-1]
    return {name: float(np.corrcoef(guess, truth[name])[0, 1]) for name, guess in zip(named, guessed, strict=True)}


def test_taking_turns_gives_everybody_away_where_nobody_remembers() -> None:
    rounds = drifting(len(ROWS))
    seen = []
    for number, (values, row) in enumerate(zip(rounds, ROWS, strict=True), 1):
        combination = opened_at_n0(round_of(number, values, row))
        assert combination is not None
        seen.append(combination - row["n0"] * values["n0"])  # n0 knows its own
    assert min(best_estimates(ROWS, seen).values()) > 0.9


def test_holders_remember_and_refuse_whatever_the_coordinator_says() -> None:
    rounds = drifting(len(ROWS))
    earlier: list[OpenedRow] = []
    seen = []
    for number, (values, row) in enumerate(zip(rounds[:PASS], ROWS, strict=False), 1):
        table = round_of(number, values, row, earlier=earlier, reckless=True)
        combination = opened_at_n0(table)
        assert combination is not None
        seen.append(combination - row["n0"] * values["n0"])
        earlier.append(("n0", row))
        assert all(memory.earlier() == earlier for memory in table.memories.values())
    # What was opened says no more than the guard's bound of a half: a correlation of 0.71, and of 300 values 0.06.
    assert max(best_estimates(ROWS[:PASS], seen).values()) < 0.5**0.5 + 0.06

    table = round_of(PASS + 1, rounds[PASS], ROWS[PASS], earlier=earlier, reckless=True).until("open")
    for holder in NAMES:
        refused = table.refuses(holder, table.asked[holder], ReleaseRefusedError)
        assert (refused.rule, refused.coalition) == ("history", ("n0",))


def test_holders_know_what_others_opened() -> None:
    """A coordinator that asks other holders every time: each of them saw one row at most, and all refuse the third."""
    earlier: list[OpenedRow] = [("n0", row) for row in ROWS[:PASS]]
    memories = {name: earlier[index % 2 : index % 2 + 1] for index, name in enumerate(NAMES)}
    values = drifting(1)[0]
    told = {"earlier": earlier, "memories": memories, "reckless": True}
    table = round_of(PASS + 1, values, ROWS[PASS], **told).until("open")
    for holder in NAMES:
        assert table.refuses(holder, table.asked[holder], ReleaseRefusedError).rule == "history"

    def other_rows(opening: SealedOpening) -> None:
        for row in opening.earlier:
            row.row["n1"] += 1

    for change in (lambda opening: opening.ClearField("earlier"), other_rows):
        table = round_of(PASS + 1, values, ROWS[PASS], **told).until("open")
        message = edited(SealedOpening, table.asked["n1"], change)
        assert "not shown" in str(table.refuses("n1", message, ProtectionError))
    # Whoever left would have told, and is not here to: the others have seen the first row only.
    alone = dict.fromkeys(NAMES, earlier[:1])
    table = round_of(PASS + 1, values, ROWS[PASS], earlier=earlier, memories=alone, reckless=True).until("open")
    assert table.tell("n1", table.asked["n1"])


def test_nobody_takes_back_what_it_opened() -> None:
    """A manifest is signed with its hashes, and one that says what never was costs its sender only."""
    earlier: list[OpenedRow] = [("n0", ROWS[0])]
    table = round_of(2, drifting(1)[0], ROWS[0], earlier=earlier).until("upload")
    roster = edited(Roster, table.asked["n1"], lambda roster: reworded(roster.manifests[2], opened=None))
    table.refuses("n1", roster, SignatureError)
    table = round_of(2, drifting(1)[0], ROWS[0], memories={"n3": [("n0", ROWS[5])]})
    with pytest.raises(ProtectionError, match="not shown"):
        table.until("upload")


def test_an_honest_coordinator_leaves_the_row_out_and_serves_the_others() -> None:
    earlier = [("n0", row) for row in ROWS[:PASS]]
    rows = {"n0": ROWS[PASS], "n1": {"n1": 16, "n2": 16, "n3": 16, "n4": 16}}
    assert servable(rows, nodes=NAMES, colluders=1, earlier=earlier).keys() == {"n1"}
    table = round_of(PASS + 1, drifting(1)[0], ROWS[PASS], earlier=earlier).until("row")
    sent = table.play()
    assert sent is not None
    assert sent.recipients == ()  # n0's was the only row


def test_nothing_is_opened_where_what_was_opened_is_too_much_by_itself() -> None:
    earlier = [("n0", row) for row in ROWS]
    assert servable({"n1": {"n1": 16, "n2": 16, "n3": 16, "n4": 16}}, nodes=NAMES, colluders=1, earlier=earlier) == {}


def test_the_same_row_may_be_opened_in_every_round() -> None:
    report = check_rows({"n0": ROWS[0]}, nodes=NAMES, colluders=1, earlier=[("n0", ROWS[0])])
    assert report.history_leverage == Fraction(1, 3)


def test_sites_that_left_count_in_what_was_opened() -> None:
    """n7 is gone, but what was opened with it is not forgotten."""
    row = {"n0": 16, "n1": 16, "n2": 16, "n3": 16}
    instead = {"n0": 16, "n1": 16, "n2": 16, "n7": 16}
    check_rows({"n0": row}, nodes=NAMES[:-1], colluders=1)
    with pytest.raises(ReleaseRefusedError, match="history"):
        check_rows({"n0": row}, nodes=NAMES[:-1], colluders=1, earlier=[("n0", instead)])


Row = Mapping[str, int]


def wanted(row: Row, asked: Sequence[Row], uploaded: Sequence[str] = NAMES) -> Row:
    return steady(row, me="n0", uploaded=uploaded, colluders=1, asked=asked)


def test_a_recipient_asks_for_its_last_row_again_rather_than_for_one_that_is_refused() -> None:
    assert wanted(ROWS[0], []) == ROWS[0]
    assert wanted({}, ROWS[:1]) == {}
    asked: list[Row] = []
    for row in ROWS:
        asked.append(wanted(row, asked))
    assert asked == ROWS[:PASS] + [ROWS[PASS - 1]] * (len(ROWS) - PASS)  # it settled


def test_a_change_that_is_spread_over_many_peers_is_possible_once() -> None:
    low, high = (dict(zip(NAMES, weights, strict=True)) for weights in ([8] * 8, [8, 7, 9, 7, 9, 7, 9, 8]))
    assert wanted(high, [low]) == high
    third = dict(zip(NAMES, [8, 9, 9, 7, 7, 8, 8, 8], strict=True))
    assert wanted(third, [low, high]) == high


def test_where_a_peer_of_its_last_row_is_missing_it_asks_for_the_one_before_or_for_nothing() -> None:
    asked = ROWS[:2]
    assert wanted(ROWS[6], asked) == ROWS[1]
    assert wanted(ROWS[6], asked, [name for name in NAMES if name != "n4"]) == ROWS[0]
    assert wanted(ROWS[6], asked, [name for name in NAMES if name != "n1"]) == {}


def test_a_row_that_is_refused_for_what_it_is_goes_to_the_coordinator_as_it_is() -> None:
    """Too few peers are no matter of history: nothing is opened, and the site keeps its own model."""
    few = {"n0": 32, "n1": 32}
    assert wanted(few, ROWS[:1]) == few


def test_a_row_is_the_same_row_in_a_round_with_another_total() -> None:
    assert rescaled({"a": 30, "b": 34}, 128) == {"a": 60, "b": 68}
    assert rescaled({"a": 60, "b": 68}, 64) == {"a": 30, "b": 34}
    assert rescaled({"a": 61, "b": 67}, 64) == {}
    larger = {name: 2 * weight for name, weight in ROWS[PASS].items()}
    assert wanted(larger, ROWS[:PASS]) == {name: 2 * weight for name, weight in ROWS[PASS - 1].items()}


def test_whoever_changes_its_mind_goes_first_where_two_may_collude() -> None:
    names = tuple(f"n{index}" for index in range(10))
    even = dict(zip(names, (7, 7, 7, 7, 6, 6, 6, 6, 6, 6), strict=True))
    settled = {"n8": even, "n9": even}
    assert servable(settled, nodes=names, colluders=2).keys() == settled.keys()
    odd = {**even, "n2": 8, "n3": 6}
    served = servable({**settled, "n0": odd}, nodes=names, colluders=2, earlier=list(settled.items()))
    assert served == settled
