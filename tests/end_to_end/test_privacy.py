"""`secure-fl run` under differential privacy, as a person uses it: strategies × protections, and what is refused.

A few quick ones run by default; all of them with `./scripts/test -m slow -k test_every_strategy_under_noise`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from node import desk
from secure_fl import strategies
from secure_fl.cli import app
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import prepare
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.study.settings import Study
from tests.cli.test_errors import run as fails

EPSILON, DELTA = 3.0, 1e-5
PRIVACY = (
    "--engine", "threads", "--rounds", "2", "--set", "privacy.mode=dp-sgd", "--set", f"privacy.epsilon={EPSILON}",
    "--set", f"privacy.delta={DELTA}",
)  # fmt: skip
# What makes each of them small. Those that combine serve no sums.
STRATEGIES: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedper": (),
    "ditto": (),
    "pflda": (),
    "pflsensing": (),
    "fedasa": (
        "--task", "bearings", "--set", "task.network=cells", "--set", "task.windows=4",
        "--set", "strategy.auxiliary_epochs=0", "--set", "strategy.auxiliary_samples=2",
    ),
    "fedcca": (),
}  # fmt: skip
COMBINING = {"fedcca"}
QUICK = {("fedavg", "masked"), ("fedcca", "sealed")}
MATRIX = [
    pytest.param(
        strategy, protection, marks=() if (strategy, protection) in QUICK else (pytest.mark.slow,),
    )
    for strategy in STRATEGIES
    for protection in ("none", "masked", "sealed")
    if not (strategy in COMBINING and protection == "masked")
]  # fmt: skip


def finished(out: Path, *arguments: str) -> dict[str, Any]:
    """The one JSON object that a run prints."""
    command = ["run", *PRIVACY, "--set", "strategy.epochs=1", *arguments, "--out", str(out), "--json"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def steps_in(ledger: Path) -> Counter[tuple[float, float]]:
    """Noisy steps of whatever was planned and not taken back, by (q, σ): read as plain JSON, by no code of ours."""
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    facts = [(line["kind"], line["facts"]) for line in lines]
    back = {(f["round"], f["attempt"]) for kind, f in facts if kind == "cancelled"}
    steps: Counter[tuple[float, float]] = Counter()
    for kind, planned in facts:
        if kind == "planned" and planned["privacy"] and (planned["round"], planned["attempt"]) not in back:
            for event in planned["privacy"]["events"]:
                steps[event["sampling"], event["noise"]] += event["steps"]
    return steps


def recomputed(steps: Counter[tuple[float, float]]) -> tuple[float, float]:
    """ε by dp-accounting's loss distributions, and by Opacus' Rényi divergences, straight from the libraries."""
    import dp_accounting as dp
    from opacus.accountants import RDPAccountant

    tight = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
    loose = RDPAccountant()
    for (q, sigma), count in steps.items():
        step = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(sigma))
        tight.compose(dp.SelfComposedDpEvent(step, count))
        loose.history.append((sigma, q, count))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus remarks on an order at the edge of its list.
        return float(tight.get_epsilon(DELTA)), float(loose.get_epsilon(delta=DELTA))


def check(out: Path, summary: dict[str, Any], *, trainings: int = 2) -> None:
    """Every site's ε is what its ledger comes to, and its ledger holds."""
    seen: dict[frozenset[tuple[tuple[float, float], int]], tuple[float, float]] = {}
    for node in summary["nodes"]:
        assert 0 < node["epsilon"] <= EPSILON
        assert node["delta"] == DELTA
        ledger = out / "nodes" / node["name"] / "ledger.jsonl"
        steps = steps_in(ledger)
        assert steps, node["name"]
        key = frozenset(steps.items())
        if key not in seen:
            seen[key] = recomputed(steps)
        tight, loose = seen[key]
        # The distributions are discretised a little finer or coarser: half a percent at most, as documented.
        assert node["epsilon"] == pytest.approx(tight, rel=5e-3)
        assert node["epsilon"] <= loose + 1e-9
        verified = CliRunner().invoke(
            app, ["audit", "verify", str(ledger), "--ca", str(out / "ca.pem"), "--site", node["name"], "--json"]
        )
        assert verified.exit_code == 0, verified.output
        entries = [json.loads(line) for line in ledger.read_text().splitlines()]
        new = [
            e for e in entries if e["kind"] == "planned" and e["facts"]["privacy"] and e["facts"]["privacy"]["events"]
        ]
        assert len(new) == trainings


