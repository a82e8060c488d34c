"""`secure-fl bench asynchronous`: the simulation keeps the product's laws, and its clock is nobody's but its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from typer.testing import CliRunner

from secure_fl import tasks
from secure_fl.bench.asynchronous import METHODS, Plan, simulate
from secure_fl.bench.simulated import Course, Federation, Method, Outcome, _Opened, by_labels
from secure_fl.bench.virtual import Clock, Profile, profiles
from secure_fl.blocks import Blocks
from secure_fl.cli import app
from secure_fl.encoding.integers import BlockSum
from secure_fl.errors import SettingsError, UnknownNameError, UsageError
from secure_fl.strategies import aifed
from secure_fl.strategies.gating import threshold
from secure_fl.strategies.merging import MergeSettings
from secure_fl.study.turns import Turn
from secure_fl.tasks.base import Source

SITES = 8
HIDDEN = 8
SIZES = (160, 256 * HIDDEN + HIDDEN, 10 * HIDDEN + 10)  # of features, hidden and head
WHOLE = 8 * (sum(-(-size // 3) for size in SIZES) + 1)  # bytes: three values in a word, and a word for the weight
CACHE = MergeSettings(kind="cache")


@pytest.fixture(scope="module")
def federation() -> Federation:
    task = tasks.create("digits", {"hidden": HIDDEN})
    return Federation(task, Source(), sites=SITES, labels=(3, 6), seed=0, row_seconds=0.01)


def run(
    federation: Federation,
    method: Method,
    *,
    rounds: int = 3,
    size: int = 4,
    speeds: Sequence[Profile] | None = None,
) -> tuple[Outcome, Blocks]:
    quick = replace(method, settings={"epochs": 1, "batch_size": 64, **method.settings})
    course = Course(federation, quick, speeds or profiles("tenth", SITES, 0), size=size)
    return course.run(updates=rounds * SITES), course.model


def same(first: Blocks, second: Blocks) -> bool:
    return all(np.array_equal(first[name], second[name]) for name in first)


# --- laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        Method(name="cache", merge=CACHE),
        Method(name="delta", merge=MergeSettings(kind="delta")),
        Method(name="mix", merge=MergeSettings(kind="mix")),
        Method(name="fedbuff", strategy="fedbuff", merge=CACHE),
        Method(name="fedasync", strategy="fedasync", settings={"rate": 1.0}, merge=CACHE),
    ],
    ids=lambda method: method.name,
)
def test_one_circle_of_everybody_is_the_synchronous_run(federation: Federation, method: Method) -> None:
    # As many sums as sites, which become one: whoever is added to whom first makes no difference.
    together, expected = run(federation, replace(METHODS["sync-30"], drawn=1.0), size=SITES)
    alone, model = run(federation, method, size=SITES)
    assert alone.staleness == {0: 3}
    assert same(model, expected)
    assert [point.accuracy for point in alone.points] == [point.accuracy for point in together.points]
    assert [point.seconds for point in alone.points] == [point.seconds for point in together.points]


def test_a_flush_of_all_sites_is_the_synchronous_run(federation: Federation) -> None:
    """Nobody is waited for in vain, nothing is old, and one sum is opened."""
    delta = MergeSettings(kind="delta")
    _, found = run(federation, Method(name="sites", circles="sites", merge=delta, buffer=SITES, one_sum=True))
    _, synchronous = run(federation, Method(name="sync", circles="sites", drawn=1.0))
    assert same(found, synchronous)


@pytest.mark.parametrize("kind", ["cache", "delta"])
def test_circles_that_wait_for_each_other_are_the_synchronous_run(
    federation: Federation, kind: Literal["cache", "delta"]
) -> None:
    """What circles weigh against each other is what their sites weigh: sites here have rows of unlike number."""
    waiting = Method(name="waiting", drawn=1.0, merge=MergeSettings(kind=kind))
    _, found = run(federation, waiting)
    _, expected = run(federation, METHODS["sync"])
    for name, vector in expected.items():
        np.testing.assert_allclose(found[name], vector, rtol=0, atol=1e-5)


@pytest.mark.parametrize("gate", ["none", "rank", "site"])
def test_a_flush_of_all_sites_is_the_synchronous_run_with_every_gate(federation: Federation, gate: str) -> None:
    method = METHODS[f"aifed-sites10-{gate}"]
    _, found = run(federation, replace(method, buffer=SITES))
    _, synchronous = run(federation, replace(method, merge=None, one_sum=False, drawn=1.0))
    assert same(found, synchronous)


def test_gates_are_told_the_version_as_at_a_node(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    """ALMU's threshold rises with it: a bench that left it out had figures of another gate."""
    asked: list[int] = []

    def noting(**given: Any) -> float:
        asked.append(given["version"])
        return threshold(**given)

    monkeypatch.setattr(aifed, "threshold", noting)
    method = replace(METHODS["aifed-sites10-site"], buffer=SITES, settings={"gating": "site", "full_every": 0})
    run(federation, method, rounds=3)
    assert Counter(asked) == dict.fromkeys(range(4), SITES)  # three flushes, and what was begun after the last


