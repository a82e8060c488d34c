"""The report is whole, inert, honest about what is not known, and small enough to send by mail."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import time
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from typing import Any, Literal

import pytest

import secure_fl
from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.report import Step, render
from secure_fl.report.drawing import nice_step, spread
from secure_fl.report.text import duration, escape, fit, ranges, size
from secure_fl.results.record import CircleRound, NodeRound, RoundRecord, StudyRecord
from secure_fl.results.traces import Traces
from secure_fl.results.turns import block_bytes
from secure_fl.rounds import RoundKind
from secure_fl.settings import set_dotted
from secure_fl.simulation.run import next_steps
from secure_fl.study.settings import Study

VOID = {"meta", "br", "hr", "img", "link", "input"}
HOSTILE = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>&\x00\ud800\u202e"


class Page(HTMLParser):
    """Collects what a browser would see and complains about tags that do not pair up."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        """Everything readable."""
        return " ".join(" ".join(self.words).split())


def study(
    sites: int = 4,
    rounds: int = 3,
    *,
    protection: str = "masked",
    names: tuple[str, ...] | None = None,
    share: Literal["none", "aggregate", "per-node"] = "per-node",
    measure: Literal["accuracy", "mse"] = "accuracy",
    text: str = "",
    outcome: Literal["running", "finished", "aborted"] = "finished",
) -> StudyRecord:
    """A study of so many rounds and its closing evaluation; in round 2 site 1 drops, site 2 sits out."""
    roster = names or tuple(f"site-{index:02}" for index in range(sites))
    entries = []
    for number in range(1, rounds + 2 if rounds else 1):
        value = 1 - 0.9 / number
        nodes = []
        for index, name in enumerate(roster):
            missing: Literal["took part", "dropped", "sat out"] = "took part"
            if number == 2 and index in (1, 2):
                missing = "dropped" if index == 1 else "sat out"
            shared = value if share == "per-node" and missing == "took part" else None
            nodes.append(
                NodeRound(
                    name=name,
                    outcome=missing,
                    reason="" if missing == "took part" else text or "deadline passed",
                    bytes_up=1_200_000 if missing == "took part" and number <= rounds else 0,
                    bytes_down=400_000,
                    accuracy=shared if measure == "accuracy" else None,
                    mse=shared if measure == "mse" else None,
                )
            )
        mean = None if share == "none" else value
        entries.append(
            RoundRecord(
                number=number,
                kind=RoundKind.TRAIN if number <= rounds else RoundKind.EVALUATE,
                attempts=1,
                seconds=2.5,
                nodes=tuple(nodes),
                blocks_kept=(text or "head.weight",) if number == 1 else (),
                mean_accuracy=mean if measure == "accuracy" else None,
                mean_mse=mean if measure == "mse" else None,
            )
        )
    return StudyRecord(
        study=text or "sepsis",
        study_id=text or "0123abcd",
        task=text or "digits",
        strategy=text or "fedasa",
        protection=protection,
        planned_rounds=rounds,
        roster=roster,
        outcome=outcome,
        reason=text,
        rounds=tuple(entries),
    )


def summary(record: StudyRecord, **changes: Any) -> dict[str, Any]:
    """What `run --json` prints for it."""
    nodes = [
        {
            "name": name,
            "samples": 1234,
            "accuracy": 0.875,
            "loss": 0.25,
            "epsilon": 2.5 if index == 0 else None,
            "delta": 1e-5 if index == 0 else None,
            "bytes_up": 3_600_000,
            "bytes_down": 1_600_000,
            "rounds_taken": 3,
            "dropped": 1,
        }
        for index, name in enumerate(record.roster)
    ]
    values: dict[str, Any] = {
        "study": record.study,
        "strategy": record.strategy,
        "protection": record.protection,
        "engine": "processes",
        "rounds": len(record.rounds),
        "seconds": 75.0,
        "mean_accuracy": 0.875,
        "std_accuracy": 0.031,
        "global_accuracy": None,
        "mean_mse": None,
        "bytes_up_per_node_round": 1_200_000,
        "bytes_down_per_node_round": 400_000,
        "combinations_opened": 12,
        "nodes": nodes,
        "report": None,
    }
    return {**values, **changes}


def drawings(page: str) -> list[ET.Element]:
    """The page's charts, parsed as XML."""
    return [ET.fromstring(svg) for svg in re.findall(r'<svg class="chart.*?</svg>', page, flags=re.DOTALL)]  # noqa: S314


