"""State is its owner's alone from the first command on, also where the umask would let everybody read it."""

from __future__ import annotations

import logging
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

from node import desk
from node import doctor as node_doctor
from node.store import NodeStore
from secure_fl.files import only_process, private_folder
from secure_fl.identity.authority import Authority
from tests.faults.test_kill import wait_for
from tests.support.processes import ROOT, Processes, free_port


@pytest.fixture(autouse=True)
def everybody_reads() -> Iterator[None]:
    """The umask of most systems."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def parties(tmp_path: Path) -> Path:
    """A folder with a node's and a coordinator's files, and no state yet."""
    authority = Authority.create(tmp_path, consortium="test")
    authority.issue("coordinator", "hub", hosts=("127.0.0.1",)).save(tmp_path)
    authority.issue("node", "north").save(tmp_path)
    coordinator = {"address": "127.0.0.1:0", "certificate": "coordinator-hub.pem"}
    node = {
        "name": "north",
        "coordinator": f"127.0.0.1:{free_port()}",
        "fingerprint": "0" * 64,
        "certificate": "node-north.pem",
    }
    for name, section in (("coordinator", coordinator), ("node", node)):
        table = {name: section, "state": {"folder": f"state-{name}"}, "monitoring": {"address": ""}}
        (tmp_path / f"{name}.toml").write_bytes(tomli_w.dumps(table).encode())
    return tmp_path


def open_paths(folder: Path) -> list[str]:
    """Whatever in a folder, itself included, somebody else could read."""
    found = (folder, *folder.rglob("*"))
    return [str(path) for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077]


def test_the_umask_is_what_this_is_about(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "file").touch()
    assert len(open_paths(tmp_path / "plain")) == 2


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("node.desk", ["approve", "node.toml", "ab" * 32]),
        ("node.desk", ["status", "node.toml"]),
        ("node.doctor", ["node.toml"]),
        ("coordinator.doctor", ["coordinator.toml"]),
    ],
)
def test_a_command_that_comes_first(parties: Path, module: str, arguments: list[str]) -> None:
    command = [sys.executable, "-P", "-m", module, *arguments]
    done = subprocess.run(command, cwd=parties, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr
    state = parties / f"state-{module.split('.', maxsplit=1)[0]}"
    if "status" in arguments:
        assert not state.exists()  # Looking makes nothing.
        return
    assert state.is_dir()
    assert open_paths(state) == []


@pytest.mark.parametrize(("module", "last"), [("node", ".lock"), ("coordinator", "coordinator.sqlite-wal")])
def test_serving_that_comes_first(parties: Path, module: str, last: str) -> None:
    command = [sys.executable, "-P", "-m", module, f"{module}.toml"]
    with (parties / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=parties, stderr=log, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        wait_for(parties / f"state-{module}" / last)
        assert open_paths(parties / f"state-{module}") == []
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    assert open_paths(parties / f"state-{module}") == []


def test_a_whole_study_leaves_nothing_that_others_can_read(tmp_path: Path) -> None:
    settings = {"study": {"rounds": 1}, "strategy": {"name": "fedper"}}
    with Processes(tmp_path / "run", settings, nodes=3, training="real") as fed:
        fed.start_all()
        seen: set[str] = set()
        folders = [fed.workspace.node_folder(name) / "studies" for name in fed.names]
        while fed.children["coordinator"].poll() is None:  # While it runs there are files that are gone afterwards.
            for path in (path for folder in folders for path in folder.rglob("*")):
                try:
                    if stat.S_IMODE(path.lstat().st_mode) & 0o077:
                        seen.add(str(path))
                except FileNotFoundError:
                    continue
            time.sleep(0.01)
        assert fed.finish().outcome == "finished"
    assert seen == set()
    for folder in (*folders, fed.workspace.coordinator_state):
        assert open_paths(folder) == []
        assert len(list(folder.rglob("*"))) > 3
    for name in fed.names:
        ledger = fed.workspace.node_folder(name) / "ledger.jsonl"
        assert stat.S_IMODE(ledger.stat().st_mode) == 0o600
        assert stat.S_IMODE(ledger.parent.stat().st_mode) == 0o700


def test_a_simulation_is_no_exception(tmp_path: Path) -> None:
    # Its trainers are forked from another process than their node and do not inherit what that has set.
    command = [str(Path(sys.executable).parent / "secure-fl"), "run", "--task", "breast-cancer", "--strategy", "fedper"]
    command += ["--nodes", "3", "--rounds", "1", "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    states = [*(tmp_path / "run" / "nodes").glob("*/studies"), tmp_path / "run" / "coordinator" / "state"]
    assert len(states) == 4
    assert [path for state in states for path in open_paths(state)] == []
    assert any("personal-" in path.name for state in states for path in state.rglob("*"))  # the trainers' own


def test_a_folder_that_is_there_stays_as_it_is_and_is_reported(
    parties: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    state = parties / "state-node"
    state.mkdir()
    with caplog.at_level(logging.WARNING), only_process(state):
        pass
    assert f"others on this machine can look into it; chmod 700 {state}" in caplog.text
    node_doctor.main([str(parties / "node.toml")])
    told = capsys.readouterr().out
    assert f"warning  state folder: {state}: others on this machine can look into it" in told
    assert f"chmod 700 {state}" in told
    assert stat.S_IMODE(state.stat().st_mode) == 0o755
    # What is secret in it is not readable all the same.
    NodeStore(state).secret()
    assert desk.main(["approve", str(parties / "node.toml"), "ab" * 32]) == 0
    assert stat.S_IMODE((state / "secret.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((state / "approvals.json").stat().st_mode) == 0o600
    # And one that is in order is not complained about.
    state.chmod(0o700)
    caplog.clear()
    with only_process(state):
        pass
    assert caplog.text == ""


def test_a_private_folder_is_private_whatever_the_umask(tmp_path: Path) -> None:
    for number, umask in enumerate((0o000, 0o022, 0o077)):
        os.umask(umask)
        private_folder(tmp_path / f"{number}")
        assert stat.S_IMODE((tmp_path / f"{number}").stat().st_mode) == 0o700


@pytest.mark.parametrize("module", ["node", "coordinator"])
def test_a_state_folder_that_cannot_be_made_is_a_finding_and_no_traceback(parties: Path, module: str) -> None:
    (parties / f"state-{module}").write_text("a file")
    text = (parties / f"{module}.toml").read_text().replace(f"state-{module}", f"state-{module}/below")
    (parties / f"{module}.toml").write_text(text)
    for name in (f"{module}.doctor", module):
        command = [sys.executable, "-P", "-m", name, f"{module}.toml"]
        done = subprocess.run(command, cwd=parties, capture_output=True, text=True, check=False, timeout=60)
        assert "Traceback" not in done.stderr + done.stdout
        assert done.returncode == (1 if name == f"{module}.doctor" else 6)
        said = done.stdout if name == f"{module}.doctor" else done.stderr
        assert "cannot be created (Not a directory)" in said
        assert "correct [state] folder" in said
