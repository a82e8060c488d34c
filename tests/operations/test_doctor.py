"""`secure-fl doctor` on whole and broken parties: each trouble is found, named, and comes with its fix."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

import node.doctor
from node import trial
from node.store import NodeStore
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import utc_now
from secure_fl.operations import doctor as checks
from secure_fl.settings import read_toml
from secure_fl.study.settings import Study
from tests.support.processes import ROOT, Processes


def doctor(*arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code and findings by name."""
    script = str(Path(sys.executable).parent / "secure-fl")
    done = subprocess.run(
        [script, "doctor", *map(str, arguments), "--json"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout, done.stderr
    told = json.loads(done.stdout)
    assert told["ok"] == (done.returncode == 0)
    return done.returncode, {finding["check"]: finding for finding in told["checks"]}


def node_doctor(*arguments: str | Path) -> tuple[int, dict[str, dict[str, Any]]]:
    """The same at a node without the seconds that a new process takes."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        code = node.doctor.main([*map(str, arguments), "--json"])
    return code, {finding["check"]: finding for finding in json.loads(told.getvalue())["checks"]}


def start(module: str, file: Path) -> subprocess.CompletedProcess[str]:
    """What `secure-fl MODULE serve FILE` becomes, where it ends by itself."""
    return subprocess.run(
        [sys.executable, "-P", "-m", module, str(file)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A coordinator that waits for nodes."""
    study = {"task": {"name": "breast-cancer"}, "protection": {"kind": "none"}}
    with Processes(tmp_path_factory.mktemp("doctor") / "run", study) as processes:
        processes.start_coordinator()
        processes.wait_event("listening")
        yield processes


@pytest.fixture
def site(running: Processes, tmp_path: Path) -> Path:
    """The node file of a site whose state and files are its own."""
    table = read_toml(running.workspace.node_file("site-01"))
    pki = running.workspace.folder / "pki"
    for path in (*pki.glob("node-site-01*"), pki / "crl.pem"):
        shutil.copy(path, tmp_path)
    shutil.copy(running.workspace.folder / "ca.pem", tmp_path)
    table["node"].update(certificate="node-site-01.pem", ca="ca.pem", crl="crl.pem")
    table["state"]["folder"] = "state"
    return edit(tmp_path / "node.toml", table)


def edit(path: Path, table: dict[str, Any], section: str = "", **changes: Any) -> Path:
    """Write a file with a section changed."""
    if section:
        table.setdefault(section, {}).update(changes)
    path.write_bytes(tomli_w.dumps(table).encode())
    return path


def test_a_sound_node_passes_and_fits_its_study(running: Processes, site: Path) -> None:
    code, found = doctor(site, "--study", running.workspace.folder / "study.toml")
    assert code == 0, found
    assert {finding["state"] for finding in found.values()} <= {"ok", "warning"}
    # A simulation's certificates are short-lived, and the doctor says so.
    assert found["certificate"]["state"] == "warning"
    for check in (
        "approval",
        "connection",
        "versions",
        "clock",
        "policy",
        "keys",
        "disk",
        "revocation list",
        "state folder",
    ):
        assert found[check]["state"] == "ok", found[check]
    assert running.workspace.study.id in found["policy"]["message"]


def test_a_sound_coordinator_passes_while_it_runs(running: Processes) -> None:
    code, found = doctor(running.workspace.coordinator_file, "--study", running.workspace.folder / "study.toml")
    assert code == 0, found
    assert "1 study running" in found["store"]["message"]
    assert (found["address"]["state"], found["study"]["state"]) == ("warning", "ok")


def test_the_installation_alone() -> None:
    code, found = doctor()
    assert code == 0
    assert "torch" in found["installation"]["message"]


def test_a_check_that_raises_whatever_it_likes_is_a_finding_and_the_others_go_on() -> None:
    def broken() -> str:
        raise ZeroDivisionError("a value of a file")

    found = list(checks.examine([("one", broken), ("two", lambda: "fine")]))
    assert [(finding.check, finding.state) for finding in found] == [("one", "failed"), ("two", "ok")]
    assert found[0].message.startswith("unexpected ZeroDivisionError (test_doctor.py, line ")
    assert "a value of a file" not in found[0].message
    assert "please report it" in found[0].fix


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        (
            "coordinator",
            {"address": "0.0.0.0:84430"},
            "coordinator.address: must be host:port, with a port up to 65535",
        ),
        ("state", {"folder": "a\0b"}, "state.folder: a path has no character NUL in it"),
    ],
)
def test_what_no_address_and_no_path_can_be_is_named_by_the_doctor_and_at_the_start(
    running: Processes, tmp_path: Path, section: str, changes: dict[str, Any], says: str
) -> None:
    table = read_toml(running.workspace.coordinator_file)
    file = edit(tmp_path / "coordinator.toml", table, section, **changes)
    code, found = doctor(file)
    assert code == 1
    assert (found["file"]["state"], found["file"]["message"].partition(" (got")[0]) == ("failed", says)
    done = start("coordinator", file)
    assert done.returncode == 3
    assert done.stderr.startswith(f"coordinator: {says} (got ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("node", {"coordinator": "127.0.0.1:84430"}, "node.coordinator: must be host:port, with a port up to 65535"),
        ("node", {"certificate": "a\0b.pem"}, "node.certificate: a path has no character NUL in it"),
        ("datasets", {"other": {"path": "a\0b"}}, "datasets.other.path: a path has no character NUL in it"),
        ("policy", {"tasks": ["a\0b/w.py:W"]}, "policy.tasks, entry 1: a path has no character NUL in it"),
    ],
)
def test_the_same_at_a_node(site: Path, section: str, changes: dict[str, Any], says: str) -> None:
    code, found = node_doctor(edit(site, read_toml(site), section, **changes))
    assert code == 1
    assert (found["file"]["state"], found["file"]["message"].partition(" (got")[0]) == ("failed", says)


