"""The audit page: what a data-protection officer asks about a site, in the order they ask it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.privacy.audit import Audit, DatasetAudit, Use
from secure_fl.privacy.ledger import Entry
from secure_fl.report.audit_charts import Cost, bytes_chart, cost_chart
from secure_fl.report.audit_words import (
    COMPOSITION,
    NEIGHBOURS,
    NO_NOISE,
    TRUST,
    libraries,
    mechanism,
    not_covered,
    randomness,
    rationales,
    unit,
)
from secure_fl.report.document import choices, document, figure, section
from secure_fl.report.drawing import FRAMES
from secure_fl.report.tables import data_table, plain_reason
from secure_fl.report.text import DASH, count, decimal, escape, fit, ranges, size

_NO_BOUND = "no bound"


def render(found: Audit, *, written: datetime | None = None) -> str:
    """An audit as one self-contained HTML page. The same audit gives the same bytes, but for `written`."""
    parts = (
        _header(found),
        _summary_section(found),
        _cost_section(found),
        _left_section(found),
        _uncovered_section(found),
        _facts_section(found),
        _decision_section(found),
        _proof_section(found),
        _release_section(found),
    )
    return document(f"{found.site} – privacy audit", "".join(parts), written=written)


# --- headline ---------------------------------------------------------------------------------------------


def _header(found: Audit) -> str:
    css, word = ("finished", "everything holds") if found.ok else ("aborted", "does not hold")
    settings = (
        ("Ledger", f"{count(found.head.length)} entries"),
        ("From", _day(found.began)),
        ("To", _day(found.ended)),
    )
    return (
        '<header>\n<p class="eyebrow">Privacy audit of one site</p>\n'
        f'<div class="title"><h1>{escape(found.site)}</h1><span class="badge {css}">{word}</span></div>\n'
        f"{choices(settings)}\n{_tiles(found)}{_banners(found)}</header>\n"
    )


def _tiles(found: Audit) -> str:
    used = [dataset for dataset in found.datasets if dataset.uses]
    sent = sum(dataset.sent for dataset in used)
    studies = {use.plan.study for use in found.uses}
    if any(dataset.epsilon is None for dataset in used):
        lead, sub = _NO_BOUND, "nothing bounds what the results reveal about single records"
    elif used:
        worst = max(used, key=lambda one: one.epsilon or 0.0)
        lead, sub = f"ε ≤ {decimal(worst.epsilon)}", f"the most used data set, {escape(worst.name)}"
    else:
        lead, sub = "nothing left", "no data set was used"
    cancelled = sum(not plan.counts for plan in found.plans)
    seen = "others' notes of this ledger agree" if found.witnessed else "a cut end cannot be seen"
    tiles = (
        ("lead", "Privacy loss", lead, sub),
        ("", "Releases", count(sent), f"{count(cancelled)} planned and cancelled: nothing left" if cancelled else ""),
        ("", "Data sent", size(sum(dataset.bytes for dataset in used)), "model updates, never rows"),
        ("", "Studies", count(len(studies)), f"{count(len(used))} data sets used"),
        ("", "Refused", count(len(found.refusals)), "requests that this site turned down"),
        ("", "Witnessed", count(found.witnessed), seen if found.ok else ""),
    )
    cells = "".join(
        f'<div class="{css}"><dt>{name}</dt><dd>{value}</dd><dd class="sub"><small>{sub}</small></dd></div>'
        for css, name, value, sub in tiles
    )
    return f'<dl class="tiles">{cells}</dl>\n'


def _banners(found: Audit) -> str:
    parts = [("bad", f"Entry {fault.entry}", escape(fault.what)) for fault in found.faults]
    for dataset in found.datasets:
        if dataset.epsilon is None:
            text = f"Data set {escape(dataset.name)}: {escape(dataset.sentence)}"
            parts.append(("", "No bound on what is revealed", text))
    if found.ok:
        text = (
            "Every entry is signed by the site, under certificates of the consortium, in order, and every planned use"
            " of the data is accounted for. What this proves, and what it cannot, is said below."
        )
        parts.append(("calm", "The ledger holds", text))
    return "".join(f'<p class="banner {css}" role="note"><b>{title}</b>{text}</p>\n' for css, title, text in parts)


# --- in short ---------------------------------------------------------------------------------------------


def _summary_section(found: Audit) -> str:
    note = (
        "ε (epsilon) bounds how much anybody can learn from the results about one unit (a record, or a patient): near 0"
        " almost nothing, 1 little, 10 a lot. δ is the chance that this bound fails. Without differential privacy there"
        " is no bound: that is not the same as ε = 0."
    )
    rows = [
        f'<th scope="row">{escape(dataset.name)}</th><td class="words">{escape(dataset.sentence)}</td>'
        f"<td>{_epsilon(dataset.epsilon)}</td><td>{_limit(dataset)}</td><td>{_remaining(dataset)}</td>"
        for dataset in found.datasets
    ]
    if not rows:
        return section("In short", note, '<p class="empty">No data set was used. Nothing left this site.</p>')
    proven = "What is proven" if found.ok else "What it says, which is not proven"
    heads = ("Data set", proven, "ε used", "ε allowed", "left")
    return section("In short", note, data_table("Every data set", heads, rows, words=(1,)))


def _epsilon(value: float | None) -> str:
    return f'<span class="quiet">{_NO_BOUND}</span>' if value is None else decimal(value)


def _limit(dataset: DatasetAudit) -> str:
    if dataset.policy is None:
        return '<span class="quiet">none set</span>'
    exceeded = "<small>exceeded</small>" if dataset.exceeded is not None else ""
    return f"{decimal(dataset.policy.epsilon)}<small>δ {dataset.policy.delta:.2g}</small>{exceeded}"


def _remaining(dataset: DatasetAudit) -> str:
    """As the site itself counts, which is more strictly than ε: the difference of two ε cannot be spent."""
    return DASH if dataset.used is None else f"{max(0.0, 100 * (1 - dataset.used)):.0f} % of the limit"


# --- charts -----------------------------------------------------------------------------------------------


def _cost_section(found: Audit) -> str:
    figures = [_cost_figure(dataset) for dataset in found.datasets]
    amounts: Counter[str] = Counter()
    for use in found.uses:
        amounts[found.study_name(use.plan.study)] += use.bytes
    if any(amounts.values()):
        studies = amounts.most_common(12)
        label = f"Bytes sent per study: {', '.join(f'{name} {size(amount)}' for name, amount in studies)}"
        drawn = "".join(bytes_chart(frame, studies, label=label) for frame in FRAMES)
        more = "" if len(amounts) <= 12 else f"<span>the 12 largest of {len(amounts)}</span>"
        figures.append(figure("Data sent per study", drawn, more))
    if not any(figures):
        return ""
    note = (
        "What each data set has cost so far, against the limit that the site has set. A round counts from the moment it"
        " was planned, whether or not anything arrived."
    )
    return section("Over time", note, f'<div class="charts">{"".join(figures)}</div>')


def _cost_figure(dataset: DatasetAudit) -> str:
    """Up to where something left without a bound, if that happened."""
    bounded = [(use.plan.entry.moment, use.epsilon) for use in dataset.uses if use.epsilon is not None]
    if not dataset.events or not bounded:
        return ""
    cost = Cost(points=tuple(bounded), limits=_limits(dataset))
    changes = len(cost.limits) - 1
    changed = "" if changes < 1 else ", changed once" if changes == 1 else f", changed {changes} times"
    against = f", limit {decimal(cost.limit)}{changed}" if cost.limit is not None else ", no limit set"
    label = f"Privacy loss of {dataset.name}: ε {decimal(bounded[-1][1])} on {_day(bounded[-1][0])}{against}"
    ends = "<span>from then on nothing bounds it</span>" if dataset.epsilon is None else ""
    drawn = "".join(cost_chart(frame, cost, label=label) for frame in FRAMES)
    return figure(f"Privacy loss of {escape(dataset.name)}", drawn, ends)


def _limits(dataset: DatasetAudit) -> tuple[tuple[datetime, float | None], ...]:
    """The limit of each time, as the site's own entries have it: from when on it was which."""
    found: list[tuple[datetime, float | None]] = []
    for use in dataset.uses:
        if use.plan.privacy is None:
            continue
        epsilon = (use.plan.privacy.get("policy") or {}).get("epsilon")
        limit = None if epsilon is None else float(epsilon)
        if not found or found[-1][1] != limit:
            found.append((use.plan.entry.moment, limit))
    return tuple(found)


