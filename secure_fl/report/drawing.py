"""What every chart is made of: frames, scales, axes, lines with their names, and the SVG around them.

Colours come from a style sheet by class, which is what lets one drawing serve light and dark.
Each chart is drawn once per `Frame`: scaling a wide drawing down to a phone would shrink its text too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from secure_fl.report.style import DRAWING_CSS
from secure_fl.report.text import escape, fit, width

Text = Callable[[float, int], str]  # a value with so many decimals

_LABEL_STEP = 15.0
_MOST_TICKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The drawing area of one chart, in pixels."""

    css: str
    width: int
    height: int = 264
    left: int = 52
    right: int = 12
    top: int = 12
    bottom: int = 42
    ticks: int = 8
    columns: int = 12  # of a name, about as many characters


FRAMES = (Frame(css="wide", width=456), Frame(css="narrow", width=326, ticks=6))
ALONE = Frame(css="alone", width=720, height=360, left=58, right=16, top=16, columns=20)  # a file of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line: a value per completed round, None where nothing was measured or shared."""

    name: str
    points: tuple[tuple[int, float | None], ...]

    @property
    def known(self) -> list[tuple[int, float]]:
        """The measured points."""
        return [(at, value) for at, value in self.points if value is not None]

    @property
    def runs(self) -> list[list[tuple[int, float]]]:
        """The measured points without the gaps: a gap is not a straight line between its neighbours."""
        runs: list[list[tuple[int, float]]] = [[]]
        for at, value in self.points:
            if value is not None:
                runs[-1].append((at, value))
            elif runs[-1]:
                runs.append([])
        return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A map from values to pixels, linear in the value or in its logarithm."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; the middle where all values are one. What a logarithm cannot reach is at the end."""
        if self.high == self.low:
            return (self.start + self.end) / 2
        low, high = self.low, self.high
        if self.log:
            low, value, high = math.log10(low), math.log10(max(value, low)), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)

    @property
    def middle(self) -> float:
        """Half-way, in pixels."""
        return (self.start + self.end) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """A scale and what is written beside it."""

    scale: Scale
    ticks: tuple[tuple[float, str], ...]


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that divides `span` into at most `most` parts."""
    if not span > 0:
        return 1.0
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= raw * (1 - 1e-9))


def linear_axis(values: Sequence[float], start: float, end: float, *, text: Text, ceiling: float | None) -> Axis:
    """Limits on tick marks around the values, never below 0 or above `ceiling`, the most the measure can reach."""
    low, high = min(values), max(values)
    pad = max((high - low) * 0.05, abs(high) * 0.01, 1e-9 if ceiling is None else 0.01 * ceiling)
    low, high = max(low - pad, min(low, 0.0)), high + pad
    if ceiling is not None:
        high = min(high, max(ceiling, *values))
    step = nice_step(high - low, 6)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    # A measure with a ceiling is written in percent: two decimals less.
    decimals = max(0, -math.floor(math.log10(step * 100 if ceiling is not None else step) + 1e-9))
    places = (low + index * step for index in range(round((high - low) / step) + 1))
    ticks = tuple((place, text(place, decimals)) for place in places)
    return Axis(scale=Scale(low=low, high=high, start=start, end=end), ticks=ticks)


def log_axis(values: Sequence[float], start: float, end: float, *, text: Callable[[float], str]) -> Axis:
    """Limits on 1, 2, 5 × 10ⁿ around positive values; where these would be too many ticks, on powers of ten."""
    for factors in ((1, 2, 5), (1,)):
        decades = range(math.floor(math.log10(min(values))), math.floor(math.log10(max(values))) + 2)
        places = [factor * 10.0**decade for decade in decades for factor in factors]
        first = max(index for index, place in enumerate(places) if place <= min(values) * (1 + 1e-9))
        last = min(index for index, place in enumerate(places) if place >= max(values) * (1 - 1e-9))
        places = places[first : max(last, first + 1) + 1]
        if len(places) <= _MOST_TICKS:
            break
    every = math.ceil(len(places) / _MOST_TICKS)
    ticks = tuple((place, text(place)) for place in places[::every])
    return Axis(scale=Scale(low=places[0], high=places[-1], start=start, end=end, log=True), ticks=ticks)


def rules(frame: Frame, axis: Axis, right: float) -> str:
    """A horizontal line and its value for every tick."""
    return "".join(rule(frame, axis.scale(value), text, right) for value, text in axis.ticks)


def rule(frame: Frame, y: float, text: str, right: float, *, css: str = "rule") -> str:
    """A horizontal line and its value."""
    return (
        f'<line class="{css}" x1="{frame.left}" x2="{right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick end" x="{frame.left - 8}" y="{y + 4:.1f}">{escape(text)}</text>'
    )


def round_axis(frame: Frame, across: Scale, first: int, last: int) -> str:
    """Numbers of rounds below the chart."""
    y = frame.height - frame.bottom + 18
    step = max(1, round(nice_step(last - first, frame.ticks)))
    ticks = [at for at in range(first, last + 1) if at % step == 0 or at == last]
    if len(ticks) > 1 and ticks[-1] - ticks[-2] < 0.6 * step:
        del ticks[-2]  # the last round matters more than its round-numbered neighbour
    return "".join(f'<text class="tick mid" x="{across(at):.1f}" y="{y}">{at}</text>' for at in ticks)


def axis_title(frame: Frame, across: Scale, title: str) -> str:
    """What the horizontal axis means, below it."""
    return f'<text class="tick mid" x="{across.middle:.1f}" y="{frame.height - 6}">{escape(title)}</text>'


def line(series: Series, across: Scale, up: Scale, css: str, text: Text, *, dots: bool = False) -> str:
    """A path that breaks where nothing is known, with a dot at every value, or only at those without neighbours."""
    runs = series.runs
    path = "".join(
        "M" + "L".join(f"{across(at):.1f} {up(value):.1f}" for at, value in run) for run in runs if len(run) > 1
    )
    marks = "".join(
        f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="{3.2 if dots else 2.4}">'
        f"<title>{escape(f'{series.name}: {text(value, 2)} after round {at}')}</title></circle>"
        for run in runs
        for at, value in run
        if dots or len(run) == 1
    )
    if not path and not marks:
        return ""
    last, value = series.known[-1]
    title = escape(f"{series.name}: {text(value, 2)} after round {last}")
    drawn = f'<path d="{path}"/>' if path else ""
    return f'<g class="line {css}"><title>{title}</title>{drawn}{marks}</g>'


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A name for a point, written beside the chart and tied to the point."""

    name: str
    x: float
    y: float
    css: str = ""


