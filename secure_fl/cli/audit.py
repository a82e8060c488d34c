"""`secure-fl audit verify|report`: what left a site, for anybody who has its ledger and the consortium's CA."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from secure_fl.errors import (
    CertificateError,
    ForeignLedgerError,
    LedgerError,
    MissingLedgerError,
    RewrittenLedgerError,
    SchemaError,
    SecureFLError,
    SettingsError,
    WitnessError,
    by_code,
)
from secure_fl.files import write_atomically

if TYPE_CHECKING:
    from secure_fl.privacy.audit import Audit, DatasetAudit, Use
    from secure_fl.privacy.audit_faults import StudyTerms
    from secure_fl.privacy.events import NoisySteps
    from secure_fl.privacy.witness import WitnessNote
    from secure_fl.study.settings import Study

app = typer.Typer(
    name="audit",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Verify what a site's ledger says left it, and write it up. Needs no node and no network.",
)

LedgerPath = Annotated[Path, typer.Argument(help="A site's ledger.jsonl.")]
Ca = Annotated[Path, typer.Option("--ca", help="The consortium's ca.pem, not from the site that is audited.")]
Site = Annotated[str | None, typer.Option("--site", help="Whose ledger it should be; else whose it is, is said.")]
Witness = Annotated[
    list[Path] | None,
    typer.Option("--witness", help="Another site's witness.jsonl: shows what was cut or rewritten; repeatable."),
]
Studies = Annotated[
    list[Path] | None,
    typer.Option("--study", help="A study's study.json or its file: gives its name and its terms; repeatable."),
]


@app.command()
def verify(
    ledger: LedgerPath,
    ca: Ca,
    site: Site = None,
    witness: Witness = None,
    study: Studies = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a ledger from its first line to its last, and say what left the site.

    Exits 0 only if everything holds; otherwise the first bad entry is named.

    Example: [bold]secure-fl audit verify ledger.jsonl --ca ca.pem --witness bonn/witness.jsonl[/bold]
    """
    try:
        found = _examine(ledger, ca=ca, site=site, witness=witness or (), study=study or ())
    except SecureFLError as error:
        if as_json:
            typer.echo(json.dumps({"ok": False, "faults": [{"error": error.code, "what": error.message}]}))
        raise
    if as_json:
        typer.echo(json.dumps(_plain(found)))
    else:
        _tell(found, ledger)
    _require(found, ledger)


@app.command()
def report(
    ledger: LedgerPath,
    ca: Ca,
    out: Annotated[Path, typer.Option("--out", help="Where to write the page.")] = Path("audit.html"),
    site: Site = None,
    witness: Witness = None,
    study: Studies = None,
    registry: Annotated[
        Path | None,
        typer.Option("--registry", help="Also write YAML in the fields of the OpenDP deployments registry."),
    ] = None,
) -> None:
    """Write one page for a data-protection officer: what left, under which protection, and what it cost.

    The page is written also if something does not hold, and says so; the exit code is then that of `verify`. Of a
    ledger that is not genuine, or not the consortium's, there is nothing to write.

    Example: [bold]secure-fl audit report ledger.jsonl --ca ca.pem --out audit.html --registry audit.yaml[/bold]
    """
    from secure_fl.report import audit_page, registry_file

    found = _examine(ledger, ca=ca, site=site, witness=witness or (), study=study or ())
    write_atomically(out, audit_page.render(found, written=datetime.now(UTC)).encode())
    typer.echo(f"{out}: {found.head.length} entries of {found.site}")
    if registry is not None:
        write_atomically(registry, registry_file.render(found).encode())
        typer.echo(f"{registry}: fill in what only the site knows, marked TODO")
    _require(found, ledger)


def _examine(ledger: Path, *, ca: Path, site: str | None, witness: list[Path] | tuple[()], study: Any) -> Audit:
    """Everything the files say. What is raised has advice for whoever audits, not for whoever runs the site."""
    try:
        return _examined(ledger, ca=ca, site=site, witness=witness, study=study)
    except SecureFLError as error:
        raise for_auditors(error) from None


