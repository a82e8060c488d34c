"""`secure-fl study submit|status|stop|export|report|history`: work with a deployed coordinator."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from secure_fl.api.operator import Operator, fetch_record, find, plain, ready, write_report
from secure_fl.cli import status_text
from secure_fl.counting import counted
from secure_fl.operations.operator import Operator as Connection
from secure_fl.results import history as histories
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
    start: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="The model that the study goes on from.")
    ] = None,
    operator: AsOperator = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Hand a study to a running coordinator. Each site then decides for itself.

    Example: secure-fl study submit heart.toml --as operator.toml
    """
    written = Study.read(path)
    study = ready(written)
    if not written.study.initial:
        typer.echo(
            f"warning: {path} is not written out, so that a site may compute another hash from it: give sites what "
            f"`secure-fl study check {path} --write {path}` writes",
            err=True,
        )
    for doubt in doubts(study):
        typer.echo(f"warning: {doubt}", err=True)
    lead = Operator(operator)
    status = lead.submit(study, start=start)
    if as_json:
        typer.echo(json.dumps(status))
        return
    typer.echo(f"study {status['study_id']} is {status['state']}")
    if status["owner"] != lead.name:
        typer.echo(f"it was here before, submitted by {status['owner'] or 'nobody in particular'}")
    if status["state"] == "running":
        typer.echo(f"every site approves it with: secure-fl node approve NODE.toml {status['study_id']}")
    else:
        typer.echo(
            "it was here before, and a study runs once; to repeat it change `seed` in [study], and submit it again"
        )


def status(
    study_id: Annotated[str, typer.Argument(help="A study's hash, its beginning, or its name; without one all.")] = "",
    operator: AsOperator = _DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show how far studies are, whom they wait for and why, and how well their models do.

    Example: secure-fl study status heart
    """

    async def fetch(lead: Connection) -> tuple[pb.StudyStatus, ...]:
        return await lead.status(await find(lead, study_id) if study_id else "")

    studies = _call(operator, fetch)
    if as_json:
        typer.echo(json.dumps([plain(study) | status_text.words(study) for study in studies]))
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

    ended = Operator(operator).stop(study_id)
    typer.echo(f"study {ended['study_id']} is {ended['state']} after {counted(ended['rounds_done'], 'round')}")


def export(
    study_id: StudyId,
    out: Annotated[Path, typer.Option(help="Where to write the model.")] = Path("model.safetensors"),
    task: Annotated[
        str | None,
        typer.Option(help="The task's code, if it is no installed package: FILE.py:Class, or module:attribute."),
    ] = None,
    untrained: Annotated[bool, typer.Option("--untrained", help="Also if no round is finished yet.")] = False,
    operator: AsOperator = _DEFAULT,
) -> None:
    """Write a study's current model as safetensors, with a model card beside it.

    Its tensors have torch's own names where the study's task is installed here, or where --task says which code it is.

    Example: secure-fl study export heart --out heart.safetensors
    """
    done = Operator(operator).export(study_id, out, untrained=untrained, task=task)
    trained = f"{done.rounds_done} of {done.rounds_planned} rounds" if done.rounds_done else "untrained"
    typer.echo(f"{out}: version {done.version}, {trained}; card: {done.card}")
    if done.names != "torch":
        typer.echo("its tensors are named block/tensor: the task is no package installed here; load_model reads them")
        typer.echo("torch's own names: the same command with --task FILE.py:Class, the task's code")


def report(
    study_id: StudyId,
    out: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("report.html"),
    operator: AsOperator = _DEFAULT,
) -> None:
    """Write a study's rounds so far as one page that can be read offline.

    Example: secure-fl study report HASH --out report.html --as operator.toml
    """

    found = write_report(Operator(operator), study_id, out)
    typer.echo(f"{out}: {found.rounds_done} of {found.rounds_planned} rounds, {found.state}")


def history(
    study_id: StudyId,
    out: Annotated[Path, typer.Option(help="Where to write the table.")] = Path("history.csv"),
    operator: AsOperator = _DEFAULT,
) -> None:
    """Write a study's rounds so far as CSV: one row for each version of the model, as `run` writes them.

    Row 0 is the untrained model. It holds what the study's [metrics] share lets a lead see.

    Example: secure-fl study history heart --out heart.csv
    """
    record, found = fetch_record(Operator(operator), study_id)
    histories.write_csv(out, histories.history(record))
    typer.echo(f"{out}: {found.rounds_done} of {found.rounds_planned} rounds, {found.state}")


def _call(path: Path, action: Callable[[Connection], Awaitable[T]]) -> T:
    return Operator(path).call(action)
