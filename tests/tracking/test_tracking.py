"""What trackers are told, and that the real tools read it back."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from typer.testing import CliRunner

from secure_fl import Run, Study, simulate, simulate_async, tracking
from secure_fl.cli import app
from secure_fl.errors import DataError, NetworkError, SettingsError, StorageError
from secure_fl.events import Event, RoundCommitted
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
        tracked.open()
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


SITES = ("site-01", "site-02", "site-03")


def of_sites(names: Iterable[str]) -> set[str]:
    """The curves of single sites."""
    return {name for name in names if any(site in name for site in SITES)}


@pytest.mark.parametrize("share", ["none", "aggregate", "per-node"])
def test_a_simulation_writes_what_its_study_shares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, share: str) -> None:
    written = Written()
    monkeypatch.setattr(tracking, "KINDS", {"memory": lambda *_: written})
    study = Study.of(task="breast-cancer", nodes=len(SITES), rounds=1, metrics=share)
    run = simulate(study, track="memory:x", out=tmp_path / "run", progress=False)
    assert run.sites == SITES
    assert written.finished
    names = {name for values in written.values.values() for name in values}
    measured = {name for name in names if not name.startswith("round/")}
    assert measured < names
    if share == "none":
        assert not measured
        return
    assert {"accuracy/mean", "loss/mean", "auc/all-rows"} <= measured
    every = {f"{name}/{site}" for name in ("accuracy", "loss") for site in SITES}
    assert of_sites(measured) >= every if share == "per-node" else not of_sites(measured)


def test_the_command_line_writes_curves(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    words = shlex.split("run --task breast-cancer --nodes 3 --rounds 1 --set metrics.share=aggregate --engine threads")
    curves = f"tensorboard:{tmp_path / 'curves'}"
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "first"), "--track", curves])
    assert done.exit_code == 0, done.output
    found = EventAccumulator(str(tmp_path / "curves" / "first"))
    found.Reload()
    names = found.Tags()["scalars"]
    assert [event.step for event in found.Scalars("accuracy/mean")] == [0, 1]
    assert [event.step for event in found.Scalars("round/bytes_up")] == [1]
    assert not of_sites(names)


def test_a_run_that_fails_did_not_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    written, made = Written(), []

    def make(where: str, *_: Any) -> Written:
        made.append(where)
        if where == "broken":
            raise SettingsError("no")
        return written

    monkeypatch.setattr(tracking, "KINDS", {"memory": make})
    tracked = Tracking(["memory:x"], name="run", settings={}, per_site=False)
    tracked.open()
    with pytest.raises(ZeroDivisionError), tracked:
        raise ZeroDivisionError
    assert written.finished is False
    written.finished = None
    targets = ["memory:x", "memory:broken"]
    with pytest.raises(SettingsError), Tracking(targets, name="run", settings={}, per_site=False) as tracked:
        tracked.open()
    assert written.finished is False
    assert made == ["x", "x", "broken"]


def test_a_folder_that_cannot_be_written_is_an_error_with_advice_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="TensorBoard's files cannot be written") as refused:
        simulate(
            task="breast-cancer", nodes=3, rounds=1, track=f"tensorboard:{tmp_path / 'file' / 'x'}",
            out=tmp_path / "run", progress=False,
        )  # fmt: skip
    assert "--track" in refused.value.hint
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("uri", ["{0}/file/x", "nothing://{0}"])
def test_an_mlflow_store_that_cannot_be_used_is_an_error_with_advice(tmp_path: Path, uri: str) -> None:
    (tmp_path / "file").touch()
    tracked = Tracking([f"mlflow:{uri.format(tmp_path)}"], name="run", settings={}, per_site=False)
    with pytest.raises(NetworkError, match="cannot be used") as refused:
        tracked.open()
    assert "--track" in refused.value.hint


def test_a_study_whose_data_are_missing_leaves_no_curves(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        simulate(
            task="agnews", nodes=3, rounds=1, settings={"simulation.path": str(tmp_path / "no.csv")},
            track=f"tensorboard:{tmp_path / 'curves'}", out=tmp_path / "run", progress=False,
        )  # fmt: skip
    assert not list(tmp_path.iterdir())


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
        Tracking([f"{kind}:{tmp_path}"], name="run", settings={}, per_site=False).open()
    assert f"pip install {package}" in refused.value.hint


def test_tensorboard_reads_it_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with Tracking([f"tensorboard:{tmp_path}"], name="run-1", settings=SETTINGS, per_site=True) as tracked:
        tracked.open()
        tell(tracked)
    found = EventAccumulator(str(tmp_path / "run-1"))
    found.Reload()
    curve = {event.step: event.value for event in found.Scalars("accuracy/mean")}
    assert curve == pytest.approx({0: 0.1, 1: 0.2, 2: 0.3})
    assert "accuracy/a" in found.Tags()["scalars"]


def test_mlflow_reads_it_back(tmp_path: Path) -> None:
    import mlflow

    before = mlflow.get_tracking_uri()
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for name in ("run-1", "run-2"):
        with Tracking([f"mlflow:{uri}"], name=name, settings=SETTINGS, per_site=False) as tracked:
            tracked.open()
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


# --- beside an event loop ---------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"task": "breast-cancer", "nodes": 3, "progress": False, "track": "memory:x"}


async def _awaited(**arguments: Any) -> Run:
    return await simulate_async(**QUICK, **arguments)


async def _called(**arguments: Any) -> Run:
    return simulate(**QUICK, **arguments)


def test_whoever_awaits_a_run_does_not_wait_for_its_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They write in order and in a thread, whatever is written of a round before the listener hears of it."""
    told: list[str] = []

    class Slow(Written):
        def write(self, values: Mapping[str, float], *, step: int) -> None:
            assert threading.current_thread() is not threading.main_thread()
            time.sleep(0.1)  # so long that the events of other rounds come meanwhile
            told.append(f"written {step}")
            super().write(values, step=step)

        def close(self, *, finished: bool) -> None:
            assert threading.current_thread() is not threading.main_thread()
            super().close(finished=finished)

    def listen(event: Event) -> None:
        assert threading.current_thread() is threading.main_thread()
        if isinstance(event, RoundCommitted):
            told.append(f"heard {event.record.number}")

    written = Slow()
    monkeypatch.setattr(tracking, "KINDS", {"memory": lambda *_: written})
    run = asyncio.run(_awaited(rounds=3, out=tmp_path / "out", listener=listen))
    expected = []
    for record in run.record.rounds:
        expected += [*(f"written {step}" for step in scalars(record, per_site=True)), f"heard {record.number}"]
    assert told == expected
    assert written.finished