def test_the_doctor_of_an_operator_tells_a_broken_file_like_any_other_finding(tmp_path: Path) -> None:
    file = edit(
        tmp_path / "operator.toml",
        {"operator": {"coordinator": "hub:84430", "certificate": "a.pem", "fingerprint": "0" * 64}},
    )
    code, found = doctor(file)
    assert code == 1
    assert set(found) == {"installation", "file"}
    assert "operator.coordinator: must be host:port" in found["file"]["message"]


def broken_key(site: Path) -> None:
    site.with_name("node-site-01.key").chmod(0o644)


def no_key(site: Path) -> None:
    site.with_name("node-site-01.signing.key").unlink()


def wrong_key_path(site: Path) -> None:
    edit(site, read_toml(site), "node", key="nowhere.key")


def wrong_certificate_path(site: Path) -> None:
    edit(site, read_toml(site), "node", certificate="nowhere.pem")


def wrong_ca_path(site: Path) -> None:
    edit(site, read_toml(site), "node", ca="nowhere.pem")


def another_consortium(site: Path) -> None:
    Authority.create(site.parent / "other", consortium="other")
    shutil.copy(site.parent / "other" / "ca.pem", site.parent)


def another_consortium_and_its_list(site: Path) -> None:
    another_consortium(site)
    shutil.copy(site.parent / "other" / "crl.pem", site.parent)


def no_crl(site: Path) -> None:
    site.with_name("crl.pem").unlink()


def another_name(site: Path) -> None:
    edit(site, read_toml(site), "node", name="site-77")


def nobody_there(site: Path) -> None:
    edit(site, read_toml(site), "node", coordinator="127.0.0.1:1")


def another_coordinator(site: Path) -> None:
    edit(site, read_toml(site), "node", fingerprint="0" * 64)


def no_data(site: Path) -> None:
    edit(site, read_toml(site), "datasets", other={"path": "missing.npz"})