def name_room(frame: Frame, names: Sequence[str], *, letter: float = 7.4) -> float:
    """How many pixels labels with these names take beside what they name."""
    return 26 + letter * max(min(width(name), frame.columns) for name in names)


def labels(frame: Frame, wanted: Sequence[Label], x: float, up: Scale) -> str:
    """Names in a column at `x`, moved apart so that none covers another, each tied to its point."""
    ordered = sorted(wanted, key=lambda label: label.y)
    places = spread([label.y for label in ordered], _LABEL_STEP, up.end + 4, up.start - 2)
    return "".join(
        f'<path class="leader" d="M{label.x + 4:.1f} {label.y:.1f}L{x - 4:.1f} {place:.1f}"/>'
        f'<text class="name{f" {label.css}" if label.css else ""}" x="{x:.1f}" y="{place + 4:.1f}">'
        f"<title>{escape(label.name)}</title>{escape(fit(label.name, frame.columns))}</text>"
        for place, label in zip(places, ordered, strict=True)
    )


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move sorted positions apart to at least `gap`, inside [low, high] as far as they fit."""
    placed: list[float] = []
    for y in wanted:
        placed.append(max(y, placed[-1] + gap if placed else low))
    ceiling = high
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


def room_for(frame: Frame, labels: int) -> int:
    """The height at which so many names fit beside a chart in this frame."""
    return max(frame.height, round(frame.top + frame.bottom + 8 + _LABEL_STEP * labels))


def svg(frame: Frame, label: str, body: str) -> str:
    """The drawing, to stand in a page that has the style sheet; in the frame `ALONE`, a file that brings its own."""
    size = f'viewBox="0 0 {frame.width} {frame.height}" width="{frame.width}" height="{frame.height}"'
    head = f'<svg class="chart {frame.css}" role="img" aria-label="{escape(label)}" {size}'
    if frame.css != ALONE.css:
        return f"{head}>{body}</svg>"
    # Its own paper: the page around a picture may be dark where the reader's system is light, and the reverse.
    paper = f'<rect class="paper" width="{frame.width}" height="{frame.height}" rx="8"/>'
    return f'{head} xmlns="http://www.w3.org/2000/svg"><style>{DRAWING_CSS}</style>{paper}{body}</svg>\n'
