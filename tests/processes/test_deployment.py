"""Four sites from four folders, by the documented commands: request, issue, serve, submit, approve, export."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load
from sklearn.datasets import load_breast_cancer

from tests.support.processes import ROOT, free_port

LIMITS = {"heartbeat": 1.0, "grace": 3.0}
SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")


def secure_fl(*arguments: str, cwd: Path, code: int = 0) -> str:
    """One command to its end."""
    script = str(Path(sys.executable).parent / "secure-fl")
    done = subprocess.run([script, *arguments], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stdout if code == 0 else done.stderr


class Deployment:
    """A consortium, a coordinator and its sites, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.children: list[subprocess.Popen[bytes]] = []
        self.fingerprints: dict[str, str] = {}
        secure_fl("pki", "init", "pki", "--consortium", "Heart", cwd=folder)
        for role, name in (("coordinator", "hub"), ("operator", "lead"), *(("node", site) for site in SITES)):
            self._enrol(role, name)
        self._write("hub", "coordinator", {"address": f"127.0.0.1:{self.port}"}, "coordinator-hub", limits=LIMITS)
        self._write("lead", "operator", self._dial(), "operator-lead")
        rows = load_breast_cancer()
        for index, site in enumerate(SITES):
            part = slice(index, None, len(SITES))
            np.savez(folder / site / "data.npz", x=rows.data[part], y=rows.target[part])
            self._write(
                site,
                "node",
                {"name": site, **self._dial()},
                f"node-{site}",
                datasets={"breast-cancer": {"path": "data.npz"}},
                policy={"protections": ["none"]},
            )

    def _enrol(self, role: str, name: str) -> None:
        host = ["--host", "127.0.0.1"] if role == "coordinator" else []
        secure_fl("pki", "request", role, name, "--out", name, *host, cwd=self.folder)
        request = f"{name}/{role}-{name}.csr.pem"
        secure_fl("pki", "issue", "pki", role, name, "--request", request, "--out", name, cwd=self.folder)
        for shared in ("ca.pem", "crl.pem"):
            (self.folder / name / shared).write_bytes((self.folder / "pki" / shared).read_bytes())
        listing = json.loads(secure_fl("pki", "list", "pki", "--json", cwd=self.folder))
        rows = listing if isinstance(listing, list) else listing["certificates"]
        self.fingerprints[name] = next(row["fingerprint"] for row in rows if row["name"] == name)

    def _dial(self) -> dict[str, str]:
        return {"coordinator": f"127.0.0.1:{self.port}", "fingerprint": self.fingerprints["hub"]}

    def _write(self, name: str, section: str, values: dict[str, Any], stem: str, **others: Any) -> None:
        table = {section: {**values, "certificate": f"{stem}.pem"}, **others}
        (self.folder / name / f"{section}.toml").write_bytes(tomli_w.dumps(table).encode())

    def serve(self, role: str, name: str) -> None:
        """Start a process by the documented command."""
        script = str(Path(sys.executable).parent / "secure-fl")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (self.folder / name / "log").open("ab") as log:
            child = subprocess.Popen(
                [script, role, "serve", f"{role}.toml"], cwd=self.folder / name, stderr=log, stdout=log, env=environment
            )
        self.children.append(child)

    def study(self, name: str, rounds: int) -> Path:
        """A study among the sites."""
        table = {
            "study": {"name": name, "rounds": rounds, "roster": {site: self.fingerprints[site] for site in SITES}},
            "task": {"name": "breast-cancer"},
            "strategy": {"name": "fedavg"},
            "protection": {"kind": "none"},
        }
        path = self.folder / "lead" / f"{name}.toml"
        path.write_bytes(tomli_w.dumps(table).encode())
        return path

    def status(self, study_id: str) -> dict[str, Any]:
        """What the study lead sees."""
        return dict(json.loads(secure_fl("study", "status", study_id, "--json", cwd=self.folder / "lead"))[0])

    def revoke_while_running(self, study_id: str) -> None:
        """Enrol another site and revoke one: the others' certificates stay valid and their study goes on."""
        secure_fl("pki", "issue", "pki", "node", "hospital-e", "--out", "hospital-e", cwd=self.folder)
        secure_fl("pki", "revoke", "pki", SITES[-1], cwd=self.folder)
        shared = (self.folder / "pki" / "crl.pem").read_bytes()
        (self.folder / "hub" / "crl.new").write_bytes(shared)
        (self.folder / "hub" / "crl.new").replace(self.folder / "hub" / "crl.pem")
        wait(lambda: not self.status(study_id)["sites"][-1]["connected"])
        done = self.status(study_id)["rounds_done"]
        wait(lambda: self.status(study_id)["rounds_done"] > done + 2)
        record = self.status(study_id)["record"]
        assert record["rounds"][-1]["nodes"][-1]["outcome"] == "absent"

    def close(self) -> None:
        """Stop everything."""
        for child in self.children:
            child.terminate()
        for child in self.children:
            assert child.wait(20) == 0


