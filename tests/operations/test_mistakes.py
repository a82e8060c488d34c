"""Mistakes that people make when they set a party up: each is told in one line with what to do, and its exit code."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import tomli_w

import node.doctor
import node.main
from node import desk
from secure_fl import logs
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import utc_now
from secure_fl.identity.credential import Credential
from secure_fl.privacy.ledger import Ledger
from secure_fl.settings import read_toml
from tests.cli.consortium import found, on, run
from tests.support.processes import ROOT

NAMES = ("hospital-a", "hospital-b", "hospital-c")


@pytest.fixture(scope="module")
def consortium(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sites that have joined, with sample data, and a study without the first of them."""
    folder = tmp_path_factory.mktemp("consortium")
    reply, _ = found(folder)
    with on(folder / "lead"):
        run("sample", "breast-cancer", *NAMES)
    for name in NAMES:
        with on(folder / name):
            run("node", "join", reply / "invitation.toml", "--name", name, "--data", f"d=../lead/samples/{name}.npz")
    with on(reply.parent):
        run("pki", "sign", "pki", *(f"../{name}/node-{name}.csr.pem" for name in NAMES))
    for name in NAMES:
        with on(folder / name):
            run("node", "join", reply / f"node-{name}.reply.toml")
    return folder


@pytest.fixture
def folder(consortium: Path, tmp_path: Path) -> Path:
    """The same for one test alone."""
    shutil.copytree(consortium, tmp_path / "consortium")
    return tmp_path / "consortium"


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The first site's file. What a process does to itself is not done to the one that runs the tests."""
    for name in ("keep_files_private", "give_memory_back", "name_process"):
        monkeypatch.setattr(node.main, name, lambda *_: None)
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    with on(folder / NAMES[0]):
        yield folder / NAMES[0] / "node.toml"


def change(file: Path, section: str, **values: object) -> None:
    table = read_toml(file)
    table.setdefault(section, {}).update(values)
    file.write_bytes(tomli_w.dumps(table).encode())


# --- what was done wrong ----------------------------------------------------------------------------------------


def misspelt_protection(site: Path) -> None:
    change(site, "policy", protections=["maskd"])


def misspelt_key(site: Path) -> None:
    change(site, "policy", protection=["masked"])


def wrong_key_path(site: Path) -> None:
    change(site, "node", key="nowhere.key")


def open_key(site: Path) -> None:
    site.with_name("node-hospital-a.key").chmod(0o644)


def another_sites_key(site: Path) -> None:
    shutil.copy(site.parents[1] / "hospital-b" / "node-hospital-b.key", site.with_name("node-hospital-a.key"))


def wrong_ca(site: Path) -> None:
    site.with_name("ca.pem").write_bytes(Authority.create(site.parent / "other", consortium="Other").ca_pem)


def no_reply_yet(site: Path) -> None:
    site.with_name("node-hospital-a.pem").rename(site.with_name("node-hospital-a.csr.pem"))


def expired(site: Path) -> None:
    pki = site.parents[1] / "authority" / "pki"
    past = Authority.open(pki, now=lambda: utc_now() - timedelta(days=1000))
    site.with_name("ca.pem").write_bytes(past.ca_pem)
    for path in site.parent.glob("node-hospital-a*"):
        path.unlink()
    past.issue("node", "hospital-a", days=5, renew=True).save(site.parent)


def clock_behind(site: Path) -> None:
    """The authority's clock is right, and this machine's ten days behind it."""
    pki = site.parents[1] / "authority" / "pki"
    ahead = Authority.open(pki, now=lambda: utc_now() + timedelta(days=10))
    for path in site.parent.glob("node-hospital-a*"):
        path.unlink()
    ahead.issue("node", "hospital-a", renew=True).save(site.parent)


def another_name(site: Path) -> None:
    change(site, "node", name="hospital-b")


def no_state_folder(site: Path) -> None:
    change(site, "state", folder="node.toml/state")  # below a file: nobody, not even the superuser, can make it


def no_such_file(site: Path) -> None:
    site.unlink()


def another_partys_file(site: Path) -> None:
    shutil.copy(site.parents[1] / "hub" / "coordinator.toml", site)


def ledger_of_another_site(site: Path) -> None:
    other = site.parents[1] / "hospital-b"
    mine = Credential.load(other, stem="node-hospital-b")
    (site.parent / "state").mkdir(mode=0o700)
    ca = (other / "ca.pem").read_bytes()
    Ledger(site.parent / "state" / "ledger.jsonl", certificate=mine.certificate, key=mine.signing_key, authority=ca)


def no_mistake(_site: Path) -> None:
    pass


# --- what was typed then ----------------------------------------------------------------------------------------


def serve(site: Path) -> int:
    return node.main.main([str(site)])


def status(site: Path) -> int:
    return desk.main(["status", str(site)])


def approve_half_a_hash(site: Path) -> int:
    return desk.main(["approve", str(site), "ab" * 31])


def approve_no_file(site: Path) -> int:
    return desk.main(["approve", str(site), "nosuch.toml"])


def approve_in_advance(site: Path) -> int:
    return desk.main(["approve", str(site), "ab" * 32])


def approve_without_this_site(site: Path) -> int:
    with on(site.parents[1] / "lead"):
        roster = Path("roster.toml")
        text = Path("../authority/reply/roster.toml").read_text()
        roster.write_text("".join(line for line in text.splitlines(keepends=True) if "hospital-a" not in line))
        run("study", "new", "s.toml", "--task", "breast-cancer", "--protection", "none", "--roster", "roster.toml")
    return desk.main(["approve", str(site), "../lead/s.toml"])


