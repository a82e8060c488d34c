"""`encrypted` changes who sees what and nothing else: every strategy makes the models of `none`, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl import protect, strategies
from tests.end_to_end.test_run import summary_here

BITS = protect.describe("encrypted").bits
COMBINING = ("fedamp", "fedcca")
QUICK = ("fedavg", "fedcca", "fedper")
MORE = {
    "fedcca": ("strategy.criterion=1.2",),
    # Cells need a network of them; sites share as many as they choose.
    "fedasa": (
        "task.network=cells", "task.windows=2", "simulation.partition=natural", "strategy.auxiliary_epochs=1",
        "strategy.depths=[0,2,4]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "strategy", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in strategies.known()]
)
def test_models_are_those_of_none(tmp_path: Path, strategy: str) -> None:
    summaries = {kind: run(strategy, kind, tmp_path / kind) for kind in ("none", "encrypted")}
    for figure in ("mean_accuracy", "std_accuracy", "global_accuracy", "combinations_opened"):
        assert summaries["encrypted"][figure] == summaries["none"][figure]
    plain, found = tmp_path / "none", tmp_path / "encrypted"
    models = [*plain.glob("model.safetensors"), *plain.glob("nodes/*/model.safetensors")]
    assert len(models) >= 6
    for model in models:
        assert model.read_bytes() == (found / model.relative_to(plain)).read_bytes()
    # Every site opened its combination in both rounds.
    assert summaries["encrypted"]["combinations_opened"] == (12 if strategy in COMBINING else 0)


def run(strategy: str, protection: str, out: Path) -> dict[str, object]:
    """Six sites, two rounds, the same seeds."""
    task = "bearings" if strategy == "fedasa" else "digits"
    values = (f"protection.bits={BITS}", "strategy.epochs=1", *MORE.get(strategy, ()))
    return summary_here(
        "--strategy", strategy, "--protection", protection, "--engine", "threads", "--nodes", "6", "--rounds", "2",
        "--task", task, "--out", str(out), *(part for value in values for part in ("--set", value)),
    )  # fmt: skip
