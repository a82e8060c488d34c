"""Points in a plane, each a number in its class's colour: what sites have in common, as far as two axes show it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from secure_fl.report.drawing import Frame, Scale, axis_title, svg
from secure_fl.report.text import escape, percent

_COLOURS = 8
_MARGIN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Rows of several sites, and how much of their variance the two axes have."""

    places: tuple[tuple[float, float], ...]
    classes: tuple[int, ...]
    sites: tuple[str, ...]
    explained: float


def scatter(frame: Frame, points: Points) -> str:
    """A number for every row; its tooltip names the site."""
    frame = replace(frame, height=max(frame.height, 300))
    xs, ys = zip(*points.places, strict=True)
    across = Scale(low=min(xs), high=max(xs), start=_MARGIN, end=frame.width - _MARGIN)
    up = Scale(low=min(ys), high=max(ys), start=frame.height - frame.bottom, end=frame.top + _MARGIN)
    body = "".join(
        f'<text class="name series mid s{label % _COLOURS}" x="{across(x):.1f}" y="{up(y):.1f}">'
        f"<title>{escape(f'{site}, class {label}')}</title>{label}</text>"
        for (x, y), label, site in zip(points.places, points.classes, points.sites, strict=True)
    )
    body += axis_title(frame, across, f"{percent(points.explained)} of the variance")
    count = len(set(points.sites))
    return svg(frame, f"Shared features of {count} sites by class: {len(points.places)} rows.", body)
