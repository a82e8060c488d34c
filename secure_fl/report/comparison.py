"""The page of `secure-fl bench strategies`, and its charts as files. The same result gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from secure_fl.report.contest import ACCURACY, ERROR, Contender, Measure, byte_chart, round_chart, site_chart
from secure_fl.report.document import choices, document, figure, section
from secure_fl.report.drawing import ALONE, FRAMES, Frame
from secure_fl.report.scatter import Points, scatter
from secure_fl.report.tables import data_table
from secure_fl.report.text import DASH, count, decimal, duration, escape, number, percent, size

_TEXT: Mapping[str, Callable[[Any], str]] = {"accuracy": percent, "mse": decimal}
_MEASURE = {"accuracy": ACCURACY, "mse": ERROR}
_HEAD = {"accuracy": "Accuracy", "mse": "MSE"}

_PLAIN = "none"

_FRAMES = (replace(FRAMES[0], columns=18), *FRAMES[1:])  # a name may be a strategy's and a protection's

_Chart = Callable[[Frame, Sequence[Contender], Measure], str]


def drawings(result: Mapping[str, Any], features: Sequence[Points | None] = ()) -> dict[str, str]:
    """Every chart as an SVG file that brings its own style: by file name."""
    key, contenders = _contenders(result)
    charts = {f"{name}.svg": chart(ALONE, contenders, _MEASURE[key]) for name, _, chart in _charts(contenders)}
    scatters = {
        f"features-{row['strategy']}-{row['protection']}.svg": scatter(ALONE, points)
        for row, points in zip(result["results"], features, strict=False)
        if points is not None
    }
    return charts | scatters


def render(result: Mapping[str, Any], features: Sequence[Points | None] = ()) -> str:
    """What `bench strategies --json` prints, as one self-contained HTML page; with `features` of its results' sites."""
    key, contenders = _contenders(result)
    figures = "".join(
        figure(title, "".join(chart(frame, contenders, _MEASURE[key]) for frame in _FRAMES))
        for _, title, chart in _charts(contenders)
    )
    settings = (
        ("Task", result["task"]),
        ("Partition", result["partition"]),
        ("Sites", result["nodes"]),
        ("Rounds", result["rounds"]),
        ("Seeds", ", ".join(map(str, result["seeds"]))),
    )
    several = len(result["seeds"]) > 1
    note = (
        "Mean over the sites, then over seeds; ± is the standard deviation over seeds."
        if several
        else "Mean over the sites; one seed only."
    ) + " “Across sites” is the standard deviation between the sites of a run: smaller is more even."
    body = (
        f'<header>\n<p class="eyebrow">Comparison</p>\n<div class="title"><h1>{escape(result["task"])}</h1></div>\n'
        f"{choices(settings)}\n</header>\n" + section("Result", note, _result_table(result, key))
    )
    if figures:
        note = "The band and the bar are one standard deviation over seeds; in the rows, a dot is a site under a seed."
        body += section("Beside each other", note, f'<div class="charts">{figures}</div>')
    body += _tax_section(result, key) + _depth_section(result) + _feature_section(result, features)
    if any(len(row["groups"]) > 1 for row in result["results"]):
        note = "Sites with few samples apart from those with many: one row per power of ten."
        body += section("By number of samples", note, _group_table(result, key))
    return document(f"{result['task']} – comparison of strategies", body)


def _charts(contenders: Sequence[Contender]) -> list[tuple[str, str, _Chart]]:
    """File name, title and drawing of what there is something to draw for."""
    charts: tuple[tuple[str, str, _Chart, bool], ...] = (
        ("rounds", "Over the rounds", round_chart, any(one.curve for one in contenders)),
        ("sites", "Across the sites", site_chart, any(one.sites for one in contenders)),
        ("bytes", "Against what was sent", byte_chart, any(one.bytes_up is not None for one in contenders)),
    )
    return [(name, title, chart) for name, title, chart, any_of_it in charts if any_of_it]


def _contenders(result: Mapping[str, Any]) -> tuple[str, list[Contender]]:
    """Whether accuracies or errors are compared, and what is drawn."""
    rows = result["results"]
    key = "mse" if all(row["accuracy"] is None for row in rows) else "accuracy"
    names = list(dict.fromkeys(row["strategy"] for row in rows))
    kinds = list(dict.fromkeys(row["protection"] for row in rows))
    contenders = []
    for row in rows:
        if row[key] is None:
            continue
        curve = ((at["round"], number(at[key]), number(at[f"{key}_std"])) for at in row["curve"])
        sites = ((f"{node['name']}, seed {node['seed']}", number(node[key])) for node in row["nodes"])
        contenders.append(
            Contender(
                name=row["strategy"] + (f", {row['protection']}" if len(kinds) > 1 else ""),
                colour=names.index(row["strategy"]),
                dash=kinds.index(row["protection"]),
                curve=tuple((at, mean, *_band(key, mean, std or 0.0)) for at, mean, std in curve if mean is not None),
                sites=tuple((name, value) for name, value in sites if value is not None),
                value=row[key],
                spread=row[f"{key}_std"] or 0.0,
                bytes_up=row["bytes_up_per_node"],
            )
        )
    return key, contenders


