"""`secure-fl coordinator serve` and `secure-fl node serve|approve|status|try|mock`: the two processes, by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

coordinator = typer.Typer(name="coordinator", help="Set up and run a coordinator.", no_args_is_help=True)
node = typer.Typer(
    name="node", help="Set up and run a site's node, and decide what it takes part in.", no_args_is_help=True
)

NodePath = Annotated[Path, typer.Argument(help="The node's file.")]


@coordinator.command("serve")
def serve_coordinator(path: Annotated[Path, typer.Argument(help="The coordinator's file.")]) -> None:
    """Serve studies until stopped.

    Example: secure-fl coordinator serve coordinator.toml
    """
    become("coordinator", str(path))


@node.command("serve")
def serve_node(path: NodePath) -> None:
    """Serve until stopped: dials out to the one coordinator in the file and opens no port.

    Example: secure-fl node serve node.toml
    """
    become("node", str(path))


@node.command("approve")
def approve(
    path: NodePath,
    studies: Annotated[list[str], typer.Argument(help="A study's hash (64 digits) or file; repeatable.")],
) -> None:
    """Agree to studies, after reading `study show`. A changed study has another hash and needs a new approval.

    Example: secure-fl node approve node.toml heart.toml
    """
    become("node.desk", "approve", str(path), *studies)


@node.command("status")
def status(path: NodePath, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show approvals, studies, rounds and what left this site."""
    become("node.desk", "status", str(path), *(["--json"] if as_json else []))


@node.command("try")
def try_study(
    path: NodePath,
    study: Annotated[Path, typer.Argument(help="The study file.")],
    model: Annotated[
        Path | None,
        typer.Option("--from", metavar="MODEL", help='The model that a study with start = "given" goes on from.'),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rehearse a study here: check, load the data, train a few batches, show what would leave and what it costs.

    Nothing is sent, charged or kept.

    Example: secure-fl node try node.toml heart.toml
    """
    given = [] if model is None else ["--from", str(model)]
    become("node.trial", str(path), str(study), *given, *(["--json"] if as_json else []))


@node.command("mock")
def mock(
    path: NodePath,
    dataset: Annotated[str, typer.Argument(help="The id of a data set in the node's file.")],
    out: Annotated[Path, typer.Option("--out", help="Where to write the mock: .npz, .csv or .csv.gz, as the data.")],
    rows: Annotated[int, typer.Option(help="How many rows; the data's own number is not used.")] = 200,
    task: Annotated[str, typer.Option(help="A task that should read it, and that knows how many classes.")] = "",
    classes: Annotated[int, typer.Option(help="Whole numbers are 0 to one less; 0: what the task says, or 2.")] = 0,
    seed: Annotated[int, typer.Option(help="Of the values.")] = 0,
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Of a .csv: the first line has names, or a record.")
    ] = None,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="REVEALING: use the smallest and largest values of the data.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Write it without asking.")] = False,
) -> None:
    """Make rows with the schema of a data set and invented values, for people who must not see the data.

    It is shown, with what it reveals, before it is written.

    Example: secure-fl node mock node.toml ward --out mock.npz --task breast-cancer
    """
    flags = {"--header": header is True, "--no-header": header is False, "--ranges": ranges, "--yes": yes}
    values = ("--rows", str(rows), "--task", task, "--classes", str(classes), "--seed", str(seed))
    become("node.mock", str(path), dataset, "--out", str(out), *values, *(flag for flag, on in flags.items() if on))


def become(module: str, *arguments: str) -> None:
    """Replace this process: signals, exit code and output are then the other's own."""
    # -P: a file called node.py in the folder one works in is not our package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606
