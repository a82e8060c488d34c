"""Charts over something that is not a round: a measure against bytes or time, and what happened when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from secure_fl.report.drawing import (
    Frame,
    Label,
    Scale,
    Text,
    axis_title,
    labels,
    linear_axis,
    name_room,
    nice_step,
    room_for,
    rules,
    svg,
)
from secure_fl.report.text import escape, fit

_COLOURS = 8
_ROW = 16  # pixels
_NAMES = 92  # pixels beside a row
_UNITS = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line: how far along, the value there, and what it is in words."""

    name: str
    points: tuple[tuple[float, float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something in a row that took from one moment to another and ended with a mark."""

    start: float
    end: float
    tip: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one circle or site did."""

    name: str
    spans: tuple[Span, ...]
    strong: bool = False


def in_units(longest: float) -> tuple[float, str]:
    """The unit in which so many seconds read well, as seconds and a name."""
    return next((scale, unit) for scale, unit in _UNITS if longest >= 2 * scale or scale == 1)


def against(
    frame: Frame,
    curves: Sequence[Curve],
    *,
    across: str,
    written: Callable[[float], str],
    text: Text,
    ceiling: float | None,
    label: str,
) -> str:
    """Each curve in its colour. Some curve must have a point; `written` writes how far along one is."""
    frame = replace(frame, height=room_for(frame, len(curves)))
    right = frame.width - name_room(frame, [curve.name for curve in curves])
    far = [at for curve in curves for at, *_ in curve.points]
    axis = linear_axis(
        [value for curve in curves for _, value, _ in curve.points],
        frame.height - frame.bottom,
        frame.top,
        text=text,
        ceiling=ceiling,
    )
    scale = Scale(low=0.0, high=max(far), start=frame.left + 6, end=right)
    body = rules(frame, axis, right + 6) + _below(frame, scale, written) + axis_title(frame, scale, across)
    beside = []
    for index, curve in enumerate(curves):
        css = f"s{index % _COLOURS}"
        path = "L".join(f"{scale(at):.1f} {axis.scale(value):.1f}" for at, value, _ in curve.points)
        dots = "".join(
            f'<circle cx="{scale(at):.1f}" cy="{axis.scale(value):.1f}" r="2.4"><title>{escape(tip)}</title></circle>'
            for at, value, tip in curve.points
        )
        line = f'<path d="M{path}"/>' if len(curve.points) > 1 else ""
        body += f'<g class="line many {css}"><title>{escape(curve.name)}</title>{line}{dots}</g>'
        at, value, _ = curve.points[-1]
        beside.append(Label(name=curve.name, x=scale(at), y=axis.scale(value), css=f"series {css}"))
    return svg(frame, label, body + labels(frame, beside, right + 22, axis.scale))


def timeline(frame: Frame, rows: Sequence[Row], *, label: str) -> str:
    """A line per row: what took how long, with a mark where it ended. Some row must have a span."""
    frame = replace(frame, left=_NAMES, height=frame.top + frame.bottom + _ROW * (len(rows) + 1))
    last = max(span.end for row in rows for span in row.spans)
    unit, name = in_units(last)
    across = Scale(low=0.0, high=last, start=frame.left + 6, end=frame.width - frame.right)
    body = _below(frame, across, lambda at: f"{at / unit:g} {name}", unit=unit)
    body += axis_title(frame, across, "since the first turn began")
    for index, row in enumerate(rows, 1):
        y = frame.top + _ROW * index
        body += (
            f'<text class="tick end" x="{frame.left - 8}" y="{y + 4}">'
            f"<title>{escape(row.name)}</title>{escape(fit(row.name, 12))}</text>"
        )
        body += "".join(_span(span, across, y, strong=row.strong) for span in row.spans)
    return svg(frame, label, body)


def _span(span: Span, across: Scale, y: float, *, strong: bool) -> str:
    start, end = across(span.start), across(span.end)
    mark = (
        f'<path d="M{end:.1f} {y - 5:.1f}L{end:.1f} {y + 5:.1f}"/>'
        if strong
        else f'<circle cx="{end:.1f}" cy="{y}" r="2"/>'
    )
    return (
        f'<g class="line {"own" if strong else "site"}"><title>{escape(span.tip)}</title>'
        f'<path d="M{start:.1f} {y}L{end:.1f} {y}"/>{mark}</g>'
    )


def _below(frame: Frame, across: Scale, written: Callable[[float], str], *, unit: float = 1.0) -> str:
    """Ticks below the chart, at round numbers of a unit."""
    step = nice_step(across.high / unit, max(2, frame.ticks - 3)) * unit
    y = frame.height - frame.bottom + 18
    places = [index * step for index in range(int(across.high / step + 1e-9) + 1)]
    return "".join(
        f'<text class="tick mid" x="{across(at):.1f}" y="{y}">{escape(written(at) if at else "0")}</text>'
        for at in places
    )
