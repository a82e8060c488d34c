"""`secure-fl study submit|status|stop|export|report`: work with a deployed coordinator."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from google.protobuf.json_format import MessageToDict

from secure_fl.cli import status_text
from secure_fl.cli.measured import reached, with_own_metrics
from secure_fl.errors import (
    LateMessageError,
    MalformedMessageError,
    SettingsError,
    UnknownStudyError,
    UsageError,
)
from secure_fl.files import write_atomically
from secure_fl.operations.operator import Operator, OperatorFile, connect
from secure_fl.report import Step, render
from secure_fl.results.record import StudyRecord
from secure_fl.results.summary import DEPLOYED, summarise
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.doubts import doubts
from secure_fl.study.settings import Study

T = TypeVar("T")

AsOperator = Annotated[Path, typer.Option("--as", help="The operator's file: certificate and coordinator.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
StudyId = Annotated[str, typer.Argument(help="The study's hash, its beginning, or the study's name.")]

_DEFAULT = Path("operator.toml")


def submit(
    path: Annotated[Path, typer.Argument(help="The study file, with its roster.")],
    operator: AsOperator = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Hand a study to a running coordinator. Each site then decides for itself.

    Example: secure-fl study submit heart.toml --as operator.toml
    """
    study = Study.read(path)
    if not study.study.roster:
        raise SettingsError(
            f"{path}: [study.roster] is empty, so no site could take part",
            advice="list the sites as `secure-fl pki roster` prints them; `study new --roster FILE` takes them over",
        )
    study = study.completed()
    study.check()
    for doubt in doubts(study):
        typer.echo(f"warning: {doubt}", err=True)
    status = _call(operator, lambda lead: lead.submit(study))
    if as_json:
        typer.echo(json.dumps(_plain(status)))
        return
    typer.echo(f"study {status.study_id} is {status.state}")
    if status.owner != OperatorFile.read(operator).credential().certificate.name:
        typer.echo(f"it was here before, submitted by {status.owner or 'nobody in particular'}")
    typer.echo(f"every site approves it with: secure-fl node approve NODE.toml {status.study_id}")


