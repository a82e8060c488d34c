"""`secure-fl bench privacy`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from secure_fl.cli.lists import listed
from secure_fl.errors import UsageError
from secure_fl.files import write_atomically
from secure_fl.results.wording import OVER_SITES
from secure_fl.settings import set_dotted


def bench_privacy(
    epsilons: Annotated[
        str, typer.Option(help="Separated by commas; `none` is training without noise.")
    ] = "1,3,8,none",
    delta: Annotated[float, typer.Option(min=0, max=1, help="The same for all.")] = 1e-4,
    task: Annotated[str, typer.Option(help="Task id.")] = "digits",
    strategy: Annotated[str, typer.Option(help="Strategy id.")] = "fedavg",
    nodes: Annotated[int, typer.Option(min=3, help="Simulated sites.")] = 10,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each run.")] = 10,
    seeds: Annotated[str, typer.Option(help="Separated by commas.")] = "0,1,2",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the study; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where runs are kept; finished ones are not repeated.")] = Path("privacy"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What differential privacy costs in accuracy: the same study under several ε and without noise.

    Noise wants large batches and few steps: try `--set strategy.batch_size=64` before more rounds. ε of a simulation is
    for planning only, since its noise comes from a seed.

    Example: secure-fl bench privacy --epsilons 1,3,8,none --set strategy.batch_size=64 --set strategy.learning_rate=0.2
    """
    from secure_fl.bench import privacy

    table: dict[str, Any] = {
        "study": {"name": "privacy", "rounds": rounds},
        "task": {"name": task},
        "strategy": {"name": strategy},
        "simulation": {"nodes": nodes},
    }
    for assignment in assignments or ():
        set_dotted(table, assignment)
    try:
        prices = [None if part == "none" else float(part) for part in listed(epsilons)]
        numbers = [int(part) for part in listed(seeds)]
    except ValueError:
        raise UsageError(
            "--epsilons are numbers or `none`, --seeds whole numbers", advice="for example --epsilons 1,3,none"
        ) from None
    with Progress(*Progress.get_default_columns(), TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("running", total=len(prices) * len(numbers))
        result = privacy.run(
            table,
            epsilons=prices,
            delta=delta,
            seeds=numbers,
            folder=out,
            started=lambda what: progress.update(bar, description=what),
            finished=lambda: progress.advance(bar),
        )
    write_atomically(out / "privacy.json", json.dumps(result, indent=1).encode())
    if as_json:
        typer.echo(json.dumps(result))
        return
    typer.echo(f"{task}, {strategy}, {nodes} sites, {rounds} rounds, delta {delta:g}, seeds {seeds}")
    typer.echo(f"accuracies and errors: {OVER_SITES}, then over seeds")
    Console().print(_shown(result))


def _shown(result: dict[str, Any]) -> Table:
    """± is over seeds; σ is the noise beside what one record can say."""
    measure = "accuracy" if any(row["accuracy"] is not None for row in result["results"]) else "mse"
    shown = Table("ε", "spent", "σ", measure, "worst site", "s/run", box=SIMPLE_HEAD)
    for row in result["results"]:
        around = f" ± {row['accuracy_std']:.3f}" if measure == "accuracy" and row["accuracy_std"] is not None else ""
        shown.add_row(
            "none" if row["epsilon"] is None else f"{row['epsilon']:g}",
            "–" if row["spent"] is None else f"{row['spent']:.3g}",
            "–" if row["noise"] is None else " to ".join(dict.fromkeys(f"{part:.3g}" for part in row["noise"])),
            "–" if row[measure] is None else f"{row[measure]:.3f}{around}",
            "–" if row["worst"] is None else f"{row['worst']:.3f}",
            f"{row['seconds']:.1f}",
        )
    return shown
