"""A consortium at the command line: commands in the folders of several machines, in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from secure_fl.cli import app
from secure_fl.errors import SecureFLError

_runner = CliRunner()


def run(*arguments: object) -> str:
    """Run a command; its `SecureFLError`, which the root prints, is raised here."""
    result = _runner.invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, SecureFLError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(*arguments: object) -> Any:
    """The same of a command that answers in JSON."""
    return json.loads(run(*arguments, "--json"))


@contextmanager
def on(machine: Path) -> Iterator[Path]:
    """Work in a machine's folder."""
    machine.mkdir(exist_ok=True)
    before = Path.cwd()
    os.chdir(machine)
    try:
        yield machine
    finally:
        os.chdir(before)


def found(folder: Path) -> tuple[Path, Path]:
    """An authority and the coordinator it has signed for; returns what the authority hands out, and the coordinator."""
    authority, hub = folder / "authority", folder / "hub"
    with on(authority):
        run("pki", "init", "pki", "--consortium", "Heart Study")
    with on(hub):
        run("coordinator", "new", "hub", "--host", "fl.example.org")
    with on(authority):
        run("pki", "sign", "pki", "../hub/coordinator-hub.csr.pem", "--address", "fl.example.org:9000")
    with on(hub):
        run("coordinator", "join", "../authority/reply/coordinator-hub.reply.toml")
    return authority / "reply", hub
