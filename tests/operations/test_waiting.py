"""The words for what a study waits for: of circles, of whoever is there, and of studies that have ended."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from node.reasons import REASONS
from secure_fl.cli import status_text
from secure_fl.errors import TaskUnavailableError
from secure_fl.operations import waiting
from secure_fl.operations.waiting import ended_words, site_words, waiting_words
from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import operations_pb2 as pb


def ready(name: str) -> pb.SiteStatus:
    return pb.SiteStatus(name=name, connected=True, accepted=True)


def study(*sites: pb.SiteStatus, **fields: object) -> pb.StudyStatus:
    values = {"name": "heart", "study_id": "ab" * 32, "state": "running", "rounds_planned": 5, **fields}
    return pb.StudyStatus(sites=sites, **values)  # type: ignore[arg-type]


def circle(members: str, missing: str = "") -> pb.CircleStatus:
    return pb.CircleStatus(members=list(members), missing=list(missing))


def test_a_study_of_circles_says_which_circle_waits_for_whom() -> None:
    sites = [ready(name) for name in "abcdef"]
    sites[1] = pb.SiteStatus(name="b", set_aside="Revoked")
    told = waiting_words(study(*sites, circles=[circle("abc", "b"), circle("def")]))
    assert told == (
        "waiting: 2 of 3 needed in the circle of a, b, c; b: its certificate is revoked",
        "1 of 2 circles are complete, and go on",
    )
    assert waiting_words(study(*map(ready, "abc"), circles=[circle("abc")])) == ()


def test_a_study_of_whoever_is_there_waits_only_below_its_minimum() -> None:
    away = pb.SiteStatus(name="d")
    assert waiting_words(study(*map(ready, "abc"), away, needed=3)) == ()
    told = waiting_words(study(*map(ready, "ab"), away, needed=3))
    assert told == ("waiting: 2 of 3 needed; d: not connected",)
    assert waiting_words(study(*map(ready, "ab"), away, needed=3, state="finished")) == ()


@pytest.mark.parametrize("code", sorted(REASONS))
def test_every_word_that_a_site_sits_out_with_has_a_sentence(code: str) -> None:
    site = pb.SiteStatus(name="a", connected=True, accepted=True, sat_out=code, sat_out_round=3)
    assert site_words(site).startswith("sat out round 3: ")
    assert code not in site_words(site).split()


def test_what_another_party_made_up_goes_no_further() -> None:
    rogue = "Ignore_all_rules"
    for site in (
        pb.SiteStatus(name="a", connected=True, refusal=rogue),
        pb.SiteStatus(name="a", connected=True, accepted=True, sat_out=rogue),
        pb.SiteStatus(name="a", set_aside=rogue),
    ):
        assert rogue not in site_words(site)
    assert waiting.site_words(pb.SiteStatus(name="a", connected=True)) == "has not answered yet"


def test_an_aborted_study_says_why() -> None:
    assert ended_words(study(state="aborted", reason="StudyStopped")) == "its lead stopped it"
    assert ended_words(study(state="aborted", reason="BudgetsUsedUp")) == "sites have no privacy budget left for it"
    assert ended_words(study()) == ""


def record(accuracy: float | None) -> bytes:
    nodes = (NodeRound(name="a", outcome="took part"), NodeRound(name="b", outcome="absent"))
    rounds = tuple(
        RoundRecord(
            number=n,
            kind=RoundKind.TRAIN,
            attempts=n,
            seconds=1.0,
            nodes=nodes,
            mean_accuracy=accuracy,
            metrics={} if accuracy is None else {"recall": 0.625},
        )
        for n in (1, 2)
    )
    made = StudyRecord(
        study="heart", study_id="ab" * 32, task="t", strategy="s", protection="p", planned_rounds=5,
        roster=("a", "b"), rounds=rounds,
    )  # fmt: skip
    return json.dumps(asdict(made)).encode()


def test_a_site_without_the_task_is_not_said_to_lack_an_approval() -> None:
    """It was approved there, and its task has gone since."""
    site = pb.SiteStatus(name="a", connected=True, refusal=TaskUnavailableError.code)
    assert site_words(site).startswith("the task is not installed there")
    assert waiting_words(study(site, needed=1))[0].startswith("waiting: 0 of 1 needed; a: the task is not installed")


@pytest.mark.parametrize("accuracy", [0.8125, None])
def test_accuracy_is_shown_round_by_round_where_it_is_shared(
    accuracy: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = (ready("a"), pb.SiteStatus(name="b", connected=True, refusal="NotApproved"))
    shown = study(*sites, circles=[circle("ab", "b")], record=record(accuracy), rounds_done=2)
    status_text.tell(shown)
    said = capsys.readouterr().out
    assert "waiting: 1 of 2 needed; b: not approved there yet" in said
    assert ("0.8125" in said) == (accuracy is not None)
    assert ("measured on the model before each round" in said) == (accuracy is not None)
    assert ("recall" in said and "0.625" in said) == (accuracy is not None)
    assert ("no measurement is shared" in said) == (accuracy is None)
    assert "1 of 2" in said
    told = status_text.words(shown)
    assert told["why_not"] == {"b": "not approved there yet (`secure-fl node approve`)"}
    assert told["waiting"] == list(waiting_words(shown))


def test_the_command_is_there() -> None:
    from secure_fl.cli import app

    assert "whom they wait for" in CliRunner().invoke(app, ["study", "status", "--help"]).output
