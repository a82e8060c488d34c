"""The page: what a study lead asks, in the order they ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import tomli_w

import secure_fl
from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.report import tables
from secure_fl.report.charts import Bar, bar_chart, line_chart, sparkline
from secure_fl.report.document import choices, document, figure, section
from secure_fl.report.drawing import FRAMES, Series
from secure_fl.report.measures import metrics_section
from secure_fl.report.noted import notes_section
from secure_fl.report.selection import Rows, selection_section
from secure_fl.report.text import DASH, count, decimal, duration, error_text, escape, number, percent, size
from secure_fl.report.turns import turns_section
from secure_fl.results.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.results.summary import DEPLOYED
from secure_fl.results.traces import Traces
from secure_fl.results.turns import measured_version, merged_turns
from secure_fl.rounds import RoundKind
from secure_fl.study.settings import Study

_NO_ROUND = '<p class="empty">No round has been committed yet.</p>'
_UNITS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))

Measure = Literal["accuracy", "mse", "loss"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Something the reader may want to do next: why, and the command."""

    why: str
    command: str


def render(
    record: StudyRecord,
    summary: Mapping[str, Any],
    study: Study | None = None,
    *,
    steps: Sequence[Step] = (),
    written: datetime | None = None,
    notes: Mapping[str, Mapping[int, Traces]] | None = None,
    rows: Rows | None = None,
) -> str:
    """The report of a study as one self-contained HTML page.

    `record` is what the rounds left behind, `summary` the object that `secure-fl run --json` prints, `study` the
    settings; what one of them lacks is shown as "–". `notes` are what the sites noted for themselves, by site and
    round, and `rows` what each asked to be combined: only a simulation has them.
    """
    regression = _is_regression(record, summary)
    body = "".join(
        (
            _header(record, summary, study, regression=regression),
            _cohort_section(record),
            turns_section(record, regression=regression),
            _model_section(record, regression=regression),
            metrics_section(record, summary),
            selection_section(record, rows or {}),
            notes_section(notes or {}, study),
            _site_section(record, summary, study, regression=regression),
            _cost_section(record, regression=regression),
            _next_section(steps),
            _facts(record, summary, study),
        )
    )
    return document(f"{record.study} – study report", body, written=written)


def _is_regression(record: StudyRecord, summary: Mapping[str, Any]) -> bool:
    """Whether the study is measured by its error: it shared one, and no accuracy."""
    accuracies = [summary.get("mean_accuracy"), *(entry.mean_accuracy for entry in record.rounds)]
    if any(number(value) is not None for value in accuracies):
        return False
    errors = [summary.get("mean_mse"), *(entry.mean_mse for entry in record.rounds)]
    errors += [node.mse for entry in record.rounds for node in entry.nodes]
    return any(number(value) is not None for value in errors)


# --- headline ---------------------------------------------------------------------------------------------


def _header(record: StudyRecord, summary: Mapping[str, Any], study: Study | None, *, regression: bool) -> str:
    settings = (
        ("Task", record.task),
        ("Strategy", record.strategy),
        ("Protection", record.protection),
        ("Seed", study.study.seed if study else DASH),
    )
    return (
        '<header>\n<p class="eyebrow">Study report</p>\n'
        f'<div class="title"><h1>{escape(record.study)}</h1>'
        f'<span class="badge {escape(record.outcome)}">{escape(record.outcome)}</span></div>\n'
        f"{choices(settings)}\n{_tiles(record, summary, regression)}{_banners(record, study)}"
        "</header>\n"
    )


def _banners(record: StudyRecord, study: Study | None) -> str:
    parts = [_protection(record, study)]
    if record.outcome == "aborted":
        reason = tables.plain_reason(record.reason) if record.reason else "No reason was recorded."
        parts.append(("bad", "The study ended before its last round", reason))
    if record.combined_nothing:
        text = "Every site has trained alone: sites selected too few peers, or the guard refused what they asked for."
        parts.append(("bad", "No combination was opened", text))
    if record.blocks_never_opened:
        names = escape(", ".join(record.blocks_never_opened))
        text = f"{names}: no round had enough sites that share them. They are as they were before the first round."
        parts.append(("bad", "Parts of the model were never trained together", text))
    if record.outcome == "running":
        parts.append(("", "Still running", "These are the rounds committed so far."))
    if record.left_out:
        sites = "; ".join(escape(str(site)) for site in record.left_out)
        them = "it" if len(record.left_out) == 1 else "them"
        parts.append(("bad", "Left out", f"{sites}. Every attempt after that was without {them}."))
    return "".join(f'<p class="banner {css}" role="note"><b>{title}</b>{text}</p>\n' for css, title, text in parts)


