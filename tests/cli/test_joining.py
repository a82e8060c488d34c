"""`secure-fl coordinator|node|operator new` and `join`: from nothing to files that work, and never over others."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest
import typer

import secure_fl.cli
from coordinator.config import CoordinatorFile
from node.config import NodeFile
from secure_fl.errors import CertificateError, SecureFLError, StorageError, UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.identity.invitation import Invitation
from secure_fl.identity.x509_parts import request_fingerprint
from secure_fl.operations import joining
from secure_fl.operations.operator import OperatorFile
from tests.cli.consortium import found, on, run

DIALED = ("--coordinator", "fl.example.org:8443", "--fingerprint", "ab" * 32)


@pytest.fixture
def reply(tmp_path: Path) -> Path:
    """What the authority of a consortium with a coordinator has handed out so far."""
    return found(tmp_path)[0]


def joined(folder: Path, reply: Path, role: str, name: str, *options: str) -> Path:
    """A party that has joined, in its folder."""
    with on(folder / name) as machine:
        run(role, "join", reply / "invitation.toml", "--name", name, *options)
        run("pki", "sign", reply.parent / "pki", f"{role}-{name}.csr.pem", "--out", reply)
        run(role, "join", reply / f"{role}-{name}.reply.toml")
    return machine


def test_a_site_joins_with_two_commands(tmp_path: Path, reply: Path) -> None:
    data = ("--data", "ward=ward.npz", "--data", "icu=/srv/icu.npz", "--units", "icu=500")
    site = joined(tmp_path, reply, "node", "hospital-a", *data)
    file = NodeFile.read(site / "node.toml")
    file.check_identity("node", now=utc_now())
    hub = Certificate.from_pem((tmp_path / "hub" / "coordinator-hub.pem").read_bytes())
    assert (file.node.name, file.node.coordinator) == ("hospital-a", "fl.example.org:9000")
    assert file.node.fingerprint == hub.fingerprint
    assert {name: (one.path, one.units) for name, one in file.datasets.items()} == {
        "ward": ("ward.npz", None),
        "icu": ("/srv/icu.npz", 500),
    }
    for key in site.glob("*.key"):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert sorted(path.name for path in site.iterdir()) == [
        "ca.pem", "crl.pem", "node-hospital-a.key", "node-hospital-a.pem", "node-hospital-a.signing.key", "node.toml",
    ]  # fmt: skip


def test_a_task_in_a_file_is_copied_and_allowed(tmp_path: Path, reply: Path) -> None:
    (tmp_path / "wards.py").write_text("x = 1\n")
    site = joined(tmp_path, reply, "node", "a", "--task", "../wards.py:Wards")
    assert NodeFile.read(site / "node.toml").policy.tasks == ("wards.py:Wards",)
    assert (site / "wards.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("task", ["wards.py", "wards:Wards", "../wards.py:Wards", "../x y.py:Wards", ":"])
def test_what_is_no_task_in_a_file_is_refused_before_anything_is_written(
    tmp_path: Path, reply: Path, task: str
) -> None:
    (tmp_path / "x y.py").touch()
    with on(tmp_path / "a") as site, pytest.raises(UsageError):
        run("node", "join", reply / "invitation.toml", "--name", "a", "--task", task)
    assert list(site.iterdir()) == []


def test_a_task_overwrites_no_file(tmp_path: Path, reply: Path) -> None:
    (tmp_path / "wards.py").write_text("theirs")
    with on(tmp_path / "a") as site:
        (site / "wards.py").write_text("mine")
        with pytest.raises(StorageError, match=r"wards\.py: exists already"):
            run("node", "join", reply / "invitation.toml", "--name", "a", "--task", "../wards.py:Wards")
        assert (site / "wards.py").read_text() == "mine"
        assert not (site / "node.toml").exists()


def test_a_coordinator_that_is_given_a_nodes_reply_is_told_whose_it_is(tmp_path: Path, reply: Path) -> None:
    joined(tmp_path, reply, "node", "a")
    with on(reply.parent.parent / "hub"), pytest.raises(CertificateError) as refused:
        run("coordinator", "join", reply / "node-a.reply.toml")
    assert refused.value.message == "the reply is for node 'a', not for this coordinator"


def test_a_study_lead_and_a_coordinator_join_as_well(tmp_path: Path, reply: Path) -> None:
    lead = joined(tmp_path, reply, "operator", "lead")
    OperatorFile.read(lead / "operator.toml").check_identity("operator", now=utc_now())
    CoordinatorFile.read(tmp_path / "hub" / "coordinator.toml").check_identity("coordinator", now=utc_now())


def test_the_port_of_a_coordinator_is_in_the_command_that_comes_next(tmp_path: Path) -> None:
    """The authority cannot know it from the request, and the invitation sends every site there."""
    with on(tmp_path / "hub"):
        said = run("coordinator", "new", "hub", "--host", "fl.example.org", "--host", "10.0.0.1", "--port", "9000")
        six = run("coordinator", "new", "six", "--host", "::1", "--port", "9001", "--out", "six")
    assert "secure-fl pki sign pki coordinator-six.csr.pem --address [::1]:9001\n" in six
    command = next(line for line in said.splitlines() if "pki sign" in line).partition("secure-fl ")[2]
    assert command == "pki sign pki coordinator-hub.csr.pem --address fl.example.org:9000"
    with on(tmp_path / "authority"):
        run("pki", "init", "pki", "--consortium", "Heart Study")
        (tmp_path / "hub" / "coordinator-hub.csr.pem").rename("coordinator-hub.csr.pem")
        said = run(*command.split())
        assert Invitation.read(Path("reply/invitation.toml"), now=utc_now()).coordinator == "fl.example.org:9000"
    assert "wrote reply/invitation.toml: it sends sites to fl.example.org:9000" in said


def test_whoever_serves_at_once_is_not_told_to_serve(
    tmp_path: Path, reply: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[tuple[str, ...]] = []
    monkeypatch.setattr("secure_fl.cli.processes.become", lambda *arguments: served.append(arguments))
    with on(tmp_path / "a"):
        run("node", "join", reply / "invitation.toml", "--name", "a")
        run("pki", "sign", reply.parent / "pki", "node-a.csr.pem", "--out", reply)
        said = run("node", "join", reply / "node-a.reply.toml", "--serve")
    assert (served, "next, here" in said) == ([("node", "node.toml")], False)


def test_without_an_invitation_everything_is_said_by_flags(tmp_path: Path) -> None:
    with on(tmp_path):
        said = run("node", "new", "hospital-a", *DIALED, "--data", "ward=data/ward.npz", "--out", "site")
        run("operator", "new", "lead", *DIALED, "--out", "lead")
        run("coordinator", "new", "hub", "--host", "a.org", "--port", "99", "--out", "hub")
    assert NodeFile.read(tmp_path / "site" / "node.toml").datasets["ward"].path == "../data/ward.npz"
    assert OperatorFile.read(tmp_path / "lead" / "operator.toml").operator.fingerprint == "ab" * 32
    assert CoordinatorFile.read(tmp_path / "hub" / "coordinator.toml").coordinator.address == "0.0.0.0:99"
    # What comes next, and where.
    assert "next, on the authority's machine: secure-fl pki sign pki node-hospital-a.csr.pem" in said
    assert "then, here again: secure-fl node join node-hospital-a.reply.toml --out site" in said
    assert "ward.npz is not there yet" in said
    # What the authority will print, too: a request that was exchanged on the way has another key.
    assert request_fingerprint((tmp_path / "site" / "node-hospital-a.csr.pem").read_bytes()) in said


def main(*arguments: object) -> int:
    """The console script, in this process."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "argv", ["secure-fl", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            secure_fl.cli.main()
    return int(left.value.code or 0)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What somebody at a terminal types; when there is no more, Ctrl-C."""
    typed: list[str] = []

    def prompt(*_: object, **__: object) -> str:
        if not typed:
            raise typer.Abort
        return typed.pop(0)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "prompt", prompt)
    return typed


NAMED, DIALED_TO = ["Charité", "a"], ["fl.example.org", "fl.example.org:8443", "localhost", "ab" * 32]


@pytest.mark.parametrize(
    ("command", "typed", "wrong"),
    [
        ("coordinator", [*NAMED, "https://a.org", "a.org:8443", "a.org"], ["Charité", "https://a.org", "a.org:8443"]),
        ("operator", [*NAMED, *DIALED_TO], ["Charité", "fl.example.org", "SHA-256"]),
        (
            "node",
            [*NAMED, *DIALED_TO, "foo", "a.b=x", "ward=ward.npz", "ward=again.npz", "icu=icu.npz", ""],
            ["Charité", "fl.example.org", "SHA-256", "foo", "a.b", "ward is named already"],
        ),
    ],
)
def test_on_a_terminal_it_asks(
    tmp_path: Path,
    answers: list[str],
    capsys: pytest.CaptureFixture[str],
    command: str,
    typed: list[str],
    wrong: list[str],
) -> None:
    answers += typed
    with on(tmp_path):
        assert main(command, "new") == 0
    assert answers == []
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(wrong)  # Each is said at once, and nothing that was right is asked again.
    assert all(answer in line for answer, line in zip(wrong, said, strict=True))
    assert (tmp_path / f"{command}-a.csr.pem").exists()
    if command == "node":
        assert list(NodeFile.read(tmp_path / "node.toml").datasets) == ["ward", "icu"]


@pytest.mark.parametrize("role", ["node", "operator"])
def test_whoever_is_invited_is_asked_for_a_name_again_too(
    tmp_path: Path, reply: Path, answers: list[str], role: str
) -> None:
    answers += ["Charité", "a", ""]
    with on(tmp_path / "a"):
        assert main(role, "join", reply / "invitation.toml") == 0
    assert (tmp_path / "a" / f"{role}-a.csr.pem").exists()


@pytest.mark.parametrize("typed", [[], ["a"]])
@pytest.mark.parametrize("command", ["coordinator", "operator", "node"])
def test_ctrl_c_at_a_question_leaves_nothing(
    tmp_path: Path, answers: list[str], capsys: pytest.CaptureFixture[str], command: str, typed: list[str]
) -> None:
    answers += typed
    with on(tmp_path):
        assert main(command, "new") == 130
    assert "nothing was written" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("node", "new", "Charité", *DIALED), "NAME: 'Charité' is not a name"),
        (("node", "new", "a", "--coordinator", "a.org", "--fingerprint", "ab" * 32), "--coordinator: 'a.org' is not"),
        (("node", "new", "a", *DIALED, "--data", "w=1", "--data", "w=2"), "a data set is named twice"),
        (("operator", "new", "Charité", *DIALED), "NAME: 'Charité' is not a name"),
        (("coordinator", "new", "Charité", "--host", "a.org"), "NAME: 'Charité' is not a name"),
        (("coordinator", "new", "a", "--host", "a.org:1"), "--host: 'a.org:1' is not a host"),
    ],
)
def test_a_wrong_flag_is_a_mistake_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    with on(tmp_path):
        assert main(*arguments) == UsageError.exit_code
    assert says in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("node", "new"), "NAME"),
        (("node", "new", "a"), "--coordinator"),
        (("node", "new", "a", "--coordinator", "a.org:1"), "--fingerprint"),
        (("coordinator", "new", "hub"), "--host"),
        (("operator", "new"), "NAME"),
    ],
)
def test_elsewhere_the_missing_flag_is_named(tmp_path: Path, arguments: tuple[str, ...], flag: str) -> None:
    with on(tmp_path), pytest.raises(UsageError, match=f"^{flag} is missing"):
        run(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", ["node.toml", "node-a.key", "node-a.signing.key", "node-a.csr.pem"])
def test_nothing_is_overwritten(tmp_path: Path, reply: Path, there: str) -> None:
    with on(tmp_path / "a") as site:
        (site / there).write_text("mine")
        with pytest.raises(StorageError, match=f"{there}: exists already"):
            run("node", "join", reply / "invitation.toml", "--name", "a")
        assert [path.name for path in site.iterdir()] == [there]
        assert (site / there).read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--data", "ward"), "expected ID=PATH"),
        (("--data", "a b=x"), "is not an id"),
        (("--data", "a=x", "--data", "a=y"), "named twice"),
        (("--data", "a=x", "--units", "b=5"), "no --data b"),
        (("--data", "a=x", "--units", "a=none"), "not a number"),
        (("--serve",), "--serve goes with the reply"),
    ],
)
def test_flags_that_make_no_sense_leave_nothing(
    tmp_path: Path, reply: Path, options: tuple[str, ...], says: str
) -> None:
    with on(tmp_path / "a") as site, pytest.raises(UsageError, match=says):
        run("node", "join", reply / "invitation.toml", "--name", "a", *options)
    assert list(site.iterdir()) == []


def test_a_name_cannot_leave_its_folder(tmp_path: Path, reply: Path) -> None:
    with on(tmp_path / "a"), pytest.raises(UsageError, match="is not a name"):
        run("node", "join", reply / "invitation.toml", "--name", "../x")


def test_paths_are_quoted_whatever_is_in_them(tmp_path: Path, reply: Path) -> None:
    hostile = 'x"\n[policy]\napproved = ["all"]\n#'
    with on(tmp_path / "a") as site:
        run("node", "join", reply / "invitation.toml", "--name", "a", "--data", f"ward={hostile}")
    file = NodeFile.read(site / "node.toml")
    assert (file.datasets["ward"].path, file.policy.approved) == (hostile, ())


# --- replies ----------------------------------------------------------------------------------------------------


def test_a_reply_of_another_authority_is_refused(tmp_path: Path, reply: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between invitation and reply nobody can slip in: the first one fixed the authority."""
    with on(tmp_path / "a") as site:
        run("node", "join", reply / "invitation.toml", "--name", "a")
        evil = Authority.create(tmp_path / "evil", consortium="Heart Study")
        certificate = evil.issue_from_request((site / "node-a.csr.pem").read_bytes())
        (site / "reply.toml").write_text(evil.reply(certificate))
        with pytest.raises(CertificateError, match="from another authority than"):
            run("node", "join", "reply.toml")
        assert not (site / "node-a.pem").exists()
        # And that one check is what stops it.
        monkeypatch.setattr(joining, "_require_same_authority", lambda *_: None)
        monkeypatch.setattr(joining, "_keep_newer_list", lambda *_: None)
        run("node", "join", "reply.toml")
        assert (site / "ca.pem").read_bytes() == evil.ca_pem


