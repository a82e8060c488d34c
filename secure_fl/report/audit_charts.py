"""The drawings of the audit page: what a data set has cost over time, and how much left for each study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from secure_fl.report.drawing import Frame, Label, Scale, axis_title, labels, linear_axis, name_room, rules, svg
from secure_fl.report.text import decimal, error_text, escape, fit, size

_ROW = 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """ε of everything so far, from each moment on; and the limit of each time, where the site had set one."""

    points: tuple[tuple[datetime, float], ...]  # in order, at least one
    limits: tuple[tuple[datetime, float | None], ...] = ()  # in order: from when on it was which; None for no limit

    @property
    def limit(self) -> float | None:
        """The last one."""
        return self.limits[-1][1] if self.limits else None


def cost_chart(frame: Frame, cost: Cost, *, label: str) -> str:
    """ε as a staircase, with the limit of each time as a dashed one above it."""
    first, last = cost.points[0][0], cost.points[-1][0]
    span = max((last - first).total_seconds(), 1.0)
    named = ["ε so far", *(["limit"] if cost.limit is not None else [])]
    right = frame.width - name_room(frame, named)
    across = Scale(low=0.0, high=span, start=frame.left + 6, end=right)
    allowed = [value for _, value in cost.limits if value is not None]
    values = [0.0, *(value for _, value in cost.points), *allowed]
    axis = linear_axis(values, frame.height - frame.bottom, frame.top, text=error_text, ceiling=None)
    up = axis.scale
    body = rules(frame, axis, right + 6) + _dates(frame, across, first, span) + axis_title(frame, across, "date (UTC)")
    body += _staircase(cost, across, up, first)
    end = cost.points[-1][1]
    beside = [Label(name="ε so far", x=right, y=up(end), css="mean")]
    body += _limits(cost, across, up, first)
    if cost.limit is not None:
        beside.append(Label(name="limit", x=right, y=up(cost.limit)))
    return svg(frame, label, body + labels(frame, beside, right + 22, up))


def _limits(cost: Cost, across: Scale, up: Scale, first: datetime) -> str:
    """What the site allowed at each time: a limit that was raised later did not count before."""
    path, told, at = "", [], across.start
    for place, (moment, value) in enumerate(cost.limits):
        end = across.end
        if place + 1 < len(cost.limits):
            end = across((cost.limits[place + 1][0] - first).total_seconds())
        if value is not None:
            path += f"M{at:.1f} {up(value):.1f}H{end:.1f}"
            since = f" from {moment.astimezone(UTC):%Y-%m-%d %H:%M}" if len(cost.limits) > 1 else ""
            told.append(f"ε = {decimal(value)}{since}")
        at = end
    if not path:
        return ""
    title = escape("limit: " + ", ".join(told))
    return f'<g class="line many s1 d1"><title>{title}</title><path d="{path}"/></g>'


def _staircase(cost: Cost, across: Scale, up: Scale, first: datetime) -> str:
    path = f"M{across.start:.1f} {up(0.0):.1f}"
    dots = []
    for moment, value in cost.points:
        x = across((moment - first).total_seconds()) if len(cost.points) > 1 else across.start
        path += f"H{x:.1f}V{up(value):.1f}"
        tip = escape(f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}: ε ≤ {decimal(value)}")
        dots.append(f'<circle cx="{x:.1f}" cy="{up(value):.1f}" r="2.4"><title>{tip}</title></circle>')
    path += f"H{across.end:.1f}"
    shown = "".join(dots) if len(dots) <= 40 else ""
    return f'<g class="line mean"><path d="{path}"/>{shown}</g>'


def _dates(frame: Frame, across: Scale, first: datetime, span: float) -> str:
    """A few dates below the chart; times of day where it is all one day."""
    form = "%H:%M" if span < 86_400 else "%d %b" if span < 300 * 86_400 else "%b %Y"
    ticks = 3 if frame.width < 400 else 4
    y = frame.height - frame.bottom + 18
    seen: dict[str, float] = {}
    for index in range(ticks):
        at = span * index / (ticks - 1)
        seen.setdefault(f"{(first + timedelta(seconds=at)).astimezone(UTC):{form}}", across(at))
    return "".join(f'<text class="tick mid" x="{x:.1f}" y="{y}">{text}</text>' for text, x in seen.items())


def bytes_chart(frame: Frame, studies: Sequence[tuple[str, int]], *, label: str) -> str:
    """A bar for each study, with its name above it. At least one must not be zero."""
    shown = replace(frame, height=_ROW * len(studies) + 8)
    across = Scale(low=0.0, high=max(amount for _, amount in studies), start=0.0, end=frame.width - 84.0)
    parts = []
    for place, (name, amount) in enumerate(studies):
        y = 4 + place * _ROW
        wide = max(across(amount), 1.0) if amount else 0.0
        parts.append(
            f"<g><title>{escape(f'{name}: {size(amount)}')}</title>"
            f'<text class="name" x="0" y="{y + 11}">{escape(fit(name, frame.width // 9))}</text>'
            f'<rect class="up" x="0" y="{y + 16}" width="{wide:.1f}" height="11"/>'
            f'<text class="tick" x="{wide + 8:.1f}" y="{y + 26}">{escape(size(amount))}</text></g>'
        )
    return svg(shown, label, "".join(parts))
