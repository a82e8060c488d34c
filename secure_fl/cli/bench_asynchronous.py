"""`secure-fl bench asynchronous`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Column, Table

from secure_fl.cli.lists import listed
from secure_fl.errors import UsageError
from secure_fl.files import write_atomically
from secure_fl.settings import set_dotted


def bench_asynchronous(
    task: Annotated[str, typer.Option(help="Task id; a classification.")] = "digits",
    path: Annotated[str, typer.Option(help="Data of a task that reads files, for example mnist.npz.")] = "",
    methods: Annotated[str, typer.Option(help="Separated by commas; without it all.")] = "",
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "0,1,2",
    sites: Annotated[int, typer.Option(min=4, max=512, help="Simulated sites.")] = 40,
    size: Annotated[int, typer.Option(min=4, help="The fewest sites of a circle.")] = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Each method gets the uploads of so many rounds of all.")] = 50,
    labels: Annotated[str, typer.Option(help="The fewest and the most labels of a site.")] = "2,6",
    profile: Annotated[str, typer.Option(help="Speeds: even, tenth (one in ten 5× slower) or spread.")] = "tenth",
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="task.KEY or strategy.KEY, for all methods; repeatable."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path(
        "asynchronous"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Circles that do not wait for each other beside synchronous rounds: bytes and virtual seconds to an accuracy.

    Sites train, encode and merge with the product's own code in this one process. Time is virtual, so that a slow site
    costs nothing to simulate and a busy machine changes nothing. The folder then has asynchronous.json, bytes.svg and
    seconds.svg.

    Example: secure-fl bench asynchronous --seeds 0,1 --methods sync-30,speed-cache,aifed-public
    """
    from secure_fl.bench import asynchronous as bench
    from secure_fl.bench.curves import curve_chart
    from secure_fl.bench.virtual import KINDS

    table: dict[str, Any] = {"task": {}, "strategy": {}}
    for assignment in assignments or ():
        set_dotted(table, assignment)
    if unknown := table.keys() - {"task", "strategy"}:
        raise UsageError(f"--set {min(unknown)}: only task.KEY and strategy.KEY can be set here")
    kind = next((each for each in KINDS if each == profile), None)
    if kind is None:
        raise UsageError(f"--profile {profile!r} is unknown", advice="use " + ", ".join(KINDS))
    numbers, bounds = _numbers(seeds, "--seeds", "0,1,2"), _numbers(labels, "--labels", "2,6")
    if len(bounds) != 2:
        raise UsageError(f"--labels {labels!r}: two numbers", advice="for example --labels 2,6")
    plan = bench.Plan(
        task=task,
        task_settings=table["task"],
        path=path,
        sites=sites,
        size=size,
        rounds=rounds,
        labels=(bounds[0], bounds[1]),
        profile=kind,
        strategy=table["strategy"],
    )
    chosen = listed(methods) or list(bench.METHODS)
    many = len({bench.REFERENCE, *chosen}) * len(numbers)
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("running", total=many)
        result = bench.run(
            plan,
            methods=chosen,
            seeds=numbers,
            folder=out,
            started=lambda what: progress.update(bar, description=what),
            finished=lambda: progress.advance(bar),
        )
    write_atomically(out / "asynchronous.json", json.dumps(result, indent=1).encode())
    for name, cost, per, unit in (("bytes", "bytes_up", 1e6, "MB sent"), ("seconds", "seconds", 1, "virtual seconds")):
        chart = curve_chart(result["curves"], cost=cost, per=per, unit=unit)
        write_atomically(out / f"{name}.svg", chart.encode())
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"{task}, {sites} sites in circles of {size}, uploads of {rounds} rounds, {profile}, seeds {seeds}")
    Console().print(_shown(result))
    typer.echo(
        f"MB of all sites and virtual seconds until {bench.TARGET:.0%} of sync's best accuracy: means over the seeds "
        "that reached it. age: the median of how many versions old a turn was when it was merged; turns: of the circle "
        "with fewest and most; lost: turns that were too old."
    )
    typer.echo(f"curves: {out / 'bytes.svg'}, {out / 'seconds.svg'}")


def _numbers(text: str, option: str, example: str) -> list[int]:
    if not listed(text) or not all(part.isdigit() for part in listed(text)):
        raise UsageError(f"{option} {text!r}: whole numbers", advice=f"for example {option} {example}")
    return [int(part) for part in listed(text)]


def _shown(result: dict[str, Any]) -> Table:
    """Narrow enough for a terminal of 80 columns. “best” and “last” are over all seeds."""
    heads = ("seeds", "MB up", "down", "s", "best", "last", "age", "turns", "lost")
    shown = Table(
        Column("to the target", no_wrap=True),
        *(Column(head, justify="right", no_wrap=True) for head in heads),
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for row in result["results"]:
        shown.add_row(
            row["method"],
            f"{row['reached']}/{len(result['seeds'])}",
            *("–" if row[key] is None else f"{row[key]:.1f}" for key in ("megabytes_up", "megabytes_down", "seconds")),
            f"{row['best']:.3f}",
            f"{row['last']:.3f}",
            str(_middle(row["staleness"])),
            f"{row['turns_least']}–{row['turns_most']}",
            str(row["dropped"]),
        )
    return shown


def _middle(histogram: dict[int, int]) -> int:
    """The median of a histogram."""
    ages = [age for age, many in sorted(histogram.items()) for _ in range(many)]
    return ages[len(ages) // 2] if ages else 0
