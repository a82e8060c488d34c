"""Kill −9 between reserve and send never counts too little, and a limit stops a site at exactly the right round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from node.kept import KeptUpdate
from node.training.jobs import Job
from secure_fl.privacy.audit import examine
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.privacy.spending import Plan, spent
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from tests.coordinator.test_declarations import SETTINGS as CELLS
from tests.coordinator.test_declarations import Depth
from tests.faults.test_kill import wait_for
from tests.support.budgets import (
    DELTA,
    PRIVACY,
    Counting,
    check_books,
    computed,
    counted,
    enough_for,
    entries_of,
    plan_of,
    plans_of,
)
from tests.support.federation import Federation, meet
from tests.support.processes import Processes
from tests.support.training import Faults

VICTIM = "site-01"
PROCESS_DATA = "tests.support.task:Line"
SETTINGS: dict[str, Any] = {
    "study": {"rounds": 2},
    "privacy": PRIVACY,
    "protection": {"kind": "masked", "recovery": False},
    "rounds": {"deadline": 10, "phase_deadline": 6, "gather": 2, "attempts": 3, "patience": 20},
}

# Where the node dies, and how many trainings are counted beyond the two that the study needs.
POINTS = [
    ("download", 0),
    ("before:planned", 0),
    ("after:planned", 1),  # Nothing was computed, and nobody can know that.
    ("train", 1),
    ("before:kept", 1),
    ("after:kept", 0),  # From here on every attempt sends the same integers.
    ("before:advertise", 0),
    ("announce:commit", 0),
    ("before:sent", 0),
    ("after:sent", 0),
    ("before:commit", 0),
    ("after:commit", 0),
    ("before:upload", 0),
    ("after:upload", 0),
]


def play(
    folder: Path, scenario: Callable[[Federation], Awaitable[StudyRecord | None]], *, nodes: int = 4, **changes: Any
) -> StudyRecord | None:
    """A federation with a limit at one site that is never reached, unless the scenario sets another."""

    async def run() -> StudyRecord | None:
        fed = Federation(folder / "run", {**SETTINGS, **changes}, nodes=nodes)
        fed.set_policy(VICTIM, epsilon=20.0, delta=DELTA)
        try:
            return await asyncio.wait_for(scenario(fed), 80)
        finally:
            await fed.close()

    return asyncio.run(run())


def mortal_keeping(monkeypatch: pytest.MonkeyPatch, faults: Faults) -> None:
    """Points `before:kept` and `after:kept` of the victim's integers."""
    save, loop = KeptUpdate.save, asyncio.get_running_loop()

    def mortal(self: KeptUpdate, path: Path, *, bits: int) -> None:
        mine = VICTIM in path.parts
        if mine:
            meet(faults, "before:kept", loop)
        save(self, path, bits=bits)
        if mine:
            meet(faults, "after:kept", loop)

    monkeypatch.setattr(KeptUpdate, "save", mortal)


@pytest.mark.parametrize(
    ("point", "more", "occurrence"),
    [
        *((*point, 1) for point in POINTS),
        *((*point, 2) for point in POINTS if point[0] in {"after:planned", "train", "after:kept", "after:sent"}),
    ],
)
def test_a_node_killed_anywhere_counts_all_that_it_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, more: int, occurrence: int
) -> None:
    trained: list[Job] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        faults = Faults(point, occurrence)
        mortal_keeping(monkeypatch, faults)
        for name in fed.names[1:]:
            fed.start_node(name, executor=Counting([]))
        fed.start_node(VICTIM, faults, executor=Counting(trained, faults))
        study = asyncio.create_task(fed.coordinate(grace=2.0))
        await asyncio.wait_for(faults.fired.wait(), 20)
        assert counted(fed, VICTIM) >= computed(trained, VICTIM)
        monkeypatch.undo()
        fed.start_node(VICTIM, executor=Counting(trained))
        check_books(fed, VICTIM, trained)
        record = await study
        check_books(fed, VICTIM, trained)
        each = plan_of(fed, VICTIM).cost_per_round[0].steps
        assert counted(fed, VICTIM) == (2 + more) * each
        assert sorted(job.round for job in trained) in ([1, 2], [1, 1, 2], [1, 2, 2])
        return record

    record = play(tmp_path, scenario)
    assert record is not None
    assert [VICTIM in entry.cohort for entry in record.rounds] == [True, True, True]


def repeats(plans: Any) -> list[tuple[int, bool, str]]:
    return [(plan.round, plan.repeats is not None, plan.state) for plan in plans]