def test_blocks_that_would_show_a_site_stay_closed_and_whoever_sent_none_counts(federation: Federation) -> None:
    """As in a flush of the product: eight sites, of which all, five, seven or three send a block."""
    course = Course(federation, METHODS["aifed-sites10-rank"], profiles("tenth", SITES, 0), size=4)
    senders = {"all": range(8), "five": range(5), "seven": range(7), "three": range(3)}
    opened = []
    for site in range(SITES):
        sums = {
            name: BlockSum(total=np.full(1, 64, np.int64), weight=64, contributors=1)
            for name, who in senders.items()
            if site in who
        }
        opened.append(_Opened(turn=Turn(circle=site, number=1, base=0), sums=sums, bytes_up=0, bytes_down=0))
    means = course._decoded(opened)
    assert {name: block.contributors for name, block in means.items()} == {"all": 8, "five": 5}
    assert means["five"].mean[0] == pytest.approx(means["all"].mean[0] * 5 / 8)


def test_single_sites_come_when_they_are_done_and_old_work_weighs_less(federation: Federation) -> None:
    delta, plain = MergeSettings(kind="delta"), MergeSettings(kind="delta", discount="none")
    speeds = [Profile(slowness=3.0 if site == 0 else 1.0) for site in range(SITES)]
    method = Method(name="sites", circles="sites", merge=delta, buffer=5, one_sum=True)
    outcome, found = run(federation, method, rounds=4, size=5, speeds=speeds)
    assert 0 < outcome.turns[0] < min(outcome.turns[1:])
    assert max(outcome.staleness) >= 2
    _, other = run(federation, replace(method, merge=plain), rounds=4, size=5, speeds=speeds)
    assert not same(found, other)


def test_two_circles_that_do_not_wait_are_not_the_synchronous_run(federation: Federation) -> None:
    _, expected = run(federation, METHODS["sync"])
    outcome, model = run(federation, Method(name="cache", merge=CACHE))
    assert max(outcome.staleness) > 0
    assert not same(model, expected)


@pytest.mark.parametrize("name", ["sync-30", "speed-cache", "aifed-public"])
def test_the_same_seed_gives_the_same_run(federation: Federation, name: str) -> None:
    outcome, model = run(federation, METHODS[name], rounds=2)
    again, twin = run(federation, METHODS[name], rounds=2)
    assert outcome == again
    assert same(model, twin)  # to the last bit, rounding included


def test_another_seed_gives_another_run() -> None:
    plan = Plan(sites=SITES, rounds=2, task_settings={"hidden": HIDDEN}, labels=(3, 6), strategy={"batch_size": 64})
    first = simulate(plan, METHODS["speed-cache"], 0)
    assert first == simulate(plan, METHODS["speed-cache"], 0)  # with its data divided anew
    assert first != simulate(plan, METHODS["speed-cache"], 1)


# --- virtual time -----------------------------------------------------------------------------------------


def test_a_slow_site_holds_up_its_own_circle_alone(federation: Federation) -> None:
    speeds = [Profile(slowness=1000.0 if site == 3 else 1.0) for site in range(SITES)]
    slow = 1000 * federation.training_seconds(3, 1)  # what one turn takes there
    waiting, _ = run(federation, METHODS["sync"], speeds=speeds)
    free, _ = run(federation, METHODS["speed-cache"], speeds=speeds)
    assert waiting.points[-1].seconds > 3 * slow
    assert free.points[-1].seconds < slow
    assert sorted(free.turns) == [0, 6]  # all of three rounds' uploads are the other circle's


def test_a_turn_takes_as_long_as_its_slowest_part() -> None:
    profile = Profile(slowness=5.0, up=10.0, down=100.0)
    assert profile.seconds(training=2.0, received=300, sent=40) == 3 + 10 + 4


def test_a_turn_that_is_too_old_is_dropped_and_counted(federation: Federation) -> None:
    speeds = [Profile(slowness=9.0 if site < 4 else 1.0) for site in range(SITES)]
    strict, _ = run(federation, replace(METHODS["speed-cache"], staleness=1), rounds=12, speeds=speeds)
    kept, _ = run(federation, METHODS["speed-cache"], rounds=12, speeds=speeds)
    assert sum(strict.dropped) > 0
    assert max(strict.staleness) <= 1
    assert sum(kept.dropped) == 0
    assert max(kept.staleness) > 1


