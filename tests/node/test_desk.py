"""`node.desk`: what a site's operator approves counts, or only what the node's file lists."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import tomli_w

from node import desk
from node.config import NodeFile
from node.policy import Policy
from node.store import NodeStore
from secure_fl.errors import RefusedError
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study


def site(folder: Path, approve: str) -> tuple[Workspace, Path]:
    """A node's file that lists no study."""
    made = prepare(folder / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(1)
    path = made.node_file("site-01")
    table = read_toml(path)
    table["policy"].update(approve=approve, approved=[])
    path.write_bytes(tomli_w.dumps(table).encode())
    return made, path


def check(made: Workspace, path: Path) -> None:
    """What a node decides when the study is offered."""
    file = NodeFile.read(path)
    approvals = NodeStore(file.state_folder).approvals()
    Policy(file, file.credential().certificate).check_study(made.study.id, made.study, approvals)


def test_a_study_is_approved_by_its_hash_or_its_file_and_by_nothing_shorter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = site(tmp_path, "ask")
    with pytest.raises(RefusedError, match="is not approved here"):
        check(made, path)
    assert desk.main(["approve", str(path), made.study.id[:12]]) == 2
    assert "neither a study's hash" in capsys.readouterr().err
    other = hashlib.sha256(b"other").hexdigest()
    assert desk.main(["approve", str(path), other]) == 0
    with pytest.raises(RefusedError, match="is not approved here"):
        check(made, path)
    assert desk.main(["approve", str(path), made.study.id, "nowhere.toml"]) == 2  # all of them, or none
    with pytest.raises(RefusedError, match="is not approved here"):
        check(made, path)
    assert desk.main(["approve", str(path), str(made.folder / "study.toml")]) == 0
    assert f"approved: {made.study.id}" in capsys.readouterr().out
    check(made, path)


def test_a_study_file_does_not_bring_in_code_that_the_site_has_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = site(tmp_path, "ask")
    (tmp_path / "uninvited.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text('[task]\nname = "uninvited:Task"\n')
    assert desk.main(["approve", str(path), str(study)]) == 7
    assert "not allowed by [policy] tasks" in capsys.readouterr().err


def test_where_only_the_file_approves_the_desk_says_so_and_an_older_approval_does_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = site(tmp_path, "listed")
    assert desk.main(["approve", str(path), made.study.id]) == 2
    assert "add the hash to [policy] approved" in capsys.readouterr().err
    NodeStore(NodeFile.read(path).state_folder).approve(made.study.id)
    with pytest.raises(RefusedError, match="is not approved here"):
        check(made, path)


def test_a_study_of_an_older_version_is_named_and_the_others_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = site(tmp_path, "ask")
    store = NodeStore(NodeFile.read(path).state_folder)
    for study_id, settings in (
        (made.study.id, made.study.canonical()),
        ("ab" * 32, made.study.canonical().replace(b'"version":3', b'"version":1')),
    ):
        folder = store.folder / "studies" / study_id
        folder.mkdir(parents=True)
        (folder / "study.json").write_bytes(settings)
    assert [known["id"] for known in desk.status(store)["studies"]] == [made.study.id]
    assert "abababababab: the study was made by an older version" in capsys.readouterr().err