def test_without_an_invitation_the_authority_of_the_reply_is_shown_once(tmp_path: Path, reply: Path) -> None:
    """Whoever has the request can answer it: only a person can tell whose authority that was."""
    with on(tmp_path / "a"):
        run("node", "new", "a", *DIALED)
        run("pki", "sign", reply.parent / "pki", "node-a.csr.pem", "--out", reply)
        shown = Invitation.read(reply / "node-a.reply.toml", now=utc_now()).authority_fingerprint
        said = run("node", "join", reply / "node-a.reply.toml")
        assert shown in said.replace(" ", "")
        assert shown not in run("node", "join", reply / "node-a.reply.toml").replace(" ", "")


def test_a_second_invitation_of_another_authority_is_refused(tmp_path: Path, reply: Path) -> None:
    evil = Authority.create(tmp_path / "evil", consortium="Heart Study")
    with on(tmp_path / "a") as site:
        (site / "ca.pem").write_bytes((reply.parent / "pki" / "ca.pem").read_bytes())
        (site / "i.toml").write_text(evil.invitation(coordinator="a.org:1", fingerprint="ab" * 32))
        with pytest.raises(CertificateError, match="from another authority than"):
            run("node", "join", "i.toml", "--name", "a")
        assert not (site / "node.toml").exists()