# --- what left --------------------------------------------------------------------------------------------


def _left_section(found: Audit) -> str:
    note = (
        "One row for each study and data set. What leaves goes to the consortium's coordinator and is a change of a"
        " model, never a row of data. The protection says who can see it before it is added up."
    )
    groups: dict[tuple[str, str], list[Use]] = {}
    for use in found.uses:
        groups.setdefault((use.plan.study, use.plan.dataset), []).append(use)
    if not groups:
        return section("What left", note, '<p class="empty">Nothing.</p>')
    rows = [_study_row(found, study, uses) for (study, _), uses in groups.items()]
    heads = ("Study", "Data set", "Rounds", "Last", "Releases", "Sent", "ε after it", "Protection")
    return section("What left", note, data_table("What left, by study", heads, rows) + _protections(found))


def _study_row(found: Audit, study: str, uses: Sequence[Use]) -> str:
    sent = [use for use in uses if use.plan.state == "sent"]
    names = ", ".join(sorted({use.protection or "not stated" for use in sent})) or "nothing was sent"
    return (
        f'<th scope="row" title="{escape(study)}">{_short(found, study)}</th>'
        f"<td>{escape(uses[0].plan.dataset)}</td><td>{ranges(use.plan.round for use in uses)}</td>"
        f"<td>{_day(uses[-1].plan.entry.moment)}</td><td>{count(len(sent))}</td>"
        f"<td>{size(sum(use.bytes for use in sent))}</td><td>{_epsilon(uses[-1].epsilon)}</td>"
        f"<td>{escape(names)}</td>"
    )


