"""One training job: what is measured, and what is refused, when a site has a model of its own."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from node.training.jobs import Job, Result, layout_to_json
from node.training.rehearsal import rehearse
from node.training.trainer import Trainer
from secure_fl import strategies, tasks
from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape
from secure_fl.checkpoints import load_arrays
from secure_fl.errors import DataError, LayoutMismatchError, SettingsError
from secure_fl.files import write_atomically
from secure_fl.rounds import RoundKind
from secure_fl.strategies.base import SHIPPED_TENSOR
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.site import Site
from secure_fl.strategies.training import LocalTraining
from secure_fl.study.settings import Study
from secure_fl.tasks.base import Source
from secure_fl.tasks.model_blocks import initial_blocks, seeded
from tests.support.task import Line, LineSettings


class Contrary(FedAvg):
    """Predicts with the received model turned round, and keeps nothing."""

    name = "contrary"

    def inference(self, site: Site) -> Blocks:
        return {name: -vector for name, vector in site.received.items()}


class Forgetful(FedAvg):
    """Sends numbers and keeps none."""

    name = "forgetful"

    def fit(self, site: Site) -> Blocks:
        change = super().fit(site)
        site.personal = {"head": np.full(3, np.nan, np.float32)}
        return change


class Careless(FedAvg):
    """Sends something else than what is in the model."""

    name = "careless"

    def fit(self, site: Site) -> Blocks:
        return {name: vector * np.float32(np.inf) for name, vector in super().fit(site).items()}


class Stumbling(FedAvg):
    """Cannot do arithmetic with what it finds."""

    name = "stumbling"

    def fit(self, site: Site) -> Blocks:
        super().fit(site)
        site.personal = {"head": np.ones(3, np.float32)}
        int(np.nan)
        raise AssertionError


class Delicate(FedAvg):
    """Predicts with a model that it cannot make of every site's rows."""

    name = "delicate"

    def inference(self, site: Site) -> Blocks:
        raise IndexError("row 17")


class Tiny(FedAvg):
    """Looks at what becomes of a product that only a denormal number could hold."""

    name = "tiny"
    products: ClassVar[list[float]] = []

    def fit(self, site: Site) -> Blocks:
        self.products.append(product())
        return super().fit(site)


def product() -> float:
    return float((torch.full((64,), 1e-30) * torch.full((64,), 1e-10)).max())


class Dated(FedAvg):
    """Notes which round it is."""

    name = "dated"
    rounds: ClassVar[list[int | None]] = []

    def fit(self, site: Site) -> Blocks:
        self.rounds.append(site.round)
        return super().fit(site)


class Curious(FedAvg):
    """Keeps what was shipped."""

    name = "curious"
    shipped = ("@hint",)

    def fit(self, site: Site) -> Blocks:
        assert site.shipped["@hint"].shape == (2, 3)
        change = super().fit(site)
        site.personal = {"hint": site.shipped["@hint"].reshape(-1)}
        return change


def execute(folder: Path, strategy: str, **changes: Any) -> Result:
    """A first round of breast-cancer at one of three sites."""
    return Trainer().execute(job_of(folder, strategy, **changes))


def job_of(
    folder: Path,
    strategy: str,
    *,
    ship: bool = False,
    kind: RoundKind = RoundKind.TRAIN,
    metrics: dict[str, Any] | None = None,
    version: int | None = None,
) -> Job:
    """The same, not carried out yet."""
    if strategy not in strategies.known():
        strategies.register(strategy, f"{__name__}:{strategy.capitalize()}")
    named = {"task": {"name": "breast-cancer"}, "strategy": {"name": strategy, "epochs": 1}}
    study = Study.parse({**named, "metrics": metrics or {}})
    write_atomically(folder / "study.json", study.canonical())
    layout, start = initial_blocks(tasks.create("breast-cancer", {}), study.study.seed)
    if ship:
        hint = BlockShape(name="@hint", tensors=(TensorShape(name=SHIPPED_TENSOR, shape=(2, 3)),))
        layout = Layout((*layout, hint))
        start["@hint"] = np.arange(6, dtype=np.float32)
    (folder / "received").write_bytes(layout.flatten(start))
    return Job(
        kind=kind, study=str(folder / "study.json"), round=1, attempt=1, seed=1, me="site-01",
        dataset={"share": {"index": 0, "of": 3, "seed": 0}},
        folder="", device="cpu", threads=1, layout=layout_to_json(layout), received=str(folder / "received"),
        personal="", combination="", state="", update_to=str(folder / "update"), features_to="",
        model_to=str(folder / "model"), personal_to=str(folder / "personal"), state_to=str(folder / "state"),
        version=version,
    )  # fmt: skip


def test_training_waits_while_somebody_draws_from_a_seed(tmp_path: Path) -> None:
    """Two simulations of one process: one makes its first model while the other trains."""
    job, trainer = job_of(tmp_path, "fedavg"), Trainer()
    trainer.execute(job)  # Data are loaded now.
    with seeded(5):
        undisturbed = torch.rand(2)
    with ThreadPoolExecutor(1) as pool:
        with seeded(5):
            first = torch.rand(1)
            training = pool.submit(trainer.execute, job)
            with pytest.raises(TimeoutError):
                training.result(timeout=1.0)
            second = torch.rand(1)
        assert training.result(timeout=60).samples
    assert torch.equal(torch.cat([first, second]), undisturbed)


