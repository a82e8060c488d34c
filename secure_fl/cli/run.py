"""`secure-fl run`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from secure_fl import protect, strategies, tasks
from secure_fl.cli.study import remarks
from secure_fl.counting import counted
from secure_fl.errors import BlocksClosedError, SettingsError
from secure_fl.results.wording import sentences
from secure_fl.settings import nearest, set_dotted
from secure_fl.simulation.narrator import human
from secure_fl.study.settings import Study
from secure_fl.study.shorthand import WORDS

NOTHING_COMBINED = (
    "No combination was opened: every site has trained alone. Sites selected too few peers, or what they asked for "
    "would have shown one of them (docs/guard.md). A larger strategy.criterion selects more."
)


def run(
    study: Annotated[Path | None, typer.Argument(help="A study file; without one the defaults run.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Set any key of the study; repeatable."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of simulated sites; without it what suits the task.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Number of rounds; without it 10.")] = None,
    task: Annotated[
        str | None, typer.Option(help=f"What is learnt: {', '.join(tasks.BUILT_IN)}; or your own, as module:attribute.")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help=f"How: {', '.join(strategies.known())}.")] = None,
    protection: Annotated[
        str | None, typer.Option(help=f"{', '.join(protect.known())}; without it what suits the strategy.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="processes: real processes over mutual TLS; threads: one process.")
    ] = "processes",
    seed: Annotated[int | None, typer.Option(help="Seed of partition, initial model and batches.")] = None,
    out: Annotated[Path | None, typer.Option(help="Output folder; an unfinished run in it is resumed.")] = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="Train on from this model (safetensors).")
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND:TARGET", help="Write curves: tensorboard:DIR or mlflow:URI; repeatable."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Run a whole federation on this machine: one coordinator and a process for each site, over mutual TLS.

    What you do not set is chosen to suit the task and the strategy, and printed. Mistakes are found before it starts.
    Afterwards the output folder has report.html, to be read offline.

    Examples:

      secure-fl run

      secure-fl run --task sine --strategy pflda

      secure-fl run --strategy fedper --set simulation.partition=dirichlet

      secure-fl run trial.toml --engine threads --out runs/trial
    """
    table: dict[str, Any] = Study.read_table(study) if study else {}
    for key, value in {
        "simulation.nodes": nodes,
        "study.rounds": rounds,
        "study.seed": seed,
        "task.name": task,
        "strategy.name": strategy,
        "protection.kind": protection,
    }.items():
        if value is not None:
            set_dotted(table, f"{key}={json.dumps(value)}")
    for assignment in assignments or ():
        set_dotted(table, assignment)
        _require_section(assignment, table)
    policy = table.pop("policy", {})
    # One person sees every site here; a deployed study has to ask for this, and each site to allow it.
    table.setdefault("metrics", {}).setdefault("share", "per-node")
    parsed = Study.parse(table)

    complete = parsed.completed()
    if not as_json:
        for line in remarks(table, parsed, complete):
            typer.echo(line, err=True)

    # Imported late: `--help` and mistakes in the settings should answer at once.
    from secure_fl.api.simulate import BlocksClosedWarning, run_folder, simulate

    ignored = warnings.catch_warnings(action="ignore", category=BlocksClosedWarning)  # an error, below
    with run_folder(out, parsed.study.name) as folder, ignored:
        try:
            summary = simulate(
                parsed, engine=engine, out=folder, policy=policy, progress=not as_json, track=track or (), start=start
            ).summary
        except KeyboardInterrupt:
            typer.echo(f"interrupted; the same command with --out {folder} goes on where it stopped", err=True)
            raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        _print(summary)
    if closed := summary["blocks_missing"]:
        raise BlocksClosedError(f"never opened, and as they were before the first round: {', '.join(closed)}")


