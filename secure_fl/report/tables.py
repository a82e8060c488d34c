"""The tables of the report: who took part when, why sites were missing, every site, every round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secure_fl.errors import SecureFLError, WrongSharesError, by_code
from secure_fl.report.text import DASH, count, decimal, duration, escape, number, percent, ranges, size
from secure_fl.results.record import CircleRound, NodeRound, RoundRecord, StudyRecord
from secure_fl.results.turns import measured_version
from secure_fl.rounds import RoundKind

# Outcome → class of its cell, and what it means. Each class has its own shape, not only its own colour.
OUTCOMES: Mapping[str, tuple[str, str]] = {
    "took part": ("t", "its update is in the sum"),
    "dropped": ("d", "started, then was lost"),
    "sat out": ("s", "connected, did not train"),
    "waited": ("w", "ready, but its circle was not complete"),
    "absent": ("a", "not connected, or left out"),
}
_WIDTHS = ((21, "roomy"), (31, "few"), (64, "some"))  # up to so many rounds, cells of this width still fit

# What stands for a missing site, in words, where the error behind a code would speak of a message instead.
_MISSING = {
    "absent": ("It was not connected when the round began.", ""),
    "waited": (
        "It was there, and another site of its circle was not.",
        "the reason is beside that site; a circle opens only as a whole",
    ),
    "dropped": ("No reason was recorded.", ""),
    "sat out": ("No reason was recorded.", ""),
    "LateMessage": ("It did not answer in time.", "if this repeats, raise rounds.deadline or rounds.phase_deadline"),
    WrongSharesError.code: ("It was left out because it had cheated before.", "see the top of this page"),
    "StillTraining": ("It was still training; its work enters a later version.", ""),
    "NotConnected": ("It lost its connection.", "if this repeats, look at the site's network and its log"),
}


def site_names(record: StudyRecord) -> tuple[str, ...]:
    """The roster, then anybody else a round mentions, in that order."""
    seen = dict.fromkeys(record.roster)
    for entry in record.rounds:
        seen.update(dict.fromkeys(node.name for node in entry.nodes))
    return tuple(seen)


def by_name(entry: RoundRecord) -> dict[str, NodeRound]:
    """A round's nodes by name."""
    return {node.name: node for node in entry.nodes}


def round_label(entry: RoundRecord) -> str:
    """What to call a round in a sentence."""
    return "closing evaluation" if entry.kind is RoundKind.EVALUATE else f"round {entry.number}"


