"""The page: what a study lead asks, in the order they ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from secure_fl.record import NodeRound, StudyRecord
from secure_fl.report import tables
from secure_fl.report.charts import MOST_LABELS, NARROW, WIDE, Bar, Series, bar_chart, line_chart
from secure_fl.report.style import CSS, CSS_HASH
from secure_fl.report.text import DASH, count, decimal, duration, escape, number, percent, size

# Nothing is fetched and nothing runs: even a name that slipped through escaping would stay inert.
_POLICY = f"default-src 'none'; style-src '{CSS_HASH}'; base-uri 'none'; form-action 'none'"

_UNPROTECTED = "The coordinator saw every site's update in the clear; use only for tests."


def render(record: StudyRecord, summary: Mapping[str, Any]) -> str:
    """The report of a study as one self-contained HTML page.

    `record` is what the rounds left behind, `summary` the object that `secure-fl run --json` prints;
    a field the summary lacks is shown as "–".
    """
    regression = _is_regression(record, summary)
    body = "".join(
        (
            _header(record, summary, regression=regression),
            _measure_section(record, regression=regression),
            _traffic_section(record),
            _cohort_section(record),
            _section("Sites", _site_note(regression), tables.site_table(record, summary, regression=regression)),
            _rounds_section(record, regression=regression),
            _section("Why sites were missing", "", tables.reason_table(record)),
            _facts(record, summary),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(record.study)} – study report</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n"
        "<footer>Written by secure-fl. This page is complete in itself: it loads nothing and runs nothing."
        "</footer>\n</body>\n</html>\n"
    )


def _is_regression(record: StudyRecord, summary: Mapping[str, Any]) -> bool:
    """Whether the study is measured by its error: it shared one, and no accuracy."""
    accuracies = [summary.get("mean_accuracy"), *(entry.mean_accuracy for entry in record.rounds)]
    if any(number(value) is not None for value in accuracies):
        return False
    errors = [summary.get("mean_mse"), *(entry.mean_mse for entry in record.rounds)]
    errors += [node.mse for entry in record.rounds for node in entry.nodes]
    return any(number(value) is not None for value in errors)


def _section(title: str, note: str, content: str) -> str:
    lead = f'<p class="note">{note}</p>' if note else ""
    return f"<section>\n<h2>{title}</h2>{lead}\n{content}\n</section>\n"


# --- headline ---------------------------------------------------------------------------------------------


def _header(record: StudyRecord, summary: Mapping[str, Any], *, regression: bool) -> str:
    choices = "".join(
        f"<span>{label} <b>{escape(value)}</b></span>"
        for label, value in (
            ("Strategy", record.strategy),
            ("Protection", record.protection),
            ("Task", record.task),
        )
    )
    return (
        '<header>\n<p class="eyebrow">Study report</p>\n'
        f'<div class="title"><h1>{escape(record.study)}</h1>'
        f'<span class="badge {escape(record.outcome)}">{escape(record.outcome)}</span></div>\n'
        f'<p class="choices">{choices}</p>\n{_banners(record, summary)}{_tiles(record, summary, regression)}'
        "</header>\n"
    )


def _banners(record: StudyRecord, summary: Mapping[str, Any]) -> str:
    parts = []
    if "none" in (record.protection, summary.get("protection")):
        parts.append(f'<p class="banner" role="note"><b>Not protected</b>{_UNPROTECTED}</p>\n')
    if record.outcome == "aborted":
        reason = escape(record.reason) or "No reason was recorded."
        parts.append(f'<p class="banner bad" role="note"><b>The study ended before its last round</b>{reason}</p>\n')
    elif record.outcome == "running":
        parts.append('<p class="banner" role="note"><b>Still running</b>These are the rounds committed so far.</p>\n')
    return "".join(parts)


def _tiles(record: StudyRecord, summary: Mapping[str, Any], regression: bool) -> str:
    if regression:
        name, value = "Mean squared error over the sites", decimal(summary.get("mean_mse"))
    else:
        name = "Mean accuracy over the sites"
        value = f"{percent(summary.get('mean_accuracy'))} <em>± {percent(summary.get('std_accuracy'))}</em>"
    best = "lower is better" if regression else "± is the standard deviation between sites"
    if number(summary.get("global_accuracy")) is not None:
        best += f"; the shared model alone reaches {percent(summary['global_accuracy'])}"
    done = sum(entry.kind == "train" for entry in record.rounds)
    seconds = number(summary.get("seconds"))
    each = f"{duration(seconds / done)} per round" if seconds is not None and done else ""
    up, down = summary.get("bytes_up_per_node_round"), summary.get("bytes_down_per_node_round")
    tiles = (
        ("lead", name, value, best),
        ("", "Rounds", f"{done} <em>of {record.planned_rounds}</em>", f"{len(record.roster)} sites enrolled"),
        ("", "Time", duration(seconds), each),
        ("", "Sent per site and round", size(up), f"{size(down)} received"),
    )
    cells = "".join(
        f'<div class="{css}"><dt>{name}</dt><dd>{value}</dd><dd class="sub"><small>{sub}</small></dd></div>'
        for css, name, value, sub in tiles
    )
    return f'<dl class="tiles">{cells}</dl>\n'


# --- charts -----------------------------------------------------------------------------------------------


def _measure_section(record: StudyRecord, *, regression: bool) -> str:
    """Accuracy or error against completed rounds: round r measures the model it receives, so it is at r−1."""
    measure: Literal["mse", "accuracy"] = "mse" if regression else "accuracy"
    title = "Error (MSE) after each round" if regression else "Accuracy after each round"
    series = [_site_series(record, name, measure) for name in tables.site_names(record)]
    drawn = [line for line in series if line.known]
    mean = Series(
        name="mean",
        points=tuple(
            (entry.number - 1, number(entry.mean_mse if regression else entry.mean_accuracy)) for entry in record.rounds
        ),
    )
    if not record.rounds:
        return _section(title, "", '<p class="empty">No round has been committed yet.</p>')
    if not drawn and not mean.known:
        return _section(title, "", '<p class="empty">No site shared this measure in this study.</p>')
    text = _mse_text if regression else percent
    label = _describe(title, mean, text, len(drawn))
    charts = "".join(
        line_chart(frame, series, mean, text=text, ceiling=None if regression else 1.0, label=label)
        for frame in (WIDE, NARROW)
    )
    return _section(title, _measure_note(record, len(drawn)), f"<figure>{charts}</figure>")


def _site_series(record: StudyRecord, name: str, measure: Literal["mse", "accuracy"]) -> Series:
    def value(node: NodeRound | None) -> float | None:
        return None if node is None else number(node.mse if measure == "mse" else node.accuracy)

    points = ((entry.number - 1, value(tables.by_name(entry).get(name))) for entry in record.rounds)
    return Series(name=name, points=tuple(points))


def _measure_note(record: StudyRecord, drawn: int) -> str:
    note = (
        "Every site tests the model it receives before it trains, so round r measures the result of round"
        " r−1: 0 is the initial model"
    )
    if any(entry.kind == "evaluate" for entry in record.rounds):
        note += ", and the last point is the closing evaluation of the final model"
    note += ". A gap means that nothing was measured."
    if not drawn:
        note += " Sites shared only their mean."
    if drawn > MOST_LABELS:
        note += " There are too many sites to name their lines; the table below has each one's result."
    return note


def _mse_text(value: float, decimals: int) -> str:
    """Fixed decimals for everyday errors, powers of ten where a model diverged or fits exactly."""
    return f"{value:.{decimals}f}" if decimals < 6 and abs(value) < 1e5 else f"{value:.3g}"


def _describe(title: str, mean: Series, text: Callable[[float, int], str], sites: int) -> str:
    """The chart in one sentence, for those who do not see it."""
    if not mean.known:
        return f"{title}: lines of {sites} sites, no mean."
    (first, start), (last, end) = mean.known[0], mean.known[-1]
    return (
        f"{title}: lines of {sites} sites; their mean goes from {text(start, 2)} after round {first}"
        f" to {text(end, 2)} after round {last}."
    )


def _traffic_section(record: StudyRecord) -> str:
    title = "Bytes per round"
    bars = [
        Bar(
            label=tables.round_label(entry),
            tick="final" if entry.kind == "evaluate" else str(entry.number),
            up=entry.bytes_up,
            down=entry.bytes_down,
        )
        for entry in record.rounds
    ]
    up, down = sum(bar.up for bar in bars), sum(bar.down for bar in bars)
    if not up + down:
        return _section(title, "", '<p class="empty">No bytes were exchanged.</p>')
    key = (
        '<ul class="key">'
        f'<li><i class="box"></i><span><b>Up</b>, sites to coordinator, above the line<small>{size(up)}'
        '</small></span></li><li><i class="box below"></i><span><b>Down</b>, coordinator to sites, below it'
        f"<small>{size(down)}</small></span></li>"
        "</ul>"
    )
    label = f"{title}, all sites together: {size(up)} up and {size(down)} down in total."
    charts = "".join(bar_chart(frame, bars, label=label) for frame in (WIDE, NARROW))
    return _section(title, "All sites together.", f"{key}<figure>{charts}</figure>")


def _cohort_section(record: StudyRecord) -> str:
    title = "Who took part"
    if not record.rounds:
        return _section(title, "", '<p class="empty">No round has been committed yet.</p>')
    note = "E is the closing evaluation." if any(entry.kind == "evaluate" for entry in record.rounds) else ""
    return _section(title, note, tables.grid_key(record) + tables.cohort_grid(record))


# --- tables -----------------------------------------------------------------------------------------------


def _site_note(regression: bool) -> str:
    measure = "error" if regression else "accuracy"
    return (
        f"The last {measure} and loss each site shared. ε is what the site's differential privacy spent;"
        " “no DP” means that it used none, not that ε is 0."
    )


def _rounds_section(record: StudyRecord, *, regression: bool) -> str:
    if not record.rounds:
        return _section("Rounds", "", '<p class="empty">No round has been committed yet.</p>')
    note = (
        "Blocks kept are parts of the model with fewer contributors than their minimum: they were never"
        " opened and stayed as they were."
    )
    return _section("Rounds", note, tables.round_table(record, regression=regression))


def _facts(record: StudyRecord, summary: Mapping[str, Any]) -> str:
    shared = f"{count(record.shared_parameters)} of {count(record.parameters)}" if record.parameters else DASH
    facts: Sequence[tuple[str, str]] = (
        ("Study id", escape(record.study_id) or DASH),
        ("Engine", escape(summary.get("engine") or DASH)),
        ("Parameters shared", shared),
        ("Combinations opened", count(summary.get("combinations_opened", record.combinations_opened))),
    )
    cells = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    return _section("Details", "", f'<dl class="facts">{cells}</dl>')
