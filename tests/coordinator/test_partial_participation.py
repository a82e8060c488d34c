"""A site that misses a round of a strategy with personal blocks: the federation does what a plain loop does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from node.local import InlineExecutor
from node.training.jobs import Job, Result
from node.training.seeds import simulated_seed
from secure_fl import tasks
from secure_fl.blocks import Vector
from secure_fl.errors import TrainingError
from secure_fl.strategies.site import Site
from secure_fl.study.settings import Study
from secure_fl.tasks.base import Share, Source
from secure_fl.tasks.model_blocks import initial_blocks
from tests.coordinator.test_study_runner import finish, play
from tests.support.federation import Federation

ROUNDS, AWAY = 3, ("site-01", 2)  # who misses which round
CLASSIFICATION = {"task": {"name": "breast-cancer"}, "simulation": {"nodes": 4, "partition": "iid"}}
REGRESSION = {"task": {"name": "sine", "width": 8}, "simulation": {"nodes": 4, "partition": "natural"}}


class Absent(InlineExecutor):
    """Trains, but not in one round."""

    async def run(self, job: Job) -> Result:
        """Fail where the test says."""
        if (job.me, job.round) == AWAY:
            raise TrainingError("not today")
        return await super().run(job)


def plain_loop(study: Study) -> dict[str, dict[str, Vector]]:
    """Every site's model in the end, in memory and in floats."""
    task, strategy, seed = tasks.create(study.task.name, study.task.settings), study.make_strategy(), study.study.seed
    layout, start = initial_blocks(task, seed)
    shared = {name: start[name] for name in strategy.request(layout, task.head(layout.names)).blocks}
    names, partition = tuple(study.study.roster), study.simulation.partition_settings()
    shares = [Share(index=index, of=len(names), partition=partition, seed=seed) for index in range(len(names))]
    data = {name: task.load(Source(share=share)) for name, share in zip(names, shares, strict=True)}
    kept: dict[str, dict[str, Vector]] = {name: {} for name in names}

    def site(name: str, number: int) -> Site:
        return Site(
            task=task, data=data[name], training=strategy.settings, initial=start, received=shared,
            personal=kept[name], combination={}, seed=simulated_seed(seed, name, number),
        )  # fmt: skip

    for number in range(1, ROUNDS + 1):
        changes = []
        for name in names:
            if (name, number) != AWAY:
                here = site(name, number)
                changes.append(strategy.fit(here))
                kept[name] = dict(here.personal)
        shared = {name: shared[name] + np.mean([change[name] for change in changes], axis=0) for name in shared}
    return {name: layout.tensors(strategy.inference(site(name, ROUNDS + 1))) for name in names}


@pytest.mark.parametrize("settings", [CLASSIFICATION, REGRESSION], ids=["classification", "regression"])
@pytest.mark.parametrize("simple", [False, True], ids=["pflda", "simple-da"])
def test_pflda_goes_on_without_a_site_and_then_with_it_again(
    tmp_path: Path, settings: dict[str, Any], simple: bool
) -> None:
    async def scenario(fed: Federation) -> None:
        for name in fed.names:
            fed.start_node(name, executor=Absent())
        record = await finish(fed)
        assert [AWAY[0] in entry.cohort for entry in record.rounds] == [True, False, True, True]
        regression = settings is REGRESSION
        for entry in record.rounds:
            assert (entry.mean_mse is not None, entry.mean_accuracy is not None) == (regression, not regression)
        expected = plain_loop(fed.study)
        for name in fed.names:
            model = load_file(fed.workspace.node_folder(name) / "studies" / fed.study.id / "model.safetensors")
            # A site's model has torch's names; in the tasks here these are those of the blocks, with a dot.
            wanted = {tensor.replace("/", "."): values for tensor, values in expected[name].items()}
            assert model.keys() == wanted.keys()
            for tensor, values in model.items():
                # Fixed point with 16 bits on [−1, 1]; training carries the difference on.
                assert np.abs(values - wanted[tensor]).max() < 1e-3, (name, tensor)

    study = {"study": {"rounds": ROUNDS}, "strategy": {"name": "pflda", "epochs": 1, "simple": simple}, **settings}
    play(tmp_path, study, scenario)