def mean(values: Sequence[float | None]) -> float | None:
    """Of what is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def plain_reason(code: str) -> str:
    """An error code in words, with what helps against it; text that is no code stays as it is."""
    cls = by_code(code)
    if code in _MISSING:
        words, advice = _MISSING[code]
    elif cls is SecureFLError:
        return escape(code) or DASH
    else:
        words, advice = cls.__doc__ or code, cls.advice
    return f"{escape(words)}" + (f"<small>{escape(advice)}</small>" if advice else "")


# --- who took part ----------------------------------------------------------------------------------------


def cohort_grid(record: StudyRecord) -> str:
    """Sites × rounds: took part, dropped, sat out, absent, or "–" where the record says nothing."""
    rounds = record.rounds
    css = next((css for most, css in _WIDTHS if len(rounds) <= most), "many")
    every = {"roomy": 1, "few": 1, "some": 5}.get(css, 20)
    # A number too close to the end would run into the closing E.
    head = "".join(_grid_head(entry, every, room=len(rounds) - index > every / 3) for index, entry in enumerate(rounds))
    looked_up = [(round_label(entry), by_name(entry)) for entry in rounds]
    training = [by_name(entry) for entry in rounds if entry.kind is RoundKind.TRAIN]
    rows = []
    for name in site_names(record):
        taken = sum(name in nodes and nodes[name].outcome == "took part" for nodes in training)
        cells = "".join(_grid_cell(name, label, nodes.get(name)) for label, nodes in looked_up)
        missed = ' class="total short"' if taken < len(training) else ' class="total"'
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}<td{missed}>{taken} of {len(training)}</td></tr>')
    return _scroll(
        "Who took part in which round",
        f'<table class="grid {css}"><thead><tr><th scope="col">Site</th>{head}'
        f'<th scope="col" class="total">Trained</th></tr></thead><tbody>{"".join(rows)}</tbody></table>',
    )


def _grid_head(entry: RoundRecord, every: int, *, room: bool) -> str:
    if entry.kind is RoundKind.EVALUATE:
        return '<th scope="col" title="closing evaluation"><b>E<span>, closing evaluation</span></b></th>'
    if room and (entry.number % every == 0 or entry.number == 1):
        return f'<th scope="col"><b>{entry.number}</b></th>'
    return f'<th scope="col"><span>{entry.number}</span></th>'


def _grid_cell(name: str, label: str, node: NodeRound | None) -> str:
    if node is None:
        return f'<td class="u">{DASH}</td>'
    reason = f" ({node.reason})" if node.reason else ""
    title = escape(f"{name}, {label}: {node.outcome}{reason}, {size(node.bytes_up)} up, {size(node.bytes_down)} down")
    css, _ = OUTCOMES.get(node.outcome, ("u", ""))
    return f'<td class="{css}" title="{title}"><span>{escape(node.outcome)}</span></td>'


def circle_table(record: StudyRecord) -> str:
    """Which sites are opened together, in how many rounds they were, and why not in others; nothing without circles."""
    told: dict[tuple[str, ...], list[tuple[RoundRecord, CircleRound]]] = {}
    for entry in record.rounds:
        for circle in entry.circles:
            told.setdefault(circle.members, []).append((entry, circle))
    if not told:
        return ""
    rows = []
    for place, (members, rounds) in enumerate(sorted(told.items()), 1):
        closed = [(entry, circle) for entry, circle in rounds if not circle.opened]
        reasons: dict[str, list[RoundRecord]] = {}
        for entry, circle in closed:
            reasons.setdefault(circle.reason or "waited", []).append(entry)
        why = "".join(f"<li>{_when(entries)}: {plain_reason(reason)}</li>" for reason, entries in reasons.items())
        rows.append(
            f'<tr><th scope="row">{place}</th><td class="words">{escape(", ".join(members))}</td>'
            f"<td>{len(rounds) - len(closed)} of {len(rounds)}</td>"
            f'<td class="words">{f"<ul>{why}</ul>" if why else DASH}</td></tr>'
        )
    return _scroll(
        "Circles: sites whose updates are only ever opened together",
        '<table><thead><tr><th scope="col">Circle</th><th scope="col">Sites</th><th scope="col">Opened</th>'
        f'<th scope="col">Closed in</th></tr></thead><tbody>{"".join(rows)}</tbody></table>',
    )


def grid_key(record: StudyRecord) -> str:
    """What the shapes of the grid mean, and how often each occurs."""
    tally = Counter[str](node.outcome for entry in record.rounds for node in entry.nodes)
    items = "".join(
        f'<li><i class="{css}"></i><span><b>{outcome}</b> × {count(tally[outcome])}<small>{meaning}</small></span></li>'
        for outcome, (css, meaning) in OUTCOMES.items()
    )
    return f'<ul class="key cells">{items}</ul>'


def reason_table(record: StudyRecord) -> str:
    """Why sites did not take part: one row per kind of reason, the most frequent first."""
    gathered: dict[tuple[str, str], dict[str, list[RoundRecord]]] = {}
    for entry in record.rounds:
        for node in entry.nodes:
            if node.outcome != "took part":
                gathered.setdefault((node.outcome, node.reason), {}).setdefault(node.name, []).append(entry)
    if not gathered:
        turns = any(circle.turn is not None for entry in record.rounds for circle in entry.circles)
        what = "every turn of its circle that was merged" if turns else "every round"
        return f'<p class="empty">Every site took part in {what}.</p>'
    rows = []
    for (outcome, reason), sites in sorted(gathered.items(), key=lambda item: -_times(item[1])):
        who = "".join(f"<li><b>{escape(name)}</b> {_when(entries)}</li>" for name, entries in sorted(sites.items()))
        rows.append(
            f'<th scope="row">{escape(outcome)}</th><td>{_times(sites)} ×</td>'
            f'<td class="words">{plain_reason(reason or outcome)}</td><td class="words"><ul>{who}</ul></td>'
        )
    heads = ("Outcome", "How often", "Why", "Which site, in which rounds")
    return data_table("Why sites were missing", heads, rows, css="tall", words=(2, 3))


def _times(sites: Mapping[str, Sequence[RoundRecord]]) -> int:
    return sum(map(len, sites.values()))


def _when(entries: Sequence[RoundRecord]) -> str:
    """The rounds as ranges, the closing evaluation as the E of the grid."""
    numbers = ranges(entry.number for entry in entries if entry.kind is RoundKind.TRAIN)
    return ", ".join(filter(None, (numbers, "E" if any(entry.kind is RoundKind.EVALUATE for entry in entries) else "")))


# --- sites and rounds -------------------------------------------------------------------------------------


def site_table(
    record: StudyRecord, summary: Mapping[str, Any], *, regression: bool, lines: Mapping[str, str] | None
) -> str:
    """One row per site, from the summary; `lines` draws each site's development, None where sites share nothing."""
    entries = {str(entry.get("name")): entry for entry in summary.get("nodes") or ()}
    own = tuple(summary.get("metrics") or ()) if lines is not None else ()
    rows = []
    for name in dict.fromkeys((*site_names(record), *entries)):
        entry = entries.get(name, {})
        row = f'<th scope="row">{escape(name)}</th>'
        if lines is not None:
            value = decimal(_last_mse(record, name)) if regression else percent(entry.get("accuracy"))
            row += (
                f'<td class="drawn">{lines.get(name) or DASH}</td><td>{value}</td>'
                f"<td>{decimal(entry.get('loss'))}</td>"
                + "".join(f"<td>{decimal((entry.get('metrics') or {}).get(metric))}</td>" for metric in own)
                + f"<td>{count(entry.get('samples'))}</td>"
            )
        rows.append(
            f"{row}<td>{_epsilon(entry)}</td><td>{count(entry.get('rounds_taken'))}</td>"
            f"<td>{count(entry.get('dropped'))}</td><td>{size(entry.get('bytes_up'))}</td>"
            f"<td>{size(entry.get('bytes_down'))}</td>"
        )
    measure = "MSE" if regression else "Accuracy"
    shared = () if lines is None else ("Over the rounds", measure, "Loss", *map(escape, own), "Samples")
    heads = ("Site", *shared, "Privacy ε", "Rounds trained", "Dropped or sat out", "Sent", "Received")
    return data_table("Every site", heads, rows, words=() if lines is None else (1,))


