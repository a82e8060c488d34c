"""The two processes on their own: what they say, and how they leave, when their surroundings are wrong."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from node.config import NodeFile
from node.training.jobs import Job, layout_to_json
from node.training.trainer import Trainer
from secure_fl import tasks
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import LayoutMismatchError
from secure_fl.files import write_atomically
from secure_fl.privacy.ledger import read_ledger
from secure_fl.rounds import RoundKind
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from secure_fl.tasks.model_blocks import initial_blocks
from tests.faults.test_kill import wait_for
from tests.support.processes import ROOT, Processes, free_port


def workspace(folder: Path, port: int) -> Workspace:
    """Files of three sites and a coordinator."""
    made = prepare(folder / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(port)
    return made


def run(module: str, file: Path, prepare_child: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """A process to its end."""
    command = [sys.executable, "-P", "-m", module, str(file)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60, preexec_fn=prepare_child
    )


def complaint(text: str) -> list[str]:
    """What a process wrote besides its log."""
    assert "Traceback" not in text
    return [line for line in text.splitlines() if not line.startswith("2")]


def test_a_port_in_use(tmp_path: Path) -> None:
    made = workspace(tmp_path, 0)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = made.coordinator_file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{taken.getsockname()[1]}")
        made.coordinator_file.write_text(text)
        done = run("coordinator", made.coordinator_file)
    assert done.returncode == 4
    said = [line for line in complaint(done.stderr) if not line[:1].isupper()]
    assert "cannot listen" in said[0]
    assert "choose another port" in said[1]


def test_a_key_others_can_read(tmp_path: Path) -> None:
    made = workspace(tmp_path, 1)
    (tmp_path / "run" / "pki" / "node-site-01.key").chmod(0o644)
    done = run("node", made.node_file("site-01"))
    assert done.returncode == 5
    first, advice = complaint(done.stderr)
    assert "others can read this private key" in first
    assert "chmod 600" in advice


def test_a_certificate_of_another_site(tmp_path: Path) -> None:
    made = workspace(tmp_path, 1)
    text = made.node_file("site-01").read_text().replace("node-site-01.pem", "node-site-02.pem")
    made.node_file("site-01").write_text(text)
    done = run("node", made.node_file("site-01"))
    assert done.returncode == 5
    assert "'site-02', not to 'site-01'" in done.stderr


def test_an_unknown_key_in_a_node_file(tmp_path: Path) -> None:
    made = workspace(tmp_path, 1)
    text = made.node_file("site-01").read_text().replace("certificate", "certifikate")
    made.node_file("site-01").write_text(text)
    done = run("node", made.node_file("site-01"))
    assert done.returncode == 3
    assert "certificate" in done.stderr


def test_an_unreachable_coordinator_is_retried_and_said_so_in_one_line(tmp_path: Path) -> None:
    made = workspace(tmp_path, free_port())
    command = [sys.executable, "-P", "-m", "node", str(made.node_file("site-01"))]
    node = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    time.sleep(4)
    assert node.poll() is None
    node.send_signal(signal.SIGINT)
    _, text = node.communicate(timeout=15)
    assert node.returncode == 0
    begun, *lines = text.strip().splitlines()
    assert "a new ledger begins" in begun  # This site has never run before.
    assert len(lines) >= 2
    assert all("connection refused; next try in about" in line for line in lines)


def test_a_full_disk_at_the_coordinator(tmp_path: Path) -> None:
    made = workspace(tmp_path, 0)

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = run("coordinator", made.coordinator_file, no_room)
    assert done.returncode == 6
    assert "free space" in done.stderr.splitlines()[-1]


def test_a_full_disk_at_a_node_makes_it_sit_out(tmp_path: Path) -> None:
    with Processes(tmp_path / "run", {"task": {"name": "tests.support.task:Line", "width": 20_000}}) as fed:
        fed.start_coordinator()
        for name in fed.names:
            child = fed.start_node(name)
            if name == fed.names[0]:
                resource.prlimit(child.pid, resource.RLIMIT_FSIZE, (50_000, 50_000))
        record = fed.finish()
        assert record.outcome == "finished"
        node = next(node for node in record.rounds[0].nodes if node.name == fed.names[0])
        assert (node.outcome, node.reason) == ("sat out", "NotReady")
        assert "cannot be stored" in fed.log(fed.names[0])
        assert "Traceback" not in fed.log(fed.names[0])


def test_a_model_of_another_shape_is_named(tmp_path: Path) -> None:
    study = Study.parse({"task": {"name": "digits"}})
    write_atomically(tmp_path / "study.json", study.canonical())
    layout, _ = initial_blocks(tasks.create("digits", {}), 0)
    first, *others = layout.shapes
    shape = first.tensors[0]
    wider = TensorShape(name=shape.name, shape=(shape.shape[0] + 1, *shape.shape[1:]))
    wrong = Layout((BlockShape(name=first.name, tensors=(wider, *first.tensors[1:])), *others))
    share = {"index": 0, "of": 3, "seed": 0}
    job = Job(
        kind=RoundKind.TRAIN, study=str(tmp_path / "study.json"), round=1, attempt=1, seed=1, me="site-01", folder="",
        dataset={"share": share}, device="cpu", threads=1, layout=layout_to_json(wrong), received="", personal="",
        combination="", state="", features_to="", update_to="", personal_to="", state_to="", model_to="",
    )  # fmt: skip
    with pytest.raises(LayoutMismatchError, match=rf"block '{first.name}' of the coordinator's model has shapes"):
        Trainer().execute(job)


def test_a_node_leaves_cleanly_in_the_middle_of_training_and_heartbeats_go_on_meanwhile(tmp_path: Path) -> None:
    marker = tmp_path / "marks" / "m"
    marker.parent.mkdir()
    settings = {
        "study": {"rounds": 1},
        "task": {"name": "tests.support.task:Line", "pause": 5.0, "marker": str(marker)},
    }
    with Processes(tmp_path / "run", settings, training="real", grace=2.0) as fed:
        fed.start_all()
        leaver = fed.children[fed.names[0]]
        wait_for(marker.parent / "training-01")
        leaver.send_signal(signal.SIGINT)
        assert leaver.wait(10) == 0
        assert "Traceback" not in fed.log(fed.names[0])
        entries = list(read_ledger(fed.workspace.node_folder(fed.names[0]) / "ledger.jsonl"))
        assert [entry.kind for entry in entries] == ["opened", "approved", "planned"]
        record = fed.finish()
        assert record.outcome == "finished"
        assert all(round_.cohort == fed.names[1:] for round_ in record.rounds)
        for name in fed.names[1:]:
            # Training lasted longer than three heartbeats, and yet the session was never lost.
            assert fed.log(name).count("connected to the coordinator") == 1
            assert ": round 1 is answered, trained for " in fed.log(name)
            assert ": the closing evaluation is answered, " in fed.log(name)
        assert re.findall(r": (round 1|the closing evaluation|the study) is (\w+)", fed.log("coordinator")) == [
            ("round 1", "done"), ("the closing evaluation", "done"), ("the study", "finished"),
        ]  # fmt: skip


def test_a_node_answers_where_its_file_says_and_nowhere_by_default(tmp_path: Path) -> None:
    port = free_port()
    with Processes(tmp_path / "run", {"study": {"rounds": 1}}) as fed:
        fed.edit_node(fed.names[0], "monitoring", address=f"127.0.0.1:{port}")
        fed.edit_node(fed.names[0], "log", format="json")
        fed.start_coordinator()
        fed.start_node(fed.names[0])  # alone it waits, connected: there are too few for a round
        deadline = time.monotonic() + 60
        while scraped(port, "health") != "ok\n":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "secure_fl_connected 1.0" in scraped(port, "metrics")
        fed.kill("coordinator")
        while scraped(port, "health") != "not connected\n":
            assert time.monotonic() < deadline
            time.sleep(0.1)
        lines = [json.loads(line) for line in fed.log(fed.names[0]).splitlines()]
        assert any(line["logger"] == "node.session" and "connected" in line["message"] for line in lines)
        others = NodeFile.read(fed.workspace.node_file(fed.names[1]))
        assert others.monitoring.address == ""


def scraped(port: int, page: str) -> str:
    """What an endpoint says, whatever its status; nothing while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5) as reply:
            return str(reply.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except OSError:
        return ""
