"""`python -m node.mock FILE DATASET --out MOCK`: rows that look like a data set and say nothing about its records.

Whoever develops a task or a study elsewhere works with the mock. It is shown here before it is written, with all that
it reveals.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from node.config import NodeFile
from node.mock_schema import Schema, Values, read_csv_schema, read_npz_schema
from secure_fl import tasks
from secure_fl.errors import DataError, RefusedError, SecureFLError, UsageError
from secure_fl.files import write_atomically
from secure_fl.operations.ending import ended_by

_SHOWN = 3  # rows


def main(arguments: list[str] | None = None) -> int:
    """Make a mock, show it, and write it if that is agreed to."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except SecureFLError as error:
        return ended_by(error, "node")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m node.mock", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("dataset")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--task", default="")
    parser.add_argument("--classes", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--header", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--ranges", action="store_true")
    parser.add_argument("--yes", action="store_true")
    return parser


def _run(options: argparse.Namespace) -> None:
    file = NodeFile.read(options.file)
    if options.rows < 2 or options.classes < 0:
        raise UsageError("--rows is at least 2, and --classes not negative")
    path = _path(file, options.dataset)
    _require_new(options.out, path)
    if options.task:
        _require_allowed(file, options.task)
    schema = _schema(path, header=options.header)
    if options.ranges:
        schema = schema.with_ranges(path)
    values, reads = _made(schema, options)
    _show(schema, values, reads, options)
    if not options.yes and not _agreed(options.out):
        sys.stdout.write("nothing was written\n")
        return
    encoded = schema.encode(values)
    # Without a time in it: the same schema and seed give the same file.
    write_atomically(options.out, gzip.compress(encoded, mtime=0) if _form(options.out) == ".csv.gz" else encoded)
    sys.stdout.write(f"{options.out}: {options.rows} rows, none of them of {options.dataset!r}\n")


def _path(file: NodeFile, name: str) -> Path:
    if name not in file.datasets:
        known = ", ".join(sorted(file.datasets)) or "none"
        raise UsageError(f"there is no [datasets.{name}] here", advice=f"data sets of this file: {known}")
    section = file.datasets[name]
    if not section.path:
        raise DataError(
            f"[datasets.{name}] has no path: its data come with the task",
            advice="whoever has the task has them: `secure-fl run` needs no mock",
        )
    return file.path(section.path)


def _require_new(out: Path, source: Path) -> None:
    """Never over a file that is there: it might be the data."""
    if out.exists():
        raise UsageError(f"{out}: is there already", advice="choose another --out, or remove it")
    if _form(out) != (form := _form(source)):
        raise UsageError(f"the data are a {form or 'folder or another'} file", advice=f"--out …{form}")


def _form(path: Path) -> str:
    """What kind of file its name says: `.npz`, `.csv` or `.csv.gz`, in small letters, or the ending of another."""
    name = path.name.lower()
    return ".csv.gz" if name.endswith(".csv.gz") else path.suffix.lower()


def _require_allowed(file: NodeFile, task: str) -> None:
    if not file.allows_task(task):
        raise RefusedError(f"task {task!r} is not allowed by [policy] tasks")


def _schema(path: Path, *, header: bool | None) -> Schema:
    if path.is_dir():
        raise DataError(
            f"{path}: is a folder, and mocks are made of single .npz and .csv files",
            advice="describe its files to whoever develops for it, or put the arrays into one .npz file",
        )
    if _form(path) == ".npz":
        return read_npz_schema(path)
    if _form(path) not in (".csv", ".csv.gz"):
        raise DataError(f"{path}: mocks are made of .npz and .csv files only")
    if header is None:
        raise UsageError(
            f"{path}: does its first line have the columns' names, or is it a record?",
            advice="look, and say --header or --no-header: a record must not be copied into a mock",
        )
    return read_csv_schema(path, header=header)


def _made(schema: Schema, options: argparse.Namespace) -> tuple[dict[str, Values], str]:
    """The values, and what the task says to them. How many classes there are is the task's to know, not the data's."""
    classes = options.classes or 2
    values = schema.mock(rows=options.rows, classes=classes, seed=options.seed)
    if not options.task:
        return values, ""
    reads, outputs = _tried(schema, values, options.task)
    if outputs is not None and not options.classes and outputs != classes:
        values = schema.mock(rows=options.rows, classes=outputs, seed=options.seed)
        reads, _ = _tried(schema, values, options.task)
    return values, reads


def _tried(schema: Schema, values: dict[str, Values], name: str) -> tuple[str, int | None]:
    """Whether a task can read the mock, in words; and the classes that its model tells apart."""
    import torch

    from secure_fl.tasks.base import Source

    task = tasks.create(name, {})
    with tempfile.TemporaryDirectory(prefix="secure-fl-mock-") as folder:
        path = Path(folder) / f"mock.{schema.form}"
        path.write_bytes(schema.encode(values))
        try:
            data = task.load(Source(path=path))
            with torch.no_grad():
                outputs: Any = task.model()(data.train.inputs[:2])
        except SecureFLError as error:
            # The message names the file of a moment ago, and nothing of the data.
            return f"task {name!r} cannot read it: {error.message.replace(str(path), 'the mock')}", None
        except Exception as error:
            return f"task {name!r} cannot read it ({type(error).__name__})", None
    return f"task {name!r} reads it", int(outputs.shape[-1]) if task.kind == "classification" else None


def _agreed(out: Path) -> bool:
    sys.stdout.write(f"Write {out}? [y/N] ")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise UsageError("nobody answered, and nothing was written", advice="--yes, once you have read what it reveals")
    return answer.strip().lower() in ("y", "yes")


def _show(schema: Schema, values: dict[str, Values], reads: str, options: argparse.Namespace) -> None:
    write = sys.stdout.write
    write(f"A mock of {options.dataset!r}: values drawn from seed {options.seed}, not from the data.\n")
    for column in schema.columns:
        first = np.asarray(values[column.name]).reshape(-1)[:_SHOWN].tolist()
        write(f"  {column.text}; begins {', '.join(map(_short, first))}\n")
    write("What it reveals:\n" + "".join(f"  - {line}\n" for line in schema.reveals))
    hidden = [] if options.ranges else ["values", "ranges", "how many classes occur"]
    hidden += [] if schema.counts else ["how many rows there are, if each row is a record"]
    write(f"What it does not: {', '.join(hidden)}.\n" if hidden else "")
    write(f"{reads}\n" if reads else "")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
