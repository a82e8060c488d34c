"""What a strategy remembers at the coordinator is committed with the round, and survives whatever the round does."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.store import Store
from secure_fl import strategies
from secure_fl.aggregation import Aggregate
from secure_fl.blocks import Blocks
from secure_fl.checkpoints import load_arrays
from secure_fl.strategies.base import State
from secure_fl.strategies.fedavg import FedAvg
from tests.support.federation import Federation, Killed
from tests.support.training import Faults

SETTINGS: dict[str, Any] = {
    "study": {"rounds": 3},
    "task": {"name": "tests.support.task:Line"},
    "strategy": {"name": "heavy-ball"},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 2},
}


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone afterwards."""
    monkeypatch.setattr(strategies, "_BUILT_IN", dict(strategies._BUILT_IN))


class HeavyBall(FedAvg):
    """Momentum at the coordinator: m ← m/2 + mean, w ← w + m. It also counts its steps."""

    name = "heavy-ball"

    def step(self, current: Blocks, aggregate: Aggregate, state: State) -> tuple[Blocks, State]:
        """One step."""
        momentum = {
            name: aggregate[name].mean + np.float32(0.5) * state.vectors.get(name, np.float32(0)) for name in current
        }
        moved = {name: vector + momentum[name] for name, vector in current.items()}
        return moved, State(values={"steps": state.values.get("steps", 0) + 1}, vectors=momentum)


async def study(
    folder: Path, point: str = "", strategy: str = "heavy-ball"
) -> tuple[bytes, dict[str, Any], dict[str, list[float]]]:
    """The last model and what was remembered with it, of a study whose coordinator is killed at `point`."""
    strategies.register("heavy-ball", "tests.coordinator.test_strategy_state:HeavyBall")
    fed = Federation(folder, {**SETTINGS, "strategy": {"name": strategy}})
    for name in fed.names:
        fed.start_node(name)
    if point:
        with contextlib.suppress(Killed):
            await fed.coordinate(Faults(point, 2))
    record = await fed.coordinate()
    assert record is not None
    await fed.close()
    store = Store.in_folder(fed.workspace.coordinator_state)
    model = store.model(fed.study.id)
    store.close()
    assert model is not None
    assert model.version == 3
    vectors = load_arrays(fed.workspace.study_state / "checkpoints" / "000003.state.safetensors")
    return model.object, dict(model.state), {name: vector.tolist() for name, vector in vectors.items()}


@pytest.mark.parametrize("point", ["before:commit_round", "after:commit_round", "after:close_phase"])
def test_a_killed_coordinator_forgets_nothing_and_counts_nothing_twice(tmp_path: Path, point: str) -> None:
    async def run() -> None:
        undisturbed = await study(tmp_path / "one")
        assert undisturbed[1] == {"steps": 3}
        assert any(value for vector in undisturbed[2].values() for value in vector)
        assert await study(tmp_path / "two", point) == undisturbed

    asyncio.run(asyncio.wait_for(run(), 90))


def test_adam_at_the_coordinator_goes_on_where_it_was(tmp_path: Path) -> None:
    async def run() -> None:
        undisturbed = await study(tmp_path / "one", strategy="fedopt")
        assert {name.partition(": ")[2] for name in undisturbed[2]} == {"momentum", "variance"}
        assert await study(tmp_path / "two", "before:commit_round", strategy="fedopt") == undisturbed

    asyncio.run(asyncio.wait_for(run(), 90))


def test_old_memory_goes_with_old_models(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(study(tmp_path / "run"), 60))
    (folder,) = (tmp_path / "run" / "coordinator" / "state" / "studies").glob("*/checkpoints")
    assert sorted(path.name for path in folder.iterdir()) == [
        "000002.safetensors", "000002.state.safetensors", "000003.safetensors", "000003.state.safetensors",
    ]  # fmt: skip