def _protection(record: StudyRecord, study: Study | None) -> tuple[str, str, str]:
    """What the protection means, in its own first sentence, as the study has set it."""
    if record.protection not in protect.known():
        title = f"Protection {escape(record.protection)}"
        return "", title, "The version that wrote this page does not know it and cannot say what it hides."
    as_set = study is not None and study.protection.kind == record.protection
    protection = study.make_protection() if study and as_set else protect.create(record.protection, {})
    kind = RequestKind.SUM if record.combinations_possible is None else RequestKind.COMBINE
    sentence = escape(protection.explain(kind)[0])
    if protection.coordinator_sees_updates:
        return "", "Not protected", sentence
    return "calm", f"Protected by {escape(protection.name)}", sentence


def _tiles(record: StudyRecord, summary: Mapping[str, Any], regression: bool) -> str:
    if regression:
        name, value = "Mean squared error over the sites", decimal(summary.get("mean_mse"))
    else:
        name, value = "Mean accuracy over the sites", percent(summary.get("mean_accuracy"))
        if number(summary.get("std_accuracy")) is not None:
            value += f" <em>± {percent(summary['std_accuracy'])}</em>"
    best = "lower is better" if regression else "± is the standard deviation between sites" if "±" in value else ""
    if number(summary.get("global_accuracy")) is not None:
        best += f"{'; ' if best else ''}the shared model alone reaches {percent(summary['global_accuracy'])}"
        best += ", also as a mean over the sites"
    training = [entry for entry in record.rounds if entry.kind is RoundKind.TRAIN]
    seconds = number(summary.get("seconds"))
    each = f"{duration(seconds / len(training))} per round" if seconds is not None and training else ""
    again = sum(entry.attempts - 1 for entry in record.rounds)
    tries = f"{count(again)} more attempt{'s' if again > 1 else ''} needed" if again else "each in one attempt"
    up, down = summary.get("bytes_up_per_node_round"), summary.get("bytes_down_per_node_round")
    tiles = (
        ("lead", name, value, best),
        (
            "",
            "Versions" if merged_turns(record) else "Rounds",
            f"{len(training)} <em>of {count(record.planned_rounds)}</em>",
            tries if training else "",
        ),
        ("", "Sites that trained", *_participation(record, training)),
        ("", "Differential privacy", *_privacy(summary)),
        ("", "Time", duration(seconds), each),
        ("", "Sent per site and round", size(up), f"{size(down)} received"),
    )
    cells = "".join(
        f'<div class="{css}"><dt>{name}</dt><dd>{value}</dd><dd class="sub"><small>{sub}</small></dd></div>'
        for css, name, value, sub in tiles
    )
    return f'<dl class="tiles">{cells}</dl>\n'


def _participation(record: StudyRecord, training: Sequence[RoundRecord]) -> tuple[str, str]:
    """How full the rounds were, and how many sites missed one."""
    sites = tables.site_names(record)
    if not training or not sites:
        return DASH, f"{len(sites)} sites enrolled"
    if merged_turns(record):
        heard = {name for entry in training for name in entry.cohort}
        return f"{len(heard)} <em>of {len(sites)}</em>", "each in the turns of its circle"
    cohorts = [len(entry.cohort) for entry in training]
    span = f"{min(cohorts)}–{max(cohorts)}" if min(cohorts) < max(cohorts) else str(cohorts[0])
    short = len(sites) - len(set(sites).intersection(*(entry.cohort for entry in training)))
    missed = f"{short} missed at least one round" if short else "every one in every round"
    return f"{span} <em>of {len(sites)}</em>", missed


def _privacy(summary: Mapping[str, Any]) -> tuple[str, str]:
    """The largest ε spent; "no DP" only where the summary says so."""
    spent = [entry["epsilon"] for entry in summary.get("nodes") or () if "epsilon" in entry]
    known = [value for value in map(number, spent) if value is not None]
    if not spent:
        return DASH, ""
    if not known:
        return "no DP", "the model may remember training data"
    without = f", {len(spent) - len(known)} sites without" if len(known) < len(spent) else ""
    if summary.get("engine") == DEPLOYED:
        return f"ε ≤ {decimal(max(known))}", f"what the study promises, and every site enforces{without}"
    return f"ε ≤ {decimal(max(known))}", f"the most any site spent{without}; simulated noise: for planning only"


# --- who took part ----------------------------------------------------------------------------------------


def _cohort_section(record: StudyRecord) -> str:
    title = "Who took part"
    if not record.rounds:
        return section(title, "", _NO_ROUND)
    note = "One column per round"
    note += (
        "; E is the closing evaluation." if any(entry.kind is RoundKind.EVALUATE for entry in record.rounds) else "."
    )
    if lost := [str(entry.number) for entry in record.rounds if entry.came_to_nothing]:
        note += (
            f" Nothing was opened in round {', '.join(lost)}: it failed after sites had sent their updates, which they "
            "do once. The next round began from the same model."
        )
    return section(
        title,
        note,
        tables.grid_key(record)
        + tables.cohort_grid(record)
        + tables.circle_table(record)
        + tables.reason_table(record),
    )


