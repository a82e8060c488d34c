"""`secure-fl task new|check`: a task of your own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from secure_fl.cli.task_template import task_class, write_task
from secure_fl.errors import SettingsError
from secure_fl.operations import doctor
from secure_fl.settings import set_dotted

app = typer.Typer(name="task", help="Write a task of your own, and find what would keep it from being federated.",
                  no_args_is_help=True)  # fmt: skip


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="The task's name, by which studies call it.")],
    out: Annotated[Path | None, typer.Option(help="The folder to write; by default the task's name.")] = None,
    kind: Annotated[str, typer.Option(help="classification | regression")] = "classification",
) -> None:
    """Write a small package to start from: a task, its tests, and what pip needs to install it.

    Example: secure-fl task new wards
    """
    folder = out or Path(name)
    files = write_task(name, folder, kind=kind)
    for file in files:
        typer.echo(f"{file}: written")
    typer.echo(f"next: write your columns and model into {files[1]}, then" + (f", in {folder}" if folder.name else ""))
    typer.echo("  python -m pytest        # once before: pip install pytest")
    typer.echo(f"  secure-fl task check {files[1].stem}:{task_class(name)} --data FILE.csv")
    typer.echo("from there to the sites: docs/tasks.md, 'A task of your own'")


@app.command()
def check(
    name: Annotated[str, typer.Argument(help="A task's id, or module:attribute in this folder.")],
    data: Annotated[Path | None, typer.Option(help="A file of rows; without one, rows are made up.")] = None,
    data_format: Annotated[str, typer.Option("--format", help="Its format, where the task wants to be told.")] = "",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="task.KEY=VALUE", help="A setting of the task; repeatable.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="For studies under differential privacy: what prevents it is a failure.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Load a task, make its model, train one batch; say what would keep it from being federated, and the fix.

    Exits 0 if nothing failed, 3 otherwise.

    Example: secure-fl task check wards --data rows.csv
    """
    from secure_fl.cli.task_check import TaskCheck  # torch
    from secure_fl.tasks.base import Source

    table: dict[str, Any] = {}
    for assignment in assignments or ():
        set_dotted(table, assignment)
    if set(table) - {"task"}:
        raise SettingsError("--set: only keys of [task] matter here", advice="for example --set task.hidden=32")
    source = Source(path=data, format=data_format or None)
    looked = TaskCheck(name, table.get("task", {}), source, private=private)
    if doctor.tell(doctor.examine(looked.checks()), as_json=as_json):
        raise typer.Exit(SettingsError.exit_code)
