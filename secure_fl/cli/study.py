"""`secure-fl study new|check|show`."""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console

from secure_fl import protect, strategies, tasks
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError, StorageError, UsageError
from secure_fl.files import write_atomically
from secure_fl.settings import read_toml, require_known
from secure_fl.study import recipes
from secure_fl.study.data import require_data
from secure_fl.study.defaults import chosen_protection, found
from secure_fl.study.doubts import doubts
from secure_fl.study.settings import Study
from secure_fl.study.simulated import simulated_names

app = typer.Typer(
    name="study",
    help="Write, check and explain a study, the file that a consortium agrees on; then hand it to a coordinator.\n\n"
    "Start with: secure-fl study new trial.toml, then study check, study show and run.",
    no_args_is_help=True,
)

StudyPath = Annotated[Path, typer.Argument(help="The study file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Units = Annotated[
    int | None, typer.Option(min=1, help="Say what it costs at a site that declares so many records or groups.")
]

_TEMPLATE = """\
# A study: what a consortium agrees on. Its hash is what every site approves, so any change needs new approvals.
# Check it with `secure-fl study check`, read what it means with `secure-fl study show`,
# try it on this machine with `secure-fl run`.

[study]
name = "{name}"
rounds = {rounds}
seed = {seed}  # of the common start; another study gets another one
# Site name = fingerprint of its signing key (`secure-fl pki roster`). `secure-fl run` fills this in by itself.
[study.roster]
{roster}

[task]                     # installed at every site; known here: {tasks}
name = "{task}"
{dataset:24}   # the id under which each site lists its own data; never a path

[strategy]                 # {strategies}
name = "{strategy}"
# epochs = 2               # passes over a site's data in a round; without it what suits task and strategy
# batch_size = 16          # the same; `secure-fl study check` says what was chosen
# optimizer = "sgd"        # or "adam"
# learning_rate = 0.05

[protection]               # {protections}
kind = "{protection}"{warning}
colluders = 1              # how many sites may work together with the coordinator
# bits = 16                # fixed-point width of every value; without it what suits the protection
# clip = 1.0               # largest change of a parameter in one round; without it what suits the task
# circles = "auto"         # whose updates are only ever opened together: by name, "speed", or a list of lists of sites
# recovery = false         # true: rounds survive dropouts, but tell something about who left; each site has to agree
# robust = "none"          # trimmed | median: a mean over circles that few lying sites hardly move
# min_cohort = 3           # sites of a circle, and contributors behind anything opened; at least max(3, colluders + 2)
# reference_samples = 1000 # weigh sites by min(1, samples / this); without it every site counts the same

[privacy]                  # docs/privacy.md; without it nothing limits what results can reveal about single records
# mode = "dp-sgd"          # every site adds noise while it trains, and enforces what that costs
# unit = "record"          # or "group": whom the noise protects, where the task knows which rows are one patient's
# epsilon = 3.0            # the most that this study may cost at any site
# delta = 1e-6             # far below 1 / (records of a site)
# clip = 1.0               # the largest norm of one record's gradient
# rationale = ""           # why this much: it stands in each site's audit

[rounds]
# mode = "sync"            # "buffered": circles do not wait for each other (docs/buffered.md)
deadline = 600             # seconds for training
phase_deadline = 60        # seconds for every later phase
gather = 60                # seconds to wait for sites before a round
attempts = 3

[metrics]
share = "aggregate"        # none | aggregate | per-node; each site's policy may allow less
# of = ["auc"]             # which of the task's metrics (docs/tasks.md); without it all that it declares

[simulation]               # only for `secure-fl run`; not part of the hash
# nodes = 10               # without it what suits the task
# partition = "iid"        # iid | dirichlet (alpha) | pathological (classes) | rotated (domains) | natural
# path = ""                # of a task that reads files; or name a folder in the environment variable SECURE_FL_DATA
"""


_NEW_HELP = """Write a commented study to start from.

With --recipe, a whole one, to start from, or with the settings of a page of docs/results:

{recipes}

Examples:

  secure-fl study new heart.toml --task breast-cancer --roster roster.toml

  secure-fl study new trial.toml --recipe hospital
""".format(recipes="\n\n".join(f"  {name:<11} {line}" for name, line in recipes.known().items()))


@app.command(help=_NEW_HELP)
def new(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
    name: Annotated[str, typer.Option(help="The study's name.")] = "my-study",
    recipe: Annotated[str, typer.Option(help=f"{' | '.join(recipes.known())}: see above.")] = "",
    task: Annotated[str, typer.Option(help="Task id; without it the strategy's, or digits.")] = "",
    strategy: Annotated[str, typer.Option(help="Strategy id; without it fedavg.")] = "",
    protection: Annotated[str, typer.Option(help="Protection id; without it what suits the strategy.")] = "",
    rounds: Annotated[int | None, typer.Option(help="How many rounds; without it 10.")] = None,
    roster: Annotated[Path | None, typer.Option(help="The sites, as `secure-fl pki roster` prints them.")] = None,
    dataset: Annotated[str, typer.Option(help="The id of the sites' data; without it the task's name.")] = "",
    start: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="Train on from this model (safetensors).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a study; see `_NEW_HELP`."""
    if path.exists() and not force:
        raise StorageError(f"{path}: exists already", advice="choose another name, or --force")
    sites = _listed(roster) if roster else {}
    listed = tomli_w.dumps(sites).strip() or '# hospital-a = "…64 hexadecimal digits…"'
    seed = secrets.randbits(62)
    if recipe:
        if task or strategy or protection or dataset or rounds is not None:
            raise UsageError(
                "--recipe settles task, strategy, protection and rounds", advice="leave them out, and edit the file"
            )
        text = recipes.written(recipe, study=name, seed=seed, roster=listed)
    else:
        text = _from_template(
            name, seed, listed, task, strategy or "fedavg", protection, 10 if rounds is None else rounds, dataset
        )
    try:
        parsed = Study.parse(tomllib.loads(text))  # Before it is written: what cannot be leaves no file.
    except tomllib.TOMLDecodeError:
        raise SettingsError("a quote or a control character is in no name", advice="check --name and --task") from None
    if start is not None:
        text = _with_start(text, parsed, start)
    write_atomically(path, text.encode())
    typer.echo(f"{path}: written; next: secure-fl study show {path}")


def _listed(roster: Path) -> dict[str, str]:
    """The sites in the authority's list."""
    advice = "`secure-fl pki sign` writes roster.toml, and `secure-fl pki roster` prints it"
    sites = Study.parse(read_toml(roster, missing=advice)).study.roster
    if not sites:
        raise SettingsError(f"{roster}: names no site", advice=advice)
    return sites


def _from_template(
    name: str, seed: int, roster: str, task: str, strategy: str, protection: str, rounds: int, dataset: str
) -> str:
    require_known("strategy", strategy, strategies.known())
    protection = protection or protect.suitable(strategies.asks(strategy))
    require_known("protection", protection, protect.known())
    task = task or strategies.defaults(strategy).get("task.name", "digits")
    tasks.require_spelling(task)
    return _TEMPLATE.format(
        name=name,
        seed=seed,
        rounds=rounds,
        roster=roster,
        task=task,
        dataset=f'dataset = "{dataset}"' if dataset else f'# dataset = "{task}"',
        strategy=strategy,
        protection=protection,
        warning="            # UNSAFE: the coordinator sees every update" if protection == "none" else "",
        tasks=", ".join(tasks.known()),
        strategies=" | ".join(strategies.known()),
        protections=" | ".join(protect.known()),
    )


def _with_start(text: str, study: Study, model: Path) -> str:
    """The study's file with the model that it goes on from."""
    from secure_fl.study.given import continued  # torch

    named, _ = continued(study, model)
    lines = f'start = "given"             # submit it with --from MODEL, too\ninitial = "{named.study.initial}"\n'
    return text.replace("[study.roster]\n", "", 1).replace("\n# Site name", f"\n{lines}[study.roster]\n# Site name", 1)


@app.command()
def check(
    path: StudyPath,
    as_json: AsJson = False,
    write: Annotated[
        Path | None, typer.Option(help="Write it here with every default and its initial model: the file for sites.")
    ] = None,
) -> None:
    """Find mistakes before anything starts, and say what was chosen where the study does not say.

    Checked are keys and names, whether task, strategy, protection and privacy fit together, whether there are enough
    sites and, without a roster, whether the data of the simulation fit.

    Examples:

      secure-fl study check trial.toml

      secure-fl study check heart.toml --write heart-complete.toml
    """
    table = Study.read_table(path)
    written = Study.parse(table)
    study = written.completed()
    sites = len(study.study.roster)
    study.check(nodes=None if sites else study.simulation.nodes)
    if not sites:
        _check_simulated(study)
    if write is not None:
        write_atomically(write, tomli_w.dumps(study.to_table()).encode())
    taking_part = sites or study.simulation.nodes
    asked = study.make_strategy().asks
    spare = study.spare(asked, taking_part)
    circles = [len(circle) for circle in study.circles(study.study.roster or simulated_names(taking_part))]
    facts: dict[str, Any] = {
        "study": study.study.name, "id": study.id, "sites": sites, "valid": True, "dropouts_tolerated": spare,
        "circles": circles, "defaults": {default.key: default.value for default in found(written)},
        "warnings": doubts(study),
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{path}: valid; hash {study.id}")
    for line in _who_is_needed(study, asked, circles, taking_part, spare):
        typer.echo(line)
    if not sites:
        typer.echo("the roster is empty: fine for `secure-fl run`, not for a deployment")
    for line in remarks(table, written, study):
        typer.echo(line)


def _who_is_needed(study: Study, asked: RequestKind, circles: list[int], sites: int, spare: int) -> list[str]:
    """Which sites have to be there for a round to come to something."""
    if asked is RequestKind.COMBINE:
        fewest = study.min_cohort(asked)
        return [
            f"each site gets a mixture of at least {fewest} sites; of {sites} sites {spare} may drop out of a round"
        ]
    if circles:
        least, most = min(circles), max(circles)
        size = f"{least} to {most}" if least < most else f"{least}"
        several = "s" if len(circles) > 1 else ""
        declared = ["who is in which follows from what sites declare to share, before the first round"]
        return [
            f"{len(circles)} circle{several} of {size} sites; a circle's total is computed only when all its sites are "
            "present",
            *(declared if study.declares else []),
        ]
    if spare:
        return [f"of {sites} sites {spare} may drop out of a round"]
    return [
        f"no dropout is tolerated: all {sites} sites have to stay to the end of every round",
        "  → with another site, or with fewer protection.colluders, a round survives a dropout",
    ]


def remarks(table: Mapping[str, Any], written: Study, study: Study) -> list[str]:
    """What was chosen for a study that does not say, and what in it is hardly meant. `written` is as it was read."""
    chosen = chosen_protection(table, strategy=study.strategy.name, kind=study.protection.kind)
    by: dict[str, list[str]] = {}
    for default in found(written):
        by.setdefault(default.by, []).append(f"{default.key} = {default.value}")
    return [
        *([chosen] if chosen else []),
        *(f"{source}: {', '.join(values)}" for source, values in by.items()),
        *(f"warning: {doubt}" for doubt in doubts(study)),
    ]


def _check_simulated(study: Study) -> None:
    """As `secure-fl run` does before anything starts: the data fit, and there is noise for the budget."""
    from secure_fl.simulation.units import plan_lines

    require_data(study)
    if study.privacy.mode != "none":
        plan_lines(study)


@app.command()
def show(path: StudyPath, as_json: AsJson = False, units: Units = None) -> None:
    """Explain in plain language what leaves a site, who learns what, and what it costs in privacy.

    Example: secure-fl study show heart.toml --units 300
    """
    from secure_fl.study.explain import explain  # needs torch, which `--help` should not wait for

    study = Study.read(path).completed()
    study.check()
    sections = explain(study, units=units)
    if as_json:
        typer.echo(json.dumps({"id": study.id, "sections": {s.heading: s.sentences for s in sections}}))
        return
    console = Console()
    for section in sections:
        console.print(f"[bold]{section.heading}[/bold]")
        for sentence in section.sentences:
            console.print(f"  • {sentence}", highlight=False, soft_wrap=True, markup=False)  # [policy] is no mark-up
        console.print()