def _last_mse(record: StudyRecord, name: str) -> float | None:
    """The latest error the site shared; the summary has no error per site."""
    known = (by_name(entry).get(name) for entry in reversed(record.rounds))
    return next((node.mse for node in known if node and number(node.mse) is not None), None)


def _epsilon(entry: Mapping[str, Any]) -> str:
    """ "no DP" only where the summary says so: a site it does not name may well have used it."""
    if "epsilon" not in entry:
        return DASH
    if entry["epsilon"] is None:
        return '<span class="quiet">no DP</span>'
    delta = number(entry.get("delta"))
    detail = f"<small>δ {delta:.2g}</small>" if delta is not None else ""
    used = number(entry.get("budget_used"))
    if used is not None:
        detail += f"<small>{100 * used:.0f} % used</small>"
    return f"{decimal(entry['epsilon'])}{detail}"


def round_table(record: StudyRecord, *, regression: bool) -> str:
    """One row per round; the measure names the model it belongs to, which is the one before."""
    total = len(site_names(record))
    shown: Callable[[Any], str] = decimal if regression else percent
    kept_any = any(entry.blocks_kept for entry in record.rounds)
    rows = []
    for entry in record.rounds:
        label = "Closing evaluation" if entry.kind is RoundKind.EVALUATE else str(entry.number)
        up, down = bytes_per_site(entry)
        value = shown(entry.mean_mse if regression else entry.mean_accuracy)
        kept = ", ".join(escape(block) for block in entry.blocks_kept) or DASH
        rows.append(
            f'<th scope="row">{label}</th><td>{len(entry.cohort)} of {total}</td>'
            f"<td>{count(entry.attempts)}</td><td>{duration(entry.seconds)}</td>"
            f"<td>{size(up)}</td><td>{size(down)}</td><td>{size(entry.bytes_up)}</td><td>{size(entry.bytes_down)}</td>"
            f"<td>{value}</td><td>{decimal(entry.mean_loss)}</td>"
            f'<td class="quiet">{_model(entry)}</td>' + (f'<td class="words">{kept}</td>' if kept_any else "")
        )
    measure = "Mean MSE" if regression else "Mean accuracy"
    heads = ("Round", "Sites", "Attempts", "Time", "Sent per site", "Received per site", "Sent", "Received")
    heads += (measure, "Mean loss", "of model", *(("Blocks kept",) if kept_any else ()))
    return data_table("Every round", heads, rows, css="tall", words=(11,))


def _model(entry: RoundRecord) -> str:
    """Which model a round's measurements are of."""
    version = measured_version(entry)
    if version == 0:
        return "initial"
    return f"version {version}" if any(circle.base is not None for circle in entry.circles) else f"round {version}"


def bytes_per_site(entry: RoundRecord) -> tuple[float | None, float | None]:
    """Mean bytes up and down over the sites that exchanged any; None where nobody did."""
    active = sum(node.bytes_up + node.bytes_down > 0 for node in entry.nodes)
    return (entry.bytes_up / active, entry.bytes_down / active) if active else (None, None)


def data_table(
    caption: str, heads: Sequence[str], rows: Sequence[str], *, css: str = "", words: Sequence[int] = ()
) -> str:
    """A table of numbers; the columns `words` hold words and are aligned as such."""
    mark = ' class="words"'
    head = "".join(f'<th scope="col"{mark if index in words else ""}>{text}</th>' for index, text in enumerate(heads))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return _scroll(
        caption,
        f'<table class="data {css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
        css=css,
    )


def _scroll(caption: str, table: str, *, css: str = "") -> str:
    """A container of its own, reachable by keyboard, so that the page itself never scrolls sideways."""
    return f'<div class="scroll {css}" role="region" tabindex="0" aria-label="{caption}">{table}</div>'
