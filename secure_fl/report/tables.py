"""The tables of the report: who took part when, every site, every round, and why sites were missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from secure_fl.record import NodeRound, RoundRecord, StudyRecord
from secure_fl.report.text import DASH, count, decimal, duration, escape, number, percent, ranges, size

# Outcome → class of its cell. Each class has its own shape in the style sheet, not only its own colour.
CELLS: Mapping[str, str] = {"took part": "t", "dropped": "d", "sat out": "s", "absent": "a"}
_ROOMY, _FEW_ROUNDS = 21, 31


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
    return "closing evaluation" if entry.kind == "evaluate" else f"round {entry.number}"


def cohort_grid(record: StudyRecord) -> str:
    """Sites × rounds: took part, dropped, sat out, absent, or "–" where the record says nothing."""
    few = len(record.rounds) <= _FEW_ROUNDS
    every = 1 if few else 10
    css = " few roomy" if len(record.rounds) <= _ROOMY else " few" if few else ""
    head = "".join(_grid_head(entry, every) for entry in record.rounds)
    looked_up = [(round_label(entry), by_name(entry)) for entry in record.rounds]
    training = sum(entry.kind == "train" for entry in record.rounds)
    rows = []
    for name in site_names(record):
        taken = sum(entry.kind == "train" and name in entry.cohort for entry in record.rounds)
        cells = "".join(_grid_cell(name, label, nodes.get(name)) for label, nodes in looked_up)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}<td class="total">{taken} of {training}</td></tr>')
    return _scroll(
        "Who took part in which round",
        f'<table class="grid{css}"><thead><tr><th scope="col">Site</th>{head}'
        f'<th scope="col" class="total">Trained</th></tr></thead><tbody>{"".join(rows)}</tbody></table>',
    )


def _grid_head(entry: RoundRecord, every: int) -> str:
    if entry.kind == "evaluate":
        return '<th scope="col" title="closing evaluation"><b>E<span>, closing evaluation</span></b></th>'
    if entry.number % every == 0 or entry.number == 1:
        return f'<th scope="col"><b>{entry.number}</b></th>'
    return f'<th scope="col"><span>{entry.number}</span></th>'


def _grid_cell(name: str, label: str, node: NodeRound | None) -> str:
    if node is None:
        return f'<td class="u">{DASH}</td>'
    reason = f" ({node.reason})" if node.reason else ""
    title = escape(f"{name}, {label}: {node.outcome}{reason}")
    return f'<td class="{CELLS.get(node.outcome, "u")}" title="{title}"><span>{escape(node.outcome)}</span></td>'


def grid_key(record: StudyRecord) -> str:
    """What the shapes of the grid mean, and how often each occurs."""
    tally = Counter[str](node.outcome for entry in record.rounds for node in entry.nodes)
    meaning = {
        "took part": "its update is in the sum",
        "dropped": "started, then was lost",
        "sat out": "connected, did not train",
        "absent": "not connected",
    }
    items = "".join(
        f'<li><i class="{css}"></i><span><b>{outcome}</b> × {count(tally[outcome])}'
        f"<small>{meaning[outcome]}</small></span></li>"
        for outcome, css in CELLS.items()
    )
    return f'<ul class="key cells">{items}</ul>'


def site_table(record: StudyRecord, summary: Mapping[str, Any], *, regression: bool) -> str:
    """One row per site, from the summary; a site it does not name is all "–"."""
    entries = {str(entry.get("name")): entry for entry in summary.get("nodes") or ()}
    names = dict.fromkeys((*site_names(record), *entries))
    measure = "MSE" if regression else "Accuracy"
    rows = []
    for name in names:
        entry = entries.get(name, {})
        value = decimal(_last_mse(record, name)) if regression else percent(entry.get("accuracy"))
        rows.append(
            f'<th scope="row">{escape(name)}</th><td>{count(entry.get("samples"))}</td><td>{value}</td>'
            f"<td>{decimal(entry.get('loss'))}</td><td>{_epsilon(entry)}</td>"
            f"<td>{size(entry.get('bytes_up'))}</td><td>{size(entry.get('bytes_down'))}</td>"
            f"<td>{count(entry.get('rounds_taken'))}</td><td>{count(entry.get('dropped'))}</td>"
        )
    heads = ("Site", "Samples", measure, "Loss", "Privacy ε", "Bytes up", "Bytes down", "Rounds", "Dropped")
    return _table("Every site", heads, rows)


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
    return f"{decimal(entry['epsilon'])}{detail}"


def round_table(record: StudyRecord, *, regression: bool) -> str:
    """One row per round; the measure names the model it belongs to, which is the one before."""
    total = len(site_names(record))
    shown: Callable[[Any], str] = decimal if regression else percent
    none = '<span class="quiet">none</span>'
    rows = []
    for entry in record.rounds:
        label = "Closing evaluation" if entry.kind == "evaluate" else str(entry.number)
        value = shown(entry.mean_mse if regression else entry.mean_accuracy)
        kept = ", ".join(escape(block) for block in entry.blocks_kept)
        rows.append(
            f'<th scope="row">{label}</th><td>{len(entry.cohort)} of {total}</td>'
            f"<td>{count(entry.attempts)}</td><td>{duration(entry.seconds)}</td>"
            f"<td>{size(entry.bytes_up)}</td><td>{size(entry.bytes_down)}</td>"
            f'<td>{value}</td><td class="next">after round {entry.number - 1}</td>'
            f'<td class="words">{kept or none}</td>'
        )
    measure = "Mean MSE" if regression else "Mean accuracy"
    heads = ("Round", "Cohort", "Attempts", "Time", "Bytes up", "Bytes down", measure, "of the model")
    return _table("Every round", (*heads, "Blocks kept"), rows, css="tall", left=(7, 8))


def reason_table(record: StudyRecord) -> str:
    """Why sites did not take part, with equal reasons of one site gathered."""
    gathered: dict[tuple[str, str, str], list[RoundRecord]] = {}
    for entry in record.rounds:
        for node in entry.nodes:
            if node.outcome != "took part":
                gathered.setdefault((node.name, node.outcome, node.reason), []).append(entry)
    if not gathered:
        return '<p class="empty">Every site took part in every round.</p>'
    order = {name: index for index, name in enumerate(site_names(record))}
    rows = []
    for name, outcome, reason in sorted(gathered, key=lambda key: (order[key[0]], key[1:])):
        entries = gathered[name, outcome, reason]
        when = ranges(entry.number for entry in entries if entry.kind == "train")
        closing = "closing evaluation" if any(entry.kind == "evaluate" for entry in entries) else ""
        rows.append(
            f'<th scope="row">{escape(name)}</th><td class="words">{escape(outcome)}</td>'
            f'<td class="words">{", ".join(filter(None, (when, closing)))}</td>'
            f'<td class="words">{escape(reason) or DASH}</td>'
        )
    return _table("Why sites were missing", ("Site", "What happened", "Rounds", "Reason"), rows, left=(1, 2, 3))


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], *, css: str = "", left: Sequence[int] = ()) -> str:
    """A table of numbers; the columns `left` hold words and are aligned as such."""
    mark = ' class="words"'
    head = "".join(f'<th scope="col"{mark if index in left else ""}>{text}</th>' for index, text in enumerate(heads))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return _scroll(
        caption,
        f'<table class="data {css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>',
        css=css,
    )


def _scroll(caption: str, table: str, *, css: str = "") -> str:
    """A container of its own, reachable by keyboard, so that the page itself never scrolls sideways."""
    return f'<div class="scroll {css}" role="region" tabindex="0" aria-label="{caption}">{table}</div>'