@pytest.mark.parametrize("call", [_called, _awaited])
def test_a_tracker_that_fails_stops_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: Callable[..., Coroutine[None, None, Run]]
) -> None:
    class Failing(Written):
        def write(self, values: Mapping[str, float], *, step: int) -> None:
            super().write(values, step=step)
            if step == 1:
                raise NetworkError("the server is gone")

    written = Failing()
    monkeypatch.setattr(tracking, "KINDS", {"memory": lambda *_: written})
    with pytest.raises(NetworkError, match="is gone"):
        asyncio.run(call(rounds=40, out=tmp_path / "out"))
    assert written.finished is False
    assert max(written.values) == 1
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize(("before", "after"), [(None, "true"), ("false", "false")])
def test_mlflow_tells_its_makers_nothing_unless_somebody_here_wants_it(
    monkeypatch: pytest.MonkeyPatch, before: str | None, after: str
) -> None:
    monkeypatch.setattr("mlflow.MlflowClient", MagicMock())
    name = "MLFLOW_DISABLE_TELEMETRY"
    monkeypatch.setenv(name, "")  # So that it is put back.
    os.environ.pop(name)
    if before is not None:
        os.environ[name] = before
    Tracking(["mlflow:somewhere"], name="run", settings={}, per_site=False).open()
    assert os.environ[name] == after
