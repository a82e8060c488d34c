"""docs/operations.md is carried out as written: five machines and a sixth as folders, real processes, mutual TLS."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load
from sklearn.datasets import load_breast_cancer

from secure_fl.privacy.ledger import read_ledger
from secure_fl.settings import read_toml
from tests.support.page import Machines, fences
from tests.support.processes import ROOT, free_port

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")

# Lines of the page that begin so are left out: what they need is not there yet.
NOT_YET = (
    "secure-fl doctor",
    "secure-fl study report",
    "curl ",
    "[monitoring]",
    'address = "127.0.0.1:9464"',
    'address = ""',
)


def addresses() -> dict[str, str]:
    """All that is replaced on the page, in this order."""
    port = free_port()
    return {
        "fl.example.org:8443": f"127.0.0.1:{port}",
        "0.0.0.0:8443": f"127.0.0.1:{port}",
        "fl.example.org": "127.0.0.1",
        "127.0.0.1:9464": f"127.0.0.1:{free_port()}",
    }


def give_data(folder: Path) -> None:
    """Every hospital has its own rows."""
    rows = load_breast_cancer()
    for index, site in enumerate(SITES):
        (folder / site).mkdir()
        part = slice(index, None, len(SITES))
        np.savez(folder / site / "data.npz", x=rows.data[part], y=rows.target[part])


def status(machines: Machines, study: str) -> dict[str, Any]:
    """What the study lead sees."""
    return dict(json.loads(machines.until(["lead"], f"secure-fl study status {study} --json"))[0])


@pytest.mark.timeout(400)
def test_the_page_is_carried_out_as_written(tmp_path: Path) -> None:
    give_data(tmp_path)
    todo = list(fences(PAGE))

    with Machines(tmp_path, addresses=addresses(), without=NOT_YET) as machines:

        def carry_out_up_to(line: str) -> str:
            """Every fence before the one with this line; returns what the last one wrote."""
            said = ""
            while line not in todo[0].text:
                said = machines.carry_out(todo.pop(0))
            return said

        # Submitted and not approved: the lead learns that sites refuse, and nothing has left any of them.
        said = carry_out_up_to("secure-fl study show heart.toml")
        assert "0 of 5 rounds" in said
        for site in SITES[:3]:
            assert [entry.kind for entry in read_ledger(tmp_path / site / "state" / "ledger.jsonl")] == ["opened"]

        # A site enrolled and one revoked while a study runs: the others' rounds go on.
        carry_out_up_to("secure-fl pki revoke")
        assert status(machines, "heart-4")["state"] == "running"
        carry_out_up_to("secure-fl study stop heart-4")
        done = status(machines, "heart-4")["rounds_done"]
        wait(lambda: status(machines, "heart-4")["rounds_done"] > done)
        record = status(machines, "heart-4")["record"]
        last = {node["name"]: node["outcome"] for node in record["rounds"][-1]["nodes"]}
        assert last.pop("hospital-b") == "absent"
        assert set(last) == {"hospital-a", "hospital-c", "hospital-d"}
        assert "absent" not in last.values()

        while todo:
            said = machines.carry_out(todo.pop(0))

        check_finished(machines, said)
        check_refused(machines)
        assert set(machines.stop().values()) == {0}


def check_finished(machines: Machines, said: str) -> None:
    """The studies ended as the page says, and their record, model and ledgers agree."""
    folder = machines.folder
    heart = status(machines, "heart")
    assert [number["number"] for number in heart["record"]["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert heart["record"]["rounds"][-1]["mean_accuracy"] > 0.8
    assert load((folder / "lead" / "heart.safetensors").read_bytes())
    card = (folder / "lead" / "heart.md").read_text()
    assert heart["study_id"] in card
    assert "model version: 5" in card
    assert (status(machines, "heart-4")["state"], status(machines, "heart-4")["reason"]) == ("aborted", "StudyStopped")
    assert status(machines, "second")["state"] == "finished"
    # The page's last command is the auditor's.
    known = {study["id"]: study for study in json.loads(said.splitlines()[-1])["studies"]}
    mine = known[heart["study_id"]]
    assert (mine["releases"], mine["epsilon"], mine["approved"]) == (6, None, True)
    assert len(known) == 3


def check_refused(machines: Machines) -> None:
    """A node's certificate is no operator's, and the certificate that was put aside is gone from the roster."""
    site = machines.folder / "hospital-a"
    node = read_toml(site / "node.toml")["node"]
    wanted = {key: node[key] for key in ("coordinator", "fingerprint", "certificate")}
    (site / "as_node.toml").write_text(tomli_w.dumps({"operator": wanted}))
    said = machines.until(["hospital-a"], "! secure-fl study status --as as_node.toml")
    assert "the coordinator answered: Certificate" in said
    roster = machines.until(["authority"], "secure-fl pki roster pki")
    renewed = machines.until(["hospital-c"], "secure-fl pki fingerprint node-hospital-c.pem").strip()
    assert f'hospital-c = "{renewed}"' in roster
    assert "hospital-b" not in roster


def wait(condition: Callable[[], bool], *, seconds: float = 90) -> None:
    """Until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.5)