@pytest.mark.parametrize(("strategy", "protection"), MATRIX)
def test_every_strategy_under_noise_costs_what_it_says(tmp_path: Path, strategy: str, protection: str) -> None:
    out = tmp_path / "out"
    summary = finished(
        out, "--strategy", strategy, "--protection", protection, "--nodes", "5", *STRATEGIES[strategy]
    )  # fmt: skip
    assert (summary["strategy"], summary["protection"], summary["rounds"]) == (strategy, protection, 2)
    assert math.isfinite(summary["mean_accuracy"])
    check(out, summary)


@pytest.mark.parametrize("protection", ["masked", pytest.param("none", marks=pytest.mark.slow)])
def test_whole_patients_are_protected(tmp_path: Path, protection: str) -> None:
    out = tmp_path / "out"
    summary = finished(
        out, "--task", "visits", "--set", "privacy.unit=group", "--set", "simulation.partition=natural",
        "--protection", protection, "--nodes", "4",
    )  # fmt: skip
    check(out, summary)
    for name in (node["name"] for node in summary["nodes"]):
        lines = (out / "nodes" / name / "ledger.jsonl").read_text().splitlines()
        (first, *_) = (body["facts"]["privacy"] for body in map(json.loads, lines) if body["kind"] == "planned")
        assert (first["unit"], first["group_rows"]) == ("group", 4)
        # About so many patients, not visits: there are several of each.
        assert first["units"] < 200


# --- what is refused ----------------------------------------------------------------------------------------------


class Silent(FedAvg):
    """Does not say what shapes its update."""

    name = "silent"

    def charged_epochs(self, number: int | None = None) -> int | None:
        """Nothing."""
        return None


TASK = "tests.support.task"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--task", f"{TASK}:Standardised"), "one record changes all others"),
        (("--task", f"{TASK}:Normed"), "BatchNorm"),
        (("--strategy", "silent"), "does not say what shapes its update"),
        (("--strategy", "local"), "a privacy plan needs at least one round"),
        (("--set", "privacy.unit=group"), "does not say which rows belong to the same group"),
        (("--set", "privacy.delta=0.5"), "privacy.delta = 0.5"),
        (("--set", "privacy.epsilon=0.01"), "nothing would be learnt"),
        (("--set", "policy.epsilon=3"), "epsilon and delta are a limit together"),
        (("--set", "policy.delta=1e-5"), "epsilon and delta are a limit together"),
    ],
)
def test_what_noise_cannot_protect_is_refused_in_one_line_before_anything_is_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    complaint: str,
) -> None:
    monkeypatch.setitem(vars(strategies)["_BUILT_IN"], "silent", f"{__name__}:Silent")
    out = tmp_path / "out"
    code, said = fails(monkeypatch, capsys, "run", *PRIVACY, "--nodes", "4", *arguments, "--json", "--out", str(out))
    assert code == 3, said
    assert complaint in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) <= 2  # what is wrong, and what to do
    if "policy" not in arguments[-1]:  # That is a site's own, and sites are made first.
        assert not out.exists()  # The same folder is good for the corrected command.


def test_the_desk_of_a_site_without_units_says_what_to_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Study.parse(
        {"privacy": {"mode": "dp-sgd", "epsilon": EPSILON, "delta": DELTA}, "simulation": {"nodes": 3}}
    )  # fmt: skip
    made = prepare(tmp_path / "run", study, policy={})
    made.point_nodes_at(1)
    path = made.node_file("site-01")
    table = read_toml(path)
    del table["datasets"]["digits"]["units"], table["simulation"]
    table["policy"].update(approve="ask", approved=[])
    path.write_bytes(tomli_w.dumps(table).encode())
    assert desk.main(["approve", str(path), str(made.folder / "study.toml")]) == 7
    said = capsys.readouterr().err
    assert "has not said about how many records [datasets.digits] has" in said
    assert "write units = N under [datasets.digits]" in said
    assert "Traceback" not in said
