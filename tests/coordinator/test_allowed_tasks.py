"""A study makes the coordinator import installed tasks and those its file lists, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import tomli_w

import coordinator.service
from coordinator import doctor
from coordinator.service import Coordinator
from coordinator.store import Store
from secure_fl.errors import SettingsError, TaskNotAllowedError, TaskUnavailableError, UnknownNameError
from secure_fl.identity.authority import Authority
from secure_fl.operations.answers import about_submitting
from secure_fl.operations.operator import connect
from secure_fl.settings import read_toml
from secure_fl.study.settings import Study
from secure_fl.transport.errors import remote_error
from tests.support.edge import Edge, at_the_edge
from tests.support.processes import ROOT, Processes

# What an import does: it leaves a mark where the process that imports it says. Otherwise a good task.
MODULE = """
import os
from pathlib import Path
Path(os.environ["SECURE_FL_TEST_IMPORTED"]).touch()
from tests.support.task import Line
"""
NAME = "imported_by_a_study:Line"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exists once the module was imported."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "imported_by_a_study.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setenv("SECURE_FL_TEST_IMPORTED", str(tmp_path / "mark"))
    monkeypatch.delitem(sys.modules, "imported_by_a_study", raising=False)
    return tmp_path / "mark"


@cache
def study(name: str = NAME) -> Study:
    # The same model under a name whose import leaves no mark: a study says which model it starts from.
    plain = _parsed(name if ":" not in name and name != "digit" else "tests.support.task:Line").completed()
    parsed = _parsed(name)
    return parsed.model_copy(update={"study": plain.study, "protection": plain.protection})


def _parsed(name: str) -> Study:
    return Study.parse({"study": {"rounds": 1}, "task": {"name": name}, "protection": {"kind": "none"}})


def test_a_study_does_not_choose_what_the_coordinator_imports(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Coordinator(tmp_path / "state", tasks=["imported_by_a_study:Other"])  # word for word, not by its module
    with pytest.raises(TaskNotAllowedError, match=r"is not allowed by \[coordinator\] tasks"):
        made.prepare(study())
    assert not mark.exists()
    assert not made.runners
    assert made._store.studies() == ()
    # It is this check and no other: without it the module runs.
    monkeypatch.setattr(coordinator.service, "require_allowed", lambda *_: None)
    made.prepare(study())
    assert mark.exists()


def test_what_the_file_lists_is_imported(tmp_path: Path, mark: Path) -> None:
    made = Coordinator(tmp_path / "state", tasks=[NAME])
    assert made.prepare(study()).outcome == "running"
    assert mark.exists()


def test_an_unknown_id_is_named_and_an_installed_one_needs_no_list(tmp_path: Path) -> None:
    made = Coordinator(tmp_path / "state")
    with pytest.raises(UnknownNameError, match="did you mean 'digits'"):
        made.prepare(study("digit"))
    assert made.prepare(study("breast-cancer")).outcome == "running"


def test_a_coordinator_started_again_does_not_take_up_what_its_file_no_longer_lists(
    tmp_path: Path, mark: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, other = study(), study("breast-cancer")

    async def start() -> Coordinator:
        made = Coordinator(tmp_path / "state")
        made.resume()
        work = asyncio.create_task(made.run())
        async with asyncio.timeout(30):
            while not made.runners[other.id].is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # Studies are loaded one beside the other: what is taken up would be loaded by now, too.
            while any(not runner.is_open for runner in made.runners.values()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        work.cancel()
        await made.close()
        return made

    store = Store.in_folder(tmp_path / "state")
    for each in (wanted, other):
        store.add_study(each.id, each.canonical(), now=1.0)
    store.close()
    with caplog.at_level(logging.ERROR):
        assert list(asyncio.run(start()).runners) == [other.id]
    assert f"study {wanted.id[:12]} is not taken up: task {NAME!r} is not allowed by [coordinator] tasks" in caplog.text
    assert "list it, word for word" in caplog.text
    assert not mark.exists()
    # Without the check the same start imports it.
    monkeypatch.setattr(coordinator.service, "require_allowed", lambda *_: None)
    assert wanted.id in asyncio.run(start()).runners
    assert mark.exists()


def test_a_study_that_has_ended_stays_known_and_is_not_imported_even_to_be_stopped(tmp_path: Path, mark: Path) -> None:
    store = Store.in_folder(tmp_path / "state")
    store.add_study(study().id, study().canonical(), now=1.0)
    store.end_study(study().id, state="finished")
    store.close()

    async def run() -> None:
        made = Coordinator(tmp_path / "state")
        made.resume()
        runner = made.runners[study().id]
        await made.stop(runner)
        assert runner.outcome == "finished"
        await made.close()

    asyncio.run(run())
    assert not mark.exists()


def test_the_doctor_does_not_import_it_either(tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority.create(tmp_path, consortium="test")
    authority.issue("coordinator", "hub", hosts=("127.0.0.1",)).save(tmp_path)
    file = tmp_path / "coordinator.toml"
    file.write_bytes(tomli_w.dumps({"coordinator": {"certificate": "coordinator-hub.pem"}}).encode())
    (tmp_path / "study.toml").write_bytes(tomli_w.dumps({"task": {"name": NAME}}).encode())
    assert doctor.main([str(file), "--study", str(tmp_path / "study.toml")]) == 1
    assert "is not allowed by [coordinator] tasks" in capsys.readouterr().out
    assert not mark.exists()


# --- what the operator is told ----------------------------------------------------------------------------------


def test_the_operator_is_told_what_is_missing_where(tmp_path: Path, mark: Path) -> None:
    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator()) as lead:
            with pytest.raises(TaskNotAllowedError) as refused:
                await lead.submit(study())
        assert refused.value.message == f"the coordinator does not allow the task {NAME!r}"
        assert "[coordinator] tasks in the coordinator's file" in refused.value.hint

    at_the_edge(tmp_path, scenario)
    assert not mark.exists()


@pytest.mark.parametrize(
    "code", ["Settings", "TaskNotAllowed", "TaskUnavailable", "UnknownName", "ModelTooLarge", "LayoutMismatch", "Data"]
)
def test_every_reason_that_a_study_is_not_taken_for_has_words_and_advice(code: str) -> None:
    answered = remote_error(code)
    assert isinstance(answered, SettingsError)
    told = about_submitting(answered, study())
    assert type(told) is type(answered)
    assert "the coordinator answered" not in told.message
    assert "the coordinator" in told.message
    assert told.hint


def test_code_that_is_missing_at_the_coordinator_is_called_so(tmp_path: Path) -> None:
    made = Coordinator(tmp_path / "state", tasks=["nowhere_at_all:Line"])
    with pytest.raises(TaskUnavailableError, match="cannot be imported at this site"):
        made.prepare(study("nowhere_at_all:Line"))
    told = about_submitting(TaskUnavailableError("x"), study("nowhere_at_all:Line"))
    assert told.message == "the coordinator cannot load the task 'nowhere_at_all:Line'"
    assert "installed at the coordinator" in told.hint


def test_between_processes(tmp_path: Path, mark: Path) -> None:
    # The module lies on the coordinator's path and on the lead's; each process would leave a mark of its own.
    with Processes(tmp_path / "run", {"task": {"name": "breast-cancer"}, "protection": {"kind": "none"}}) as fed:
        path = f"{tmp_path / 'path'}{os.pathsep}{ROOT}"
        hub = tmp_path / "mark-of-the-coordinator"
        fed.start_coordinator(PYTHONPATH=path, SECURE_FL_TEST_IMPORTED=str(hub))
        fed.wait_event("listening")
        folder = fed.workspace.folder
        Authority.open(folder / "pki").issue("operator", "lead").save(folder)
        section = read_toml(fed.workspace.node_file(fed.names[0]))["node"]
        lead = {key: section[key] for key in ("coordinator", "fingerprint")}
        lead |= {"certificate": "operator-lead.pem", "ca": "ca.pem", "crl": "pki/crl.pem"}
        (folder / "operator.toml").write_bytes(tomli_w.dumps({"operator": lead}).encode())
        (folder / "own.toml").write_bytes(tomli_w.dumps({"task": {"name": NAME}}).encode())
        done = subprocess.run(
            [str(Path(sys.executable).parent / "secure-fl"), "study", "submit", "own.toml"],
            cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        assert done.returncode == 3, done.stderr
        assert f"the coordinator does not allow the task {NAME!r}" in done.stderr
        assert "[coordinator] tasks" in done.stderr
        assert mark.exists()  # The lead may run what the lead likes, at home.
        assert not hub.exists()