def _require_section(assignment: str, table: Mapping[str, Any]) -> None:
    """Raise `SettingsError` for `--set epochs=3`: it names the sections that have such a key."""
    key, value = assignment.partition("=")[0].strip(), assignment.partition("=")[2]
    if "." in key or key == "policy" or (key in Study.model_fields and isinstance(table[key], dict)):
        return
    known: dict[str, list[str]] = {word: [dotted] for word, dotted in WORDS.items()}
    for section, field in Study.model_fields.items():
        for name in type(field.default).model_fields.keys() - {"settings"}:
            known.setdefault(name, []).append(f"{section}.{name}")
    section = table.get("strategy", {})
    strategy = section.get("name", "fedavg") if isinstance(section, dict) else section
    for name in strategies.settings(strategy).model_fields if strategy in strategies.known() else ():
        known.setdefault(name, []).append(f"strategy.{name}")
    if close := nearest(key, known):
        meant = list(dict.fromkeys(known[close]))
        raise SettingsError(
            f"--set {key}: a key stands with its section; did you mean {' or '.join(map(repr, meant))}?",
            advice=f"for example --set {meant[0]}={value}",
        )


def _print(summary: dict[str, Any]) -> None:
    console = Console()
    regression = summary["mean_mse"] is not None
    table = Table(
        title=f"{summary['study']}: {summary['strategy']} under {summary['protection']!r}",
        title_justify="left",
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=0,  # one space between columns: all of them fit 80 characters
    )
    table.add_column("site", no_wrap=True)
    own = tuple(summary["metrics"]) if any(node["metrics"] for node in summary["nodes"]) else ()
    # Beside a task's own metrics there is no room for bytes; the report has them.
    bytes_columns = () if own else ("sent", "received")
    measured = ("samples", *(() if regression else ("accuracy",)), "loss")
    for column in (*measured, *own, "ε", *bytes_columns, "rounds", "dropped"):
        # A metric's name may be long: it breaks between its words.
        narrowest = 6 if column in own else None
        table.add_column(column.replace("_", " "), justify="right", no_wrap=not narrowest, min_width=narrowest)
    for node in summary["nodes"]:
        cells = [node["name"], *(_cell(node[column]) for column in measured)]
        cells += [_cell(node["metrics"].get(name)) for name in own]
        cells.append("no DP" if node["epsilon"] is None else f"{node['epsilon']:.3g}")
        cells += [human(node[key]) for key in (() if own else ("bytes_up", "bytes_down"))]
        cells += [_cell(node["rounds_taken"]), _cell(node["dropped"])]
        table.add_row(*cells)
    console.print(table)
    for sentence in sentences(summary):
        console.print(sentence, highlight=False, soft_wrap=True)
    unit = "round" if summary["circles"] is None else "version"
    console.print(f"{counted(summary['rounds'], unit)} in {summary['seconds']:.1f} s on engine {summary['engine']}")
    if (possible := summary["combinations_possible"]) is not None:
        console.print(f"{summary['combinations_opened']} of {possible} combinations were opened")
        if not summary["combinations_opened"]:
            console.print(f"[bold red]{NOTHING_COMBINED}[/]", soft_wrap=True)
    if unheard := _unheard(summary):
        console.print(f"[bold red]nothing of {', '.join(unheard)} is in the model[/]", soft_wrap=True)
        console.print("→ their circle was too slow: more rounds.flushes, or a larger rounds.staleness", soft_wrap=True)
    if closed := summary["blocks_never_opened"]:
        # Where sites share as much as they choose, nobody may have chosen a block: then it is as it should be.
        console.print(f"[bold red]never opened, as they were at the start: {', '.join(closed)}[/]", soft_wrap=True)
    if any(node["epsilon"] is not None for node in summary["nodes"]):
        console.print("ε is for planning only: in a simulation, noise comes from a seed and protects nobody")
    if summary["protection"] == "none":
        console.print("[bold red]protection 'none': the coordinator saw every update. For tests only.[/]")
    console.print(f"report: {summary['report']}", soft_wrap=True)


def _unheard(summary: dict[str, Any]) -> list[str]:
    """Where circles do not wait for each other: sites whose circle was never merged."""
    heard = {site for circle in summary["circles"] or () for site in circle["sites"]}
    return [node["name"] for node in summary["nodes"] if heard and node["name"] not in heard]


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
