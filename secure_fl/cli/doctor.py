"""`secure-fl doctor`: what is wrong, and the fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from secure_fl.cli.processes import become
from secure_fl.errors import SettingsError
from secure_fl.operations import doctor as checks
from secure_fl.operations.operator import OperatorFile
from secure_fl.settings import read_toml

_PARTIES = {"node": "node.doctor", "coordinator": "coordinator.doctor"}


def doctor(
    path: Annotated[Path | None, typer.Argument(help="A node's, coordinator's or operator's file.")] = None,
    study: Annotated[Path | None, typer.Option(help="Also: does this study fit this party?")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check certificates, clock, connection, versions, permissions, disk and policy; say what to do about each.

    Exits 0 only if nothing failed. Without a file only the installation is checked.

    Example: secure-fl doctor node.toml --study heart.toml
    """
    table = {} if path is None else read_toml(path)
    for section, module in _PARTIES.items():
        if path is not None and section in table:
            options = (["--study", str(study)] if study else []) + (["--json"] if as_json else [])
            become(module, str(path), *options)
    if path is not None and "operator" not in table:
        raise SettingsError(
            f"{path}: has no [node], [coordinator] or [operator]",
            advice="name a party's file, as `join` and `new` write it; a study goes with --study, or to `study check`",
        )
    raise typer.Exit(checks.tell(checks.examine(_checks(path, study)), as_json=as_json))


def _checks(path: Path | None, study: Path | None) -> Iterator[checks.Check]:
    if path is None:
        yield from checks.installation()
    elif (file := (yield from checks.common(OperatorFile, path, role="operator"))) is not None:
        yield from checks.connection(file)
    if study is not None:
        yield "study", lambda: f"{checks.read_study(study).id} is sound"