MISTAKES: list[tuple[Callable[[Path], None], Callable[[Path], int], int, str, str]] = [
    (misspelt_protection, serve, 3, "unknown [policy] protection 'maskd'; did you mean 'masked'?", "known: "),
    (misspelt_key, serve, 3, "unknown key 'policy.protection'; did you mean 'protections'?", "known: "),
    (wrong_key_path, serve, 5, "nowhere.key: cannot be read", "correct [node] key"),
    (open_key, serve, 5, "others can read this private key", "chmod 600"),
    (another_sites_key, serve, 5, "the TLS key is not the certificate's", "certificate"),
    (wrong_ca, serve, 5, "is not the authority that signed this certificate", "correct [node] ca or certificate"),
    (no_reply_yet, serve, 5, "node-hospital-a.pem: cannot be read", "secure-fl node join REPLY"),
    (expired, serve, 5, "expired on", "secure-fl pki renew"),
    (clock_behind, serve, 5, "not valid before", "check the clock"),
    (another_name, serve, 5, "belongs to the node 'hospital-a', not to 'hospital-b'", "[node] name"),
    (no_state_folder, serve, 6, "cannot be created", "correct [state] folder"),
    (no_state_folder, status, 6, "node.toml/state/approvals.json: the list of approvals cannot", "[state] folder"),
    (no_state_folder, approve_in_advance, 6, "cannot be created", "correct [state] folder"),
    (no_such_file, serve, 3, "node.toml: no such file", "secure-fl node join"),
    (another_partys_file, serve, 3, "has no [node]", "is this the node's file?"),
    (ledger_of_another_site, serve, 5, "belongs to 'hospital-b', not to 'hospital-a'", "put"),
    (ledger_of_another_site, status, 5, "belongs to 'hospital-b', not to 'hospital-a'", "put"),
    (no_mistake, approve_half_a_hash, 2, "is neither a study's hash", "secure-fl study show"),
    (no_mistake, approve_no_file, 2, "nosuch.toml: no such file", "the study's file, or its hash"),
    (no_mistake, approve_without_this_site, 7, "is without this site", "nothing was approved"),
]


@pytest.mark.parametrize(
    ("mistake", "command", "code", "says", "advises"),
    MISTAKES,
    ids=[f"{mistake.__name__}-{command.__name__}" for mistake, command, *_ in MISTAKES],
)
def test_a_mistake_is_told_in_one_line_with_what_to_do(
    site: Path,
    capsys: pytest.CaptureFixture[str],
    mistake: Callable[[Path], None],
    command: Callable[[Path], int],
    code: int,
    says: str,
    advises: str,
) -> None:
    mistake(site)
    capsys.readouterr()
    assert command(site) == code
    told = capsys.readouterr()
    message, advice = told.err.splitlines()
    assert message.startswith("node: ")
    assert says in message
    assert advice.startswith("  → ")
    assert advises in advice
    assert told.out == ""


@pytest.mark.parametrize(
    ("mistake", "check"),
    [
        (misspelt_protection, "file"),
        (wrong_key_path, "keys"),
        (wrong_ca, "certificate"),
        (no_reply_yet, "certificate"),
        (no_state_folder, "state folder"),
        (ledger_of_another_site, "ledger"),
    ],
)
def test_the_doctor_finds_it_and_goes_on(
    site: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], None], check: str
) -> None:
    change(site, "node", coordinator="127.0.0.1:1")
    mistake(site)
    assert node.doctor.main([str(site)]) == 1
    lines = capsys.readouterr().out.splitlines()
    place = next(index for index, line in enumerate(lines) if line.startswith(f"FAILED   {check}: "))
    assert lines[place + 1].startswith("         → ")


@pytest.mark.parametrize(
    ("mistake", "check", "too"),
    [
        (wrong_key_path, "keys", "connection"),
        (open_key, "keys", "connection"),
        (no_reply_yet, "certificate", "keys, name, connection"),
    ],
)
def test_the_doctor_says_one_mistake_once(
    site: Path, capsys: pytest.CaptureFixture[str], mistake: Callable[[Path], None], check: str, too: str
) -> None:
    mistake(site)
    assert node.doctor.main([str(site)]) == 1
    lines = capsys.readouterr().out.splitlines()
    (failed,) = (line for line in lines if line.startswith("FAILED"))
    assert failed.startswith(f"FAILED   {check}: ")
    assert lines[-1].strip() == f"for a reason above, these fail, too: {too}"


def test_a_hash_that_nobody_has_offered_is_said_so(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.main(["approve", str(site), "ab" * 32]) == 0
    assert "this node has not been offered such a study yet" in capsys.readouterr().out


def test_a_port_in_use_is_told_without_lines_of_grpc(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        change(folder / "hub" / "coordinator.toml", "coordinator", address=address)
        change(folder / "hub" / "coordinator.toml", "monitoring", address="")
        done = subprocess.run(
            [sys.executable, "-P", "-m", "coordinator", str(folder / "hub" / "coordinator.toml")],
            capture_output=True, text=True, check=False, timeout=120, cwd=ROOT,
            env={key: value for key, value in os.environ.items() if key != "GRPC_VERBOSITY"},
        )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.splitlines() == [
        f"coordinator: cannot listen on {address}",
        "  → stop the other process or choose another port (port 0 takes a free one)",
    ]
