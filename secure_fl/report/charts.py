"""The report's line and bar charts as inline SVG, drawn here so that the page runs no script."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secure_fl.report.drawing import (
    Frame,
    Label,
    Scale,
    Series,
    Text,
    axis_title,
    labels,
    line,
    linear_axis,
    name_room,
    nice_step,
    round_axis,
    rule,
    rules,
    svg,
)
from secure_fl.report.text import escape

_MOST_DOTS = 25  # beyond this, dots would hide the line they sit on


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What one round cost: above the line, below it, and in words."""

    tip: str
    tick: str
    above: float
    below: float = 0.0
    marked: bool = False


# --- lines ------------------------------------------------------------------------------------------------


def line_chart(
    frame: Frame, sites: Sequence[Series], mean: Series, *, text: Text, ceiling: float | None, label: str
) -> str:
    """Thin lines for the sites, a bold one for their mean; the mean and the two extreme sites are named.

    `text` writes a value with so many decimals, `ceiling` is the largest value the measure can take.
    At least one point must be known.
    """
    values = [value for line in (*sites, mean) for _, value in line.known]
    rounds = [at for line in (*sites, mean) for at, _ in line.points]
    named = _extremes(sites) + ([mean] if mean.known else [])
    right = frame.width - name_room(frame, [line.name for line in named])
    across = Scale(low=min(rounds), high=max(rounds), start=frame.left + 6, end=right)
    axis = linear_axis(values, frame.height - frame.bottom, frame.top, text=text, ceiling=ceiling)
    up = axis.scale
    body = rules(frame, axis, right + 6) + round_axis(frame, across, min(rounds), max(rounds))
    body += axis_title(frame, across, "after round (0 = initial model)")
    body += "".join(line(one, across, up, "site", text) for one in sites)
    body += line(mean, across, up, "mean", text, dots=len(mean.points) <= _MOST_DOTS)
    ends = [(one, *one.known[-1]) for one in named]
    beside = [
        Label(name=one.name, x=across(at), y=up(value), css="mean" if one is mean else "") for one, at, value in ends
    ]
    return svg(frame, label, body + labels(frame, beside, right + 22, up))


def _extremes(sites: Sequence[Series]) -> list[Series]:
    """The sites that end highest and lowest: those a study lead would ask about."""
    known = sorted((line for line in sites if line.known), key=lambda line: line.known[-1][1])
    return list({id(line): line for line in (*known[:1], *known[-1:])}.values())


def sparkline(own: Series, mean: Series, *, low: float, high: float, text: Text) -> str:
    """One site's line over the mean of all, without axes, on a scale that all sites share."""
    rounds = [at for at, _ in own.points]
    across = Scale(low=min(rounds), high=max(rounds), start=3, end=117)
    up = Scale(low=low, high=high, start=25, end=3)
    body = line(mean, across, up, "behind", text) + line(own, across, up, "own", text)
    return f'<svg class="spark" aria-hidden="true" viewBox="0 0 120 28" width="120" height="28">{body}</svg>'


# --- bars -------------------------------------------------------------------------------------------------


def bar_chart(
    frame: Frame, bars: Sequence[Bar], *, text: Callable[[float], str], label: str, across: str = "round"
) -> str:
    """One bar per round, or whatever stands `across`, up from the line and down from it on one scale.

    Some bar must not be empty.
    """
    above, below = max(bar.above for bar in bars), max(bar.below for bar in bars)
    step = nice_step(above + below, 6)
    left, right = frame.left + 6, frame.width - frame.right
    y = Scale(low=-below, high=above, start=frame.height - frame.bottom, end=frame.top)
    parts = [
        rule(frame, y(index * step), text(abs(index) * step) if index else "0", right, css="rule" if index else "zero")
        for index in range(-int(below / step), int(above / step) + 1)
    ]
    slot = (right - left) / len(bars)
    thick = slot if slot < 4 else min(0.72 * slot, 32.0)  # hairline gaps would only flicker
    every = max(1, round(nice_step(len(bars), frame.ticks)))
    for index, bar in enumerate(bars):
        middle = left + (index + 0.5) * slot
        parts.append(f"<g><title>{escape(bar.tip)}</title>{_rectangles(bar, middle, thick, y)}</g>")
        last = index == len(bars) - 1
        if last or ((index + 1) % every == 0 and (len(bars) - 1 - index) * slot > 34):
            parts.append(
                f'<text class="tick mid" x="{middle:.1f}" y="{frame.height - frame.bottom + 18}">'
                f"{escape(bar.tick)}</text>"
            )
    parts.append(axis_title(frame, Scale(low=0, high=1, start=left, end=right), across))
    return svg(frame, label, "".join(parts))


def _rectangles(bar: Bar, middle: float, thick: float, y: Scale) -> str:
    x = f'x="{middle - thick / 2:.2f}" width="{thick:.2f}"'
    css, zero = "again" if bar.marked else "up", y(0)
    up = f'<rect class="{css}" {x} y="{y(bar.above):.2f}" height="{zero - y(bar.above):.2f}"/>'
    return up + f'<rect class="down" {x} y="{zero:.2f}" height="{y(-bar.below) - zero:.2f}"/>' * (bar.below > 0)