# Of several classes the first that fits: subclasses before their base.
_ADVICE: tuple[tuple[type[SecureFLError], str], ...] = (
    (MissingLedgerError, "correct the path, or ask the site for the ledger.jsonl of its state folder"),
    (
        ForeignLedgerError,
        "compare --site with whose ledger it is, and --ca with the consortium's own ca.pem; then ask the site for its "
        "own ledger",
    ),
    (SchemaError, "audit with the version of secure-fl that the site runs, or a newer one"),
    (
        RewrittenLedgerError,
        "ask the site for its ledger as it is now, and then for an explanation; the witness's file is the evidence",
    ),
    (
        LedgerError,
        "keep this file as it is: it is the evidence. Ask the site for its ledger again and for an explanation "
        "(docs/audit.md)",
    ),
    (WitnessError, "ask the other site for its witness.jsonl again, and keep this file: it may have been changed"),
)


def for_auditors(error: SecureFLError) -> SecureFLError:
    """The same error with what an auditor can do about it."""
    error.hint = next((advice for kind, advice in _ADVICE if isinstance(error, kind)), error.hint)
    return error


def _examined(ledger: Path, *, ca: Path, site: str | None, witness: list[Path] | tuple[()], study: Any) -> Audit:
    from secure_fl.identity.certificates import load_single
    from secure_fl.privacy.audit import examine
    from secure_fl.privacy.ledger import has_entries, read_site_ledger
    from secure_fl.privacy.witness import read_witness

    try:
        authority = ca.read_bytes()
        load_single(authority, what=f"{ca}: the consortium's certificate")
    except CertificateError as error:
        error.hint = "give the consortium's ca.pem with --ca"
        raise
    except OSError as error:
        raise CertificateError(
            f"{ca}: cannot be read ({error.strerror})", advice="give the consortium's ca.pem with --ca"
        ) from None
    # Witnesses first: a node that is running goes on writing, and a note of a line written since is no sign of a cut.
    seen = {path: read_witness(path, authority=authority) for path in witness}
    if not has_entries(ledger):
        raise MissingLedgerError(f"{ledger}: is no ledger")
    entries = read_site_ledger(ledger, authority=authority, site=site)
    notes = [note for told in seen.values() for note in told]
    found = examine(entries, notes=notes, studies=[_terms(path) for path in study])
    return replace(found, notes=(*found.notes, *_silent(seen, found.site)))


def _silent(seen: Mapping[Path, Sequence[WitnessNote]], site: str) -> Iterator[str]:
    """Witness files that show nothing: whoever gave them should not believe that they did."""
    for path, notes in seen.items():
        if not notes:
            yield f"{path} is empty: it shows nothing about {site}"
        elif all(note.head.site != site for note in notes):
            yield (
                f"{path} has no note about {site}, and shows nothing about it: it is {site}'s own file (a site does "
                "not witness itself), or of a site that took part in nothing with it"
            )


def _terms(path: Path) -> StudyTerms:
    """What a study says, from its canonical form as a node keeps it, or from the file it was made of."""
    from secure_fl.privacy.audit_faults import StudyTerms
    from secure_fl.study.settings import Study

    if path.suffix == ".json":
        try:
            study = Study.from_canonical(path.read_bytes())
        except OSError as error:
            raise SettingsError(f"{path}: cannot be read ({error.strerror})") from None
    else:
        study = Study.read(path).completed()
    privacy = study.model_dump(mode="json").get("privacy")
    rationale = str(privacy.get("rationale", "")) if privacy else ""
    cost = partial(_planned_cost, study) if study.privacy.mode != "none" else None
    return StudyTerms(id=study.id, name=study.study.name, rationale=rationale, privacy=privacy, cost=cost)


def _planned_cost(study: Study, units: int, number: int) -> Sequence[NoisySteps]:
    """What the study's plan says a round costs a site with so many units; the closing round trains nothing."""
    plan = study.privacy_plan(units=units)
    epochs = study.make_strategy().charged_epochs(number) if number <= study.study.rounds else 0
    return () if plan is None else plan.mechanism.cost(epochs or 0)