def _short(found: Audit, study: str) -> str:
    """A study's name, as long as a column has room for."""
    return escape(fit(found.study_name(study), 24))


def _protections(found: Audit) -> str:
    """Who could see an update, in each protection's own words."""
    rows = []
    for name in sorted({use.protection for use in found.uses if use.protection}):
        if name in protect.known():
            words = escape(protect.create(name, {}).explain(RequestKind.SUM)[0])
        else:
            words = "The version that wrote this page does not know it and cannot say what it hides."
        rows.append(f'<th scope="row">{escape(name)}</th><td class="words">{words}</td>')
    return data_table("Who could see what", ("Protection", "Who can see what"), rows, words=(1,)) if rows else ""


def _uncovered_section(found: Audit) -> str:
    told: dict[str, list[str]] = {}
    for dataset in found.datasets:
        for item in not_covered(dataset):
            told.setdefault(item, []).append(dataset.name)
    if not told:
        return ""
    everywhere = len(found.datasets)
    words = [item if len(names) == everywhere else f"{item} ({', '.join(names)})" for item, names in told.items()]
    items = "".join(f"<li>{escape(item)}</li>" for item in words)
    note = "A bound on what the released models say about one unit says nothing about the following."
    return section("What ε does not cover", note, f"<ul>{items}</ul>")


# --- facts ------------------------------------------------------------------------------------------------


def _facts_section(found: Audit) -> str:
    shown = [dataset for dataset in found.datasets if dataset.uses]
    if not shown:
        return ""
    note = "What NIST SP 800-226 asks of a claim of differential privacy, as far as a ledger can tell it."
    tables = "".join(_listed(dataset.name, _facts(found, dataset)) for dataset in shown)
    return section("The claim in full", note, tables)


def _listed(title: str, facts: Mapping[str, str]) -> str:
    """Two columns, which also fit a phone."""
    rows = [f'<th scope="row">{name}</th><td class="words">{escape(text)}</td>' for name, text in facts.items()]
    return data_table(escape(title), ("", escape(title)), rows, words=(1,))


def _facts(found: Audit, dataset: DatasetAudit) -> Mapping[str, str]:
    facts = dataset.privacy
    reasons = [f"{study.name}: {study.rationale}" for study in rationales(found, dataset)]
    noisy = bool(facts)
    return {
        "ε": _NO_BOUND if dataset.epsilon is None else f"{decimal(dataset.epsilon)}",
        "δ": f"{dataset.delta:.2g}" if dataset.delta is not None else DASH,
        "Variant": "approximate differential privacy (ε, δ)" if noisy else "no differential privacy",
        "Neighbours": NEIGHBOURS if noisy else DASH,
        "Unit": unit(dataset),
        "Composition": COMPOSITION if noisy else DASH,
        "Mechanism": mechanism(dataset),
        "Libraries": libraries(dataset),
        "Task code": str(facts.get("code") or "not stated"),
        "Preprocessing": f"{facts.get('preprocessing', 'not stated')}; {facts.get('split', 'not stated')}",
        "Trust model": TRUST if noisy else NO_NOISE,
        "Randomness": randomness(dataset),
        "Side channels": "Times and sizes of messages are visible to the coordinator; the noise is added in floating"
        " point, whose last digits are not covered by the theory.",
        "Before noise": "Raw data and gradients stay in the node's own folder and memory, readable by the user"
        " that runs the node; updates are deleted when the round is over.",
        "Utility": "Not in a ledger: the study's report shows accuracy or error per site.",
        "Rationale": " ".join(reasons) or "not stated in the studies at hand (--study)",
    }


