"""Whoever works at a site reads its own ledger, of its own consortium, or is told why not."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import node.doctor
from node import desk
from node.config import NodeFile
from node.service import Node
from node.store import NodeStore
from secure_fl.errors import ForeignLedgerError, LedgerError, MissingLedgerError, SecureFLError
from secure_fl.identity.authority import Authority
from secure_fl.privacy.ledger import Ledger, end_of
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from tests.support.training import FakeTraining


@pytest.fixture
def made(tmp_path: Path) -> Workspace:
    """A consortium whose first site has a ledger and has taken part in a study."""
    made = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(1)
    serve(made)
    folder = NodeStore(NodeFile.read(made.node_file("site-01")).state_folder).study(made.study.id).folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_bytes(made.study.canonical())
    (folder / "cursor.json").write_text('[1, 1, ""]')
    return made


def serve(made: Workspace) -> None:
    """A node opens its ledger before it talks to anybody."""
    Node(NodeFile.read(made.node_file("site-01")), None, FakeTraining())  # type: ignore[arg-type]


def ledger(made: Workspace) -> Path:
    return NodeStore(NodeFile.read(made.node_file("site-01")).state_folder).ledger


def missing(made: Workspace) -> None:
    ledger(made).unlink()


def cut(made: Workspace) -> None:
    serve(made)
    file = NodeFile.read(made.node_file("site-01"))
    credential = file.credential()
    mine = Ledger(ledger(made), certificate=credential.certificate, key=credential.signing_key, authority=file.ca_pem())
    mine.append("planned", {})
    ledger(made).write_bytes(b"".join(ledger(made).read_bytes().splitlines(keepends=True)[:-1]))


def put_away(made: Workspace) -> None:
    ledger(made).unlink()
    end_of(ledger(made)).unlink()


def emptied(made: Workspace) -> None:
    ledger(made).write_bytes(b"")


def of_another_site(made: Workspace) -> None:
    file = NodeFile.read(made.node_file("site-02"))
    credential = file.credential()
    put_away(made)
    Ledger(ledger(made), certificate=credential.certificate, key=credential.signing_key, authority=file.ca_pem())


def of_another_consortium(made: Workspace) -> None:
    elsewhere = Authority.create(made.folder / "elsewhere", consortium="other")
    namesake = elsewhere.issue("node", "site-01")
    put_away(made)
    Ledger(ledger(made), certificate=namesake.certificate, key=namesake.signing_key, authority=elsewhere.ca_pem)


TROUBLES = pytest.mark.parametrize(
    ("trouble", "error", "says", "fix"),
    [
        (missing, MissingLedgerError, "there is no ledger", "start with an empty state folder"),
        (emptied, LedgerError, "it is empty", ""),
        (cut, LedgerError, "is an old copy", "put the newest copy back"),
        (of_another_site, ForeignLedgerError, "belongs to 'site-02', not to 'site-01'", "this site's own ledger.jsonl"),
        (of_another_consortium, ForeignLedgerError, "not issued by this consortium", "this site's own ledger.jsonl"),
    ],
)


@TROUBLES
def test_a_node_does_not_serve_with_it(
    made: Workspace, trouble: Callable[[Workspace], None], error: type[SecureFLError], says: str, fix: str
) -> None:
    serve(made)  # It does, with its own.
    trouble(made)
    content = ledger(made).read_bytes() if ledger(made).exists() else None
    with pytest.raises(error, match=says) as caught:
        serve(made)
    assert fix in caught.value.hint
    assert (ledger(made).read_bytes() if ledger(made).exists() else None) == content


@TROUBLES
def test_the_desk_says_it(
    made: Workspace,
    trouble: Callable[[Workspace], None],
    error: type[SecureFLError],
    says: str,
    fix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = str(made.node_file("site-01"))
    assert desk.main(["status", path]) == 0
    assert "ledger: 1 entries" in capsys.readouterr().out
    trouble(made)
    assert desk.main(["status", path]) == error.exit_code
    told = capsys.readouterr()
    assert says in told.err
    assert fix in told.err
    assert "entries" not in told.out


@TROUBLES
def test_the_doctor_finds_it(
    made: Workspace, trouble: Callable[[Workspace], None], error: type[SecureFLError], says: str, fix: str
) -> None:
    def examined() -> dict[str, str]:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            node.doctor.main([str(made.node_file("site-01")), "--json"])
        return next(one for one in json.loads(told.getvalue())["checks"] if one["check"] == "ledger")

    assert examined()["state"] == "ok"
    trouble(made)
    found = examined()
    assert found["state"] == "failed"
    assert says in found["message"]
    assert fix in found["fix"]
    assert error.advice


def test_a_site_that_has_taken_part_in_nothing_needs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(1)
    assert desk.main(["status", str(made.node_file("site-01"))]) == 0
    assert "ledger: 0 entries" in capsys.readouterr().out
