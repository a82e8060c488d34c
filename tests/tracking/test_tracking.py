"""What trackers are told, and that the real tools read it back."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from secure_fl import tracking
from secure_fl.errors import SettingsError
from secure_fl.events import RoundCommitted
from secure_fl.tracking import Tracking
from secure_fl.tracking.scalars import scalars
from tests.results.test_history import rounds

SETTINGS = {"study": {"rounds": 2}, "strategy": {"name": "fedavg"}}


class Written:
    """A tool that remembers."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.finished: bool | None = None

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        self.values.setdefault(step, {}).update(values)

    def close(self, *, finished: bool) -> None:
        self.finished = finished


def tell(tracked: Tracking, *, per_node: bool = True) -> None:
    for record in rounds(per_node=per_node):
        tracked.listen(RoundCommitted(study_id="0", record=record))


@pytest.mark.parametrize("per_site", [True, False])
def test_values_of_single_sites_only_where_the_study_shares_them(
    monkeypatch: pytest.MonkeyPatch, per_site: bool
) -> None:
    written = Written()
    monkeypatch.setattr(tracking, "KINDS", {"memory": lambda *_: written})
    with Tracking(["memory:x"], name="run", settings=SETTINGS, per_site=per_site) as tracked:
        tell(tracked)  # The records have values of single sites either way.
    expected = {
        "accuracy/mean": 0.3, "round/seconds": 1.5, "round/sites": 2.0, "round/bytes_up": 200.0,
        "round/bytes_down": 400.0,
    }  # fmt: skip
    if per_site:
        expected |= {"accuracy/a": 0.3, "accuracy/b": 0.3}
    assert written.values[2] == expected
    names = {name for values in written.values.values() for name in values}
    assert ({"accuracy/a", "accuracy/b"} <= names) == per_site
    assert any(name.rpartition("/")[2] in {"a", "b"} for name in names) == per_site
    assert written.finished


def test_a_run_that_fails_did_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    written, made = Written(), []

    def make(where: str, *_: Any) -> Written:
        made.append(where)
        if where == "broken":
            raise SettingsError("no")
        return written

    monkeypatch.setattr(tracking, "KINDS", {"memory": make})
    with pytest.raises(ZeroDivisionError), Tracking(["memory:x"], name="run", settings={}, per_site=False):
        raise ZeroDivisionError
    assert written.finished is False
    written.finished = None
    with pytest.raises(SettingsError):
        Tracking(["memory:x", "memory:broken"], name="run", settings={}, per_site=False)
    assert written.finished is False
    assert made == ["x", "x", "broken"]


def test_a_round_without_measurements_costs_all_the_same() -> None:
    (first, *_) = rounds(per_node=False)
    assert scalars(first, per_site=True)[1].keys() == {
        "round/seconds",
        "round/bytes_up",
        "round/bytes_down",
        "round/sites",
    }


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [("tensorboard", "torch.utils.tensorboard", "tensorboard"), ("mlflow", "mlflow", "mlflow-skinny")],
)
def test_a_tool_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingsError, match="is not installed here") as refused:
        Tracking([f"{kind}:{tmp_path}"], name="run", settings={}, per_site=False)
    assert f"pip install {package}" in refused.value.hint


def test_tensorboard_reads_it_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking([f"tensorboard:{tmp_path}"], name="run-1", settings=SETTINGS, per_site=True) as tracked:
        tell(tracked)
    found = EventAccumulator(str(tmp_path / "run-1"))
    found.Reload()
    curve = {event.step: event.value for event in found.Scalars("accuracy/mean")}
    assert curve == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert "accuracy/a" in found.Tags()["scalars"]


def test_mlflow_reads_it_back(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow-skinny is not installed; pip install '.[tracking]'")
    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name in ("run-1", "run-2"):
        with Tracking([f"mlflow:{uri}"], name=name, settings=SETTINGS, per_site=False) as tracked:
            tell(tracked)
    client = mlflow.MlflowClient(tracking_uri=uri)
    (experiment,) = (one for one in client.search_experiments() if one.name == "secure-fl")
    second, first = client.search_runs([experiment.experiment_id])
    assert (first.info.run_name, second.info.run_name, first.info.status) == ("run-1", "run-2", "FINISHED")
    assert first.data.params["strategy.name"] == "fedavg"
    assert first.data.metrics["accuracy/mean"] == pytest.approx(0.3)
    assert not [name for name in first.data.metrics if name.endswith("/a")]
    assert mlflow.get_tracking_uri() == before
    assert mlflow.active_run() is None