def test_the_clock_goes_forwards_and_keeps_the_order_of_equals() -> None:
    clock: Clock[str] = Clock()
    clock.after(2.0, "later")
    clock.after(1.0, "first")
    clock.after(1.0, "second")
    assert [clock.next(), clock.next(), clock.next(), bool(clock), clock.now] == ["first", "second", "later", False, 2]
    with pytest.raises(ValueError, match="past"):
        clock.after(-1.0, "before")


def test_profiles() -> None:
    assert [profile.slowness for profile in profiles("tenth", 40, 0)].count(5.0) == 4
    assert set(profiles("even", 3, 0)) == {Profile()}
    assert len({profile.up for profile in profiles("spread", 5, 0)}) == 5
    assert profiles("spread", 5, 0) != profiles("spread", 5, 1)
    with pytest.raises(SettingsError):
        Profile(up=0.0)


# --- bytes ------------------------------------------------------------------------------------------------


def test_bytes_are_those_of_the_packed_sum(federation: Federation) -> None:
    outcome, _ = run(federation, METHODS["sync"])
    last = outcome.points[-1]
    assert last.bytes_up == 3 * SITES * WHOLE
    assert last.bytes_down == 3 * SITES * 4 * sum(SIZES)


def test_blocks_that_were_not_asked_for_cost_nothing(federation: Federation) -> None:
    method = replace(METHODS["aifed-public"], settings={"gating": "public", "full_every": 0}, drawn=1.0, merge=None)
    outcome, _ = run(federation, method, rounds=2)
    hidden, others = 8 * (686 + 1), 8 * (54 + 30 + 1)
    # All blocks, until it is known how far each moves; then the one that moved most, if `hidden` alone.
    assert outcome.points[-1].bytes_up in {SITES * (WHOLE + hidden), SITES * (WHOLE + others)}


def test_sites_fetch_one_version_for_a_turn_however_many_others_made(federation: Federation) -> None:
    outcome, _ = run(federation, METHODS["random-cache"], rounds=4)
    assert max(outcome.staleness) > 0
    versions = outcome.points[-1].bytes_down / (4 * sum(SIZES))
    assert versions == outcome.points[-1].uploads


# --- data and settings ------------------------------------------------------------------------------------


def test_every_row_has_one_owner_who_holds_a_few_labels() -> None:
    targets = np.repeat(np.arange(10), 100)
    rows = by_labels(targets, sites=40, labels=(2, 6), seed=5)
    assert sorted(np.concatenate(rows).tolist()) == list(range(1000))
    held = [len(np.unique(targets[mine])) for mine in rows]
    assert (min(held), max(held)) == (2, 6)
    with pytest.raises(SettingsError, match="no site"):
        by_labels(targets, sites=4, labels=(2, 2), seed=0)


def test_sites_that_decide_themselves_what_they_send_are_refused(federation: Federation) -> None:
    with pytest.raises(SettingsError, match="each decide"):
        run(federation, Method(name="gate", strategy="aifed", settings={"gating": "site"}, merge=CACHE))


def test_the_command_keeps_finished_runs(tmp_path: Path) -> None:
    arguments = [
        "bench", "asynchronous", "--methods", "speed-cache", "--seeds", "0,1", "--sites", "8", "--rounds", "2",
        "--labels", "3,6", "--set", "task.hidden=8", "--set", "strategy.batch_size=64", "--out", str(tmp_path),
        "--json",
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert [row["method"] for row in result["results"]] == ["sync", "speed-cache"]
    assert result["results"][0]["reached"] == 2
    assert (tmp_path / "bytes.svg").read_text().count('class="line many') == 2
    kept = tmp_path / "runs" / "sync-0.json"
    before = kept.stat().st_mtime_ns
    assert json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout) == result
    assert kept.stat().st_mtime_ns == before
    longer = [*arguments[:9], "3", *arguments[10:]]
    assert longer[8] == "--rounds"
    assert json.loads(CliRunner().invoke(app, longer, catch_exceptions=False).stdout) != result


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (["--profile", "odd"], UsageError),
        (["--seeds", "a"], UsageError),
        (["--labels", "2"], UsageError),
        (["--set", "study.rounds=3"], UsageError),
        (["--methods", "speed-cach"], UnknownNameError),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, wrong: list[str], error: type[Exception]) -> None:
    done = CliRunner().invoke(app, ["bench", "asynchronous", "--out", str(tmp_path), *wrong])
    assert isinstance(done.exception, error)
    assert not (tmp_path / "runs").exists()