def torn_ledger(site: Path) -> None:
    (site.parent / "state").mkdir(mode=0o700)
    (site.parent / "state" / "ledger.jsonl").write_text('{"half":')


@pytest.mark.parametrize(
    ("trouble", "check", "says", "fix"),
    [
        (broken_key, "keys", "others can read", "chmod 600"),
        (no_key, "keys", "node-site-01.signing.key: cannot be read", "correct [node] signing_key"),
        (wrong_key_path, "keys", "nowhere.key: cannot be read", "correct [node] key"),
        (wrong_certificate_path, "certificate", "nowhere.pem: cannot be read", "correct [node] certificate"),
        (wrong_ca_path, "certificate", "nowhere.pem: cannot be read", "correct [node] ca"),
        (another_consortium, "certificate", "is not the authority that signed this certificate", "[node] ca"),
        (another_consortium, "revocation list", "is not the authority that signed this certificate", "[node] ca"),
        (another_consortium_and_its_list, "certificate", "is not the authority that signed this", "fetch ca.pem"),
        (no_crl, "revocation list", "cannot be read", "fetch crl.pem"),
        (another_name, "name", "'site-77'", "this site's own certificate"),
        (nobody_there, "connection", "127.0.0.1:1", "is the coordinator running there?"),
        (another_coordinator, "connection", "the coordinator shows", "out of band"),
        (no_data, "dataset other", "missing.npz", "correct the path"),
        (torn_ledger, "ledger", "ledger", ""),
    ],
)
def test_each_trouble_is_found_and_comes_with_its_fix(
    site: Path, trouble: Any, check: str, says: str, fix: str
) -> None:
    trouble(site)
    code, found = node_doctor(site)
    assert code == 1
    assert found[check]["state"] == "failed"
    assert says in found[check]["message"]
    assert fix in found[check]["fix"]


def test_a_revoked_or_expired_certificate_is_said_so(running: Processes, site: Path) -> None:
    pki = site.parent / "pki"
    shutil.copytree(running.workspace.folder / "pki", pki)
    past = Authority.open(pki, now=lambda: utc_now() - timedelta(days=10))
    past.issue("node", "site-late", days=5).save(site.parent)
    edit(site, read_toml(site), "node", certificate="node-site-late.pem", name="site-late")
    assert "expired" in node_doctor(site)[1]["certificate"]["message"]
    edit(site, read_toml(site), "node", certificate="node-site-01.pem", name="site-01")
    Authority.open(pki).revoke("site-01")
    shutil.copy(pki / "crl.pem", site.parent)
    assert "revoked" in node_doctor(site)[1]["certificate"]["message"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"protections": ["masked"]}, "[policy] protections"),
        ({"strategies": ["fedprox"]}, "[policy] strategies"),
        ({"min_cohort": 9}, "smaller than 9"),
        ({"colluders": 2}, "fewer than 2 colluding"),
        ({"metrics": "none"}, "[policy] metrics"),
        ({"datasets": ["other"]}, "[policy] datasets"),
        ({"epsilon": 1.0, "delta": 1e-6}, "no differential privacy"),
    ],
)
def test_a_policy_that_does_not_fit_a_study_is_named(
    running: Processes, site: Path, policy: dict[str, Any], says: str
) -> None:
    edit(site, read_toml(site), "datasets", other={})
    edit(site, read_toml(site), "policy", **policy)
    code, found = node_doctor(site, "--study", running.workspace.folder / "study.toml")
    assert code == 1
    assert found["policy"]["state"] == "failed"
    assert says in found["policy"]["message"]


def test_a_study_with_foreign_code_is_refused_before_it_is_imported(running: Processes, site: Path) -> None:
    mark = site.with_name("imported")
    site.with_name("evil.py").write_text(f"open({str(mark)!r}, 'w')")
    table = read_toml(running.workspace.folder / "study.toml")
    table["task"] = {"name": "evil:Task"}
    study = edit(site.with_name("study.toml"), table)
    assert "[policy] tasks" in node_doctor(site, "--study", study)[1]["policy"]["message"]
    assert not mark.exists()


