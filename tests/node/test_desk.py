"""`node.desk`: what a site's operator approves counts, or only what the node's file lists."""

from __future__ import annotations

import asyncio
import hashlib
import re
from pathlib import Path

import pytest
import tomli_w

from node import desk
from node.config import NodeFile
from node.policy import Policy
from node.service import Node
from node.store import NodeStore
from secure_fl.errors import RefusedError
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from tests.support.federation import Federation
from tests.support.training import FakeTraining


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


def test_a_file_that_is_not_written_out_is_approved_with_a_word_about_its_hash(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = site(tmp_path, "ask")
    whole = made.folder / "study.toml"
    assert desk.main(["approve", str(path), str(whole)]) == 0
    assert "not written out" not in capsys.readouterr().out
    (part := tmp_path / "part.toml").write_text(re.sub("(?m)^initial = .*\n", "", whole.read_text()))
    assert desk.main(["approve", str(path), str(part)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == f"approved: {made.study.id} (study)"  # here the same, with the torch that is here
    assert "is not written out" in second
    assert "may differ elsewhere" in second


def test_a_hash_that_nobody_has_offered_is_approved_in_advance_and_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = site(tmp_path, "ask")
    store = NodeStore(NodeFile.read(path).state_folder)
    assert desk.main(["approve", str(path), made.study.id]) == 0
    told = capsys.readouterr().out
    assert "this node has not been offered such a study yet" in told
    assert "compare the hash" in told
    assert "its code was not looked at" in told
    assert desk.main(["approve", str(path), str(made.folder / "study.toml")]) == 0  # Of a file, the name is known.
    told = capsys.readouterr().out
    assert told.startswith(f"approved: {made.study.id} (study)\n")
    assert "this node has not been offered such a study yet" in told
    assert "compare the hash" not in told
    assert "looked at" not in told
    store.keep_offer(made.study.id, made.study.canonical())
    assert desk.main(["approve", str(path), made.study.id]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"approved: {made.study.id} (study)"
    code, *rest = rest
    assert re.fullmatch(r"  task digits: secure-fl \S+, source sha256:[0-9a-f]{64}", code)
    assert rest == ["  no differential privacy: nothing limits how much its results can reveal about single records"]
    check(made, path)


@pytest.mark.parametrize("roster", ["without", "another certificate"])
def test_a_study_without_this_site_is_not_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], roster: str
) -> None:
    made, path = site(tmp_path, "ask")
    sites = dict(made.study.study.roster)
    sites.pop("site-01")
    if roster != "without":
        sites["site-01"] = "ab" * 32
    other = made.study.model_copy(update={"study": made.study.study.model_copy(update={"roster": sites})})
    store = NodeStore(NodeFile.read(path).state_folder)
    store.keep_offer(other.id, other.canonical())
    (tmp_path / "other.toml").write_bytes(tomli_w.dumps(other.to_table()).encode())
    for wanted in (other.id, str(tmp_path / "other.toml")):
        assert desk.main(["approve", str(path), made.study.id, wanted]) == 7
        told = capsys.readouterr()
        assert ("is without this site" if roster == "without" else "another key for 'site-01'") in told.err
        assert "nothing was approved" in told.err
        assert told.out == ""
    assert store.approvals() == frozenset()


def test_a_node_shows_at_the_desk_what_it_was_offered_until_it_is_approved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", {"task": {"name": "tests.support.task:Line"}}, nodes=3)
        name = fed.names[0]
        path, store = fed.workspace.node_file(name), NodeStore(fed.workspace.node_folder(name))
        fed.set_policy(name, approve="ask", approved=[])
        store.keep_offer("cd" * 32, b"of an earlier start")
        for each in fed.names:
            fed.start_node(each)
        study = asyncio.create_task(fed.coordinate())
        async with asyncio.timeout(30):
            while store.offers() != (fed.study.id,):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert desk.main(["status", str(path)]) == 0
        assert f"offered, and not taken part in: study {fed.study.id}" in capsys.readouterr().out
        assert desk.main(["approve", str(path), fed.study.id]) == 0
        assert "not been offered" not in capsys.readouterr().out
        async with asyncio.timeout(30):
            while store.offers():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert store.offered(fed.study.id) == fed.study.canonical()  # It is among the studies now.
        study.cancel()
        await asyncio.gather(study, return_exceptions=True)
        await fed.close()

    asyncio.run(run())


def test_what_is_offered_under_a_wrong_hash_is_not_kept(tmp_path: Path) -> None:
    made, path = site(tmp_path, "ask")
    node = Node(NodeFile.read(path), None, FakeTraining())  # type: ignore[arg-type]
    node._keep_offer("ab" * 32, made.study.canonical())
    node._keep_offer("ab" * 32, b"{")
    store = NodeStore(NodeFile.read(path).state_folder)
    assert store.offers() == ()
    node._keep_offer(made.study.id, made.study.canonical())
    assert store.offers() == (made.study.id,)


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
        ("ab" * 32, made.study.canonical().replace(b'"version":6', b'"version":1')),
    ):
        folder = store.folder / "studies" / study_id
        folder.mkdir(parents=True)
        (folder / "study.json").write_bytes(settings)
    assert [known["id"] for known in desk.status(NodeFile.read(path), store)["studies"]] == [made.study.id]
    assert "abababababab: the study was made by an older version" in capsys.readouterr().err