def _band(key: str, mean: float, deviation: float) -> tuple[float, float]:
    """One standard deviation down and up, as far as the measure goes."""
    return max(mean - deviation, 0.0), min(mean + deviation, _MEASURE[key].ceiling or math.inf)


def _result_table(result: Mapping[str, Any], key: str) -> str:
    text, target = _TEXT[key], result["target"]
    even, worst = ("fairness_std", "worst_accuracy") if key == "accuracy" else ("fairness_std_mse", "worst_mse")
    combining = any(row["combined"] is not None for row in result["results"])
    rows = []
    for row in result["results"]:
        cells = [
            escape(row["protection"]),
            _around(row, key),
            text(row[even]),
            text(row[worst]),
            size(row["bytes_up_per_node_round"]),
            size(row["bytes_up_per_node"]),
            duration(row["seconds"] / len(result["seeds"])),
            *((percent(row["combined"]),) if combining else ()),
            *((decimal(row["rounds_to_target"]), size(row["bytes_to_target"])) if target is not None else ()),
        ]
        rows.append(_row(row["strategy"], cells))
    heads = ["Strategy", "Protection", _HEAD[key], "Across sites", "Worst site", "Sent per site and round", "in all"]
    heads += ["A run", *(["Combined"] if combining else [])]
    if target is not None:
        heads += [f"Rounds to {percent(target)}", "sent until then"]
    return data_table("Every strategy", heads, rows)


def _tax_section(result: Mapping[str, Any], key: str) -> str:
    """What a protection costs beside `none`: accuracy or error, bytes, seconds."""
    plain = {row["strategy"]: row for row in result["results"] if row["protection"] == _PLAIN}
    rows = []
    for row in result["results"]:
        bare = plain.get(row["strategy"])
        if bare is None or row is bare:
            continue
        difference = number(row[key] - bare[key] if None not in (row[key], bare[key]) else None)
        cells = [
            escape(row["protection"]),
            DASH if difference is None else f"{difference:+.4f}",
            _times(row["bytes_up_per_node"], bare["bytes_up_per_node"]),
            _times(row["seconds"], bare["seconds"]),
        ]
        rows.append(_row(row["strategy"], cells))
    if not rows:
        return ""
    note = "Beside the same strategy without protection. Seconds are of simulations on one machine, training included."
    heads = ("Strategy", "Protection", f"{_HEAD[key]}, difference", "Bytes sent", "Seconds")
    return section("What protection costs", note, data_table("Beside none", heads, rows))


def _depth_section(result: Mapping[str, Any]) -> str:
    """Where sites choose how deep they share: every site's choice, seed by seed."""
    chosen = {
        f"{row['strategy']}, {row['protection']}": row["nodes"]
        for row in result["results"]
        if any(node["depth"] is not None for node in row["nodes"])
    }
    if not chosen:
        return ""
    sites = sorted({node["name"] for nodes in chosen.values() for node in nodes})
    rows = [
        _row(
            site,
            [", ".join(count(node["depth"]) for node in nodes if node["name"] == site) for nodes in chosen.values()],
        )
        for site in sites
    ]
    note = "How many cells each site shares in the end, one number per seed."
    return section("Shared depth", note, data_table("Cells shared", ("Site", *map(escape, chosen)), rows))


def _feature_section(result: Mapping[str, Any], features: Sequence[Points | None]) -> str:
    """Scatters of what the sites of the first seed have in common."""
    drawn = "".join(
        figure(escape(f"{row['strategy']}, {row['protection']}"), "".join(scatter(frame, points) for frame in _FRAMES))
        for row, points in zip(result["results"], features, strict=False)
        if points is not None
    )
    if not drawn:
        return ""
    note = (
        "Some test rows of every site, in its own model, as far as the last block it shares, along the two principal"
        " axes; a number is a row's class. First seed. One person runs all sites here: no deployed study can draw it."
    )
    return section("Shared features", note, f'<div class="charts">{drawn}</div>')


def _times(value: float | None, beside: float | None) -> str:
    return DASH if value is None or not beside else f"{value / beside:.2f} ×"


def _group_table(result: Mapping[str, Any], key: str) -> str:
    rows = [
        _row(
            row["strategy"],
            [escape(row["protection"]), _span(group["samples"]), count(group["nodes"]), _around(group, key)],
        )
        for row in result["results"]
        for group in row["groups"]
    ]
    heads = ("Strategy", "Protection", "Samples", "Sites, all seeds", _HEAD[key])
    return data_table("By number of samples", heads, rows)


def _row(strategy: str, cells: Sequence[str]) -> str:
    return f'<th scope="row">{escape(strategy)}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)


def _around(values: Mapping[str, Any], key: str) -> str:
    value, deviation = _TEXT[key](values[key]), number(values[f"{key}_std"])
    if deviation is None:
        return value
    return f"{value} ± {percent(deviation) if key == 'accuracy' else f'{deviation:.2g}'}"


def _span(samples: Sequence[int]) -> str:
    low, high = samples
    return count(low) if low == high else f"{count(low)}–{count(high)}"
