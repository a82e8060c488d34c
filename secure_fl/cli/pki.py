"""`secure-fl pki`: the consortium's authority, which signs requests and hands out invitations and replies."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Table

from secure_fl.errors import UsageError
from secure_fl.files import write_atomically
from secure_fl.identity.authority import REASONS, Authority, Entry
from secure_fl.identity.certificates import ROLES, Certificate, Subject, is_authority, load_single, utc_now
from secure_fl.identity.credential import read_file
from secure_fl.identity.invitation import authority_fingerprint, require_address
from secure_fl.operations.joining import party_in, request_renewal
from secure_fl.settings import read_toml, require_known

app = typer.Typer(
    name="pki",
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Certificates: run the consortium's authority, sign and revoke; renew one's own.",
)

Folder = Annotated[Path, typer.Argument(help="The authority's folder. It holds ca.key: keep it offline.")]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Coordinator only: reached under other hosts from now on; repeatable."),
]
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
    facts["fingerprint"] = authority_fingerprint(authority.ca_pem)
    _report(
        facts,
        as_json,
        f"authority of {consortium!r} created; keep {facts['key']} to yourself",
        f"fingerprint, for the telephone: {facts['fingerprint']}",
        "next, on the coordinator's machine: secure-fl coordinator new NAME --host HOST",
    )


@app.command()
def sign(
    *,
    folder: Folder,
    requests: Annotated[list[Path], typer.Argument(help="Requests as they came: ROLE-NAME.csr.pem; repeatable.")],
    address: Annotated[
        str, typer.Option("--address", help="With a coordinator's request: host:port at which sites reach it.")
    ] = "",
    days: Annotated[int, typer.Option("--days", help="Lifetime of the certificates.")] = 365,
    out: Annotated[Path, typer.Option("--out", help="Folder for what is handed out.")] = Path("reply"),
    renew: Annotated[
        bool, typer.Option("--renew", help="Also for names that have a valid certificate, and for the same keys.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Sign requests of parties you know, and write what to hand out: replies, and an invitation or the roster.

    Look at the names first: each request has to be for the role and name that its file name says.

    Example: [bold]secure-fl pki sign pki coordinator-hub.csr.pem --address fl.example.org:8443[/bold]

    Example: [bold]secure-fl pki sign pki node-charite.csr.pem operator-lead.csr.pem[/bold]
    """
    authority = Authority.open(folder)
    agreed = [(*_agreed(path), read_file(path)) for path in requests]
    if address and "coordinator" not in {role for role, _, _ in agreed}:
        raise UsageError("--address goes with a coordinator's request")
    for role, name, request in agreed:
        subject = authority.check_request(request, role=role, name=name, renew=renew)
        if role == "coordinator":
            _address(subject, address)
    signed = []
    for role, name, request in agreed:
        certificate = authority.issue_from_request(request, role=role, name=name, days=days, renew=renew)
        reply = out / f"{certificate.subject.stem}.reply.toml"
        write_atomically(reply, authority.reply(certificate).encode())
        signed.append((certificate, reply))
    written = _hand_out(authority, [certificate for certificate, _ in signed], address, out)
    facts = [_describe(certificate) | {"reply": str(reply)} for certificate, reply in signed]
    lines = [line for one in signed for line in _told_signed(*one)]
    _report(
        {"signed": facts, "written": list(map(str, written))},
        as_json,
        *lines,
        *(_told_written(path) for path in written),
    )


@app.command()
def invite(
    folder: Folder,
    coordinator: Annotated[
        str, typer.Option("--coordinator", help="host:port at which sites reach it; the host is in its certificate.")
    ] = "",
    name: Annotated[str, typer.Option("--name", help="Which coordinator, if there are several.")] = "",
) -> None:
    """Print an invitation for sites and study leads: the coordinator, how to know it, and who is revoked.

    It holds no secret, and whoever has one still needs a certificate that you sign.

    Example: [bold]secure-fl pki invite pki --coordinator fl.example.org:8443 > invitation.toml[/bold]
    """
    authority = Authority.open(folder)
    typer.echo(_invitation(authority, authority.certificates("coordinator"), coordinator, name=name), nl=False)


@app.command()
def renew(
    file: Annotated[Path, typer.Argument(help="The party's file: node.toml, coordinator.toml or operator.toml.")],
    host: Hosts = None,
    as_json: AsJson = False,
) -> None:
    """At a party: request a new certificate for the same keys. Studies know a party by its key and go on.

    Example: [bold]secure-fl pki renew node.toml[/bold]
    """
    role = party_in(read_toml(file), path=file)
    request = request_renewal(file, role=role, hosts=host or ())
    _report(
        {"request": str(request)},
        as_json,
        f"wrote {request}",
        f"next, on the authority's machine: secure-fl pki sign pki {request.name} --renew",
        f"then, here again: secure-fl {role} join {request.name.removesuffix('.csr.pem')}.reply.toml",
    )