def test_the_fingerprint_from_the_telephone_can_be_given(tmp_path: Path, reply: Path) -> None:
    right = Invitation.read(reply / "invitation.toml", now=utc_now()).authority_fingerprint
    with on(tmp_path / "a"):
        with pytest.raises(CertificateError, match="the authority shows"):
            run("node", "join", reply / "invitation.toml", "--name", "a", "--authority", "ab" * 32)
        with pytest.raises(UsageError, match="not a SHA-256"):
            run("node", "join", reply / "invitation.toml", "--name", "a", "--authority", "abc")
        run("node", "join", reply / "invitation.toml", "--name", "a", "--authority", right)


@pytest.mark.parametrize("other", ["another site", "a study lead", "other keys", "an invitation", "no file"])
def test_only_the_reply_to_the_own_request_is_taken(tmp_path: Path, reply: Path, other: str) -> None:
    site = tmp_path / "a"
    with on(site):
        run("node", "join", reply / "invitation.toml", "--name", "a")
    authority = Authority.open(reply.parent / "pki")
    whose = {"another site": ("node", "b"), "a study lead": ("operator", "a"), "other keys": ("node", "a")}
    path = tmp_path / "reply.toml"
    if other in whose:
        path.write_text(authority.reply(authority.issue(*whose[other]).certificate))
    elif other == "no file":
        path.write_text(authority.reply(authority.issue("coordinator", "x", hosts=["a.org"]).certificate))
    else:
        path = reply / "invitation.toml"
    role = {"an invitation": "coordinator", "no file": "coordinator"}.get(other, "node")
    with on(site), pytest.raises(SecureFLError):
        run(role, "join", path)
    assert not (site / "node-a.pem").exists()


