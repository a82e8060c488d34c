"""What a run says while circles do not wait for each other, and what `study status` says of such a study."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from secure_fl.api import progress as shown_progress
from secure_fl.api.progress import NotebookProgress
from secure_fl.cli import status_text
from secure_fl.cli.run import _print
from secure_fl.events import Answered, Event, RoundCommitted, RoundStarted, RoundVoid, SatOut, TurnBegun
from secure_fl.results.record import CircleRound, NodeRound, RoundRecord, StudyRecord
from secure_fl.results.summary import summarise
from secure_fl.results.turns import circle_turns
from secure_fl.rounds import RoundKind
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.simulation.narrator import describe_round
from secure_fl.simulation.progress import RunProgress
from secure_fl.simulation.turn_progress import TurnsUnderWay, standing
from secure_fl.study.settings import Study
from secure_fl.study.simulated import simulated_names

NAMES = tuple(simulated_names(8))
FIRST, SECOND = NAMES[:4], NAMES[4:]


def begun(sites: tuple[str, ...], turn: int, *, version: int, attempt: int = 1) -> TurnBegun:
    return TurnBegun(study_id="s", turn=turn, attempt=attempt, version=version, sites=sites)


def answered(node: str) -> Answered:
    return Answered(study_id="s", round=1, phase="advertise", node=node)


def version(number: int, *turns: CircleRound) -> RoundRecord:
    nodes = tuple(NodeRound(name=name, outcome="took part", bytes_up=1000) for turn in turns for name in turn.members)
    return RoundRecord(
        number=number, kind=RoundKind.TRAIN, attempts=1, seconds=2.0, nodes=nodes, circles=turns, mean_accuracy=0.5
    )


def turn(sites: tuple[str, ...], number: int, base: int, age: int) -> CircleRound:
    return CircleRound(members=sites, opened=True, turn=number, base=base, staleness=age, seconds=4.0)


def test_a_version_says_whose_turns_it_is_made_of_and_how_old_they_were() -> None:
    line = describe_round(version(7, turn(SECOND, 4, 6, 0)), planned=20, buffered=True)
    assert line.startswith("version   7/20  turn 4 of the circle of site-05, from the newest version  ↑ 4.0 kB")
    assert line.endswith("accuracy 0.5000 (of version 6)")
    both = version(9, turn(FIRST, 2, 3, 5), turn(SECOND, 5, 7, 1))
    line = describe_round(both, planned=20, buffered=True)
    assert "turn 2 of the circle of site-01, 5 versions old; turn 5 of the circle of site-05, 1 version old" in line
    assert line.endswith("(of version 3 and 7)")
    closing = replace(version(10), kind=RoundKind.EVALUATE)
    assert describe_round(closing, planned=9, buffered=True).endswith("(after version 9)")
    assert "cohort 4/4" in describe_round(replace(both, circles=(), nodes=both.nodes[:4]), planned=20)


def test_for_whom_each_circle_waits_is_said() -> None:
    turns = TurnsUnderWay()
    assert str(turns) == ""
    turns.begun(begun(FIRST, 3, version=9))
    turns.begun(begun(SECOND, 8, version=12))
    assert str(turns) == (
        "the circle of site-01 trains (turn 3, from version 9); the circle of site-05 trains (turn 8, from version 12)"
    )
    turns.answered(answered(FIRST[0]))
    assert "the circle of site-01 waits for 3 of its 4 sites" in str(turns)
    for name in (FIRST[2], FIRST[3], *SECOND):
        turns.answered(answered(name))
    assert str(turns) == (
        "the circle of site-01 waits for site-02 (turn 3, from version 9); "
        "the circle of site-05 has trained (turn 8, from version 12)"
    )
    turns.committed(version(13, turn(SECOND, 8, 12, 0)))
    assert str(turns) == "the circle of site-01 waits for site-02 (turn 3, from version 9)"
    void = RoundVoid(study_id="s", round=3, attempt=1, reason="StaleTurn")
    assert turns.failed(void) == "turn 3 of the circle of site-01, attempt 1: StaleTurn"
    assert turns.failed(replace(void, attempt=2)) == "turn 3, attempt 2: StaleTurn"
    for index in range(5):
        turns.begun(begun((f"site-{index}",), 1, version=0))
    assert str(turns).endswith("; and 3 more circles")


def test_a_run_speaks_of_turns_and_versions(capsys: pytest.CaptureFixture[str]) -> None:
    heard: tuple[Event, ...] = (
        RoundStarted(study_id="s", round=1, attempt=1, kind=RoundKind.TRAIN, invited=4),
        begun(FIRST, 1, version=0),
        SatOut(study_id="s", round=1, node=FIRST[1], reason="NotReady"),
        RoundVoid(study_id="s", round=1, attempt=1, reason="CohortTooSmall"),
        begun(FIRST, 1, version=0, attempt=2),
        *(answered(name) for name in FIRST),
        RoundCommitted(study_id="s", record=version(1, turn(FIRST, 1, 0, 0))),
    )
    with RunProgress(rounds=4, quiet=False, buffered=True) as progress:
        for event in heard:
            progress.listen(event)
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert said[0] == "site-02 sits turn 1 out: NotReady"
    assert said[1] == "turn 1 of the circle of site-01, attempt 1: CohortTooSmall"
    assert said[2].startswith("version   1/4  turn 1 of the circle of site-01, from the newest version")
    assert len(said) == 3


def test_turns_that_were_left_are_not_shown_beside_the_closing_evaluation() -> None:
    with RunProgress(rounds=1, quiet=False, buffered=True) as progress:
        (bar,) = progress._progress.tasks
        progress.listen(begun(FIRST, 1, version=0))
        progress.listen(begun(SECOND, 1, version=0))
        progress.listen(RoundCommitted(study_id="s", record=version(1, turn(SECOND, 1, 0, 0))))
        progress.listen(answered(SECOND[0]))
        assert bar.description == "the circle of site-01 trains (turn 1, from version 0)"
        progress.listen(RoundStarted(study_id="s", round=2, attempt=1, kind=RoundKind.EVALUATE, invited=8))
        for name in NAMES:
            progress.listen(replace(answered(name), round=2))
            assert bar.description == "closing evaluation"


def test_a_cell_of_a_notebook_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """What a circle does now, beside the bar; and what has happened, line by line."""
    cells: list[Any] = []

    class Output:
        def update(self, cell: Any) -> None:
            cells.append(repr(cell))

    def display(cell: Any, *, display_id: bool) -> Output:
        cells.append(repr(cell))
        return Output()

    progress = NotebookProgress(rounds=4, display=display, buffered=True)
    progress.listen(begun(FIRST, 1, version=0))
    assert cells[-1].splitlines() == ["░" * 30 + " 0/4  the circle of site-01 trains (turn 1, from version 0)"]
    progress.listen(answered(FIRST[0]))
    assert "waits for 3 of its 4 sites" in cells[-1]
    progress.listen(RoundVoid(study_id="s", round=1, attempt=1, reason="CohortTooSmall"))
    progress.listen(RoundCommitted(study_id="s", record=version(1, turn(FIRST, 1, 0, 0))))
    bar, failed, made = cells[-1].splitlines()
    assert " 1/4" in bar
    assert failed == "turn 1 of the circle of site-01, attempt 1: CohortTooSmall"
    assert made.startswith("version   1/4  turn 1 of the circle of site-01")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("notebook", [True, False])
@pytest.mark.parametrize(
    ("unit", "said"),
    [("circle", "the circle of site-01 waits for 3 of its 4 sites (turn 1"), ("site", "version 1: 1 site has joined")],
    ids=["circles", "sites"],
)
def test_what_is_shown_of_a_study_is_in_the_words_of_its_own_rounds(
    monkeypatch: pytest.MonkeyPatch, unit: str, said: str, notebook: bool
) -> None:
    def display(_cell: Any, *, display_id: bool) -> None:
        """A cell that nobody sees."""

    monkeypatch.setattr(shown_progress, "_notebook_display", lambda: display if notebook else None)
    study = Study.parse({"study": {"rounds": 9}, "rounds": {"mode": "buffered", "unit": unit}})
    with shown_progress.shown(study, progress=True) as listener:
        listener(begun(FIRST, 1, version=0))
        listener(answered(FIRST[0]))
        shown: Any = getattr(listener, "__self__", None)
        assert said in (repr(shown) if notebook else shown._progress.tasks[0].description)


def test_a_run_of_single_sites_says_how_many_have_joined_the_next_version(capsys: pytest.CaptureFixture[str]) -> None:
    begins = RoundStarted(study_id="s", round=1, attempt=1, kind=RoundKind.TRAIN, invited=8)
    flushed = version(1, *(turn((name,), 1, 0, 0) for name in FIRST[:3]))
    with RunProgress(rounds=4, quiet=False, buffered=True, by_sites=True) as progress:
        (bar,) = progress._progress.tasks
        progress.listen(begins)
        assert bar.description == "version 1"
        for name in (*FIRST[:3], FIRST[0]):  # Every site answers once for each phase.
            progress.listen(answered(name))
        assert bar.description == "version 1: 3 sites have joined"
        progress.listen(RoundCommitted(study_id="s", record=flushed))
        progress.listen(replace(begins, round=2))
        progress.listen(replace(answered(FIRST[0]), round=2))
        assert bar.description == "version 2: 1 site has joined"
    assert "version   1/4  3 sites" in capsys.readouterr().err


def record_of(*rounds: RoundRecord, mode: str = "buffered") -> StudyRecord:
    roster = {name: f"{index:064x}" for index, name in enumerate(NAMES)}
    study = Study.parse({"study": {"rounds": 9, "roster": roster}, "rounds": {"mode": mode, "flushes": 20}})
    return StudyRecord(
        study="s", study_id=study.id, task="digits", strategy="fedavg", protection="masked", planned_rounds=20,
        roster=NAMES, rounds=rounds, settings=study.canonical().decode(), circles=(FIRST, SECOND),
    )  # fmt: skip


def test_status_says_where_each_circle_is_and_who_is_missing() -> None:
    record = record_of(version(1, turn(SECOND, 1, 0, 0)), version(2, turn(SECOND, 2, 1, 0)))
    assert standing(record, absent=[FIRST[2], FIRST[3]]) == [
        "the circle of site-01 (4 sites): 0 of at most 9 turns; waits for site-03, site-04",
        "the circle of site-05 (4 sites): 2 of at most 9 turns, the last in version 2, on average 0.0 versions old",
    ]
    ended = replace(record, outcome="finished")
    assert not any("waits" in line for line in standing(ended, absent=NAMES))
    assert standing(record_of(mode="sync"), absent=[]) == []


def test_study_status_has_a_line_for_each_circle(capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(version(1, turn(SECOND, 1, 0, 0)))
    sites = [pb.SiteStatus(name=name, connected=name != FIRST[2], accepted=name != FIRST[3]) for name in NAMES]
    said = pb.StudyStatus(
        name="s", study_id=record.study_id, state="running", rounds_done=1, rounds_planned=20, sites=sites,
        record=json.dumps(asdict(record)).encode(),
    )  # fmt: skip
    status_text.tell(said)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  running, 1 of 20 versions"
    assert lines[2:4] == [
        "  the circle of site-01 (4 sites): 0 of at most 9 turns; waits for site-03, site-04",
        "  the circle of site-05 (4 sites): 1 of at most 9 turns, the last in version 1, on average 0.0 versions old",
    ]


def test_a_circle_that_is_never_heard_is_shown_with_what_was_dropped() -> None:
    late = replace(turn(FIRST, 1, 0, 9), opened=False, reason="StaleTurn")
    entry = replace(version(2, turn(SECOND, 2, 1, 0)), circles=(turn(SECOND, 2, 1, 0), late))
    record = record_of(version(1, turn(SECOND, 1, 0, 0)), entry)
    first, second = circle_turns(record)
    assert (first.members, first.turns, first.dropped, first.share, first.oldest) == (FIRST, 0, 1, 0.0, None)
    assert (second.members, second.turns, second.dropped, second.share) == (SECOND, 2, 0, 1.0)
    line = describe_round(entry, planned=20, buffered=True)
    assert "turn 2 of the circle of site-05, from the newest version" in line
    assert line.endswith("(of version 1)  dropped: turn 1 of the circle of site-01")
    assert "0 of at most 9 turns; 1 dropped" in standing(record, absent=[])[0]
    assert [circle["dropped"] for circle in summarise(record, engine="threads", seconds=1.0, report="")["circles"]] == [
        1,
        0,
    ]


def test_a_turn_that_began_after_another_was_dropped_is_still_shown() -> None:
    turns = TurnsUnderWay()
    turns.begun(begun(FIRST, 1, version=0))
    turns.begun(begun(FIRST, 2, version=9))
    late = replace(turn(FIRST, 1, 0, 9), opened=False, reason="StaleTurn")
    turns.committed(replace(version(10), circles=(late,)))
    assert "turn 2, from version 9" in str(turns)


def test_a_summary_counts_the_turns_of_circles() -> None:
    record = record_of(version(1, turn(SECOND, 1, 0, 0)), version(2, turn(FIRST, 1, 0, 1), turn(SECOND, 2, 1, 0)))
    found = summarise(record, engine="threads", seconds=1.0, report="")["circles"]
    assert [circle["sites"] for circle in found] == [list(FIRST), list(SECOND)]
    assert [(circle["turns"], circle["mean_staleness"], circle["largest_staleness"]) for circle in found] == [
        (1, 1.0, 1),
        (2, 0.0, 0),
    ]
    assert [circle["share"] for circle in found] == pytest.approx([1 / 3, 2 / 3])
    assert summarise(record_of(), engine="threads", seconds=1.0, report="")["circles"] is None


def test_single_sites_are_named_where_their_work_is_old() -> None:
    late = version(3, turn(("site-01",), 3, 2, 0), turn(("site-02",), 1, 0, 2), turn(("site-03",), 2, 1, 1))
    said = describe_round(late, planned=4, buffered=True)
    assert said.startswith("version   3/4  3 sites, site-02 2 versions old, site-03 1 version old")


def test_sites_of_whom_nothing_is_in_the_model_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    node: dict[str, Any] = {
        "samples": 9, "accuracy": 0.5, "loss": 1.0, "metrics": {}, "epsilon": None, "bytes_up": 1, "bytes_down": 1,
        "rounds_taken": 1, "dropped": 0,
    }  # fmt: skip
    nodes = [{"name": name, **node} for name in "abcd"]
    summary: dict[str, Any] = {
        "study": "s", "engine": "threads", "strategy": "fedbuff", "protection": "masked",
        "mean_mse": None, "mean_accuracy": 0.5,
        "std_accuracy": 0.1, "global_accuracy": 0.5, "metrics": {}, "nodes": nodes, "rounds": 2, "seconds": 1.0,
        "combinations_opened": 0, "combinations_possible": 0, "blocks_never_opened": [], "report": "r",
        "circles": [{"sites": ["a", "b"], "turns": 2}],
    }  # fmt: skip
    _print(summary)
    assert "nothing of c, d is in the model" in capsys.readouterr().out
    _print({**summary, "circles": [{"sites": ["a", "b"]}, {"sites": ["c", "d"]}]})
    assert "nothing of" not in capsys.readouterr().out
    _print({**summary, "circles": None})
    assert "nothing of" not in capsys.readouterr().out