# --- decisions --------------------------------------------------------------------------------------------


def _decision_section(found: Audit) -> str:
    rows = [
        f'<th scope="row">{_day(entry.moment)}</th><td>approved</td><td>{escape(_study(found, entry))}</td>'
        f'<td class="words">by {escape(entry.facts.get("by", "unknown"))}, data set'
        f" {escape(entry.facts.get('dataset', DASH))}, planned ε {_planned(entry)}</td>"
        for entry in found.approvals
    ]
    refused: dict[tuple[str, str], list[Entry]] = {}
    for entry in found.refusals:
        refused.setdefault((_study(found, entry), str(entry.facts.get("reason", ""))), []).append(entry)
    rows += [
        f'<th scope="row">{_day(entries[0].moment)}</th><td>refused × {len(entries)}</td><td>{escape(study)}</td>'
        f'<td class="words">{plain_reason(reason)}</td>'
        for (study, reason), entries in refused.items()
    ]
    note = "Nothing is used for a study that nobody at the site approved."
    if not rows:
        return section("Who decided", note, '<p class="empty">The ledger has no decisions: see the node’s file.</p>')
    return section("Who decided", note, data_table("Decisions", ("When", "What", "Study", ""), rows, words=(3,)))


def _study(found: Audit, entry: Entry) -> str:
    return found.study_name(str(entry.facts.get("study", "")))


def _planned(entry: Entry) -> str:
    value = entry.facts.get("epsilon")
    return "without a bound" if value is None else decimal(value)


def _proof_section(found: Audit) -> str:
    proven = (
        "Every entry was written and signed by this site, under a certificate of the consortium.",
        "No entry was changed, removed, moved or added by anybody without the site's key.",
        "If the site ran the stated code, what left is what is listed, and ε is at most what is stated.",
    )
    cannot = [
        *(() if found.ok else ("What left the site, and what it cost: the ledger does not hold, as said above.",)),
        "That the site ran the stated code: a ledger cannot show that noise was really added.",
        "That nothing left by another way than this software.",
    ]
    if not found.witnessed:
        cannot.append("That the end was not cut off, or all of it rewritten: no notes of other sites were at hand.")
    lists = "".join(
        f"<p><b>{title}</b></p><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        for title, items in (
            ("It proves", proven if found.ok else ()),
            ("It cannot prove", cannot),
            ("Remarks", found.notes),
        )
        if items
    )
    keys = ", ".join(dict.fromkeys(certificate.fingerprint for certificate in found.certificates))
    told = _listed(
        "Identity of this ledger", {"Head": found.head.head, "Length": str(found.head.length), "Signing keys": keys}
    )
    command = "secure-fl audit verify ledger.jsonl --ca ca.pem --witness witness.jsonl"
    again = f"<p>Check it yourself:</p><pre>{command}</pre>"
    return section("What this page proves", "", f"{lists}{told}{again}")


# --- everything -------------------------------------------------------------------------------------------


def _release_section(found: Audit) -> str:
    rows = [_release_row(found, use) for use in found.uses]
    if not rows:
        return ""
    heads = ("Entry", "Time (UTC)", "Study", "Round", "Data set", "Protection", "Sent", "ε so far")
    return section("Every release", "", data_table("Every release", heads, rows, css="tall"))


def _release_row(found: Audit, use: Use) -> str:
    plan = use.plan
    attempt = f"<small>attempt {plan.attempt}</small>" if plan.attempt > 1 else ""
    again = "<small>the same again</small>" if plan.repeats is not None else ""
    cells: Iterable[str] = (
        f"{plan.entry.moment.astimezone(UTC):%Y-%m-%d %H:%M}",
        _short(found, plan.study),
        f"{plan.round}{attempt}{again}",
        escape(plan.dataset),
        escape(use.protection or DASH) if plan.state == "sent" else '<span class="quiet">never closed</span>',
        size(use.bytes) if plan.state == "sent" else DASH,
        _epsilon(use.epsilon),
    )
    return f'<th scope="row">{plan.entry.sequence}</th>' + "".join(f"<td>{cell}</td>" for cell in cells)


def _day(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d}"