def test_an_older_revocation_list_does_not_replace_a_newer_one(tmp_path: Path, reply: Path) -> None:
    site = joined(tmp_path, reply, "node", "a")
    old = (reply / "node-a.reply.toml").read_text()
    with on(reply.parent):
        run("pki", "revoke", "pki", "hub")
    newest = (reply.parent / "pki" / "crl.pem").read_bytes()
    (site / "crl.pem").write_bytes(newest)
    with on(site):
        Path("old.toml").write_text(old)
        run("node", "join", "old.toml")
    assert (site / "crl.pem").read_bytes() == newest


def test_who_waits_for_a_reply_is_told_so(tmp_path: Path, reply: Path) -> None:
    with on(tmp_path / "a") as site:
        run("node", "join", reply / "invitation.toml", "--name", "a")
        with pytest.raises(CertificateError) as caught:
            NodeFile.read(site / "node.toml").credential()
    assert "secure-fl node join REPLY" in caught.value.hint


# --- sample data ------------------------------------------------------------------------------------------------


def test_sample_rows_are_dealt_out_once_each(tmp_path: Path) -> None:
    import numpy as np

    with on(tmp_path):
        run("sample", "breast-cancer", "a", "b")
        run("sample", "digits", "c", "--out", "images")
        parts = [np.load(f"samples/{name}.npz") for name in ("a", "b")]
        assert sum(len(part["x"]) for part in parts) == 569
        rows = {row.tobytes() for part in parts for row in part["x"]}
        assert len(rows) == 569
        assert np.load("images/c.npz")["x"].shape == (1797, 8, 8)
        with pytest.raises(StorageError, match="exists already"):
            run("sample", "breast-cancer", "a")
        with pytest.raises(SecureFLError, match="did you mean 'digits'"):
            run("sample", "digit", "z")
