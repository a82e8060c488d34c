"""The metrics that a task declares: where the study ended, and a curve for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from secure_fl.report import tables
from secure_fl.report.charts import line_chart
from secure_fl.report.document import figure, section
from secure_fl.report.drawing import FRAMES, Series
from secure_fl.report.text import decimal, error_text, escape, number
from secure_fl.results.record import NodeRound, StudyRecord
from secure_fl.results.turns import measured_version


def metrics_section(record: StudyRecord, summary: Mapping[str, Any]) -> str:
    """A table and a chart per metric; nothing where the task declares none."""
    names = tuple(summary.get("metrics") or ())
    if not names:
        return ""
    note = (
        "What the task measures besides. A metric is counted over the test rows of all sites together, so a site with"
        " more rows counts for more; thin lines are sites by themselves, where they share that. “–” is a metric that"
        " some site could not measure, that has no value, or whose formula is in the task's code, which is not here."
    )
    charts = "".join(_chart(record, name) for name in names)
    drawn = f'<div class="charts">{charts}</div>' if charts else ""
    return section("Metrics of the task", note, drawn + _table(summary, names))


def _table(summary: Mapping[str, Any], names: tuple[str, ...]) -> str:
    rows = []
    for name in names:
        sites = [number((node.get("metrics") or {}).get(name)) for node in summary.get("nodes") or ()]
        known = [value for value in sites if value is not None]
        rows.append(
            f'<th scope="row">{escape(name)}</th><td>{decimal(summary["metrics"][name])}</td>'
            f"<td>{decimal(min(known, default=None))}</td><td>{decimal(max(known, default=None))}</td>"
        )
    heads = ("Metric", "All test rows together", "Lowest site", "Highest site")
    return tables.data_table("Metrics of the task", heads, rows)


def _chart(record: StudyRecord, name: str) -> str:
    def value(node: NodeRound | None) -> float | None:
        return None if node is None else number(node.metrics.get(name))

    together = Series(
        name="all rows",
        points=tuple((measured_version(entry), number(entry.metrics.get(name))) for entry in record.rounds),
    )
    looked_up = [(measured_version(entry), tables.by_name(entry)) for entry in record.rounds]
    sites = [
        Series(name=site, points=tuple((at, value(nodes.get(site))) for at, nodes in looked_up))
        for site in tables.site_names(record)
    ]
    sites = [line for line in sites if line.known]
    if not together.known and not sites:
        return ""
    title = f"{escape(name)} after each round"
    end = f" It ends at {decimal(together.known[-1][1])}." if together.known else ""
    label = f"{title}, over all test rows together and for {len(sites)} sites.{end}"
    values = [value for line in (*sites, together) for _, value in line.known]
    # Nobody says of a metric how large it can be, but one that has stayed between 0 and 1 is a share.
    text, ceiling = (_share_text, 1.0) if min(values) >= 0 and max(values) <= 1 else (error_text, None)
    drawn = "".join(line_chart(frame, sites, together, text=text, ceiling=ceiling, label=label) for frame in FRAMES)
    return figure(title, drawn)


def _share_text(value: float, decimals: int) -> str:
    """0.95, where the axis counts the decimals of 95 %."""
    return error_text(value, decimals + 2)
