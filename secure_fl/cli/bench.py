"""`secure-fl bench`: comparable numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Column, Table

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.cli import bench_aggregation, bench_asynchronous, bench_privacy, bench_round
from secure_fl.cli.lists import listed
from secure_fl.errors import UsageError
from secure_fl.results.wording import OVER_SITES
from secure_fl.settings import require_known, set_dotted

app = typer.Typer(name="bench", help="Measure, so that numbers can be compared.", no_args_is_help=True)
app.command("aggregation")(bench_aggregation.bench_aggregation)
app.command("round")(bench_round.bench_round)
app.command("privacy")(bench_privacy.bench_privacy)
app.command("asynchronous")(bench_asynchronous.bench_asynchronous)


@app.callback()
def main() -> None:
    """Measure, so that numbers can be compared."""


@app.command()
def strategies(
    task: Annotated[str, typer.Option(help="Task id.")] = "digits",
    partition: Annotated[str, typer.Option(help="How the data are divided among the sites.")] = "dirichlet",
    chosen: Annotated[str, typer.Option("--strategies", help="Separated by commas.")] = "local,fedavg,ditto",
    protections: Annotated[str, typer.Option(help="Separated by commas; by default the usual one.")] = "",
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "0,1,2",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 20,
    nodes: Annotated[int, typer.Option(min=3, help="Simulated sites.")] = 10,
    target: Annotated[float | None, typer.Option(help="Also: rounds and bytes to this mean accuracy.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the study; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path("bench"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Strategies beside each other on the same data and seeds: accuracy, evenness, bytes. Stop and start it at will.

    `--set strategy.KEY=VALUE` is for all strategies, `--set pflda.KEY=VALUE` for one of them. A strategy compared with
    itself needs a second name: `--strategies ditto,gentle --set gentle.name=ditto --set gentle.lam=0.01`.
    The folder then has report.html, results.json, and the charts as SVG files. What a protection costs is in the report
    where `--protections` has `none` beside it.

    Example: secure-fl bench strategies --task digits --strategies local,fedavg,pflda --seeds 0,1,2 --rounds 10
    """
    from secure_fl.bench import strategies as comparison

    table: dict[str, Any] = {
        "study": {"name": "bench", "rounds": rounds},
        "task": {"name": task},
        "simulation": {"nodes": nodes, "partition": partition},
    }
    for assignment in assignments or ():
        set_dotted(table, assignment)
    names, kinds = listed(chosen), listed(protections) or [protect.suitable(RequestKind.SUM)]
    for kind in kinds:
        require_known("protection", kind, protect.known())
    if not all(seed.isdigit() for seed in listed(seeds)):
        raise UsageError(f"--seeds {seeds!r}: seeds are whole numbers", advice="for example --seeds 0,1,2")
    numbers = [int(seed) for seed in listed(seeds)]
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("running", total=len(names) * len(kinds) * len(numbers))
        result = comparison.run(
            table,
            strategies=names,
            protections=kinds,
            seeds=numbers,
            target=target,
            folder=out,
            started=lambda what: progress.update(bar, description=what),
            finished=lambda: progress.advance(bar),
        )
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"{task}, {partition}, {nodes} sites, {rounds} rounds, seeds {seeds}; {OVER_SITES}, then over seeds")
    Console().print(_comparison(result))
    if any(len(row["groups"]) > 1 for row in result["results"]):
        Console().print(_by_samples(result))
    typer.echo(f"report: {out / 'report.html'}")


def _comparison(result: dict[str, Any]) -> Table:
    """± is over seeds; “across sites” is the standard deviation between them."""
    measure, head, even, worst = _measure(result)
    shown = Table(
        "strategy",
        "",
        Column(head, no_wrap=True),
        "across sites",
        "worst",
        "B up/round",
        "s/run",
        "rounds to",
        box=SIMPLE_HEAD,
    )
    for row in result["results"]:
        shown.add_row(
            row["strategy"],
            row["protection"],
            _spread(row[measure], row[f"{measure}_std"]),
            _spread(row[even], None),
            _spread(row[worst], None),
            "–" if row["bytes_up_per_node_round"] is None else f"{row['bytes_up_per_node_round']:,.0f}",
            f"{row['seconds'] / len(result['seeds']):.1f}",
            "–" if row["rounds_to_target"] is None else f"{row['rounds_to_target']:.1f}",
        )
    return shown


def _by_samples(result: dict[str, Any]) -> Table:
    """The sites of all seeds, by the power of ten of their samples."""
    measure, head, *_ = _measure(result)
    shown = Table("strategy", "", "samples", "sites", head, box=SIMPLE_HEAD)
    for row in result["results"]:
        for group in row["groups"]:
            low, high = group["samples"]
            shown.add_row(
                row["strategy"],
                row["protection"],
                str(low) if low == high else f"{low}–{high}",
                str(group["nodes"]),
                _spread(group[measure], group[f"{measure}_std"]),
            )
    return shown


def _measure(result: dict[str, Any]) -> tuple[str, str, str, str]:
    if all(row["accuracy"] is None for row in result["results"]):
        return "mse", "MSE", "fairness_std_mse", "worst_mse"
    return "accuracy", "accuracy", "fairness_std", "worst_accuracy"


def _spread(value: float | None, around: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if around is None else f"{value:.4f} ± {around:.4f}"