# --- how the model develops -------------------------------------------------------------------------------


def _model_section(record: StudyRecord, *, regression: bool) -> str:
    """The measures against completed rounds: round r measures the model it receives, so it is at r−1."""
    title = "How the model develops"
    if not record.rounds:
        return section(title, "", _NO_ROUND)
    measures: tuple[Measure, ...] = ("mse", "loss") if regression else ("accuracy", "loss")
    charts = "".join(_measure_chart(record, measure) for measure in measures)
    if not charts:
        return section(title, "", '<p class="empty">No site shared a measurement in this study.</p>')
    note = "Every site tests the model it receives, before it trains"
    if any(entry.kind is RoundKind.EVALUATE for entry in record.rounds):
        note += "; the last point is the closing evaluation of the final model"
    note += ". Bold is the mean over the sites that took part"
    if _shared_per_site(record):
        note += ", thin lines are the sites; the highest and the lowest are named"
    return section(title, note + ". A gap means that nothing was measured.", f'<div class="charts">{charts}</div>')


def _measure_chart(record: StudyRecord, measure: Measure) -> str:
    title = {"accuracy": "Accuracy", "mse": "Error (MSE)", "loss": "Loss"}[measure]
    mean = _mean_series(record, measure)
    sites = [line for line in _site_series(record, measure) if line.known]
    if not mean.known and not sites:
        return ""
    text, ceiling = (percent, 1.0) if measure == "accuracy" else (error_text, None)
    label = _describe(f"{title} after each round", mean, text, len(sites))
    drawn = "".join(line_chart(frame, sites, mean, text=text, ceiling=ceiling, label=label) for frame in FRAMES)
    return figure(f"{title} after each round", drawn)


def _mean_series(record: StudyRecord, measure: Measure) -> Series:
    found: dict[int, list[float | None]] = {}
    for entry in record.rounds:  # Circles that do not wait for each other may begin from the same version.
        found.setdefault(measured_version(entry), []).append(number(getattr(entry, f"mean_{measure}")))
    return Series(name="mean", points=tuple((at, tables.mean(found[at])) for at in sorted(found)))


def _site_series(record: StudyRecord, measure: Measure) -> list[Series]:
    def value(node: NodeRound | None) -> float | None:
        return None if node is None else number(getattr(node, measure))

    looked_up = [(measured_version(entry), tables.by_name(entry)) for entry in record.rounds]
    gaps = not merged_turns(record)  # A version that other circles made is no gap.
    return [
        Series(
            name=name, points=tuple((at, value(nodes.get(name))) for at, nodes in looked_up if gaps or name in nodes)
        )
        for name in tables.site_names(record)
    ]


def _shared_per_site(record: StudyRecord) -> bool:
    values = ((node.accuracy, node.loss, node.mse, node.samples) for entry in record.rounds for node in entry.nodes)
    return any(number(value) is not None for shared in values for value in shared)


def _describe(title: str, mean: Series, text: Callable[[float, int], str], sites: int) -> str:
    """The chart in one sentence, for those who do not see it."""
    if not mean.known:
        return f"{title}: lines of {sites} sites, no mean."
    (first, start), (last, end) = mean.known[0], mean.known[-1]
    return (
        f"{title}: lines of {sites} sites; their mean goes from {text(start, 2)} after round {first}"
        f" to {text(end, 2)} after round {last}."
    )


# --- sites ------------------------------------------------------------------------------------------------


def _site_section(record: StudyRecord, summary: Mapping[str, Any], study: Study | None, *, regression: bool) -> str:
    measure: Measure = "mse" if regression else "accuracy"
    lines: dict[str, str] | None = None
    if _shared_per_site(record):
        mean = _mean_series(record, measure)
        sites = [line for line in _site_series(record, measure) if line.known]
        values = [value for line in (*sites, mean) for _, value in line.known]
        text = percent if measure == "accuracy" else error_text
        lines = {line.name: sparkline(line, mean, low=min(values), high=max(values), text=text) for line in sites}
    what = "is what the study promises; a site's own ledger says what it spent"
    if summary.get("engine") != DEPLOYED:
        what = "is what a site's differential privacy spent"
    note = _sharing(record, study, lines is not None) + (
        f" ε {what}; “no DP” means that it used none, not that ε is 0."
        " “Used” is of the site's own limit, over all studies."
    )
    return section("Sites", note, tables.site_table(record, summary, regression=regression, lines=lines))


