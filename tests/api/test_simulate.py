"""`simulate` as a notebook calls it: an event loop is running, classes exist in this process alone, Ctrl-C happens."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

import secure_fl.simulation.run
from secure_fl import Run, Study, simulate, simulate_async, strategies
from secure_fl.blocks import Blocks, Layout
from secure_fl.checkpoints import load_arrays
from secure_fl.errors import SecureFLError, SettingsError, StorageError, UnknownNameError
from secure_fl.events import Event, Listening, RoundCommitted
from secure_fl.simulation.models import newest_checkpoint
from secure_fl.simulation.run import run as run_study
from secure_fl.simulation.workspace import Workspace
from secure_fl.strategies.base import Strategy, Sum
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.site import Site
from secure_fl.tasks import create
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.model_blocks import layout_of, read_blocks

QUICK: dict[str, Any] = {"task": "breast-cancer", "nodes": 3, "progress": False}


def in_a_loop(**arguments: Any) -> Run:
    """As in a notebook's cell: called, not awaited, while a loop runs in this thread."""

    async def cell() -> Run:
        return simulate(**arguments)

    return asyncio.run(cell())


def awaited(**arguments: Any) -> Run:
    """As in a cell that awaits it."""
    return asyncio.run(simulate_async(**arguments))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return in_a_loop(**QUICK, strategy="fedopt", rounds=2, out=tmp_path_factory.mktemp("runs") / "first")


# --- what a run is ----------------------------------------------------------------------------------------------


def test_a_run_has_everything_that_its_folder_has(run: Run) -> None:
    assert run.summary == json.loads((run.folder / "summary.json").read_text())
    assert run.summary["engine"] == "threads"
    assert run.sites == ("site-01", "site-02", "site-03")
    assert run.report() == run.folder / "report.html"
    assert run.report().read_text().lower().startswith("<!doctype html>")
    again = Run.open(run.folder)
    assert (again.summary, again.record, again.study.id) == (run.summary, run.record, run.study.id)
    with pytest.raises(SettingsError, match="is no folder of a run"):
        Run.open(run.folder / "nodes")
    with pytest.raises(StorageError, match="no finished run"):
        Run.open(_without(run.folder, "summary.json"))


def _without(folder: Path, name: str) -> Path:
    other = folder.with_name("unfinished")
    other.mkdir()
    (other / "study.toml").write_bytes((folder / "study.toml").read_bytes())
    assert not (other / name).exists()
    return other


def test_the_history_has_a_row_for_every_version_of_the_model(run: Run, tmp_path: Path) -> None:
    rows = run.history.to_dict("records")
    assert [row["round"] for row in rows] == [0, 1, 2]
    assert rows[2]["accuracy"] == pytest.approx(run.summary["mean_accuracy"])
    assert rows[2]["accuracy"] > 0.8 > rows[0]["accuracy"]
    assert rows[1]["bytes_up"] == run.record.rounds[0].bytes_up
    assert np.isnan(rows[0]["bytes_up"])
    sites = run.site_history
    assert len(sites) == 9
    last = sites[sites["round"] == 2].set_index("site")["accuracy"]
    assert last.to_dict() == {node["name"]: node["accuracy"] for node in run.summary["nodes"]}
    assert run.to_csv(tmp_path / "x.csv").read_bytes() == (run.folder / "history.csv").read_bytes()


