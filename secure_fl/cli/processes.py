"""`secure-fl coordinator serve` and `secure-fl node serve|approve|status`: the two processes, by name."""

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


def become(module: str, *arguments: str) -> None:
    """Replace this process: signals, exit code and output are then the other's own."""
    # -P: a file called node.py in the folder one works in is not our package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606