def test_the_next_attempt_sends_the_same_integers_for_nothing(tmp_path: Path) -> None:
    trained: list[Job] = []
    plans: list[Plan] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        faults = Faults("before:upload")
        for name in fed.names[2:]:
            fed.start_node(name, executor=Counting([]))
        fed.start_node(VICTIM, executor=Counting(trained))
        fed.start_node(fed.names[1], faults, executor=Counting([]))
        study = asyncio.create_task(fed.coordinate(grace=1.0))
        await asyncio.wait_for(faults.fired.wait(), 20)
        fed.start_node(fed.names[1], executor=Counting([]))
        record = await study
        audit = check_books(fed, VICTIM, trained)
        assert audit.datasets[0].sent == 4
        assert counted(fed, VICTIM) == computed(trained, VICTIM)
        plans.extend(plans_of(fed, VICTIM))
        return record

    record = play(tmp_path, scenario)
    assert record is not None
    assert record.rounds[0].attempts == 2
    assert [job.round for job in trained] == [1, 2]
    assert repeats(plans) == [(1, False, "sent"), (1, True, "sent"), (2, False, "sent"), (3, False, "sent")]
    assert [plan.entry.facts["privacy"] for plan in plans if plan.repeats is not None] == [None]


def test_what_is_trained_for_a_declaration_is_charged_once_and_sent_again_in_round_one(tmp_path: Path) -> None:
    noted: list[tuple[str, int]] = []
    plans: dict[str, list[tuple[int, bool, str]]] = {}
    steps: dict[str, tuple[int, int]] = {}

    async def scenario(fed: Federation) -> StudyRecord | None:
        for name in fed.names:
            fed.start_node(name, executor=Depth(noted))
        record = await fed.coordinate()
        for name in fed.names:
            check_books(fed, name, [])
            plans[name] = repeats(plans_of(fed, name))
            steps[name] = (counted(fed, name), plan_of(fed, name).cost_per_round[0].steps)
        return record

    cells = {**CELLS, "privacy": PRIVACY}
    assert play(tmp_path, scenario, nodes=8, **cells) is not None
    expected = [(1, False, "sent"), (1, True, "sent"), (2, False, "sent"), (3, False, "sent")]
    assert set(plans) == {name for name, _ in noted}
    for name, found in plans.items():
        assert found == expected
        total, each = steps[name]
        assert total == 2 * each


# --- limits -------------------------------------------------------------------------------------------------------


def refusals(fed: Federation, name: str) -> list[tuple[int, str]]:
    return [(e.facts["round"], e.facts["reason"]) for e in entries_of(fed, name) if e.kind == "refused"]


def said(fed: Federation, name: str) -> set[tuple[int, str]]:
    """What the coordinator heard of a site that sat out."""
    return {(f["round"], f["reason"]) for kind, f in fed.events if kind == "sat-out" and f["node"] == name}


