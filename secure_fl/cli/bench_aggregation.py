"""`secure-fl bench aggregation`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Column, Table

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.cli.lists import listed

_WIDTH = 100  # A line that a terminal breaks is better than one whose digits are cut off.


def bench_aggregation(
    nodes: Annotated[int, typer.Option(min=3, max=256, help="How many take part.")] = 10,
    parameters: Annotated[int, typer.Option(min=1, help="Of the model, per node.")] = 1_000_000,
    dropouts: Annotated[int, typer.Option(min=0, help="How many vanish just before they upload.")] = 0,
    protections: Annotated[str, typer.Option(help="Separated by commas; without it all that can.")] = "",
    combine: Annotated[bool, typer.Option(help="Every node its own combination, instead of one sum.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of each; the quickest counts.")] = 3,
    phases: Annotated[bool, typer.Option("--phases", help="Show what each phase costs.")] = False,
    baselines: Annotated[
        str, typer.Option("--baseline", help="Also measure CKKS as usual, in the same run: tenseal, flare or both.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """One aggregation under each protection, from the same inputs: CPU seconds, bytes, error, memory.

    Seconds are CPU of each party's own work in this one process; no network is involved. Compare within one run: the
    speed of a machine drifts. "Node" is the slowest node, "hub" the coordinator, "opening" everybody once the last
    upload is in. Bytes are per parameter: "upload" what every node sends once, "up" and "down" all that is sent by
    and to the node with most of it, without the model itself.

    Example: secure-fl bench aggregation --nodes 10 --parameters 1000000 --phases --baseline tenseal,flare
    """
    from secure_fl.bench import aggregation as bench  # late: other commands measure nothing

    kind = RequestKind.COMBINE if combine else RequestKind.SUM
    able = tuple(name for name in protect.known() if protect.describe(name).serves(kind))
    chosen = tuple(name.strip() for name in protections.split(",")) if protections else able
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("aggregating", total=repeat * len(chosen) + len(listed(baselines)))
        result = bench.run(
            nodes=nodes,
            parameters=parameters,
            dropouts=dropouts,
            protections=chosen,
            repeat=repeat,
            combine=combine,
            baselines=listed(baselines),
            note=lambda: progress.advance(task),
        )
    if as_json:
        typer.echo(json.dumps(result))
        return
    what = "a combination each" if combine else "sums"
    typer.echo(f"{nodes} nodes × {parameters:,} parameters, {dropouts} dropouts, {what}")
    console = Console()
    console.width = max(console.width, _WIDTH)
    console.print(_whole(result))
    if phases:
        console.print(_phases(result))
    for name, figures in result.get("baselines", {}).items():
        typer.echo(_compared(name, figures, result))


def _table(*heads: str) -> Table:
    """Narrow enough for a terminal of 80 columns, but for long names."""
    columns = (Column(head, no_wrap=True, justify="right" if head else "left") for head in heads)
    return Table(*columns, box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def _whole(result: dict[str, Any]) -> Table:
    table = _table("", "all s", "node s", "hub s", "opening", "upload", "up", "down", "error", "MiB")
    for name, figures in result["protections"].items():
        upload, up, down = (
            figures[f"bytes_{what}_per_node"] / result["parameters"] for what in ("upload", "up", "down")
        )
        table.add_row(
            name,
            f"{figures['seconds_total']:.3f}",
            f"{figures['seconds_node_max']:.3f}",
            f"{figures['seconds_coordinator']:.3f}",
            f"{figures['seconds_opening']:.3f}",
            f"{upload:.2f}",
            f"{up:.2f}",
            f"{down:.1f}",
            f"{figures['max_error']:.1e}" if figures["exact"] else "WRONG",
            f"{figures['peak_memory_bytes'] / 2**20:.0f}",
        )
    return table


def _phases(result: dict[str, Any]) -> Table:
    table = _table("", "phase", "nodes", "node s", "all nodes", "hub s", "up", "down")
    for name, figures in result["protections"].items():
        for phase, cost in figures["phases"].items():
            table.add_row(
                name,
                phase,
                str(cost["nodes"]),
                f"{cost['seconds_node_max']:.4f}",
                f"{cost['seconds_nodes']:.4f}",
                f"{cost['seconds_coordinator']:.4f}",
                *(f"{cost[f'bytes_{way}_max'] / result['parameters']:.3f}" for way in ("up", "down")),
            )
    return table


def _compared(name: str, figures: dict[str, Any], result: dict[str, Any]) -> str:
    """A baseline, and how many times as long it takes as a node does until its upload is formed."""
    times = ", ".join(
        f"{figures['seconds_encrypt'] / of['seconds_until_upload']:.1f} × {protection}"
        for protection, of in result["protections"].items()
    )
    return (
        f"baseline {name} (CKKS as usual with it, {figures['measured_parameters']:,} parameters measured): "
        f"a node {figures['seconds_encrypt']:.3f} s to encrypt ({times}), the hub {figures['seconds_add']:.3f} s for "
        f"each upload, {figures['seconds_decrypt']:.3f} s to decrypt; {figures['bytes_per_parameter']:.1f} bytes a "
        f"parameter, error {figures['max_error']:.1e}"
    )
