"""`secure-fl coordinator|node|operator new` and `join`: a party's file and certificate, from nothing.

What a flag does not say is asked for, on a terminal; elsewhere it is an error that names the flag.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from secure_fl.cli import processes
from secure_fl.errors import CertificateError, SecureFLError, UsageError
from secure_fl.identity.certificates import Subject, parse_fingerprint, parse_host, utc_now
from secure_fl.identity.invitation import Invitation, require_address
from secure_fl.operations import joining
from secure_fl.operations.joining import Newcomer, TaskCopy, require_fingerprint
from secure_fl.operations.party_templates import FILES, Dataset

operator = typer.Typer(
    name="operator",
    help="Set up a study lead; `secure-fl study` then works with the coordinator.",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(help="Lower-case name, for example hospital-a.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", help="A DNS name or IP address under which sites reach it; repeatable.")
]
Port = Annotated[int, typer.Option(min=1, max=65535, help="The port it listens on.")]
Coordinator = Annotated[str, typer.Option(help="host:port of the coordinator.")]
Fingerprint = Annotated[str, typer.Option(help="The coordinator's, as `secure-fl pki fingerprint` prints it.")]
Data = Annotated[
    list[str] | None, typer.Option("--data", help="ID=PATH: this site's data, under the id studies use; repeatable.")
]
Units = Annotated[
    list[str] | None,
    typer.Option("--units", help="ID=NUMBER: about how many records or groups, for differential privacy; repeatable."),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", help="FILE.py:Class: a task you have read; it is copied here and allowed; repeatable."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write to; nothing in it is overwritten.")]
Handed = Annotated[Path, typer.Argument(help="The invitation, or later the reply, that the authority handed out.")]
Reply = Annotated[Path, typer.Argument(help="The authority's reply to this party's request.")]
NameOption = Annotated[str, typer.Option("--name", help="The name this party joins under.")]
AuthorityOption = Annotated[
    str,
    typer.Option("--authority", help="The authority's fingerprint, if you have it: anything else is refused."),
]
Serve = Annotated[bool, typer.Option("--serve", help="Then serve, as `serve` does, until stopped.")]


@processes.coordinator.command("new")
def new_coordinator(name: Name = "", host: Hosts = None, port: Port = 8443, out: Out = Path()) -> None:
    """Write coordinator.toml, and keys with a request for a certificate.

    Example: secure-fl coordinator new hub --host fl.example.org
    """
    name = _asked(name, "NAME", "Name of the coordinator", _require_name("coordinator"))
    hosts = host or [_asked("", "--host", "Host under which sites will reach it", parse_host)]
    for one in hosts:
        _require(parse_host, one, "--host")
    newcomer = Newcomer(role="coordinator", name=name, folder=out, hosts=tuple(hosts), port=port)
    joining.begin(newcomer)
    _tell_begun(newcomer)


@processes.coordinator.command("join")
def join_coordinator(reply: Reply, authority: AuthorityOption = "", out: Out = Path(), serve: Serve = False) -> None:
    """Put the certificate of the authority's reply in its place; once, and again after each renewal.

    Example: secure-fl coordinator join coordinator-hub.reply.toml
    """
    _accept(_read(reply, authority), "coordinator", out, serve=serve)
    if serve:
        processes.become("coordinator", str(out / FILES["coordinator"]))


@processes.node.command("new")
def new_node(
    *,
    name: Name = "",
    coordinator: Coordinator = "",
    fingerprint: Fingerprint = "",
    data: Data = None,
    units: Units = None,
    task: Tasks = None,
    out: Out = Path(),
) -> None:
    """Write node.toml, and keys with a request for a certificate. With an invitation `node join` is shorter.

    Example: secure-fl node new hospital-a --coordinator fl.example.org:8443 --fingerprint 3f2a… --data ward=ward.npz
    """
    newcomer = Newcomer(
        role="node",
        name=_asked(name, "NAME", "Name of this site", _require_name("node")),
        folder=out,
        coordinator=_asked(coordinator, "--coordinator", "The coordinator's host:port", require_address),
        fingerprint=_asked(fingerprint, "--fingerprint", "The coordinator's fingerprint", require_fingerprint),
        datasets=_datasets(data, units, out),
        tasks=_tasks(task),
    )
    joining.begin(newcomer)
    _tell_begun(newcomer)


@processes.node.command("join")
def join_node(
    *,
    handed: Handed,
    name: NameOption = "",
    data: Data = None,
    units: Units = None,
    task: Tasks = None,
    authority: AuthorityOption = "",
    out: Out = Path(),
    serve: Serve = False,
) -> None:
    """Join a consortium. With an invitation: write node.toml, keys and a request. With the reply to it: finish.

    Example: secure-fl node join invitation.toml --name hospital-a --data breast-cancer=data.npz

    Example: secure-fl node join node-hospital-a.reply.toml
    """
    invitation = _read(handed, authority)
    if invitation.certificate is None:
        if serve:
            raise UsageError("--serve goes with the reply", advice="without a certificate there is nothing to serve")
        name = _asked(name, "--name", "Name of this site", _require_name("node"))
        _join(invitation, "node", name, out, datasets=_datasets(data, units, out), tasks=_tasks(task))
        return
    if name or data or units or task:
        raise UsageError("--name, --data, --units and --task go with an invitation; this is a reply")
    _accept(invitation, "node", out, serve=serve)
    if serve:
        processes.become("node", str(out / FILES["node"]))


@operator.command("new")
def new_operator(
    name: Name = "", coordinator: Coordinator = "", fingerprint: Fingerprint = "", out: Out = Path()
) -> None:
    """Write operator.toml, and keys with a request for a certificate. With an invitation `operator join` is shorter.

    Example: secure-fl operator new lead --coordinator fl.example.org:8443 --fingerprint 3f2a…
    """
    newcomer = Newcomer(
        role="operator",
        name=_asked(name, "NAME", "Name of the study lead", _require_name("operator")),
        folder=out,
        coordinator=_asked(coordinator, "--coordinator", "The coordinator's host:port", require_address),
        fingerprint=_asked(fingerprint, "--fingerprint", "The coordinator's fingerprint", require_fingerprint),
    )
    joining.begin(newcomer)
    _tell_begun(newcomer)


@operator.command("join")
def join_operator(handed: Handed, name: NameOption = "", authority: AuthorityOption = "", out: Out = Path()) -> None:
    """Join a consortium. With an invitation: write operator.toml, keys and a request. With the reply to it: finish.

    Example: secure-fl operator join invitation.toml --name lead
    """
    invitation = _read(handed, authority)
    if invitation.certificate is None:
        _join(invitation, "operator", _asked(name, "--name", "Name of the study lead", _require_name("operator")), out)
        return
    if name:
        raise UsageError("--name goes with an invitation; this is a reply")
    _accept(invitation, "operator", out)


# --- what the three have in common ----------------------------------------------------------------------------


def _read(path: Path, authority: str) -> Invitation:
    """A file of the authority, verified; of the one with this fingerprint, if one is given."""
    handed_out = Invitation.read(path, now=utc_now())
    if authority:
        wanted = parse_fingerprint(authority)
        if wanted is None:
            raise UsageError("--authority: not a SHA-256 in hex", advice="64 hexadecimal digits")
        if wanted != handed_out.authority_fingerprint:
            raise CertificateError(
                f"{path}: the authority shows {handed_out.authority_fingerprint}, not {wanted}",
                advice="do not use it; ask the authority by telephone",
            )
    return handed_out


def _join(
    invitation: Invitation,
    role: str,
    name: str,
    out: Path,
    *,
    datasets: tuple[Dataset, ...] = (),
    tasks: tuple[TaskCopy, ...] = (),
) -> None:
    newcomer = joining.accept_invitation(invitation, role=role, name=name, folder=out, datasets=datasets, tasks=tasks)
    typer.echo(f"invited by {invitation.consortium!r}; compare by telephone with the authority, digit by digit:")
    typer.echo(f"  {_groups(invitation.authority_fingerprint)}")
    _tell_begun(newcomer)


def _tell_begun(newcomer: Newcomer) -> None:
    request, file = newcomer.request, newcomer.file
    typer.echo(f"wrote {file}: read it, and change what this {_who(newcomer.role)} decides otherwise")
    typer.echo(f"made two private keys, which stay in {newcomer.folder.resolve()}")
    typer.echo("compare by telephone, too, before the authority hands out its reply: the key of this request is")
    typer.echo(f"  {newcomer.key}")
    for task in newcomer.tasks:
        typer.echo(f"copied {task.path.name}: this code will run here; `secure-fl node approve` shows its SHA-256")
    for one in newcomer.datasets:
        if not (newcomer.folder / one.path).exists():
            typer.echo(f"data set {one.id}: {one.path} is not there yet")
    # Only this machine knows its port: an invitation without it would send every site to another one.
    address = f" --address {newcomer.address}" if newcomer.role == "coordinator" else ""
    typer.echo(f"next, on the authority's machine: secure-fl pki sign pki {request.name}{address}")
    folder = "" if newcomer.folder == Path() else f" --out {newcomer.folder}"
    stem = request.name.removesuffix(".csr.pem")
    typer.echo(f"then, here again: secure-fl {newcomer.role} join {stem}.reply.toml{folder}")


def _accept(reply: Invitation, role: str, out: Path, *, serve: bool = False) -> None:
    file = out / FILES[role]
    first = not (out / "ca.pem").exists()  # without an invitation: nobody has compared the authority yet
    certificate = joining.accept_reply(reply, role=role, file=file)
    typer.echo(f"{role} {certificate.name!r} of {reply.consortium!r}, until {certificate.not_after:%Y-%m-%d}")
    if first:
        typer.echo("this machine believes this authority from now on; compare by telephone, digit by digit:")
        typer.echo(f"  {_groups(reply.authority_fingerprint)}")
    typer.echo(f"check it: secure-fl doctor {file}")
    if role == "operator":
        typer.echo("next, here: secure-fl study new STUDY.toml --roster roster.toml")
        return
    if not serve:
        typer.echo(f"next, here: secure-fl {role} serve {file} (if it is running: restart it)")


def _who(role: str) -> str:
    return {"node": "site", "operator": "study lead"}.get(role, role)


def _datasets(data: list[str] | None, units: list[str] | None, out: Path) -> tuple[Dataset, ...]:
    if data is None and sys.stdin.isatty():
        data = []
        while given := _prompt("Data of this site, as ID=PATH (empty: no more)", default=""):
            if _passes(partial(_require_new, so_far=tuple(data)), given):
                data.append(given)
    counts = {}
    for given in units or ():
        name, number = _pair(given, "--units", "ID=NUMBER")
        if not number.isdigit() or int(number) < 1:
            raise UsageError(f"--units {given}: not a number from 1 on")
        counts[name] = int(number)
    pairs = [_pair(given, "--data", "ID=PATH") for given in data or ()]
    if unknown := counts.keys() - {name for name, _ in pairs}:
        raise UsageError(f"--units {min(unknown)}=…: there is no --data {min(unknown)}=…")
    return tuple(Dataset(id=name, path=_seen_from(out, path), units=counts.get(name)) for name, path in pairs)


def _tasks(given: list[str] | None) -> tuple[TaskCopy, ...]:
    parts = [text.rpartition(":") for text in given or ()]
    return tuple(TaskCopy(path=Path(path), attribute=attribute) for path, _, attribute in parts)


def _seen_from(folder: Path, path: str) -> str:
    """A path that was typed here, as the file in `folder` has to name it."""
    return path if folder == Path() or Path(path).is_absolute() else os.path.relpath(path, folder)


def _pair(given: str, flag: str, form: str) -> tuple[str, str]:
    name, separator, value = given.partition("=")
    if not separator or not name or not value:
        raise UsageError(f"{flag} {given!r}: expected {form}", advice=f"for example {flag} ward=ward.npz")
    return name, value


def _require_new(given: str, so_far: tuple[str, ...]) -> None:
    """Raise `UsageError` for what is no ID=PATH, or has the id of one of those before."""
    name, path = _pair(given, "--data", "ID=PATH")
    Dataset(id=name, path=path)
    if any(one.partition("=")[0] == name for one in so_far):
        raise UsageError(f"{name} is named already", advice="give every data set an id of its own")


def _asked(value: str, flag: str, question: str, check: Callable[[str], object]) -> str:
    """The value, or the answer of whoever sits at the terminal, who is asked again if `check` raises."""
    if value:
        _require(check, value, flag)
        return value
    if not sys.stdin.isatty():
        raise UsageError(f"{flag} is missing ({question.lower()})", advice="on a terminal it would be asked for")
    while True:
        answer = _prompt(question)
        if _passes(check, answer):
            return answer


def _prompt(question: str, *, default: str | None = None) -> str:
    try:
        return str(typer.prompt(question, default=default, show_default=False)).strip()
    except typer.Abort:  # Ctrl-C, or no more input
        typer.echo("\ninterrupted; nothing was written", err=True)
        raise typer.Exit(130) from None


def _require(check: Callable[[str], object], value: str, flag: str) -> None:
    """What is wrong with a value is a mistake on the command line, whatever it would be in a file or a certificate."""
    try:
        check(value)
    except SecureFLError as error:
        raise UsageError(f"{flag}: {error.message}", advice=error.hint) from None


def _passes(check: Callable[[str], object], answer: str) -> bool:
    try:
        check(answer)
    except SecureFLError as error:
        typer.echo(f"{error.message}{f' → {error.hint}' if error.hint else ''}", err=True)
        return False
    return True


def _require_name(role: str) -> Callable[[str], object]:
    return lambda name: Subject(role=role, name=name, hosts=("localhost",) if role == "coordinator" else ())


def _groups(digits: str) -> str:
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))
