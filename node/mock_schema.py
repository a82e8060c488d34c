"""The schema of a data file, and rows that have it and nothing else of the file.

Of a .npz file only the headers of its arrays are read; of a .csv file the first line, and of which kind the values of
each column mostly are. Values are made from a seed. Only `Schema.with_ranges` looks at values, and says so.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import DataError

Kind: TypeAlias = Literal["decimal", "whole", "byte", "truth", "text"]
Range: TypeAlias = tuple[float, float]
Values: TypeAlias = npt.NDArray[Any]

_TEXT = np.dtype("<U8")  # Not the file's own: how long its longest text is would be told by it.
_COMMAS = "columns are separated by commas, and decimals have a point: save the file so"
_OTHER_SEPARATOR = re.compile(r"[;\t|]")
_ANYTHING_BETWEEN = re.compile(r"[^\w.,+-]+")  # names and numbers
_FEWER = 4  # How much shorter arrays are mocked that have fewer rows than the longest ones.


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One array of a .npz file, or one column of a .csv file."""

    name: str
    kind: Kind
    dtype: str = ""  # of an array, but for text
    shape: tuple[int, ...] = ()  # of one row
    shorter: int = 0  # how many different lengths of arrays are longer
    scalar: bool = False  # one value, and no rows
    ranges: tuple[Range, ...] = ()  # of each place of a row's last axis; empty: not looked at
    counts: bool = False  # a row may be as long as there are records: its shape may say how many there are

    @property
    def text(self) -> str:
        """For people."""
        row = "×".join(map(str, self.shape))
        return (
            f"{self.name}: {np.dtype(self.dtype).name if self.dtype else self.kind}{f', {row} in a row' if row else ''}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Of one file."""

    form: Literal["npz", "csv"]
    columns: tuple[Column, ...]
    header: bool = True  # csv: whether the first line has names

    @property
    def counts(self) -> tuple[str, ...]:
        """Arrays by whose shape somebody may know how many rows there are: records in columns, or pairs of records."""
        return tuple(column.name for column in self.columns if column.counts)

    @property
    def reveals(self) -> tuple[str, ...]:
        """What whoever has a mock knows of the data."""
        if self.form == "npz":
            said = [
                "the names of the arrays, their types and the shape of one row",
                "which arrays have equally many rows, and which have fewer than others (not how many)",
            ]
        else:
            said = [
                "the names of the columns, in their order" if self.header else "how many columns there are",
                "of each column whether its values are mostly whole numbers, other numbers or text",
            ]
        if self.counts:
            said.append(
                f"REVEALING: perhaps how many rows there are, by the shape of {', '.join(self.counts)} "
                "(records may lie in its columns)"
            )
        if any(column.ranges for column in self.columns):
            said.append(
                "REVEALING (--ranges): the smallest and largest value of each column, which are single records'"
            )
        return tuple(said)

    def mock(self, *, rows: int, classes: int, seed: int) -> dict[str, Values]:
        """Values by column. Two files with one schema give the same."""
        # An ordinary generator: nothing of the data is in what it makes, so there is nothing to hide.
        rng = np.random.default_rng(seed)
        return {column.name: _values(column, rows, classes, rng) for column in self.columns}

    def encode(self, values: dict[str, Values]) -> bytes:
        """As a file of the same form."""
        if self.form == "npz":
            return _packed(values)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if self.header:
            writer.writerow([column.name for column in self.columns])
        writer.writerows(zip(*(column.tolist() for column in values.values()), strict=True))
        return text.getvalue().encode()

    def with_ranges(self, path: Path) -> Schema:
        """The same with the ranges of numbers in it. This reads the values."""
        columns = _npz_values(path) if self.form == "npz" else _csv_values(path, self)
        return replace(
            self, columns=tuple(replace(one, ranges=_ranges(one, columns[one.name])) for one in self.columns)
        )


def _values(column: Column, rows: int, classes: int, rng: np.random.Generator) -> Values:
    count = max(2, rows // _FEWER**column.shorter)
    shape = column.shape if column.scalar else (count, *column.shape)
    values: Values
    if column.kind == "text":
        return np.char.add("mock-", rng.integers(0, 10, shape).astype(str)).astype(_TEXT)
    if column.kind == "decimal":
        values = rng.random(shape).round(4)  # Pixels and probabilities are from 0 to 1; other tasks take anything.
    else:
        most = {"byte": 256, "truth": 2, "whole": classes}[column.kind]
        values = rng.integers(0, most, shape)
    if column.ranges:
        values = _within(rng.random(shape), column)
    return values.astype(column.dtype) if column.dtype else values


def _within(parts: Values, column: Column) -> Values:
    low, high = np.array(column.ranges).T
    values: Values = low + parts * (high - low)
    return np.rint(values) if column.kind != "decimal" else values.round(4)


# --- .npz: headers alone --------------------------------------------------------------------------------------


def read_npz_schema(path: Path) -> Schema:
    """Raises `DataError` for what is no .npz file of plain arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            found = {name.removesuffix(".npy"): _header(archive, name) for name in sorted(archive.namelist())}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: cannot be read as a .npz file ({type(error).__name__})") from None
    shapes = [shape for shape, _ in found.values() if shape]
    lengths = sorted({shape[0] for shape in shapes}, reverse=True)
    # Where each record has one value in some array, records are its rows. Elsewhere they may be any array's columns.
    plain = any(shape[0] > 1 and math.prod(shape[1:]) == 1 for shape in shapes)
    counts = None if not plain else frozenset(lengths) - {1}
    return Schema(form="npz", columns=tuple(_array(name, *header, lengths, counts) for name, header in found.items()))


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return shape, dtype


def _array(
    name: str, shape: tuple[int, ...], dtype: np.dtype[Any], lengths: Sequence[int], counts: frozenset[int] | None
) -> Column:
    """`counts`: how many records there may be; None where that could be any number."""
    kinds: dict[str, Kind] = {"f": "decimal", "i": "whole", "u": "whole", "b": "truth", "U": "text", "S": "text"}
    if dtype.kind not in kinds:
        raise DataError(
            f"array {name!r} has the type {dtype}, of which no mock can be made",
            advice="store plain numbers, truth values or text",
        )
    kind: Kind = "byte" if dtype == np.uint8 else kinds[dtype.kind]
    return Column(
        name=name,
        kind=kind,
        dtype="" if kind == "text" else dtype.str,
        shape=shape[1:],
        shorter=lengths.index(shape[0]) if shape else 0,
        counts=any(length > 1 and (counts is None or length in counts) for length in shape[1:]),
        scalar=not shape,
    )


def _packed(values: dict[str, Values]) -> bytes:
    """As numpy packs them, but for arrays of any name."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, array in values.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return packed.getvalue()


def _npz_values(path: Path) -> dict[str, Values]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


# --- .csv: names, and kinds of columns ------------------------------------------------------------------------


def read_csv_schema(path: Path, *, header: bool) -> Schema:
    """With `header`, the first line has the columns' names. Raises `DataError`, also for a header that has numbers."""
    lines = _lines(path)
    try:
        first = next(lines)
    except StopIteration:
        raise DataError(f"{path}: is empty") from None
    if header and (len(set(first)) < len(first) or any(_may_be_value(cell, first) for cell in first)):
        raise DataError(
            f"{path}: the first line has numbers, empty cells or the same name twice: it is a record, and no header",
            advice="--no-header; a mock must not have a record in it",
        )
    _require_commas(path, first)
    counted: list[Counter[Kind]] = [Counter() for _ in first]
    for line in itertools.chain(() if header else (first,), lines):
        _require_commas(path, line)
        if len(line) != len(first):
            raise DataError(f"{path}: some lines have more columns than others", advice=_COMMAS)
        for count, cell in zip(counted, line, strict=True):
            count[_kind(cell)] += 1
    names = first if header else [f"column-{place}" for place in range(1, len(first) + 1)]
    return Schema(
        form="csv",
        header=header,
        columns=tuple(Column(name=name, kind=_usual(count)) for name, count in zip(names, counted, strict=True)),
    )


def _may_be_value(cell: str, line: Sequence[str]) -> bool:
    """Whether a cell of a first line is no name: empty, a number, or one between what else may separate columns.

    A file whose columns are separated otherwise than by commas has its whole first record in one cell, or in a few
    where decimals have a comma. Among others, a name may have a number after a space.
    """
    parts = (_OTHER_SEPARATOR if len(line) > 1 else _ANYTHING_BETWEEN).split(cell)
    return not cell or any(_number(part.strip(' "')) is not None for part in parts)


def _require_commas(path: Path, line: Sequence[str]) -> None:
    """Raise `DataError` for a line of one cell that would be several if columns were separated otherwise."""
    if len(line) == 1 and (found := _OTHER_SEPARATOR.search(line[0])):
        named = {"\t": "tabs"}.get(found[0], repr(found[0]))
        raise DataError(f"{path}: its columns seem to be separated by {named}", advice=_COMMAS)


def _lines(path: Path) -> Iterator[list[str]]:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opened(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield from ([cell.strip() for cell in line] for line in csv.reader(file) if line)
    except (OSError, EOFError, ValueError, zlib.error, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a .csv file ({type(error).__name__})") from None


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _kind(cell: str) -> Kind:
    value = _number(cell)
    if value is None:
        return "text"
    return "whole" if math.isfinite(value) and value == int(value) and "." not in cell else "decimal"


def _usual(count: Counter[Kind]) -> Kind:
    """By majority, so that no single record decides. Numbers of both kinds together are decimals."""
    numbers = count["whole"] + count["decimal"]
    if count["text"] >= numbers:
        return "text"
    return "whole" if count["whole"] > count["decimal"] else "decimal"


def _csv_values(path: Path, schema: Schema) -> dict[str, Values]:
    lines = list(_lines(path))[1 if schema.header else 0 :]
    numbers = [[math.nan if (value := _number(cell)) is None else value for cell in line] for line in lines]
    table = np.array(numbers, float).reshape(-1, len(schema.columns))
    return {column.name: table[:, place] for place, column in enumerate(schema.columns)}


def _ranges(column: Column, values: Values) -> tuple[Range, ...]:
    """Of each place of a row's last axis, or of all values where a row is one."""
    if column.kind == "text":
        return ()
    flat = values.astype(float).reshape(-1, column.shape[-1] if column.shape else 1)
    flat = np.where(np.isfinite(flat), flat, np.nan)
    if np.isnan(flat).all(axis=0).any():
        raise DataError(f"{column.name}: has no finite values in some place, and so no range")
    return tuple(zip(np.nanmin(flat, axis=0).tolist(), np.nanmax(flat, axis=0).tolist(), strict=True))