def rows(page: str, region: str) -> list[list[str]]:
    """The cells of one table's body."""
    table = page.split(f'aria-label="{region}"', 1)[1].split("</table>", 1)[0].split("<tbody>", 1)[1]
    table = re.sub(r"<svg.*?</svg>", "drawn", table)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in table.split("</tr>")[:-1]]
    return [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in cells]


def with_metrics(record: StudyRecord, name: str = "auc") -> tuple[StudyRecord, dict[str, Any]]:
    """The same where the task declares a metric."""
    rounds = tuple(
        replace(
            entry,
            metrics={name: 0.9 + entry.number / 100, "kappa": None},
            nodes=tuple(replace(node, metrics={name: 0.8}) for node in entry.nodes),
        )
        for entry in record.rounds
    )
    found = replace(record, rounds=rounds)
    values = summary(found, metrics={name: 0.9421, "kappa": None})
    values["nodes"] = [{**node, "metrics": {name: 0.8 + at / 100}} for at, node in enumerate(values["nodes"])]
    return found, values


def test_a_tasks_metrics_have_a_table_curves_and_a_column() -> None:
    page = render(*with_metrics(study(4, 3)))
    assert rows(page, "Metrics of the task") == [["auc", "0.9421", "0.8", "0.83"], ["kappa", "–", "–", "–"]]
    assert "auc after each round" in page
    assert "kappa after each round" not in page
    (chart, *_) = [svg for svg in drawings(page) if "auc after each round" in str(svg.get("aria-label"))]
    ticks = [tick.text for tick in chart.iter() if tick.get("class") == "tick end"]
    assert len(set(ticks)) == len(ticks) > 2  # decimals enough to tell them apart
    (head,) = re.findall(r'aria-label="Every site".*?<thead>(.*?)</thead>', page, flags=re.DOTALL)
    assert head.index("Loss") < head.index(">auc<") < head.index("Samples")
    assert [row[4] for row in rows(page, "Every site")] == ["0.8", "0.81", "0.82", "0.83"]


def test_a_metrics_name_is_escaped_and_a_task_without_metrics_has_no_such_section() -> None:
    page = render(*with_metrics(study(4, 3), "<b>auc"))
    assert "<b>auc" not in page
    assert "&lt;b&gt;auc" in page
    record = study(4, 3)
    assert "Metrics of the task" not in render(record, summary(record))
    assert "Metrics of the task" not in render(record, summary(record, metrics={}))


@pytest.mark.parametrize("rounds", [0, 1, 3, 40])
@pytest.mark.parametrize("share", ["none", "aggregate", "per-node"])
@pytest.mark.parametrize("measure", ["accuracy", "mse"])
@pytest.mark.parametrize("sites", [1, 4, 12, 30])
def test_page_is_well_formed_and_inert(
    rounds: int,
    share: Literal["none", "aggregate", "per-node"],
    measure: Literal["accuracy", "mse"],
    sites: int,
) -> None:
    record = study(sites, rounds, share=share, measure=measure)
    page = render(record, summary(record))
    parsed = Page(page)
    assert page.startswith("<!DOCTYPE html>")
    assert parsed.tags.isdisjoint({"script", "iframe", "object", "embed", "link", "img", "base", "form"})
    assert not re.search(r"https?://|@import|url\(|javascript:", page)
    assert not {name for name, _ in parsed.attributes} & {"src", "href", "style", "srcset"}
    assert not [name for name, _ in parsed.attributes if name.startswith("on")]
    assert "nan" not in re.sub(r"<[^>]*>", "", page).lower().split()
    for svg in drawings(page):
        assert svg.get("aria-label")


