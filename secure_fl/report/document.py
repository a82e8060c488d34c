"""The page around a report: complete in one file, inert by its own content policy."""

from __future__ import annotations

from datetime import UTC, datetime

import secure_fl
from secure_fl.report.style import CSS, CSS_HASH
from secure_fl.report.text import escape

# Nothing is fetched and nothing runs: even a name that slipped through escaping would stay inert.
_POLICY = f"default-src 'none'; style-src '{CSS_HASH}'; base-uri 'none'; form-action 'none'"


def document(title: str, body: str, *, written: datetime | None = None) -> str:
    """An HTML page with the style sheet."""
    when = f" on {written.astimezone(UTC):%Y-%m-%d at %H:%M} UTC" if written else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{CSS}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n"
        f"<footer>Written by secure-fl {secure_fl.__version__}{when}. This page is complete in itself: it loads nothing"
        " and runs nothing.</footer>\n</body>\n</html>\n"
    )


def section(title: str, note: str, content: str) -> str:
    """A card with a heading and, in grey, what to know before reading it."""
    lead = f'<p class="note">{note}</p>' if note else ""
    return f"<section>\n<h2>{title}</h2>{lead}\n{content}\n</section>\n"


def figure(title: str, drawn: str, key: str = "") -> str:
    """A drawing with its title."""
    return f"<figure><figcaption>{title}{key}</figcaption>{drawn}</figure>"


def choices(pairs: tuple[tuple[str, object], ...]) -> str:
    """Settings in one line, under the title."""
    items = "".join(f"<span>{label} <b>{escape(value)}</b></span>" for label, value in pairs)
    return f'<p class="choices">{items}</p>'
