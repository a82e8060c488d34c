"""`secure-fl sample`: public rows to try everything with, before there are data of one's own."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from secure_fl.errors import UsageError
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import Subject
from secure_fl.identity.credential import refuse_existing
from secure_fl.settings import require_known
from secure_fl.tasks.packaged import read_table

# Task → the table of scikit-learn's package, its header, and the shape of a row as a site's file has it.
_TABLES: Mapping[str, tuple[str, int, tuple[int, ...]]] = {
    "breast-cancer": ("breast_cancer.csv", 1, (30,)),
    "digits": ("digits.csv.gz", 0, (8, 8)),
}


def sample(
    task: Annotated[str, typer.Argument(help="The task whose public data are dealt out: breast-cancer or digits.")],
    names: Annotated[list[str], typer.Argument(help="One file for each name: NAME.npz.")],
    out: Annotated[Path, typer.Option("--out", help="Folder to write to; nothing in it is overwritten.")] = Path(
        "samples"
    ),
) -> None:
    """Deal out public sample rows, one file for each name, to try a consortium with. No two files share a row.

    Example: secure-fl sample breast-cancer hospital-a hospital-b hospital-c
    """
    require_known("task with sample data", task, _TABLES)
    if len(set(names)) < len(names):
        raise UsageError("a name is given twice")
    for name in names:
        Subject(role="node", name=name)  # It becomes a file's name; raises `CertificateError`.
    paths = [out / f"{name}.npz" for name in names]
    refuse_existing(*paths)
    file, header_rows, shape = _TABLES[task]
    table = read_table(file, header_rows=header_rows)
    for first, path in enumerate(paths):
        rows = table[first :: len(paths)]
        content = io.BytesIO()
        np.savez(content, x=rows[:, :-1].reshape(-1, *shape), y=rows[:, -1].astype(np.int64))
        write_atomically(path, content.getvalue())
        typer.echo(f"{path}: {len(rows)} rows")