def test_a_study_that_waits_for_approval_is_a_warning(running: Processes, site: Path) -> None:
    edit(site, read_toml(site), "policy", approved=[])
    code, found = node_doctor(site, "--study", running.workspace.folder / "study.toml")
    assert code == 0
    assert (found["policy"]["state"], found["approval"]["state"]) == ("ok", "warning")
    assert "not approved here" in found["approval"]["message"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"protections": ["maskd"]}, "unknown [policy] protection 'maskd'; did you mean 'masked'?"),
        ({"strategies": ["fedavg", "fedporx"]}, "unknown [policy] strategy 'fedporx'; did you mean 'fedprox'?"),
        (
            {"exceptions": ["changing-cohort"]},
            "unknown [policy] exception 'changing-cohort'; did you mean 'changing-cohorts'?",
        ),
        (
            {"datasets": ["breast-cancr"]},
            "unknown data set in [policy] datasets 'breast-cancr'; did you mean 'breast-cancer'?",
        ),
    ],
)
def test_a_misspelt_word_in_a_policy_is_an_error(site: Path, policy: dict[str, Any], says: str) -> None:
    edit(site, read_toml(site), "policy", **policy)
    code, found = node_doctor(site)
    assert code == 1
    assert (found["file"]["state"], found["file"]["message"]) == ("failed", says)
    assert "known: " in found["file"]["fix"]


@pytest.mark.parametrize(
    ("section", "changes", "says"),
    [
        ("policy", {"approved": ["ab" * 32, "abc"]}, "policy.approved, entry 2: must be a study's hash"),
        ("policy", {"approved": ["AB" * 32]}, "policy.approved, entry 1: must be a study's hash"),
        ("node", {"device": "cdua"}, "node.device: must be"),
        ("node", {"device": "cuda:one"}, "node.device: must be"),
    ],
)
def test_what_is_no_hash_and_no_device_is_an_error(
    site: Path, section: str, changes: dict[str, Any], says: str
) -> None:
    code, found = node_doctor(edit(site, read_toml(site), section, **changes))
    assert (code, found["file"]["state"]) == (1, "failed")
    assert says in found["file"]["message"]


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps"])
def test_the_devices_that_torch_has_are_fine(site: Path, device: str) -> None:
    assert node_doctor(edit(site, read_toml(site), "node", device=device))[1]["file"]["state"] == "ok"


@pytest.mark.parametrize(
    ("task", "tasks", "says"),
    [
        ("wards:Wards", [], "is not allowed by [coordinator] tasks"),
        ("no_such_wards:Wards", ["no_such_wards:Wards"], "cannot be imported here"),
        ("breast-cancer", [], ""),
    ],
)
def test_a_study_that_serve_would_refuse_is_found_at_the_coordinator(
    running: Processes, tmp_path: Path, task: str, tasks: list[str], says: str
) -> None:
    """One that it has already is fine, whatever its task."""
    for path in (running.workspace.folder / "pki").glob("c*"):
        shutil.copy(path, tmp_path)
    shutil.copy(running.workspace.folder / "ca.pem", tmp_path)
    table = read_toml(running.workspace.coordinator_file)
    table["coordinator"] |= {"certificate": "coordinator-coordinator.pem", "ca": "ca.pem", "crl": "crl.pem"}
    table["coordinator"]["tasks"] = tasks
    table["studies"] = ["other.toml"]
    file = edit(tmp_path / "coordinator.toml", table)
    study = read_toml(running.workspace.folder / "study.toml") | {"task": {"name": task}}
    study["study"].pop("initial")
    study = Study.parse(study).completed().to_table() if not says else study
    edit(tmp_path / "other.toml", study)
    code, found = doctor(file)
    assert (code, found["study other.toml"]["state"]) == ((1, "failed") if says else (0, "ok")), found
    assert says in found["study other.toml"]["message"]
    assert not list(tmp_path.glob("**/studies")), "whoever only looks makes no folders"
    if says:
        done = start("coordinator", file)
        assert (done.returncode, says in done.stderr) == (3, True), done.stderr