def test_without_pandas_tables_are_lists(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert [row["round"] for row in run.history] == [0, 1, 2]
    assert run.history[0]["seconds"] is None
    # As pandas does it, so that the same cell of a notebook works.
    assert run.history[["round", "bytes_up"]][0] == {"round": 0, "bytes_up": None}
    assert [row["round"] for row in run.history[1:].head(1)] == [1]
    assert run.site_history.tail(2)[-1]["site"] == run.sites[-1]
    assert run.history.tail(0) == []
    assert run.ledger("site-01")[["kind", "round"]][0]["round"] is None  # of the entry that opens it
    shown = run.ledger("site-01")[["sequence", "kind"]].head(1)._repr_html_()
    assert "<th>sequence</th><th>kind</th>" in shown
    assert "<td>0</td><td>opened</td>" in shown
    with pytest.raises(KeyError, match="bytes_upp"):
        run.history[["bytes_upp"]]


def test_models_are_torch_modules_with_the_coordinators_values(run: Run) -> None:
    task = create("breast-cancer", {})
    assert list(run.models) == ["global", "site-01", "site-02", "site-03"]
    checkpoint = load_arrays(newest_checkpoint(Workspace(folder=run.folder, study=run.study, resumed=False, policy={})))
    for name in run.models:
        model = run.models[name]
        assert not model.training
        found = layout_of(task, model).tensors(read_blocks(task, model))
        # FedOpt keeps momentum beside its models; it is not what is exported.
        assert found.keys() == checkpoint.keys()
        assert all(np.array_equal(found[key], checkpoint[key]) for key in found)
    assert run.model.state_dict().keys() == task.model().state_dict().keys()
    with pytest.raises(KeyError):
        run.models["site-09"]


def test_a_sites_ledger_is_verified_as_it_is_read(run: Run) -> None:
    kinds = list(run.ledger("site-02")["kind"])
    assert kinds == ["opened", "approved", *["planned", "sent"] * 3]
    assert "certificate" not in run.ledger("site-02").columns
    with pytest.raises(UnknownNameError, match="did you mean"):
        run.ledger("site-2")


def test_a_run_shows_itself(run: Run) -> None:
    assert repr(run).startswith("Run('study', fedopt, 2 rounds, mean_accuracy 0.9")
    assert f"auc {run.summary['metrics']['auc']:.4f}" in repr(run)
    page = run._repr_html_()
    assert page.count("<tr>") == 4
    assert "report.html" in page
    columns = "round", "accuracy", "loss", "global_accuracy", "auc", "sensitivity_at_90", "seconds"
    assert "".join(f"<th>{name}</th>" for name in columns) in page  # and none that has no values
    assert f"<td>{run.summary['metrics']['auc']:.4f}</td>" in page
    assert "accuracy, loss, global_accuracy: mean over sites; auc, sensitivity_at_90: all test rows together" in page


def test_a_run_may_be_awaited_and_is_itself(run: Run) -> None:
    async def cell() -> Run:
        return await run

    assert asyncio.run(cell()) is run


def test_every_model_has_a_card(run: Run) -> None:
    card = json.loads((run.folder / "model.json").read_text())
    assert (card["study_id"], card["strategy"], card["model"], card["simulated"]) == (
        run.study.id, "fedopt", "global", True,
    )  # fmt: skip
    assert card["metrics"]["accuracy"] == run.summary["global_accuracy"]
    assert card["privacy"] is None
    assert card["metrics"]["auc"] == run.summary["metrics"]["auc"]
    own = json.loads((run.folder / "nodes" / "site-01" / "model.json").read_text())
    assert (own["model"], own["metrics"]["accuracy"]) == ("site-01", run.summary["nodes"][0]["accuracy"])


# --- what a run leaves as it was --------------------------------------------------------------------------------


def _state() -> dict[str, Any]:
    names = (None, "alembic", "grpc", "asyncio", "secure_fl", "node", "coordinator")
    return {
        "logging": [(log.level, log.handlers[:], log.propagate) for log in map(logging.getLogger, names)],
        "torch": (torch.get_num_threads(), torch.get_rng_state().tolist(), torch.get_default_dtype()),
        "numpy": str(np.random.get_state()),
        "random": random.getstate(),
        "process": (Path.cwd(), dict(os.environ), list(sys.path), list(warnings.filters)),
        "signal": signal.getsignal(signal.SIGINT),
        "threads": {thread.name for thread in threading.enumerate() if thread.name == "simulation"},
    }


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads", "run")  # after one run: what libraries do when they are imported is theirs
@pytest.mark.parametrize("privacy", ["none", "dp-sgd"])
@pytest.mark.parametrize("where", ["beside", "in this thread", "checked only"])
def test_the_process_is_left_as_it_was(
    tmp_path: Path, where: str, privacy: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "grpc")
    noise = {"privacy": privacy, "epsilon": 3.0, "delta": 1e-5} if privacy != "none" else {}
    study = Study.of(task="breast-cancer", nodes=3, rounds=1, **noise)
    study.check()  # Opacus, too, does things when it is imported.
    before = _state()
    if where == "beside":
        in_a_loop(study=study, progress=False, out=tmp_path / "out")
    elif where == "checked only":
        study.check()
    else:
        run_study(study, engine="threads", folder=tmp_path / "out", policy={}, listener=lambda _: None)
    after = _state()
    for what, value in before.items():
        assert after[what] == value, what


@pytest.mark.usefixtures("two_threads", "run")
def test_runs_at_once_have_their_own_logs_and_leave_the_process_as_it_was(tmp_path: Path) -> None:
    before = _state()

    async def notebook() -> list[Run]:
        lengths = {"short": 1, "long": 3}
        first = [simulate_async(**QUICK, rounds=rounds, out=tmp_path / name) for name, rounds in lengths.items()]
        return await asyncio.gather(*first)

    done = asyncio.run(notebook())
    after = _state()
    for what, value in before.items():
        assert after[what] == value, what
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2
    for run, other in (done, done[::-1]):
        lines = (run.folder / "run.log").read_text()
        assert f"study={run.study.id[:12]}" in lines
        assert f"study={other.study.id[:12]}" not in lines


def test_a_run_logs_to_its_file_alone_and_its_caller_as_ever(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mine = logging.getLogger("notebook")
    simulate(**QUICK, rounds=1, out=tmp_path / "out", listener=lambda event: mine.info("%s", type(event).__name__))
    assert {record.name for record in caplog.records} == {"notebook"}
    assert "RoundCommitted" in caplog.text
    log = (tmp_path / "out" / "run.log").read_text()
    assert "a new ledger begins" in log
    assert "notebook" not in log


# --- code that only this process has ----------------------------------------------------------------------------


class Rows(TaskSettings):
    classes: int = 2


def wine(rows: npt.NDArray[np.float32]) -> type[Task]:
    class Bottles(Task):
        kind = "classification"
        preprocessing = "none"
        Settings = Rows

        def model(self) -> nn.Module:
            return nn.Sequential(OrderedDict(features=nn.Linear(4, 8), act=nn.ReLU(), head=nn.Linear(8, 2)))

        def load(self, source: Source) -> LocalData:
            classes = (rows.sum(axis=1) > 0).astype(np.int64)
            train, test = divide(source, rows, classes, classification=True)
            return LocalData.cut(rows, classes, train, test)

    return Bottles


class Gentle(FedAvg):
    name = "gentle"

    def request(self, layout: Layout, head: tuple[str, ...]) -> Sum:
        return Sum(blocks=layout.names)

    def fit(self, site: Site) -> Blocks:
        site.load(self.inference(site))
        site.train()
        return {name: vector / np.float32(2) for name, vector in site.change(site.received).items()}


@pytest.fixture
def no_own_strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_HERE", {})


@pytest.mark.usefixtures("no_own_strategies")
def test_a_task_and_a_strategy_of_this_process(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    task = wine(rows)(Rows(classes=2))  # an object, with data that are in memory only
    done = in_a_loop(task=task, strategy=Gentle, rounds=1, nodes=3, progress=False, out=tmp_path / "out")
    assert done.summary["strategy"] == "gentle"
    assert done.study.task.settings == {"classes": 2}
    assert sum(node["samples"] for node in done.summary["nodes"]) < 120
    assert done.model(torch.tensor(rows)).shape == (120, 2)


@pytest.mark.usefixtures("no_own_strategies")
def test_a_task_object_without_settings_has_its_own_defaults(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(90, 4)).astype(np.float32)
    wines = wine(rows)
    study = Study.of(rounds=1, protection="none")
    done = simulate(study, task=wines(), nodes=3, progress=False, out=tmp_path / "out")
    assert done.study.task.settings == {"classes": 2}
    assert Gentle().explain() == Gentle(Gentle.Settings()).explain()
    assert strategies.resolve("aifed")().settings == strategies.settings("aifed")()

    class Named(wines):  # type: ignore[misc, valid-type]
        class Settings(TaskSettings):
            column: str

    with pytest.raises(SettingsError, match=r"task\.column: this key is required"):
        Named()


@pytest.mark.usefixtures("no_own_strategies")
def test_other_processes_cannot_have_them(tmp_path: Path) -> None:
    rows = np.zeros((9, 4), np.float32)
    for wanted in ({"task": wine(rows)}, {"task": wine(rows)(Rows())}, {"strategy": Gentle}):
        with pytest.raises(SettingsError, match="in this process alone") as refused:
            simulate(**wanted, engine="processes", out=tmp_path / "out")
        assert 'engine="threads"' in refused.value.hint
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_own_strategies")
def test_what_is_no_task_and_no_strategy_is_refused() -> None:
    class Half(Strategy):
        name = "half"

    class Nameless(FedAvg):
        pass

    class Impostor(Gentle):
        name = "fedavg"

    for given, message in (
        ({"task": 3}, "a Task class"),
        ({"task": dict}, "a Task class"),
        ({"task": Task}, "does not define load, model"),
        ({"strategy": Half}, "does not define explain, fit, request"),
        ({"strategy": Nameless}, "no name of its own"),
        ({"strategy": Impostor}, "is installed already"),
        ({"strategy": dict}, "not a subclass"),
        ({"strategy": Gentle(Gentle.Settings())}, "a Strategy class"),
        ({"engine": "thread"}, "did you mean 'threads'"),
        ({"track": "tensorbord:x"}, "did you mean 'tensorboard'"),
        ({"track": "x"}, "expected tensorboard:DIR"),
        ({"study": {"rouns": 3}}, "did you mean 'rounds'"),
        ({"settings": {"strategy.epoch": 3}}, "did you mean 'epochs'"),
    ):
        with pytest.raises(SettingsError, match=message):
            simulate(**given, progress=False)
    assert strategies.create("fedavg", {}).name == "fedavg"


# --- stopping ---------------------------------------------------------------------------------------------------


def test_ctrl_c_stops_a_run_and_the_same_call_goes_on(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, RoundCommitted):
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()  # while the caller waits

    wanted = {**QUICK, "rounds": 8, "out": tmp_path / "out"}
    with pytest.raises(KeyboardInterrupt):
        in_a_loop(**wanted, listener=interrupt)
    assert not any(thread.name == "simulation" for thread in threading.enumerate())
    assert not (tmp_path / "out" / "summary.json").exists()
    seen: list[int] = []
    done = in_a_loop(**wanted, listener=lambda event: seen.append(_committed(event)))
    assert done.summary["rounds"] == 8
    assert 1 not in seen  # it was committed before


def _committed(event: Event) -> int:
    return event.record.number if isinstance(event, RoundCommitted) else 0


def test_whoever_awaits_has_the_loop_meanwhile_and_may_cancel(tmp_path: Path) -> None:
    ticks: list[None] = []

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.01)
            ticks.append(None)

    async def notebook() -> Run:
        ticking = asyncio.create_task(tick())
        begun = asyncio.Event()

        def listen(event: Event) -> None:
            if isinstance(event, RoundCommitted):
                begun.set()

        first = asyncio.create_task(simulate_async(**QUICK, rounds=40, out=tmp_path / "cancelled", listener=listen))
        await begun.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not any(thread.name == "simulation" for thread in threading.enumerate())
        done = await simulate_async(**QUICK, rounds=1, out=tmp_path / "out")
        ticking.cancel()
        return done

    assert asyncio.run(notebook()).summary["rounds"] == 1
    assert len(ticks) > 10
    assert not (tmp_path / "cancelled" / "summary.json").exists()


def test_a_run_goes_on_with_the_code_that_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, RoundCommitted):
            raise ZeroDivisionError

    wanted = {**QUICK, "rounds": 3, "out": tmp_path / "out"}
    with pytest.raises(ZeroDivisionError):
        simulate(**wanted, listener=stop)
    with monkeypatch.context() as changed:
        changed.setattr(secure_fl.simulation.run, "own_code", lambda *_: "another")
        with pytest.raises(SettingsError, match="unfinished run of other code"):
            simulate(**wanted)
    assert simulate(**wanted).summary["rounds"] == 3


def test_two_runs_in_one_folder_are_kept_apart(tmp_path: Path) -> None:
    """Each would write what the other has to find."""

    def again(event: Event) -> None:
        if isinstance(event, RoundCommitted) and not refused:
            with pytest.raises(StorageError, match="another process works here"):
                simulate(**QUICK, rounds=3, out=tmp_path / "out")
            refused.append(event)

    refused: list[Event] = []
    done = simulate(**QUICK, rounds=3, out=tmp_path / "out", listener=again)
    assert refused
    assert list(done.ledger("site-01")["kind"]).count("planned") >= 3


@pytest.mark.parametrize("call", [in_a_loop, awaited])
def test_an_error_of_the_listener_stops_the_run(tmp_path: Path, call: Callable[..., Run]) -> None:
    def fail(event: Event) -> None:
        if not isinstance(event, Listening):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(**QUICK, rounds=40, out=tmp_path / "out", listener=fail)
    assert not any(thread.name == "simulation" for thread in threading.enumerate())
    assert not (tmp_path / "out" / "summary.json").exists()


# --- studies ----------------------------------------------------------------------------------------------------


def test_a_file_and_changes_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from secure_fl.api.simulate import _study

    path = tmp_path / "trial.toml"
    path.write_text('[study]\nname = "trial"\nrounds = 7\n[strategy]\nname = "fedprox"\nmu = 0.5\nepochs = 3\n')
    study = _study(str(path), {"strategy.epochs": 2}, {"rounds": 1, "nodes": None})
    assert (study.study.name, study.study.rounds, study.strategy.settings) == ("trial", 1, {"mu": 0.5, "epochs": 2})
    assert study.metrics.share == "per-node"  # one person plays every site
    assert _study({"metrics": "aggregate"}, {}, {}).metrics.share == "aggregate"
    assert _study(Study.of(metrics="none"), {}, {"rounds": 3}).metrics.share == "none"


@pytest.mark.parametrize("wrong", [".", "trial.toml", "nowhere"])
def test_what_is_no_folder_of_a_run_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trial.toml").touch()
    with pytest.raises(SettingsError, match="is no folder of a run") as refused:
        Run.open(wrong)
    assert "give the output folder of a run" in refused.value.hint


def test_a_model_that_a_run_has_not_is_named_with_those_it_has(run: Run) -> None:
    with pytest.raises(SettingsError, match=r"^unknown model 'site-99'; did you mean 'site-0") as refused:
        run.models["site-99"]
    assert refused.value.hint.startswith("known: global, site-01")
    assert str(refused.value) == refused.value.message
    assert ("site-99" in run.models, run.models.get("site-99")) == (False, None)  # as of any mapping


def test_runs_that_begin_in_the_same_second_get_a_folder_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "20260101-120000")

    async def notebook() -> list[Run]:
        return await asyncio.gather(*(simulate_async(**QUICK, rounds=1) for _ in range(2)))

    folders = [run.folder.name for run in asyncio.run(notebook())]
    assert folders == ["study-20260101-120000", "study-20260101-120000-2"]


def test_a_run_that_cannot_begin_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="engine"):
        simulate(**QUICK, rounds=1, engine="procs")
    assert list(tmp_path.iterdir()) == []


def test_what_to_do_stands_below_a_traceback(run: Run) -> None:
    """A notebook shows tracebacks and no `hint`."""
    with pytest.raises(SecureFLError) as failed:
        simulate(task="digits", rounds=1, nodes=3, out=run.folder, progress=False)
    assert f"→ {failed.value.hint}" in traceback.format_exception(failed.value)[-1]
    assert "choose another" in failed.value.hint