def status(
    study_id: Annotated[str, typer.Argument(help="A study's hash, its beginning, or its name; without one all.")] = "",
    operator: AsOperator = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show how far studies are, whom they wait for and why, and how well their models do.

    Example: secure-fl study status heart
    """

    async def fetch(lead: Operator) -> tuple[pb.StudyStatus, ...]:
        return await lead.status(await find(lead, study_id) if study_id else "")

    studies = _call(operator, fetch)
    if as_json:
        typer.echo(json.dumps([_plain(study) | status_text.words(study) for study in studies]))
        return
    if not studies:
        typer.echo("this coordinator has no study yet; `secure-fl study submit` hands one in")
    for study in studies:
        status_text.tell(study)
    if study_id:
        typer.echo(f"all rounds on one page: secure-fl study report {study_id}")


def stop(study_id: StudyId, operator: AsOperator = _DEFAULT) -> None:
    """End a study before its last round. What it has committed stays. Only who submitted a study may stop it.

    Example: secure-fl study stop heart --as operator.toml
    """

    async def end(lead: Operator) -> pb.StudyStatus:
        return await lead.stop(await find(lead, study_id))

    ended = _call(operator, end)
    typer.echo(f"study {ended.study_id} is {ended.state} after {ended.rounds_done} rounds")


def export(
    study_id: StudyId,
    out: Annotated[Path, typer.Option(help="Where to write the model.")] = Path("model.safetensors"),
    untrained: Annotated[bool, typer.Option("--untrained", help="Also if no round is finished yet.")] = False,
    operator: AsOperator = _DEFAULT,
) -> None:
    """Write a study's current model as safetensors, with a model card beside it.

    Example: secure-fl study export heart --out heart.safetensors
    """

    async def fetch(lead: Operator) -> tuple[int, pb.StudyStatus]:
        (found,) = await lead.status(await find(lead, study_id))
        if not found.rounds_done and not untrained:
            raise LateMessageError(
                "the study has not finished a round: its model is untrained",
                advice="wait for a round (`secure-fl study status`), or write the start model with --untrained",
            )
        return await lead.export(found.study_id, out), found

    version, found = _call(operator, fetch)
    card = out.with_suffix(".md")
    write_atomically(card, _card(found, version).encode())
    trained = f"{found.rounds_done} of {found.rounds_planned} rounds" if found.rounds_done else "untrained"
    typer.echo(f"{out}: version {version}, {trained}; card: {card}")


def report(
    study_id: StudyId,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    operator: AsOperator = _DEFAULT,
) -> None:
    """Write a study's rounds so far as one page that can be read offline.

    Example: secure-fl study report HASH --out report.html --as operator.toml
    """

    async def fetch(lead: Operator) -> tuple[str, pb.StudyStatus]:
        wanted = await find(lead, study_id)
        (found,) = await lead.status(wanted)
        return wanted, found

    wanted, found = _call(operator, fetch)
    if not found.record:
        raise LateMessageError("the study has not begun", advice="ask again once its first round is under way")
    record = StudyRecord.from_json(json.loads(found.record))
    study = Study.from_canonical(record.settings.encode()) if record.settings else None
    if record.study_id != wanted or (study and study.id != wanted):
        raise MalformedMessageError("the coordinator sent another study's record")
    record = with_own_metrics(record)
    seconds = sum(entry.seconds for entry in record.rounds)
    summary = summarise(record, engine=DEPLOYED, seconds=seconds, report=str(out))
    page = render(record, summary, study, steps=_steps(record), written=datetime.now(UTC))
    write_atomically(out, page.encode())
    typer.echo(f"{out}: {found.rounds_done} of {found.rounds_planned} rounds, {found.state}")


def _steps(record: StudyRecord) -> tuple[Step, ...]:
    """What a study lead can do after reading the report."""
    watch = Step(why="See who is connected now.", command=f"secure-fl study status {record.study_id}")
    model = Step(why="Fetch the model with its card.", command=f"secure-fl study export {record.study_id}")
    again = Step(
        why="Try the same settings with simulated sites: save the study file below as study.toml.",
        command=f"secure-fl run study.toml --nodes {len(record.roster)}",
    )
    return (watch, model, again) if record.outcome == "running" else (model, again)


async def find(lead: Operator, wanted: str) -> str:
    """The hash of the one study that is meant: by its whole hash, by the beginning of it, or by name."""
    if re.fullmatch(r"[0-9a-f]{64}", wanted):
        return wanted
    found = [study for study in await lead.status() if study.name == wanted or study.study_id.startswith(wanted)]
    if not found:
        raise UnknownStudyError(f"no study here has the name {wanted!r}, or a hash that begins so")
    if len(found) > 1:
        several = ", ".join(f"{study.name} {study.study_id[:12]}" for study in found)
        raise UsageError(f"{wanted!r} could be any of: {several}", advice="give more of the hash")
    return found[0].study_id


def _call(path: Path, action: Callable[[Operator], Awaitable[T]]) -> T:
    async def run() -> T:
        async with connect(OperatorFile.read(path)) as lead:
            return await action(lead)

    return asyncio.run(run())


def _plain(status: pb.StudyStatus) -> dict[str, Any]:
    fields = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    record = status.record.decode()
    return {
        **fields,
        "rounds_done": int(status.rounds_done),
        "rounds_planned": int(status.rounds_planned),
        "record": json.loads(record) if record else None,
    }


def privacy_in_words(settings: str) -> str:
    """What a study's canonical settings promise about single records."""
    if not settings:
        return "–"
    privacy = json.loads(settings).get("privacy", {})
    if privacy.get("mode", "none") == "none":
        return "none; nothing limits how much the model can reveal about single records"
    return (
        f"{privacy['mode']}, at most epsilon {privacy['epsilon']:g} with delta {privacy['delta']:g} for each "
        f"{privacy['unit']}, enforced by each site"
    )


def _card(status: pb.StudyStatus, version: int) -> str:
    record = json.loads(status.record) if status.record else {}
    lines = [
        f"# {status.name}",
        "",
        f"- study: `{status.study_id}`",
        f"- model version: {version} ({status.rounds_done} of {status.rounds_planned} rounds, {status.state})"
        + ("" if status.rounds_done else ": **untrained**"),
        f"- task: {record.get('task', '–')}, strategy: {record.get('strategy', '–')}",
        f"- protection: {record.get('protection', '–')}",
        f"- parameters: {record.get('parameters', '–')}, shared: {record.get('shared_parameters', '–')}",
        f"- sites: {', '.join(site.name for site in status.sites)}",
        *(f"- measured last: {sentence}" for sentence in reached(status.record)),
        f"- differential privacy: {privacy_in_words(record.get('settings') or '')}",
    ]
    return "\n".join(lines) + "\n"