@pytest.mark.timeout(300)
def test_a_study_is_submitted_approved_finished_and_exported_by_the_documented_commands(tmp_path: Path) -> None:
    made = Deployment(tmp_path)
    try:
        made.serve("coordinator", "hub")
        for site in SITES:
            made.serve("node", site)
        lead = made.folder / "lead"
        wait(lambda: "listening" in (tmp_path / "hub" / "log").read_text())
        study_id = json.loads(secure_fl("study", "submit", str(made.study("first", 3)), "--json", cwd=lead))["study_id"]
        other_id = json.loads(secure_fl("study", "submit", str(made.study("other", 500)), "--json", cwd=lead))[
            "study_id"
        ]
        # Nobody has approved anything: every site refuses, and the lead learns that and no more.
        wait(lambda: all(site["refusal"] == "Refused" for site in made.status(study_id)["sites"]))
        assert made.status(study_id)["rounds_done"] == 0
        for site in SITES:
            secure_fl("node", "approve", "node.toml", study_id, cwd=tmp_path / site)
            secure_fl("node", "approve", "node.toml", other_id, cwd=tmp_path / site)
        wait(lambda: made.status(study_id)["state"] == "finished", seconds=120)
        wait(lambda: made.status(other_id)["rounds_done"] > 0)
        made.revoke_while_running(other_id)
        record = made.status(study_id)["record"]
        assert [r["number"] for r in record["rounds"]] == [1, 2, 3, 4]
        assert record["rounds"][-1]["mean_accuracy"] > 0.8
        assert "version 3" in secure_fl("study", "export", study_id, "--out", "model.safetensors", cwd=lead)
        assert load((lead / "model.safetensors").read_bytes())
        assert study_id in (lead / "model.md").read_text()
        assert f"secure-fl study report {study_id}" in secure_fl("study", "status", study_id, cwd=lead)
        assert "3 of 3 rounds, finished" in secure_fl("study", "report", study_id, "--out", "page.html", cwd=lead)
        page = (lead / "page.html").read_text()
        assert all(f"<title>{site}" not in page for site in SITES)  # by default sites share their mean only
        for expected in ("The sites share only the aggregate", f"study export {study_id}", "[study.roster]", *SITES):
            assert expected in page
        assert "aborted" in secure_fl("study", "stop", other_id, cwd=lead)
        assert made.status(other_id)["reason"] == "StudyStopped"
        known = json.loads(secure_fl("node", "status", "node.toml", "--json", cwd=tmp_path / SITES[0]))
        mine = next(study for study in known["studies"] if study["id"] == study_id)
        assert (mine["releases"], mine["epsilon"], mine["approved"]) == (4, None, True)
        # A node's certificate is no operator's.
        text = secure_fl("study", "status", "--as", "as_node.toml", cwd=_as_node(made), code=5)
        assert "Certificate" in text
    finally:
        made.close()


def _as_node(made: Deployment) -> Path:
    folder = made.folder / SITES[0]
    table = {"operator": {**made._dial(), "certificate": f"node-{SITES[0]}.pem"}}
    (folder / "as_node.toml").write_bytes(tomli_w.dumps(table).encode())
    return folder


def wait(condition: Any, *, seconds: float = 60) -> None:
    """Until something is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.3)
