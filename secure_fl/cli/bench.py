"""`secure-fl bench`: comparable numbers."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from secure_fl import protect
from secure_fl.bench import aggregation as bench
from secure_fl.protect.base import RequestKind

app = typer.Typer(name="bench", help="Measure, so that numbers can be compared.", no_args_is_help=True)


@app.callback()
def main() -> None:
    """Measure, so that numbers can be compared."""


@app.command()
def aggregation(
    nodes: Annotated[int, typer.Option(min=3, max=256, help="How many take part.")] = 10,
    parameters: Annotated[int, typer.Option(min=1, help="Of the model, per node.")] = 1_000_000,
    dropouts: Annotated[int, typer.Option(min=0, help="How many vanish just before they upload.")] = 0,
    protections: Annotated[str, typer.Option(help="Separated by commas; without it all that open sums.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each; the quickest counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """One aggregation under each protection, from the same inputs: CPU seconds, bytes, error, memory.

    Seconds are CPU of each party's own work in this one process; no network is involved. Compare within one run: the
    speed of a machine drifts.

    Example: secure-fl bench aggregation --nodes 10 --parameters 1000000 --dropouts 3 --json
    """
    able = tuple(name for name in protect.known() if RequestKind.SUM in protect.resolve(name).serves)
    chosen = tuple(name.strip() for name in protections.split(",")) if protections else able
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("aggregating", total=repeat * len(chosen))
        result = bench.run(
            nodes=nodes,
            parameters=parameters,
            dropouts=dropouts,
            protections=chosen,
            repeat=repeat,
            note=lambda: progress.advance(task),
        )
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"{nodes} nodes × {parameters:,} parameters, {dropouts} dropouts")
    table = Table("", "all s", "node s", "hub s", "bytes up", "B/par", "max error", "exact", "MiB", box=SIMPLE_HEAD)
    for name, figures in result["protections"].items():
        table.add_row(
            name,
            f"{figures['seconds_total']:.3f}",
            f"{figures['seconds_node_max']:.3f}",
            f"{figures['seconds_coordinator']:.3f}",
            f"{figures['bytes_up_per_node']:,}",
            f"{figures['bytes_per_parameter']:.2f}",
            f"{figures['max_error']:.1e}",
            "yes" if figures["exact"] else "NO",
            f"{figures['peak_memory_bytes'] / 2**20:.1f}",
        )
    Console().print(table)
