"""`secure-fl bench round`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Column, Table

from secure_fl import limits
from secure_fl.bench import round as bench
from secure_fl.errors import StorageError, UsageError
from secure_fl.files import write_atomically
from secure_fl.simulation.narrator import human

_MOST_PARAMETERS = 256 * limits.MIB  # 1 GiB of float32: what coordinator and sites take without being told otherwise


def bench_round(
    nodes: Annotated[int, typer.Option(min=3, max=64, help="Node processes, each with its worker.")] = 8,
    parameters: Annotated[
        int, typer.Option(min=8, max=_MOST_PARAMETERS, help="Of the model, in eight blocks.")
    ] = 1_000_000,
    rounds: Annotated[
        int | None, typer.Option(min=2, help="Of each run; the first is not counted. 5, with --flat 30.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Turns; in each turn every protection runs once.")] = 2,
    protections: Annotated[str, typer.Option(help="Separated by commas. Ratios are to `none`.")] = "none,masked,sealed",
    flat: Annotated[bool, typer.Option("--flat", help="Run long enough to see whether memory grows.")] = False,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the studies; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Keep round.json here: the result, and every run's figures.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Rounds between real processes over mutual TLS, with training that costs nearly nothing: time and memory by party.

    Each run is one coordinator, N nodes and their N workers in a temporary folder. The protections take turns, so that
    a machine whose speed drifts is equally unfair to all; compare within one run of this command.

    Seconds are from one committed round to the next (median), CPU seconds the mean over the same rounds. Memory is the
    highest of a party in a whole study, of the node or worker that took most: "models" is anonymous memory beyond what
    the same process takes with a tiny model, in models of float32. Mapped files count in "resident" alone. With a
    small model (below some ten million parameters) "models" is mostly the buffers of transfers.

    "growth" is how many models higher anonymous memory peaks in the last three rounds than in rounds 3 to 5.

    Examples:

      secure-fl bench round --nodes 8 --parameters 1000000

      secure-fl bench round --nodes 4 --parameters 50000000 --repeat 1 --json

      secure-fl bench round --nodes 4 --parameters 10000000 --repeat 1 --protections masked --flat
    """
    many = rounds if rounds is not None else bench.FLAT_ROUNDS if flat else 5
    if flat and many < bench.FLAT_LEAST:
        raise UsageError(
            f"--flat with {many} rounds: growth shows from {bench.FLAT_LEAST} rounds on", advice="leave --rounds out"
        )
    plan = bench.Plan(
        nodes=nodes,
        parameters=parameters,
        rounds=many,
        repeat=repeat,
        protections=tuple(dict.fromkeys(part.strip() for part in protections.split(",") if part.strip())),
        assignments=tuple(assignments or ()),
    )
    if out is not None:  # before minutes of measuring
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{out}: cannot be created ({error.strerror})") from error
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("starting", total=plan.all_rounds)

        def started(what: str) -> None:
            progress.update(bar, description=what)
            if not progress.console.is_terminal:  # where no bar moves
                typer.echo(what, err=True)

        try:
            result = bench.run(plan, started=started, committed=lambda: progress.advance(bar))
        except KeyboardInterrupt:
            typer.echo("interrupted; nothing is kept of it", err=True)
            raise typer.Exit(130) from None
    if out is not None:
        write_atomically(out / "round.json", json.dumps(result, indent=1).encode())
    del result["runs"]
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = Console()
    typer.echo(f"{nodes} nodes × {parameters:,} parameters, {many} rounds, {repeat} turns")
    console.print(_times(result), "", _memory(result), "", sep="\n")
    if any(figures["incomplete_rounds"] for figures in result["protections"].values()):
        console.print("[bold red]Not every site took part in every round: these figures are not comparable.[/]")
    console.print(f"Observing took {result['observer']:.1%} of one core.", highlight=False)


def _times(result: dict[str, Any]) -> Table:
    heads = ("ratio", "CPU s", "ratio", "hub", "node", "worker", "sent", "received")
    table = _table("per round: seconds, then CPU seconds of all and of each party, then bytes", "", "s/round", *heads)
    for name, figures in result["protections"].items():
        spent = figures["cpu"]
        table.add_row(
            name,
            f"{figures['seconds_per_round']:.3f}",
            _number(figures["ratio"]),
            f"{spent['total']:.3f}",
            _number(figures["cpu_ratio"]),
            *(f"{spent[role]:.3f}" for role in ("coordinator", "node", "worker")),
            human(figures["bytes_up_per_node_round"] or 0),
            human(figures["bytes_down_per_node_round"] or 0),
        )
    return table


def _memory(result: dict[str, Any]) -> Table:
    heads = ("anonymous", "models", "resident", "models", "growth")
    table = _table("memory at its highest", "", "", *heads)
    for name, figures in result["protections"].items():
        for role, used in figures["memory"].items():
            table.add_row(
                name,
                role,
                human(used["anonymous_bytes"]),
                _number(used["models"]),
                human(used["high_water_bytes"]),
                _number(used["resident_models"]),
                _number(used["growth"]),
            )
    return table


def _table(title: str, *heads: str) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    columns = (Column(head, no_wrap=True, justify="right" if head else "left") for head in heads)
    return Table(
        *columns,
        box=SIMPLE_HEAD,
        title=title,
        title_justify="left",
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
