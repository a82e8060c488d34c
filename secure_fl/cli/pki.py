"""`secure-fl pki`: the consortium's authority, and the requests that sites send to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Table

from secure_fl.errors import CertificateError
from secure_fl.files import write_atomically
from secure_fl.identity.authority import REASONS, Authority, Entry
from secure_fl.identity.certificates import Certificate, Role, Subject, utc_now
from secure_fl.identity.credential import credential_paths, make_request, read_file, refuse_existing, save_request
from secure_fl.settings import require_known

app = typer.Typer(
    name="pki",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Certificates: run the consortium's authority, or request a certificate for a site.",
)

Folder = Annotated[Path, typer.Argument(help="The authority's folder. It holds ca.key: keep it offline.")]
RoleArgument = Annotated[Role, typer.Argument(help="What the certificate is for.")]
NameArgument = Annotated[str, typer.Argument(help="Lower-case name, for example charite or coordinator-1.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Coordinator only: a DNS name or IP address nodes reach it under; repeatable."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to; no file in it is overwritten.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@app.command()
def init(
    folder: Folder,
    consortium: Annotated[str, typer.Option("--consortium", help="Name of the consortium.")],
    days: Annotated[int, typer.Option("--days", help="Lifetime of the authority.")] = 3650,
    as_json: AsJson = False,
) -> None:
    """Create the consortium's authority in FOLDER: done once, by one trusted person.

    Example: [bold]secure-fl pki init authority --consortium "Heart Study"[/bold]
    """
    authority = Authority.create(folder, consortium=consortium, days=days)
    facts = {"ca": str(folder / "ca.pem"), "crl": str(authority.crl_path), "key": str(folder / "ca.key")}
    _report(
        facts,
        as_json,
        f"authority of {consortium!r} created",
        f"give {facts['ca']} and {facts['crl']} to every site; keep {facts['key']} to yourself",
    )


@app.command()
def issue(
    *,
    folder: Folder,
    role: RoleArgument,
    name: NameArgument,
    host: Hosts = None,
    days: Annotated[int, typer.Option("--days", help="Lifetime of the certificate.")] = 365,
    request: Annotated[
        Path | None,
        typer.Option("--request", help="A request made with `pki request`; else keys are made here."),
    ] = None,
    out: Out = Path(),
    renew: Annotated[bool, typer.Option("--renew", help="Issue although a valid one exists.")] = False,
    as_json: AsJson = False,
) -> None:
    """Issue a certificate, preferably for a site's own request.

    Example: [bold]secure-fl pki issue authority node charite --request charite.csr.pem --out reply[/bold]

    Example: [bold]secure-fl pki issue authority coordinator hub --host fl.example.org --out hub[/bold]
    """
    authority, hosts = Authority.open(folder), tuple(host or ())
    paths = credential_paths(out, f"{role}-{name}")
    if request is None:
        refuse_existing(*paths)  # Before anything is issued, so that a full folder costs no certificate.
        credential = authority.issue(role, name, hosts=hosts, days=days, renew=renew)
        certificate, written = credential.certificate, list(credential.save(out))
    else:
        refuse_existing(paths[0])
        certificate = authority.issue_from_request(
            _read_request(request), role=role, name=name, hosts=hosts, days=days, renew=renew
        )
        write_atomically(paths[0], certificate.pem)
        written = [paths[0]]
    _report(
        _describe(certificate) | {"files": [str(path) for path in written]},
        as_json,
        f"{role} {name!r} until {certificate.not_after:%Y-%m-%d}",
        f"fingerprint {certificate.fingerprint}",
        *(f"wrote {path}" for path in written),
    )


@app.command("request")
def request_certificate(
    role: RoleArgument,
    name: NameArgument,
    out: Out,
    host: Hosts = None,
    as_json: AsJson = False,
) -> None:
    """Make keys and a certificate request at the site. The private keys never leave it.

    Example: [bold]secure-fl pki request node charite --out keys[/bold], then send keys/node-charite.csr.pem
    to the consortium and put the node-charite.pem it returns next to the keys.
    """
    stem = Subject(role=role, name=name, hosts=tuple(host or ())).stem
    csr, tls_key, signing_key = make_request(role, name, hosts=host or ())
    request, *keys = save_request(out, stem=stem, request=csr, tls_key=tls_key, signing_key=signing_key)
    _report(
        {"request": str(request), "keys": [str(path) for path in keys]},
        as_json,
        f"send {request} to the consortium",
        *(f"keep {path} here" for path in keys),
    )


@app.command()
def revoke(
    folder: Folder,
    name_or_fingerprint: Annotated[str, typer.Argument(help="A name (all its certificates) or one fingerprint.")],
    reason: Annotated[
        str, typer.Option("--reason", help=f"One of: {', '.join(flag.value for flag in REASONS)}.")
    ] = "unspecified",
    as_json: AsJson = False,
) -> None:
    """Revoke certificates for good. Send the new crl.pem to every site afterwards.

    Example: [bold]secure-fl pki revoke authority charite --reason keyCompromise[/bold]
    """
    authority = Authority.open(folder)
    revoked = authority.revoke(name_or_fingerprint, reason=reason)
    lines = [f"revoked {fingerprint}" for fingerprint in revoked] or ["was revoked already"]
    facts = {"revoked": revoked, "crl": str(authority.crl_path)}
    _report(facts, as_json, *lines, f"send {authority.crl_path} to every site")


@app.command()
def crl(folder: Folder, as_json: AsJson = False) -> None:
    """Publish the revocation list anew. It is due every 30 days, also if nothing was revoked.

    Example: [bold]secure-fl pki crl authority[/bold]
    """
    authority = Authority.open(folder)
    authority.renew_crl()
    _report({"crl": str(authority.crl_path)}, as_json, f"send {authority.crl_path} to every site")


@app.command("list")
def list_issued(folder: Folder, as_json: AsJson = False) -> None:
    """Show every certificate that was ever issued, and whether it is valid.

    Example: [bold]secure-fl pki list authority --json[/bold]
    """
    entries = Authority.open(folder).listing()
    if as_json:
        typer.echo(json.dumps([_describe(entry) | {"state": _state(entry)} for entry in entries], indent=2))
        return
    table = Table("role", "name", "state", "until", "fingerprint")
    for entry in entries:
        until = f"{entry.not_after:%Y-%m-%d}"
        table.add_row(entry.role, entry.name, _state(entry), until, entry.fingerprint)
    # A fingerprint is there to be copied: never wrapped, whatever the window.
    Console(width=max(130, Console().width)).print(table)


@app.command()
def fingerprint(
    certificate: Annotated[Path, typer.Argument(help="A certificate (.pem); it is public, its keys are not needed.")],
) -> None:
    """Print a certificate's fingerprint, and nothing else.

    Example: [bold]secure-fl pki fingerprint coordinator-hub.pem[/bold]
    """
    typer.echo(Certificate.from_pem(read_file(certificate)).fingerprint)


@app.command()
def roster(
    folder: Folder,
    sites: Annotated[list[str] | None, typer.Argument(help="Names of sites; without any, all valid ones.")] = None,
) -> None:
    """Print the sites with their fingerprints, as a study wants them; of several certificates, the last to expire.

    Example: [bold]secure-fl pki roster authority charite bonn ulm > roster.toml[/bold]
    """
    nodes = [entry for entry in Authority.open(folder).listing() if entry.role == "node" and _state(entry) == "valid"]
    valid = {entry.name: entry.fingerprint for entry in sorted(nodes, key=lambda entry: entry.not_after)}
    for site in sites or ():
        require_known("site", site, valid)
    typer.echo(tomli_w.dumps({"study": {"roster": {site: valid[site] for site in sites or sorted(valid)}}}), nl=False)


def _state(entry: Entry) -> str:
    if entry.revoked:
        return "revoked"
    return "valid" if entry.not_after >= utc_now() else "expired"


def _describe(source: Certificate | Entry) -> dict[str, Any]:
    return {
        "role": source.role,
        "name": source.name,
        "fingerprint": source.fingerprint,
        "not_after": source.not_after.isoformat(),
    }


def _read_request(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise CertificateError(f"{path}: the request cannot be read ({error.strerror})") from error


def _report(facts: dict[str, Any], as_json: bool, *lines: str) -> None:
    """One JSON document, or sentences. Plain echo: paths are to be copied, not wrapped."""
    for line in (json.dumps(facts, indent=2),) if as_json else lines:
        typer.echo(line)