def test_the_common_model_is_measured_beside_one_that_is_made_from_it_and_not_kept(tmp_path: Path) -> None:
    metrics = execute(tmp_path, "contrary").metrics
    assert metrics.accuracy is not None
    assert metrics.global_accuracy is not None
    assert metrics.accuracy != metrics.global_accuracy
    assert load_arrays(tmp_path / "update")
    assert not (tmp_path / "personal").exists()


def test_a_study_that_asks_for_finer_sums_than_the_task_here_declares_is_not_measured(tmp_path: Path) -> None:
    finer = {"name": "auc", "sums": 4096, "formula": "auc", "settings": {"positive": 1, "bins": 2048}}
    with pytest.raises(SettingsError, match="what the task that is installed here does not"):
        execute(tmp_path, "fedavg", metrics={"of": [finer]})
    assert not (tmp_path / "update").exists()


def test_the_tasks_metrics_are_measured_on_the_model_that_the_site_predicts_with(tmp_path: Path) -> None:
    turned, plain = execute(tmp_path, "contrary").metrics.sums, execute(tmp_path, "fedavg").metrics.sums
    assert turned.keys() == plain.keys() == {"auc", "sensitivity_at_90"}
    assert turned["auc"] != plain["auc"]
    assert sum(turned["auc"]) == sum(plain["auc"])


def test_the_round_is_the_models_where_a_circle_takes_turns_of_its_own(tmp_path: Path) -> None:
    """So that AiFed's r̂ = round − 1 is the version that was trained from, however many turns the site has taken."""
    for version in (None, 0, 17):
        execute(tmp_path, "dated", version=version)
    assert Dated.rounds == [1, 1, 18]


def test_how_rich_labels_are_goes_to_the_weight_and_not_into_the_measurements(tmp_path: Path) -> None:
    result = execute(tmp_path, "aifed")
    assert 0.5 < result.richness < 1  # two classes, not quite equally many
    assert Result.from_json(json.loads(result.to_json())) == result
    assert execute(tmp_path, "aifed", kind=RoundKind.EVALUATE).richness == result.richness  # in every round the same
    assert execute(tmp_path, "fedavg").richness == 1


def test_what_leaves_is_finite_whatever_a_strategy_made_of_it(tmp_path: Path) -> None:
    execute(tmp_path, "careless")
    update = load_arrays(tmp_path / "update")
    assert update
    assert not any(vector.any() for vector in update.values())  # infinite everywhere: unchanged everywhere


def test_what_is_kept_is_finite_whatever_a_strategy_made_of_it(tmp_path: Path) -> None:
    execute(tmp_path, "forgetful")
    assert any(vector.any() for vector in load_arrays(tmp_path / "update").values())
    assert load_arrays(tmp_path / "personal")["head"].tolist() == [0, 0, 0]


def test_a_strategy_that_stumbles_over_its_numbers_still_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    execute(tmp_path, "stumbling")
    update = load_arrays(tmp_path / "update")
    assert update
    assert not any(vector.any() for vector in update.values())
    assert "nothing changes here" in caplog.text


@pytest.mark.parametrize("kind", [RoundKind.TRAIN, RoundKind.EVALUATE])
def test_code_that_fails_on_one_row_does_not_make_the_site_fall_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: RoundKind
) -> None:
    """Whether a site answers would tell whether it has that row; a coordinator chooses the model that asks."""
    monkeypatch.setattr(Delicate, "fit", FedAvg.fit)
    execute(tmp_path, "delicate", kind=kind)
    assert (tmp_path / ("update" if kind is RoundKind.TRAIN else "model")).exists()


def test_what_is_shipped_beside_the_model_reaches_the_strategy_and_nothing_else(tmp_path: Path) -> None:
    execute(tmp_path, "curious", ship=True)
    assert load_arrays(tmp_path / "personal")["hint"].tolist() == [0, 1, 2, 3, 4, 5]
    assert "@hint" not in load_arrays(tmp_path / "update")


@pytest.mark.parametrize(("strategy", "ship"), [("curious", False), ("contrary", True)])
def test_reserved_blocks_are_those_of_the_strategy_or_nothing_is_trained(
    tmp_path: Path, strategy: str, ship: bool
) -> None:
    with pytest.raises(LayoutMismatchError, match="reserved blocks"):
        execute(tmp_path, strategy, ship=ship)
    assert not (tmp_path / "update").exists()


def test_denormal_numbers_are_flushed_in_training_and_nowhere_else(tmp_path: Path) -> None:
    """They take many times as long: the pace of training would tell what it computes."""
    execute(tmp_path, "tiny")
    assert Tiny.products == [0.0]
    assert product() > 0


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "3 of 80 training rows"), (1e30, "no finite loss")])
def test_a_rehearsal_finds_data_that_no_model_can_be_trained_on(value: float, said: str) -> None:
    made = Line(LineSettings())
    data = made.load(Source())
    data.train.inputs[2:5] = value
    site = Site(
        task=made, data=data, training=LocalTraining(batch_size=80), initial={}, received={}, personal={},
        combination={}, seed=1,
    )  # fmt: skip
    with pytest.raises(DataError, match=said):
        rehearse(site)


def test_a_rehearsal_of_sound_data_says_what_it_found() -> None:
    made = Line(LineSettings())
    site = Site(
        task=made, data=made.load(Source()), training=LocalTraining(), initial={}, received={}, personal={},
        combination={}, seed=1,
    )  # fmt: skip
    assert rehearse(site) == "80 rows to train on, 20 to test on; one batch was trained"
