"""`secure-fl study new|check|show`."""

from __future__ import annotations

import json
import secrets
import tomllib
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console

from secure_fl import protect, strategies, tasks
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError, StorageError
from secure_fl.files import write_atomically
from secure_fl.settings import require_known
from secure_fl.study.settings import Study, simulated_names

app = typer.Typer(
    name="study",
    help="Write, validate and explain a study: what a consortium agrees on.",
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
# Site name = SHA-256 fingerprint of its certificate (`secure-fl pki roster`). `secure-fl run` fills this in by itself.
[study.roster]
{roster}

[task]                     # installed at every site; known here: {tasks}
name = "{task}"
# dataset = "{task}"       # the id under which each site lists its own data; never a path

[strategy]                 # {strategies}
name = "{strategy}"
epochs = 2
batch_size = 16
learning_rate = 0.05

[protection]               # {protections}
kind = "{protection}"{warning}
colluders = 1              # how many sites may work together with the coordinator
# bits = 16                # fixed-point width of every value; without it what suits the protection
# clip = 1.0               # largest change of a parameter in one round; without it what suits the task
# circles = "auto"         # whose updates are only ever opened together: by name, "speed", or a list of lists of sites
# recovery = false         # true: a sum of whoever is left, which tells on whoever left; each site has to agree
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

[simulation]               # only for `secure-fl run`; not part of the hash
nodes = 10
partition = "iid"          # iid | dirichlet (alpha) | pathological (classes) | rotated (domains) | …
"""


@app.command()
def new(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("study.toml"),
    name: Annotated[str, typer.Option(help="The study's name.")] = "my-study",
    task: Annotated[str, typer.Option(help="Task id.")] = "digits",
    strategy: Annotated[str, typer.Option(help="Strategy id.")] = "fedavg",
    protection: Annotated[str, typer.Option(help="Protection id; without it what suits the strategy.")] = "",
    rounds: Annotated[int, typer.Option(help="How many rounds.")] = 10,
    roster: Annotated[Path | None, typer.Option(help="The sites, as `secure-fl pki roster` prints them.")] = None,
    start: Annotated[
        Path | None, typer.Option("--from", metavar="MODEL", help="Train on from this model (safetensors).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a commented study to start from.

    Example: secure-fl study new heart.toml --name heart --task breast-cancer --roster roster.toml
    """
    if path.exists() and not force:
        raise StorageError(f"{path}: exists already", advice="choose another name, or --force")
    require_known("strategy", strategy, strategies.known())
    protection = protection or protect.suitable(strategies.asks(strategy))
    require_known("protection", protection, protect.known())
    sites = Study.read(roster).study.roster if roster else {}
    text = _TEMPLATE.format(
        name=name,
        seed=secrets.randbits(62),
        rounds=rounds,
        roster=tomli_w.dumps(sites).strip() or '# hospital-a = "…64 hexadecimal digits…"',
        task=task,
        strategy=strategy,
        protection=protection,
        warning="            # UNSAFE: the coordinator sees every update" if protection == "none" else "",
        tasks=", ".join(tasks.known()),
        strategies=" | ".join(strategies.known()),
        protections=" | ".join(protect.known()),
    )
    try:
        parsed = Study.parse(tomllib.loads(text))  # Before it is written: what cannot be leaves no file.
    except tomllib.TOMLDecodeError:
        raise SettingsError("a quote or a control character is in no name", advice="check --name and --task") from None
    if start is not None:
        text = _with_start(text, parsed, start)
    write_atomically(path, text.encode())
    typer.echo(f"{path}: written; next: secure-fl study show {path}")


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
    """Validate a study: keys, names, whether its parts fit together, whether there are enough sites."""
    study = Study.read(path).completed()
    sites = len(study.study.roster)
    study.check(nodes=None if sites else study.simulation.nodes)
    if write is not None:
        write_atomically(write, tomli_w.dumps(study.to_table()).encode())
    taking_part = sites or study.simulation.nodes
    spare = study.spare(RequestKind.SUM, taking_part)
    circles = [len(circle) for circle in study.circles(study.study.roster or simulated_names(taking_part))]
    facts: dict[str, Any] = {
        "study": study.study.name, "id": study.id, "sites": sites, "valid": True, "dropouts_tolerated": spare,
        "circles": circles,
    }  # fmt: skip
    if as_json:
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"{path}: valid; hash {study.id}")
    if circles:
        sizes = " and ".join(map(str, circles)) if len(circles) < 4 else f"{min(circles)} to {max(circles)}"
        several = "s" if len(circles) > 1 else ""
        typer.echo(f"{len(circles)} circle{several} of {sizes} sites; a circle opens when all of it is there")
        if study.declares:
            typer.echo("who is in which follows from what sites declare to share, before the first round")
    elif spare:
        typer.echo(f"of {taking_part} sites {spare} may drop out of a round")
    else:
        typer.echo(f"no dropout is tolerated: all {taking_part} sites have to stay to the end of every round")
        typer.echo("  → with another site, or with fewer protection.colluders, a round survives a dropout")
    if not sites:
        typer.echo("the roster is empty: fine for `secure-fl run`, not for a deployment")


@app.command()
def show(path: StudyPath, as_json: AsJson = False, units: Units = None) -> None:
    """Explain in plain language what leaves a site, who learns what, and what it costs in privacy."""
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
