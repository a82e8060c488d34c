"""How values become text on the page: escaped, in human units, and "–" for what is not known."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Iterable
from typing import Any

DASH = "–"
_BROAD = frozenset("mwMW@%&<>=+#~")

# Controls, lone surrogates and unassigned code points are not valid in a page; bidirectional overrides
# are valid but would let one site's name rewrite how its neighbours read.
_REFUSED = frozenset({"Cc", "Cs", "Cn"})
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def escape(value: object) -> str:
    """Text from outside, safe between tags, inside quoted attributes and inside SVG."""
    text = str(value)
    if not text.isprintable():
        text = "".join(_visible(character) for character in text)
    return html.escape(text, quote=True)


def _visible(character: str) -> str:
    if character in "\t\n\r":
        return " "
    if character in _BIDI or unicodedata.category(character) in _REFUSED:
        return "\N{REPLACEMENT CHARACTER}"
    return character


def fit(name: str, columns: int) -> str:
    """Shorten a name to about `columns` characters, keeping both ends: sites often differ in the last one."""
    if width(name) <= columns:
        return name
    head, tail = "", ""
    room = columns - 1
    start, end = 0, len(name) - 1
    while start <= end:
        from_tail = width(tail) <= width(head)
        character = name[end] if from_tail else name[start]
        if width(head) + width(tail) + width(character) > room:
            break
        if from_tail:
            tail, end = character + tail, end - 1
        else:
            head, start = head + character, start + 1
    return f"{head}…{tail}"


def width(text: str) -> int:
    """About how many columns a text takes in a proportional font; a broad character counts as two."""
    return sum(2 if character in _BROAD or not character.isascii() else 1 for character in text)


def number(value: Any) -> float | None:
    """A finite number, or None for anything else; JSON gives no better guarantee."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def percent(value: Any, decimals: int = 1) -> str:
    """0.941 as 94.1%."""
    known = number(value)
    return DASH if known is None else f"{100 * known:.{decimals}f}%"


def decimal(value: Any) -> str:
    """A loss, an error or an epsilon in four significant digits."""
    known = number(value)
    if known is None:
        return DASH
    # `g` alone would turn 12 345 into 1.234e+04.
    return f"{known:,.0f}" if 1e4 <= abs(known) < 1e9 else f"{known:.4g}"


def error_text(value: float, decimals: int) -> str:
    """Fixed decimals for everyday errors, powers of ten where a model diverged or fits exactly."""
    return f"{value:.{decimals}f}" if decimals < 6 and abs(value) < 1e5 else f"{value:.3g}"


def count(value: Any) -> str:
    """A whole number with thousands separated."""
    known = number(value)
    return DASH if known is None else f"{known:,.0f}"


def size(value: Any) -> str:
    """Bytes in the decimal units network operators use."""
    known = number(value)
    if known is None:
        return DASH
    if abs(known) < 999.5:
        return f"{known:.0f} B"
    steps = min(int(math.log10(abs(known) / 0.9995) // 3), 4)  # 999.5 is already the next unit
    scaled = known / 1000**steps
    return f"{scaled:.3g} {'kMGT'[steps - 1]}B" if abs(scaled) < 999.5 else f"{scaled:,.0f} TB"


def duration(value: Any) -> str:
    """Seconds as a person says them."""
    known = number(value)
    if known is None:
        return DASH
    if known < 59.95:
        return f"{known:.2f} s" if known < 9.995 else f"{known:.1f} s"
    minutes, seconds = divmod(round(known), 60)
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def ranges(numbers: Iterable[int]) -> str:
    """1, 2, 3, 7 as "1–3, 7"."""
    spans: list[tuple[int, int]] = []
    for value in sorted(set(numbers)):
        if spans and value == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], value)
        else:
            spans.append((value, value))
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in spans)
