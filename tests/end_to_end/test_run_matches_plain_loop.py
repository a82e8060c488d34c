"""Ten nodes, digits, FedAvg: the federation computes what a plain loop over ten data sets computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load

from node.training.seeds import simulated_seed
from secure_fl import tasks
from secure_fl.blocks import Vector
from secure_fl.simulation.run import run
from secure_fl.strategies.site import Site
from secure_fl.study.settings import Study
from secure_fl.tasks.base import Share, Source
from secure_fl.tasks.model_blocks import initial_blocks

ROUNDS, NODES, SEED = 8, 10, 3

STUDY = Study.parse(
    {
        "study": {"name": "ten", "rounds": ROUNDS, "seed": SEED},
        "metrics": {"share": "per-node"},
        "simulation": {"nodes": NODES},
    }
)


def plain_loop() -> tuple[float, dict[str, Vector]]:
    """FedAvg in memory, in floats, without any of the product's machinery between the sites and the mean."""
    task = tasks.create("digits", {})
    strategy = STUDY.make_strategy()
    layout, model = initial_blocks(task, SEED)
    start = dict(model)
    partition = STUDY.simulation.partition_settings()
    data = [task.load(Source(share=Share(index=i, of=NODES, partition=partition, seed=SEED))) for i in range(NODES)]

    def site(index: int, number: int) -> Site:
        seed = simulated_seed(SEED, f"site-{index + 1:02d}", number)
        return Site(
            task=task, data=data[index], training=strategy.settings, initial=start, received=model,
            personal={}, combination={}, seed=seed,
        )  # fmt: skip

    for number in range(1, ROUNDS + 1):
        changes = []
        for index in range(NODES):
            here = site(index, number)
            here.load(model)
            here.train()
            changes.append({name: vector - model[name] for name, vector in here.blocks().items()})
        model = {name: model[name] + np.mean([change[name] for change in changes], axis=0) for name in layout.names}
    scores = [site(index, ROUNDS + 1).evaluate(model) for index in range(NODES)]
    return float(np.mean([s.accuracy or 0.0 for s in scores])), model


@pytest.mark.timeout(400)
def test_processes_threads_and_a_plain_loop_agree(tmp_path: Path) -> None:
    models, accuracies = {}, {}
    for engine in ("threads", "processes"):
        folder = tmp_path / engine
        _, summary = run(STUDY, engine=engine, folder=folder, policy={}, listener=lambda *_: None)
        models[engine] = load((folder / "model.safetensors").read_bytes())
        accuracies[engine] = summary["global_accuracy"]
        assert summary["engine"] == engine
        assert [node["rounds_taken"] for node in summary["nodes"]] == [ROUNDS] * NODES
    accuracy, model = plain_loop()
    assert accuracy > 0.9
    assert accuracies["processes"] == pytest.approx(accuracy, abs=0.005)
    # The engines differ in nothing but the transport, so they agree to the last bit.
    assert models["threads"].keys() == models["processes"].keys()
    for name, tensor in models["threads"].items():
        assert np.array_equal(tensor, models["processes"][name]), name
    # Rounding moves a value by at most 2⁻¹⁵ a round; training amplifies that a little (0.003 was seen here).
    layout, _ = initial_blocks(tasks.create("digits", {}), SEED)
    for name, tensor in layout.tensors(model).items():
        assert np.abs(tensor - models["threads"][name.replace("/", ".")]).max() < 0.01, name
