"""A simulation whose sites cannot train ends with the reason, and does not wait for a repair that nobody makes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from secure_fl import simulate
from secure_fl.blocks import Blocks
from secure_fl.errors import SecureFLError, SettingsError
from secure_fl.events import Event, NodeDied
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Source, Split, Task


class Broken(Task):
    """Passes every look at its first rows, and fails in training at the second site alone."""

    kind = "regression"
    preprocessing = "none"

    def model(self) -> nn.Module:
        """One layer."""
        return nn.Sequential(OrderedDict(only=nn.Linear(2, 1)))

    def load(self, source: Source) -> LocalData:
        """Forty rows; the second site's have a mark that its loss does not like."""
        index = source.share.index if source.share else 0
        x = torch.full((40, 2), float(index))
        rows = Split(inputs=x, targets=x[:, :1])
        return LocalData(train=rows, test=rows)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of the second site, none."""
        if float(targets.max()) == 1.0:
            raise ValueError("this loss knows no ones")
        return super().loss(outputs, targets)


@pytest.mark.timeout(60)
def test_a_run_ends_with_the_reason_where_a_site_that_is_needed_cannot_train(tmp_path: Path) -> None:
    with pytest.raises(SecureFLError, match="site-02 says NotReady"):
        simulate(task=Broken, rounds=2, nodes=3, out=tmp_path / "run", progress=False)


class Mistaken(FedAvg):
    """Its own code fails, with any rows."""

    name = "mistaken"

    def fit(self, site: Site) -> Blocks:
        """A name that it never gave."""
        return dict.fromkeys(super().fit(site), site.personal["mine"])


@pytest.mark.timeout(60)
def test_a_mistake_in_a_strategy_is_found_before_a_model_is_fetched(tmp_path: Path) -> None:
    """Afterwards no site could say so: it might be this one record that fails."""
    with pytest.raises(SecureFLError, match="says NotReady: training failed: KeyError"):
        simulate(task="digits", strategy=Mistaken, rounds=2, nodes=3, out=tmp_path / "run", progress=False)
    assert "training failed: KeyError" in (tmp_path / "run" / "run.log").read_text()
    assert not list((tmp_path / "run").rglob("verified-*"))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_run_whose_sites_refuse_the_study_ends(tmp_path: Path, engine: str) -> None:
    heard: list[Event] = []
    with pytest.raises(SecureFLError, match="says NotApproved"):
        simulate(
            task="breast-cancer", rounds=1, nodes=4, engine=engine, out=tmp_path / "run", progress=False,
            policy={"approved": []}, listener=heard.append,
        )  # fmt: skip
    assert not [event for event in heard if isinstance(event, NodeDied)]  # They were stopped, and did not fail.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("engine", ["threads", "processes"])
@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"min_cohort": 20}, "cohorts smaller than 20"),
        ({"epsilon": 1.0, "delta": 1e-5}, "no differential privacy"),
        ({"protections": ["maskd"]}, "did you mean 'masked'"),
    ],
)
def test_a_policy_that_refuses_the_study_is_found_before_there_is_a_folder(
    tmp_path: Path, engine: str, policy: dict[str, object], reason: str
) -> None:
    with pytest.raises(SettingsError, match=reason):
        simulate(
            task="breast-cancer", rounds=1, nodes=4, engine=engine, out=tmp_path / "run", progress=False, policy=policy
        )
    assert not (tmp_path / "run").exists()