@app.command()
def revoke(
    folder: Folder,
    name_or_fingerprint: Annotated[str, typer.Argument(help="A name (all its certificates), or a key's fingerprint.")],
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
    """Print a party's fingerprint, and nothing else. It is its signing key's, and stays when a certificate is renewed.

    Of ca.pem it is the authority's: what to compare by telephone.

    Example: [bold]secure-fl pki fingerprint coordinator-hub.pem[/bold]
    """
    pem = read_file(certificate)
    if is_authority(load_single(pem, what=str(certificate))):
        typer.echo(authority_fingerprint(pem))
    else:
        typer.echo(Certificate.from_pem(pem).fingerprint)


@app.command()
def roster(
    folder: Folder,
    sites: Annotated[list[str] | None, typer.Argument(help="Names of sites; without any, all valid ones.")] = None,
) -> None:
    """Print the sites with the fingerprints of their keys, as a study wants them; of several keys, the last to expire.

    Example: [bold]secure-fl pki roster authority charite bonn ulm > roster.toml[/bold]
    """
    typer.echo(_roster(Authority.open(folder), sites or ()), nl=False)


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


def _agreed(path: Path) -> tuple[str, str]:
    """The role and name in a request's file name: what whoever signs it has read."""
    role, separator, name = path.name.removesuffix(".csr.pem").partition("-")
    if not separator or role not in ROLES or path.name == f"{role}-{name}":
        raise UsageError(
            f"{path.name!r} does not say for whom the request is", advice="a request is called ROLE-NAME.csr.pem"
        )
    return role, name


def _told_signed(certificate: Certificate, reply: Path) -> Iterator[str]:
    yield f"{certificate.role} {certificate.name!r} until {certificate.not_after:%Y-%m-%d}: hand out {reply}"
    yield f"  its key: {certificate.fingerprint}; compare by telephone, before you hand it out"


def _told_written(path: Path) -> str:
    if path.name != "invitation.toml":
        return f"wrote {path}"
    where = read_toml(path)["invitation"]["coordinator"]
    return f"wrote {path}: it sends sites to {where} (`secure-fl pki invite` writes one for another address)"


def _hand_out(authority: Authority, signed: Sequence[Certificate], address: str, out: Path) -> list[Path]:
    """Write what others need to know of those who were signed for: the coordinator, the list of sites."""
    written = []
    if coordinators := [certificate for certificate in signed if certificate.role == "coordinator"]:
        written.append(out / "invitation.toml")
        write_atomically(written[-1], _invitation(authority, coordinators, address).encode())
    if any(certificate.role == "node" for certificate in signed):
        written.append(out / "roster.toml")
        write_atomically(written[-1], _roster(authority).encode())
    return written


def _invitation(authority: Authority, known: Sequence[Certificate], address: str, *, name: str = "") -> str:
    chosen = {one.name: one for one in known if name in ("", one.name)}  # the last to expire comes last
    if len(chosen) != 1:
        raise UsageError(
            f"{len(chosen)} coordinators have a valid certificate" + (f" as {name!r}" if name else ""),
            advice="`secure-fl pki list` shows them; --name chooses one",
        )
    (one,) = chosen.values()
    return authority.invitation(coordinator=_address(one.subject, address), fingerprint=one.fingerprint)


def _address(subject: Subject, address: str) -> str:
    """Where sites reach a coordinator; a host that its certificate is not for would be refused by every site."""
    first = subject.hosts[0]
    address = address or f"{f'[{first}]' if ':' in first else first}:8443"
    require_address(address)
    host = address.rpartition(":")[0].strip("[]")
    if host.lower() not in subject.hosts:
        raise UsageError(
            f"{host!r} is not a host of coordinator {subject.name!r}",
            advice=f"its certificate is for {', '.join(subject.hosts)}",
        )
    return address


def _roster(authority: Authority, sites: Sequence[str] = ()) -> str:
    valid = {one.name: one.fingerprint for one in authority.certificates("node")}
    for site in sites:
        require_known("site", site, valid)
    return tomli_w.dumps({"study": {"roster": {site: valid[site] for site in sites or sorted(valid)}}})


def _report(facts: dict[str, Any], as_json: bool, *lines: str) -> None:
    """One JSON document, or sentences. Plain echo: paths are to be copied, not wrapped."""
    for line in (json.dumps(facts, indent=2),) if as_json else lines:
        typer.echo(line)