def _sharing(record: StudyRecord, study: Study | None, per_site: bool) -> str:
    """What the sites let be seen, said plainly."""
    if per_site:
        return "The last measurements each site shared; beside its line, in grey, the mean."
    share = study.metrics.share if study else "aggregate" if _mean_known(record) else "none"
    if share == "none":
        return "The sites share no measurements, not even their mean: how each one does is known only to itself."
    if share == "aggregate":
        return "The sites share only the aggregate: how each one does is known only to itself."
    return "No site has shared a measurement so far."


def _mean_known(record: StudyRecord) -> bool:
    return any(_mean_series(record, measure).known for measure in ("accuracy", "loss", "mse"))


# --- what it cost -----------------------------------------------------------------------------------------


def _cost_section(record: StudyRecord, *, regression: bool) -> str:
    title = "What each round cost"
    if not record.rounds:
        return section(title, "", _NO_ROUND)
    note = "Time is that of the attempt that succeeded."
    if any(entry.blocks_kept for entry in record.rounds):
        note += (
            " Blocks kept are parts of the model with fewer contributors than their minimum: they were never opened"
            " and stayed as they were."
        )
    charts = f'<div class="charts">{_time_chart(record)}{_traffic_chart(record)}</div>'
    return section(title, note, charts + tables.round_table(record, regression=regression))


def _time_chart(record: StudyRecord) -> str:
    longest = max(entry.seconds for entry in record.rounds)
    if not longest > 0:
        return ""
    scale, unit = next((scale, unit) for scale, unit in _UNITS if longest >= 2 * scale or scale == 1)
    bars = [
        Bar(
            tip=f"{tables.round_label(entry)}: {duration(entry.seconds)}, {entry.attempts} attempt(s)",
            tick=_tick(entry),
            above=entry.seconds / scale,
            marked=entry.attempts > 1,
        )
        for entry in record.rounds
    ]
    again = sum(bar.marked for bar in bars)
    label = f"Time per round: {duration(longest)} at most; {again} rounds needed more than one attempt."
    drawn = "".join(bar_chart(frame, bars, text=lambda value: f"{value:g} {unit}", label=label) for frame in FRAMES)
    key = '<span><i class="box again"></i>more than one attempt</span>' if again else ""
    return figure("Time per round", drawn, key)


def _traffic_chart(record: StudyRecord) -> str:
    bars = []
    for entry in record.rounds:
        up, down = (value or 0.0 for value in tables.bytes_per_site(entry))
        tip = f"{tables.round_label(entry)}: {size(up)} up, {size(down)} down per site"
        bars.append(Bar(tip=tip, tick=_tick(entry), above=up, below=down))
    if not any(bar.above + bar.below for bar in bars):
        return figure("Bytes per site", '<p class="empty">No bytes were exchanged.</p>')
    up, down = sum(entry.bytes_up for entry in record.rounds), sum(entry.bytes_down for entry in record.rounds)
    label = f"Bytes per site and round; all together {size(up)} up and {size(down)} down."
    drawn = "".join(bar_chart(frame, bars, text=size, label=label) for frame in FRAMES)
    key = (
        f'<span><i class="box"></i>sent, {size(up)} in all</span>'
        f'<span><i class="box below"></i>received, {size(down)} in all</span>'
    )
    return figure("Bytes per site", drawn, key)


def _tick(entry: RoundRecord) -> str:
    return "E" if entry.kind is RoundKind.EVALUATE else str(entry.number)


# --- what next --------------------------------------------------------------------------------------------


def _next_section(steps: Sequence[Step]) -> str:
    if not steps:
        return ""
    items = "".join(f"<li>{escape(step.why)}<pre>{escape(step.command)}</pre></li>" for step in steps)
    return section("What next", "", f'<ul class="steps">{items}</ul>')


def _facts(record: StudyRecord, summary: Mapping[str, Any], study: Study | None) -> str:
    shared = f"{count(record.shared_parameters)} of {count(record.parameters)}" if record.parameters else DASH
    facts: Sequence[tuple[str, str]] = (
        ("Study hash", f"<code>{escape(record.study_id)}</code>" if record.study_id else DASH),
        ("Engine", escape(summary.get("engine") or DASH)),
        ("Parameters shared", shared),
        ("Combinations opened", _combinations(record)),
        ("Measurements shared", escape(study.metrics.share) if study else DASH),
        ("Software", f"secure-fl {secure_fl.__version__}"),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    folded = f"<details><summary>The study file</summary><pre>{_study_file(study)}</pre></details>" if study else ""
    return section("Settings", "", f'<dl class="facts">{cells}</dl>{folded}')


def _combinations(record: StudyRecord) -> str:
    if record.combinations_possible is None:
        return DASH
    return f"{count(record.combinations_opened)} of {count(record.combinations_possible)}"


def _study_file(study: Study) -> str:
    """The study as TOML, line by line: escaping would make one line of it."""
    return "\n".join(map(escape, tomli_w.dumps(study.to_table()).splitlines()))