@pytest.mark.parametrize("module", ["node", "coordinator"])
def test_a_second_process_does_not_share_a_state_folder(running: Processes, site: Path, module: str) -> None:
    from secure_fl.files import only_process

    file, folder = site, site.parent / "state"
    if module == "coordinator":
        file, folder = running.workspace.coordinator_file, running.workspace.coordinator_state

    if module == "node":
        with only_process(folder):
            done = start(module, file)
    else:
        done = start(module, file)  # the one that runs holds it
    assert done.returncode == 6
    assert "another process works here" in done.stderr


# --- a rehearsal ------------------------------------------------------------------------------------------------


def with_data(running: Processes, site: Path, x: Any, y: Any) -> dict[str, Any]:
    """What the doctor says of training on a site's own file."""
    np.savez(site.parent / "ward.npz", x=x, y=y)
    table = read_toml(site)
    table["datasets"] = {"breast-cancer": {"path": "ward.npz"}}
    edit(site, table)
    return node_doctor(site, "--study", running.workspace.folder / "study.toml")[1]["training"]


def test_a_batch_is_trained_before_anybody_asks(running: Processes, site: Path) -> None:
    _, found = node_doctor(site, "--study", running.workspace.folder / "study.toml")
    assert found["training"]["state"] == "ok", found["training"]
    assert "one batch was trained" in found["training"]["message"]
    rng = np.random.default_rng(1)
    fine = with_data(running, site, rng.normal(size=(40, 30)).astype(np.float32), rng.integers(0, 2, 40))
    assert fine["state"] == "ok", fine


def test_rows_are_cut_as_the_node_cuts_them(running: Processes, site: Path) -> None:
    """By a secret of the site, once there is one."""
    table = read_toml(site)
    table.pop("simulation", None)
    edit(site, table)
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(90, 30)).astype(np.float32), rng.integers(0, 2, 90)
    key, study = site.parent / "state" / "secret.key", str(running.workspace.folder / "study.toml")
    key.unlink(missing_ok=True)
    found = [with_data(running, site, *rows)["message"]]
    assert not key.exists()  # Looking makes no secret.
    while found[-1] == found[0] and len(found) < 9:  # By chance it may be as many rows as without.
        key.unlink(missing_ok=True)
        NodeStore(site.parent / "state").secret()
        found.append(with_data(running, site, *rows)["message"])
    assert found[-1] != found[0]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        trial.main([str(site), study])
    trained = found[-1].partition(" rows to train on")[0]
    assert re.search(rf"\b{trained} rows to train on", said.getvalue()), said.getvalue()


@pytest.mark.parametrize("trouble", ["NaN", "shape", "missing", "no data set"])
def test_data_that_cannot_be_trained_on_are_found_with_their_fix(running: Processes, site: Path, trouble: str) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(40, 30)).astype(np.float32), rng.integers(0, 2, 40)
    if trouble == "NaN":
        x[3, 4] = np.nan
    found = with_data(running, site, x[:, :29] if trouble == "shape" else x, y)
    if trouble in ("missing", "no data set"):
        table = read_toml(site)
        table["datasets"] = {} if trouble == "no data set" else {"breast-cancer": {"path": "elsewhere.npz"}}
        edit(site, table)
        found = node_doctor(site, "--study", running.workspace.folder / "study.toml")[1]["training"]
    assert found["state"] == "failed", found
    expected = {"NaN": "missing or infinite", "shape": "29", "missing": "no such file", "no data set": "datasets"}
    assert expected[trouble] in found["message"], found