@pytest.mark.parametrize("restarts", [False, True])
def test_a_site_takes_part_in_as_many_rounds_as_its_limit_allows_and_the_other_circle_goes_on(
    tmp_path: Path, restarts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    trained: list[Job] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        limit = enough_for(plan_of(fed, VICTIM), 2)
        fed.set_policy(VICTIM, epsilon=limit.epsilon, delta=limit.delta)
        for name in fed.names[1:]:
            fed.start_node(name, executor=Counting([]))
        faults = Faults("announce:advertise" if restarts else "", 2)
        fed.start_node(VICTIM, faults, executor=Counting(trained, faults))
        study = asyncio.create_task(fed.coordinate(grace=1.0))
        if restarts:  # once between the rounds, and once when the limit is reached
            await asyncio.wait_for(faults.fired.wait(), 20)
            again = Faults("announce:advertise", 2)
            fed.start_node(VICTIM, again, executor=Counting(trained, again))
            await asyncio.wait_for(again.fired.wait(), 20)
            fed.start_node(VICTIM, executor=Counting(trained))
        record = await study
        audit = check_books(fed, VICTIM, trained)
        assert audit.datasets[0].policy is not None
        assert refusals(fed, VICTIM) == [(3, "BudgetExceeded")]
        assert said(fed, VICTIM) - {(2, "NotConnected"), (3, "NotConnected")} == {(3, "BudgetExceeded")}
        return record

    rounds = {**SETTINGS["rounds"], "attempts": 2}
    record = play(tmp_path, scenario, nodes=8, study={"rounds": 3}, rounds=rounds)
    assert record is not None
    assert [job.round for job in trained] == [1, 2]
    assert [VICTIM in entry.cohort for entry in record.rounds] == [True, True, False, True]
    assert len(record.rounds[2].cohort) == 4
    assert "of the data set's privacy budget" in caplog.text


def test_circles_that_do_not_wait_finish_without_one_whose_budget_is_used_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At once: neither their turns, nor a flush that would have two, nor the study's end wait for it."""
    trained: list[Job] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        limit = enough_for(plan_of(fed, VICTIM), 2)
        fed.set_policy(VICTIM, epsilon=limit.epsilon, delta=limit.delta)
        for name in fed.names:
            fed.start_node(name, executor=Counting(trained))
        record = await fed.coordinate()
        assert refusals(fed, VICTIM) == [(3, "BudgetExceeded")]
        return record

    rounds = {**SETTINGS["rounds"], "mode": "buffered", "buffer": 2, "flushes": 9, "patience": 86400}
    record = play(tmp_path, scenario, nodes=8, study={"rounds": 4}, rounds=rounds)
    assert record is not None
    assert record.outcome == "finished"
    turns = [turn for entry in record.rounds for turn in entry.circles if turn.turn is not None and turn.opened]
    assert sorted(turn.turn or 0 for turn in turns if VICTIM in turn.members) == [1, 2]
    assert sorted(turn.turn or 0 for turn in turns if VICTIM not in turn.members) == [1, 2, 3, 4]
    assert record.rounds[-1].kind is RoundKind.EVALUATE
    assert VICTIM in record.rounds[-1].cohort  # A measurement costs no budget.
    assert "trains no more: a site's privacy budget is used up" in caplog.text


def test_a_study_that_cannot_go_on_without_the_site_ends_and_says_why(tmp_path: Path) -> None:
    trained: list[Job] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        limit = enough_for(plan_of(fed, VICTIM), 1)
        fed.set_policy(VICTIM, epsilon=limit.epsilon, delta=limit.delta)
        for name in fed.names:
            fed.start_node(name, executor=Counting(trained))
        record = await fed.coordinate()
        assert refusals(fed, VICTIM) == [(2, "BudgetExceeded")]
        assert said(fed, VICTIM) == {(2, "BudgetExceeded")}
        failed = [fields for kind, fields in fed.events if kind == "study-failed"]
        assert failed
        assert f"{VICTIM}: the privacy budget is used up" in failed[-1]["message"]
        for name in fed.names:
            check_books(fed, name, trained)
        return record

    # At once, and not after all the patience that a study has with sites that may come back.
    rounds = {**SETTINGS["rounds"], "patience": 86400}
    assert play(tmp_path, scenario, rounds=rounds) is None
    assert [job.round for job in trained if job.me == VICTIM] == [1]


def test_two_studies_on_one_data_set_share_its_budget(tmp_path: Path) -> None:
    trained: list[Job] = []

    async def scenario(fed: Federation) -> StudyRecord | None:
        other = fed.study.model_copy(update={"study": fed.study.study.model_copy(update={"name": "beside"})})
        fed.beside.append(other)
        for name in fed.names:
            fed.set_policy(name, approved=[fed.study.id, other.id])
        limit = enough_for(plan_of(fed, VICTIM), 3)
        fed.set_policy(VICTIM, epsilon=limit.epsilon, delta=limit.delta)
        for name in fed.names:
            fed.start_node(name, executor=Counting(trained))
        record = await fed.coordinate()
        check_books(fed, VICTIM, trained)
        # Of four trainings that the two studies want, the data set has three: whichever asks last is refused.
        assert len([job for job in trained if job.me == VICTIM]) == 3
        assert counted(fed, VICTIM) == 3 * plan_of(fed, VICTIM).cost_per_round[0].steps
        assert [reason for _, reason in refusals(fed, VICTIM)] == ["BudgetExceeded"]
        for name in fed.names[1:]:
            assert counted(fed, name) == 4 * plan_of(fed, name).cost_per_round[0].steps
        return record

    play(tmp_path, scenario, protection={"kind": "none", "recovery": True})


# --- real processes -----------------------------------------------------------------------------------------------


def test_a_process_killed_while_it_trains_has_counted_that(tmp_path: Path) -> None:
    """Kill −9 of a node whose training process really adds noise; the round is trained again, and both count."""
    marker = tmp_path / "marks" / "m"
    marker.parent.mkdir()
    settings = {
        "task": {"name": "tests.support.task:Line", "pause": 1.0, "marker": str(marker)},
        "strategy": {"name": "fedavg", "batch_size": 16, "epochs": 1},
        "privacy": PRIVACY,
    }
    with Processes(tmp_path / "run", settings, training="real") as fed:
        fed.edit_node(VICTIM, "policy", epsilon=20.0, delta=DELTA)
        fed.start_all()
        wait_for(marker.parent / "training-01")
        fed.kill(VICTIM)
        path, authority = fed.workspace.node_folder(VICTIM) / "ledger.jsonl", fed.workspace.folder / "ca.pem"
        before = spent(read_site_ledger(path, authority=authority.read_bytes(), site=VICTIM), PROCESS_DATA)
        assert [event.steps for event in before if isinstance(event, NoisySteps)] == [5]
        fed.start_node(VICTIM)
        record = fed.finish()
        assert [entry.cohort for entry in record.rounds] == [fed.names] * 3
        entries = read_site_ledger(path, authority=authority.read_bytes(), site=VICTIM)
        assert [event.steps for event in spent(entries, PROCESS_DATA) if isinstance(event, NoisySteps)] == [15]
        audit = examine(entries)
        assert audit.ok, audit.faults
        assert [plan.state for plan in audit.plans] == ["open", "sent", "sent", "sent"]