def _require(found: Audit, ledger: Path) -> None:
    """Raise the first fault as the error that it is."""
    if found.ok:
        return
    first = found.faults[0]
    kind = by_code(first.error)
    error = (kind if issubclass(kind, LedgerError) else LedgerError)(f"{ledger}: entry {first.entry} {first.what}")
    raise for_auditors(error)


# --- in words ---------------------------------------------------------------------------------------------


def _tell(found: Audit, ledger: Path) -> None:
    typer.echo(
        f"{ledger}: {found.head.length} entries of {found.site},"
        f" {found.began:%Y-%m-%d} to {found.ended:%Y-%m-%d}, head {found.head.head}"
    )
    table = Table("time (UTC)", "study", "round", "data set", "protection", "bytes", "ε so far", box=SIMPLE_HEAD)
    for use in found.uses:
        plan = use.plan
        number = f"{plan.round}" + (f", attempt {plan.attempt}" if plan.attempt > 1 else "")
        left = (use.protection, f"{use.bytes:,}") if plan.state == "sent" else ("planned, never closed", "–")
        when = f"{plan.entry.moment.astimezone(UTC):%Y-%m-%d %H:%M}"
        table.add_row(when, found.study_name(plan.study), number, plan.dataset, *left, _so_far(use))
    if found.uses:
        Console(width=max(100, Console().width)).print(table)
    for dataset in found.datasets:
        typer.echo(f"{dataset.name}: {dataset.sent} releases, {dataset.bytes:,} bytes. {dataset.sentence}")
        typer.echo(f"  {_limit(dataset)}")
    if not found.datasets:
        typer.echo("nothing was planned, and nothing left")
    if found.witnessed:
        typer.echo(f"{found.witnessed} notes of other sites about this ledger were compared with it")
    else:
        typer.echo("no witness: that the end was not cut off, or all of it rewritten, cannot be seen (--witness)")
    for note in found.notes:
        typer.echo(f"note: {note}")
    for fault in found.faults:
        typer.echo(f"FAULT: entry {fault.entry}: {fault.what}")
    if found.ok:
        typer.echo("everything holds; that the site ran the stated code is not something a ledger can show")


def _so_far(use: Use) -> str:
    """ε of everything up to a use; with ≤ where only that of a later one was computed."""
    return _bound(use.epsilon) if use.exact else f"≤ {_bound(use.epsilon)}"


def _bound(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.4g}"


def _limit(dataset: DatasetAudit) -> str:
    if dataset.policy is None:
        return "the site has set no limit for it"
    limit = f"limit ε = {dataset.policy.epsilon:g} at δ = {dataset.policy.delta:g}"
    if dataset.exceeded is not None:
        return f"{limit}, exceeded at entry {dataset.exceeded}"
    return f"{limit}, never exceeded by what was under noise"


def _plain(found: Audit) -> dict[str, Any]:
    return {
        "ok": found.ok,
        "site": found.site,
        "entries": found.head.length,
        "head": found.head.head,
        "began": found.began.isoformat(),
        "ended": found.ended.isoformat(),
        "certificates": [certificate.fingerprint for certificate in found.certificates],
        "uses": [_use(found, use) for use in found.uses],
        "datasets": [
            {
                "name": dataset.name,
                "releases": dataset.sent,
                "bytes": dataset.bytes,
                "epsilon": dataset.epsilon,
                "delta": dataset.delta,
                "unbounded": dataset.unbounded or None,
                "planning": dataset.planning,
                "policy": asdict(dataset.policy) if dataset.policy else None,
                "exceeded_at": dataset.exceeded,
                "sentence": dataset.sentence,
            }
            for dataset in found.datasets
        ],
        "witnessed": found.witnessed,
        "notes": list(found.notes),
        "faults": [asdict(fault) for fault in found.faults],
    }


def _use(found: Audit, use: Use) -> dict[str, Any]:
    plan = use.plan
    return {
        "entry": plan.entry.sequence,
        "time": plan.entry.time,
        "study": plan.study,
        "study_name": found.names.get(plan.study),
        "round": plan.round,
        "attempt": plan.attempt,
        "dataset": plan.dataset,
        "state": plan.state,
        "repeats": plan.repeats is not None,
        "protection": use.protection,
        "bytes": use.bytes,
        "epsilon": use.epsilon,
    }