def test_policy_forbids_scripts_and_names_the_style_sheet() -> None:
    record = study()
    page = render(record, summary(record))
    policy = dict(re.findall(r'<meta http-equiv="([^"]*)" content="([^"]*)">', page))["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert '<meta charset="utf-8">' in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme:dark" in page


def test_text_from_outside_stays_text() -> None:
    names = (HOSTILE, 'O\'Brien "North"', "<b>bold</b>", "病院-東京")
    record = study(names=names, text=HOSTILE, outcome="aborted", protection=HOSTILE)
    page = render(record, summary(record, engine=HOSTILE, strategy=HOSTILE))
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert "img" not in parsed.tags
    assert "onerror" not in {name for name, _ in parsed.attributes}
    assert "<script>alert(1)</script>" in parsed.text
    assert 'O\'Brien "North"' in parsed.text
    assert "病院-東京" in parsed.text
    assert not set(page) & {"\x00", "\u202e"}
    page.encode()  # a lone surrogate would make the file impossible to write
    assert drawings(page)


def test_outcomes_from_a_newer_record_are_escaped_too() -> None:
    shown = "".join(char for char in HOSTILE if char.isprintable())  # anything else is no record
    record = StudyRecord.from_json(
        {
            **dict.fromkeys(("study", "study_id", "task", "strategy", "protection"), "x"),
            "planned_rounds": 1,
            "roster": ["a"],
            "outcome": shown,
            "rounds": [
                {
                    "number": 1,
                    "kind": "train",
                    "attempts": 1,
                    "seconds": 1.0,
                    "blocks_kept": [],
                    "nodes": [{"name": "a", "outcome": shown}],
                }
            ],
        }
    )
    assert "script" not in Page(render(record, summary(record))).tags


def test_null_is_a_dash_and_never_zero() -> None:
    record = study(share="none")
    nothing = dict.fromkeys(summary(record))
    page = render(record, {**nothing, "nodes": [{**dict.fromkeys(summary(record)["nodes"][0]), "name": "site-00"}]})
    assert "Mean accuracy over the sites – Rounds" in Page(page).text
    assert rows(page, "Every site")[0] == ["site-00", "no DP", "–", "–", "–", "–"]
    assert rows(page, "Every site")[1] == ["site-01", *["–"] * 5]  # not in the summary: not even "no DP"
    assert [row[8] for row in rows(page, "Every round")] == ["–"] * 4
    assert "No site shared a measurement" in page
    assert "The sites share no measurements, not even their mean" in page
    assert "0.0%" not in page


def test_values_that_are_not_finite_count_as_unknown() -> None:
    record = study()
    page = render(record, summary(record, mean_accuracy=math.nan, seconds=math.inf))
    assert "– ± 3.1%" in Page(page).text
    assert rows(render(record, {}), "Every site")[0][1:] == ["drawn", *["–"] * 8]


def test_headline_tells_the_result() -> None:
    record = study()
    text = Page(render(record, summary(record, global_accuracy=0.81))).text
    for expected in (
        "sepsis",
        "fedasa",
        "masked",
        "finished",
        "87.5% ± 3.1%",
        "3 of 3",
        "1 min 15 s",
        "81.0%",
    ):
        assert expected in text


def test_the_protection_is_described_as_the_study_has_set_it() -> None:
    record = study(protection="encrypted")
    settings = {"study": {"name": "sepsis"}, "task": {"name": "digits"}}
    trusting = Study.parse({**settings, "protection": {"kind": "encrypted", "recompute": False}})
    assert "WHO COULD READ AN UPDATE: the coordinator alone" in Page(render(record, summary(record), trusting)).text
    careful = Study.parse({**settings, "protection": {"kind": "encrypted"}})
    assert "or two sites together. Nobody else" in Page(render(record, summary(record), careful)).text


@pytest.mark.parametrize("protection", [*protect.known(), "from-another-version"])
def test_the_protection_says_in_its_own_words_what_it_means(protection: str) -> None:
    record = study(protection=protection)
    text = Page(render(record, summary(record))).text
    known = protection in protect.known()
    said = protect.create(protection, {}).explain(RequestKind.SUM)[0] if known else "cannot say what it hides"
    assert said in text
    unsafe = known and protect.describe(protection).coordinator_sees_updates
    assert ("Not protected" in text) is unsafe


def test_aborted_and_running_studies_say_so() -> None:
    record = study(outcome="aborted", text="too few sites")
    assert "ended before its last round too few sites" in Page(render(record, summary(record))).text
    record = study(outcome="running")
    assert "Still running" in render(record, summary(record))


def test_accuracy_belongs_to_the_round_before() -> None:
    record = study(rounds=3)
    page = render(record, summary(record))
    # Round 1 receives the initial model; the closing evaluation, number 4, measures the result of round 3.
    measured = [(row[0], row[8], row[10]) for row in rows(page, "Every round")]
    assert measured[0] == ("1", "10.0%", "initial")
    assert measured[-1] == ("Closing evaluation", "77.5%", "round 3")
    chart = drawings(page)[0]
    assert [tick.text for tick in chart.iter("text") if tick.get("class") == "tick mid"] == [
        "0",
        "1",
        "2",
        "3",
        "after round (0 = initial model)",
    ]
    assert "from 10.00% after round 0 to 77.50% after round 3" in (chart.get("aria-label") or "")


def test_a_gap_is_not_drawn_over() -> None:
    record = study(rounds=6)
    lines = [group for group in drawings(render(record, summary(record)))[0].iter("g") if group.get("class")]
    paths = {(group.findtext("title") or "").split(":")[0]: group for group in lines}
    whole, broken = paths["site-00"].find("path"), paths["site-01"]
    assert whole is not None
    assert whole.get("d", "").count("M") == 1
    assert len(broken.findall("circle")) == 1  # its only value before the gap
    assert "mean" in paths


def test_cohort_grid_says_in_words_who_was_missing() -> None:
    record = study(rounds=3)
    page = render(record, summary(record))
    grid = rows(page, "Who took part in which round")
    assert grid[0] == ["site-00", *["took part"] * 4, "3 of 3"]
    assert grid[1] == ["site-01", "took part", "dropped", "took part", "took part", "2 of 3"]
    assert grid[2][2] == "sat out"
    assert rows(page, "Why sites were missing") == [
        ["dropped", "1 ×", "deadline passed", "site-01 2"],
        ["sat out", "1 ×", "deadline passed", "site-02 2"],
    ]
    assert "site-01, round 2: dropped (deadline passed), 0 B up, 400 kB down" in page
    assert "2–4 of 4 2 missed at least one round" in Page(page).text


def test_circles_are_named_with_the_rounds_they_were_closed_in() -> None:
    record = study(rounds=2)
    first, second = ("site-00", "site-01"), ("site-02", "site-03")
    told = [
        (
            CircleRound(members=first, opened=True),
            CircleRound(members=second, opened=number != 2, reason="Protection" * (number == 2)),
        )
        for number in (1, 2, 3)
    ]
    rounds = tuple(replace(entry, circles=circles) for entry, circles in zip(record.rounds, told, strict=True))
    page = render(replace(record, rounds=rounds), summary(record))
    assert [row[:3] for row in rows(page, "Circles: sites whose updates are only ever opened together")] == [
        ["1", "site-00, site-01", "3 of 3"],
        ["2", "site-02, site-03", "2 of 3"],
    ]
    assert "Circles:" not in render(record, summary(record))


def buffered(*, times: bool = True) -> StudyRecord:
    """Two circles of two sites: three versions, of which the second asked for one block only. Then the evaluation."""
    record = study(rounds=3)
    first, second = ("site-00", "site-01"), ("site-02", "site-03")
    turns = (
        CircleRound(members=first, opened=True, turn=1, base=0, staleness=0, seconds=1.0, began=1000.0),
        CircleRound(
            members=first, opened=True, turn=2, base=1, staleness=0, seconds=3.0, began=1010.0, asked=("head",)
        ),
        CircleRound(members=second, opened=True, turn=1, base=0, staleness=2, seconds=9.0, began=1000.0),
    )
    entries = []
    for number, turn in enumerate(turns, 1):
        nodes = tuple(
            NodeRound(name=name, outcome="took part", bytes_up=600, uploaded=1000.0 + 10 * number)
            for name in turn.members
        )
        made = record.rounds[number - 1]
        kept = turn if times else replace(turn, began=None)
        entries.append(replace(made, nodes=nodes, circles=(kept,), committed=1001.0 + 10 * number, blocks_kept=()))
    blocks = {"body": 200, "head": 100}
    return replace(record, rounds=(*entries, record.rounds[3]), blocks=blocks, shared_parameters=300)


def test_turns_of_circles_are_drawn_and_counted() -> None:
    record = buffered()
    page = render(record, summary(record))
    Page(page)
    assert [row[:1] + row[2:7] for row in rows(page, "Turns of each circle")] == [
        ["1", "2", "0", "67%", "0.0", "0"],
        ["2", "1", "0", "33%", "2.0", "2"],
    ]
    assert "version 3: turn 1 of circle 2, begun from version 0" in page
    assert "1 turn was 2 versions old" in page
    plain = study(rounds=2)
    assert "Turns of circles" not in render(plain, summary(plain))


def test_single_sites_are_not_called_circles_alone() -> None:
    record = buffered()
    alone = [
        replace(entry, circles=tuple(replace(turn, members=(site,)) for turn in entry.circles for site in turn.members))
        for entry in record.rounds
    ]
    page = render(replace(record, rounds=tuple(alone)), summary(record))
    Page(page)
    assert "Sites at their own pace" in page
    assert "Turns of circles" not in page


def test_who_was_heard_how_much_is_beside_an_even_share() -> None:
    record = buffered()
    found = rows(render(record, summary(record)), "How much each site was heard")
    assert found == [
        ["site-00", "1", "2", "33.3%", "1.33 ×"],
        ["site-01", "1", "2", "33.3%", "1.33 ×"],
        ["site-02", "2", "1", "16.7%", "0.67 ×"],
        ["site-03", "2", "1", "16.7%", "0.67 ×"],
    ]


def test_bytes_of_a_block_are_those_of_the_turns_that_sent_it() -> None:
    record = buffered()
    # Three turns of 1200 bytes: two thirds of the first and the third are the body's; the second sent the head alone.
    assert block_bytes(record) == {"body": 1600, "head": 400 + 1200 + 400}
    page = render(record, summary(record))
    assert rows(page, "Bytes of each block") == [
        ["1", "body", "200", "2 of 3", "1.6 kB", "44%"],
        ["2", "head", "100", "3 of 3", "2 kB", "56%"],
    ]
    assert sum(block_bytes(record).values()) == sum(entry.bytes_up for entry in record.rounds[:3])
    assert "Bytes of each block" not in render(replace(record, blocks={}), summary(record))


def test_uploads_flushes_and_accuracy_are_drawn_against_time_and_bytes() -> None:
    record = buffered()
    page = render(record, summary(record))
    assert "turn 2 of circle 1: version 2 after 21.0 s" in page
    assert "site-02 uploaded turn 1 after 30.0 s" in page
    shown = {svg.get("aria-label"): svg for svg in drawings(page)}
    label = "Accuracy against bytes sent: lines of 3 circles."
    tips = [title.text for circle in shown[label].iter("circle") for title in circle.iter("title")]
    # The closing evaluation is of version 3; turns measure the version that they began from.
    assert tips == [
        "all sites: 77.50% with version 3",
        "circle 1: 10.00% with version 0",
        "circle 1: 55.00% with version 1",
        "circle 2: 70.00% with version 0",
    ]
    places = [float(circle.get("cx", "")) for circle in shown[label].iter("circle")]
    assert places[0] == max(places)  # all 3600 bytes were sent by then
    assert places[1] == places[3] == min(places)
    assert "Accuracy against time: lines of 3 circles." in shown
    without = render(buffered(times=False), summary(record))
    assert "The record has no times" in without
    assert "Accuracy against time" not in without


def test_lines_of_sites_have_no_gaps_where_other_circles_made_versions() -> None:
    record = buffered()
    noted = tuple(
        replace(entry, nodes=tuple(replace(node, accuracy=0.5) for node in entry.nodes)) for entry in record.rounds
    )
    page = render(replace(record, rounds=noted), summary(record))
    (chart, _) = [svg for svg in drawings(page) if (svg.get("aria-label") or "").startswith("Accuracy after each")]
    lines = [group for group in chart.iter("g") if group.get("class") == "line site"]
    assert len(lines) == 4
    assert all(len(list(group.iter("path"))) == 1 for group in lines)


def test_blocks_that_no_round_opened_are_said_at_the_top() -> None:
    record = study(rounds=2)
    kept = tuple(
        replace(entry, blocks_kept=("cell-3",) if entry.kind is RoundKind.TRAIN else ()) for entry in record.rounds
    )
    page = render(replace(record, rounds=kept), summary(record))
    assert "Parts of the model were never trained together" in page
    once = (replace(kept[0], blocks_kept=()), *kept[1:])
    assert "never trained together" not in render(replace(record, rounds=once), summary(record))


def test_codes_become_words_and_equal_reasons_one_row() -> None:
    record = study(rounds=3, text="NonFiniteUpdate")
    late = replace(record.rounds[2].nodes[3], outcome="dropped", reason="LateMessage")
    gone = replace(record.rounds[3].nodes[3], outcome="absent", reason="")
    *first, third, closing = record.rounds
    third = replace(third, nodes=(*third.nodes[:3], late))
    closing = replace(closing, nodes=(*closing.nodes[:3], gone))
    page = render(replace(record, rounds=(*first, third, closing)), summary(record))
    table = rows(page, "Why sites were missing")
    assert [row[0] for row in table] == ["dropped", "sat out", "dropped", "absent"]
    assert table[0][2].startswith("Numbers that are NaN or infinite")
    assert table[2][2].startswith("It did not answer in time.")
    assert table[3][2:] == ["It was not connected when the round began.", "site-03 E"]


def test_settings_steps_and_date_are_on_the_page() -> None:
    settings = Study.parse({"study": {"name": "sepsis", "seed": 4711}, "metrics": {"share": "aggregate"}})
    steps = (Step(why="Once <more>", command="secure-fl run 'a & b.toml'"),)
    record = study(share="aggregate")
    written = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    text = Page(render(record, summary(record), settings, steps=steps, written=written)).text
    for expected in (
        "Seed 4711",
        "[protection] kind = ",
        "Once <more> secure-fl run 'a & b.toml'",
        f"Written by secure-fl {secure_fl.__version__} on 2026-01-02 at 03:04 UTC",
        "Study hash 0123abcd",
        "ε ≤ 2.5 the most any site spent, 3 sites without",
        "The sites share only the aggregate",
    ):
        assert expected in text
    assert "thin lines are the sites" not in text


def test_a_run_is_repeated_with_its_policy() -> None:
    policy = {"protections": ["none"], "metrics": "aggregate", "colluders": 2, "note": 'it\'s "quoted"'}
    words = shlex.split(next_steps("threads", policy)[0].command)
    assert words[:3] == ["secure-fl", "run", "study.toml"]
    table: dict[str, Any] = {}
    for before, word in itertools.pairwise(words):
        if before == "--set":
            set_dotted(table, word)
    assert table == {"policy": policy}


def test_cost_is_per_site_and_marks_repeated_attempts() -> None:
    record = study(rounds=3)
    again = replace(record.rounds[1], attempts=3, seconds=200.0)
    page = render(replace(record, rounds=(record.rounds[0], again, *record.rounds[2:])), summary(record))
    time_chart, traffic = (drawings(page)[2 * index] for index in (1, 2))
    assert [bar.get("class") for bar in time_chart.iter("rect")] == ["up", "again", "up", "up"]
    assert "3 min" in {tick.text for tick in time_chart.iter("text")}
    assert [title.text for title in traffic.iter("title")][1] == "round 2: 600 kB up, 400 kB down per site"
    assert "2 more attempts needed" in Page(page).text


def test_tables_show_units_and_blocks_kept() -> None:
    record = study(rounds=3)
    page = render(record, summary(record))
    first, second = rows(page, "Every site")[:2]
    assert first == ["site-00", "drawn", "87.5%", "0.25", "1,234", "2.5δ 1e-05", "3", "1", "3.6 MB", "1.6 MB"]
    assert second[5] == "no DP"
    expected = ["1", "4 of 4", "1", "2.50 s", "1.2 MB", "400 kB", "4.8 MB", "1.6 MB", "10.0%", "–", "initial"]
    expected.append("head.weight")
    assert rows(page, "Every round")[0] == expected


def test_regression_shows_the_error() -> None:
    record = study(measure="mse")
    page = render(record, summary(record, mean_accuracy=None, std_accuracy=None, mean_mse=0.0375))
    text = Page(page).text
    assert "Error (MSE) after each round" in text
    assert "0.0375" in text
    assert "Accuracy after" not in text
    assert rows(page, "Every site")[0][2] == "0.775"


def test_what_sites_noted_is_drawn_by_part_of_the_model() -> None:
    record = study(rounds=3)
    settings = Study.parse({"strategy": {"name": "pflsensing"}})
    notes = {
        name: {at: {"alpha": {"body": 0.5, "<b>": index / 4}} for at in (1, 2, 3)}
        for index, name in enumerate(record.roster)
    }
    notes["site-00"] = {1: {"alpha": {"body": math.nan}}, 2: {"other": {}}}
    page = render(record, summary(record), settings, notes=notes)
    assert "α of each block" in Page(page).text
    shown = [svg for svg in drawings(page) if (svg.get("aria-label") or "").startswith("alpha after each round")]
    assert len(shown) == 2  # wide and narrow
    for svg in shown:
        assert svg.get("aria-label") == "alpha after each round. At the end: body 0.50, <b> 0.50."
        lines = [group for group in svg.iter("g") if "line" in group.get("class", "")]
        assert [group.findtext("title") for group in lines] == ["body: 0.50 after round 3", "<b>: 0.50 after round 3"]
        (band,) = svg.iter("polygon")  # from 1/4 to 3/4; the sites agree on the other
        assert len((band.get("points") or "").split()) == 6
    last = rows(page, "What each site noted last")
    assert last == [["site-00", "–", "–"], *([f"site-{i:02}", "0.5", f"{i / 4:g}"] for i in (1, 2, 3))]
    empty: list[dict[str, dict[int, Traces]] | None]
    empty = [None, {}, {"site-00": {}}, {"site-00": {1: {"alpha": {"body": math.nan}}}}]
    for nothing in empty:
        assert "noted for themselves" not in render(record, summary(record), settings, notes=nothing)


def test_combinations_are_counted_and_who_asked_for_whom_is_drawn() -> None:
    record = study(rounds=3)
    served = [replace(entry, combinations=2 if entry.kind is RoundKind.TRAIN else 0) for entry in record.rounds]
    record = replace(record, combinations_opened=6, combinations_possible=10, rounds=tuple(served))
    page = render(record, summary(record))
    # Four sites trained in rounds 1 and 3, two of them in round 2.
    assert "combined, 6 in all" in Page(page).text
    assert "kept their own model, 4 in all" in Page(page).text
    assert "Who asked for whom" not in page
    rows = {name: {at: {"asked": {name: 32.0, "<b>": 32.0}} for at in (1, 2, 3)} for name in record.roster}
    rows["site-00"] = {1: {"asked": {"site-00": 32.0, "site-01": 32.0}}, 2: {"asked": {}}}
    shown = [
        svg
        for svg in drawings(render(record, summary(record), rows=rows))
        if (svg.get("aria-label") or "").startswith("Who asked for whom")
    ]
    assert len(shown) == 2
    for svg in shown:
        assert svg.get("aria-label") == "Who asked for whom: most often site-03 for <b>, in 3 of 3 rounds."
        titles = [rect.findtext("title") for rect in svg.iter("rect")]
        assert len(titles) == 5 * 5
        assert "site-00 asked for site-01 in 1 of 3 rounds" in titles
        assert "site-02 asked for <b> in 3 of 3 rounds" in titles
    assert "6 of 10" in Page(page).text
    assert "No combination was opened" not in page
    alone = replace(record, combinations_opened=0)
    assert "No combination was opened" in Page(render(alone, summary(alone))).text
    plain = replace(record, combinations_opened=0, combinations_possible=None)
    assert "No combination was opened" not in render(plain, summary(plain))
    assert "Who asked for whom" not in render(plain, summary(plain), rows={"site-00": {}})
    assert "Combinations</h2>" not in render(plain, summary(plain), rows={"site-00": {}})


def test_no_rounds_and_one_round() -> None:
    record = study(rounds=0)
    assert "No round has been committed yet" in render(record, summary(record, nodes=[]))
    record = study(rounds=1)
    page = render(record, summary(record))
    assert len(drawings(page)) == 2 * 3  # accuracy, time, bytes; each wide and narrow
    assert len(rows(page, "Every round")) == 2


def test_labels_do_not_overlap_with_twelve_sites() -> None:
    record = study(12, 20)
    for chart in drawings(render(record, summary(record)))[:2]:
        places = sorted(float(text.get("y", "")) for text in chart.iter("text") if "name" in text.get("class", ""))
        assert len(places) == 3  # the mean and the two extremes
        assert min(after - before for before, after in itertools.pairwise(places)) >= 14.9
        assert places[-1] <= float(chart.get("height", ""))


def test_long_study_is_small_and_fast() -> None:
    record = study(30, 200)
    started = time.perf_counter()
    page = render(record, summary(record))
    assert time.perf_counter() - started < 2
    assert len(page.encode()) < 2_000_000
    Page(page)
    assert len(drawings(page)) == 2 * 3


def test_text_helpers() -> None:
    assert [size(value) for value in (0, 999, 999.5, 1_500, 999_499, 999_500, 2.5e9, 5e15, None)] == [
        *("0 B", "999 B", "1 kB", "1.5 kB", "999 kB", "1 MB", "2.5 GB", "5,000 TB", "–")
    ]
    assert [duration(value) for value in (0.5, 59.96, 3600, None)] == [
        "0.50 s",
        "1 min 0 s",
        "1 h 0 min",
        "–",
    ]
    assert ranges([7, 1, 2, 3]) == "1–3, 7"
    assert fit("hospital-north-10", 9) == "hosp…h-10"
    assert fit("short", 9) == "short"
    assert escape("a\nb\u202e<'\">") == "a b\N{REPLACEMENT CHARACTER}&lt;&#x27;&quot;&gt;"


@pytest.mark.parametrize("wanted", [[5.0] * 6, [0.0, 1.0, 50.0, 99.0, 100.0], [100.0] * 3, [], [40.0]])
def test_spread_keeps_order_gap_and_bounds(wanted: list[float]) -> None:
    placed = spread(wanted, 10, 0, 100)
    assert len(placed) == len(wanted)
    assert all(0 <= y <= 100 for y in placed)
    assert all(after - before >= 10 - 1e-9 for before, after in itertools.pairwise(placed))


def test_nice_steps() -> None:
    assert [nice_step(span, 5) for span in (0.0, 1.0, 10.0, 12.0)] == [1.0, 0.2, 2.0, 5.0]
