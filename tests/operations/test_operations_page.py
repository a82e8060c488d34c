"""docs/operations.md, carried out as written among folders that stand for machines, and what else it claims."""

from __future__ import annotations

import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import typer
from pydantic import BaseModel
from safetensors.torch import load_file

from coordinator.config import CoordinatorFile
from node.config import DatasetSection, NodeFile
from secure_fl.cli import app
from secure_fl.identity.party_file import PartyFile
from secure_fl.operations.operator import OperatorFile
from secure_fl.operations.party_templates import Dataset, coordinator_file, node_file, operator_file
from secure_fl.operations.waiting import _ENDED, _REFUSES, _SAT_OUT, _SET_ASIDE, site_words
from secure_fl.privacy.ledger import read_ledger
from secure_fl.rpc.operations_pb2 import SiteStatus
from secure_fl.settings import read_toml
from tests.support.page import Fence, Machines, fences, links, missing_links, with_arguments
from tests.support.processes import ROOT, free_port

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
SITES = ("hospital-a", "hospital-b", "hospital-c", "hospital-d")


MOST_COMMANDS = 25


def addresses() -> dict[str, str]:
    """All that is replaced on the page and in the coordinator's file, in this order."""
    port = free_port()
    return {
        "fl.example.org:8443": f"127.0.0.1:{port}",
        "0.0.0.0:8443": f"127.0.0.1:{port}",
        "fl.example.org": "127.0.0.1",
        "127.0.0.1:9464": f"127.0.0.1:{free_port()}",
    }


def to_a_study() -> list[Fence]:
    """What the page does from nothing to the end of the first study."""
    return list(fences(PAGE.partition("## 1. From nothing to a study")[2].partition("\n## ")[0]))


def test_from_nothing_to_a_study_are_few_commands_and_no_file_is_typed() -> None:
    counted = sum(len(fence.text.splitlines()) * len(fence.sites) for fence in to_a_study())
    assert counted <= MOST_COMMANDS
    assert f"{counted} commands in all, and no file to type." in PAGE
    assert len({site for fence in to_a_study() for site in fence.sites}) == 6
    # Each of them is one command: nothing is joined, looped or piped, and nothing is written by the shell.
    for fence in fences(PAGE):
        assert fence.language == "sh"
    for line in "".join(fence.text for fence in to_a_study()).splitlines():
        assert line.startswith(("secure-fl ", "python3 "))
        assert not set(line) & set(";|&<>")


EVERYWHERE = ("At each hospital", "at each hospital", "At each of the four", "On every machine", "At a hospital")


def test_the_text_says_on_which_machine_a_command_is_typed() -> None:
    parts = re.split(r"(^```.*\n(?:.*\n)*?^```$)", PAGE, flags=re.MULTILINE)
    said = ""
    for part in parts:
        if not part.startswith("```"):
            # Fences that follow each other share the paragraph before them.
            said = part.strip().rpartition("\n\n")[2] or said
        elif (sites := re.match(r"```sh site=([\w,-]+)", part)) is not None:
            for site in sites[1].split(","):
                named = f"`{site}`" in said or (
                    site.startswith("hospital") and any(word in said for word in EVERYWHERE)
                )
                assert named or "On every machine" in said, f"{site}: {said}"


def status(machines: Machines, study: str) -> dict[str, Any]:
    """What the study lead sees."""
    return dict(json.loads(machines.until(["lead"], f"secure-fl study status {study} --json"))[0])


@pytest.mark.timeout(600)
def test_the_page_is_carried_out_as_written(tmp_path: Path) -> None:
    todo = list(fences(PAGE))
    replaced = addresses()

    with Machines(tmp_path, addresses=replaced) as machines:

        def carry_out_up_to(line: str) -> str:
            """Every fence before the one with this line; returns what the last one wrote."""
            said = ""
            while line not in todo[0].text:
                said = machines.carry_out(todo.pop(0))
            return said

        carry_out_up_to("secure-fl coordinator join")
        file = tmp_path / "hub" / "coordinator.toml"
        for written, real in replaced.items():
            file.write_text(file.read_text().replace(written, real))

        carry_out_up_to("secure-fl task new")
        wait(lambda: "listening on port" in (tmp_path / "hub" / "log").read_text())

        # Submitted and not approved: nothing has left any site.
        carry_out_up_to("secure-fl node approve node.toml ../lead/wards.toml")
        for site in SITES[:3]:
            assert [entry.kind for entry in read_ledger(tmp_path / site / "state" / "ledger.jsonl")] == ["opened"]

        # A site is enrolled while a study runs: nobody in it notices.
        carry_out_up_to("secure-fl node join ../authority/reply/invitation.toml --name hospital-d")
        done = status(machines, "second")["rounds_done"]
        carry_out_up_to("secure-fl study stop second")
        wait(lambda: status(machines, "second")["rounds_done"] > done)
        last = status(machines, "second")["record"]["rounds"][-1]
        assert [node["outcome"] for node in last["nodes"]] == ["took part"] * 3

        # The fourth agreed to be shown by the difference: without its word nobody would have masked for it.
        carry_out_up_to("secure-fl pki revoke")
        assert status(machines, "heart-4")["state"] == "running"
        wait(lambda: status(machines, "heart-4")["rounds_done"] > 1)
        last = status(machines, "heart-4")["record"]["rounds"][-1]
        assert [node["outcome"] for node in last["nodes"]] == ["took part"] * 4
        # One is revoked while a study runs: its circle is never complete again, and nothing else is opened.
        carry_out_up_to("secure-fl study stop heart-4")
        done = status(machines, "heart-4")["rounds_done"]
        time.sleep(5)
        assert status(machines, "heart-4")["rounds_done"] <= done + 1
        assert status(machines, "heart-4")["state"] == "running"

        while todo:
            said = machines.carry_out(todo.pop(0))

        check_finished(machines, said)
        carry_out_the_text(machines)
        check_refused(machines)
        assert set(machines.stop().values()) == {0}


def check_finished(machines: Machines, said: str) -> None:
    """The studies ended as the page says, and their record, model and ledgers agree."""
    folder = machines.folder
    wards = status(machines, "wards")
    assert [number["number"] for number in wards["record"]["rounds"]] == [1, 2, 3, 4, 5, 6]
    assert wards["record"]["rounds"][-1]["metrics"]["auc"] > 0.5
    check_loads(folder / "lead" / "wards.py", folder / "lead" / "wards.safetensors")
    card = (folder / "lead" / "wards.md").read_text()
    assert wards["study_id"] in card
    assert "trained: 5 of 5 rounds" in card
    with (folder / "lead" / "wards.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["round"] for row in table] == ["0", "1", "2", "3", "4", "5"]
    assert float(table[5]["auc"]) == wards["record"]["rounds"][-1]["metrics"]["auc"]
    assert (table[0]["sites"], table[5]["sites"]) == ("", "3")
    for study in ("second", "heart-4"):
        stopped = status(machines, study)
        assert (stopped["state"], stopped["reason"]) == ("aborted", "StudyStopped")
    # The page's last command is the auditor's.
    known = {study["id"]: study for study in json.loads(said.splitlines()[-1])["studies"]}
    mine = known[wards["study_id"]]
    assert (mine["releases"], mine["epsilon"], mine["approved"]) == (6, None, True)
    assert len(known) == 4
    ward = known[status(machines, "ward")["study_id"]]
    assert ward["releases"] == 4
    assert 0 < ward["epsilon"] < 3
    unbounded = {row["dataset"]: row["unbounded"] for row in json.loads(said.splitlines()[-1])["datasets"]}
    assert unbounded == {"wards": True, "breast-cancer": True, "ward": False}
    page = (folder / "hospital-a" / "ward.html").read_text()
    assert f"{ward['epsilon']:.4g}" in page


# Commands in the page's text, and where they are typed.
IN_THE_TEXT = {
    "secure-fl pki invite pki --coordinator fl.example.org:8443": "authority",
    "secure-fl pki crl pki": "authority",
    "secure-fl pki fingerprint node-hospital-a.pem": "hospital-a",
    "secure-fl node try node.toml second.toml": "hospital-a",
    "secure-fl study status 3f2a": "lead",
    "secure-fl pki renew coordinator.toml --host fl.example.org": "hub",
}


def carry_out_the_text(machines: Machines) -> None:
    """What stands between the fences; the example's hash is replaced by one of a study here."""
    wards = status(machines, "wards")["study_id"]
    for command, site in IN_THE_TEXT.items():
        said = machines.carry_out(Fence(language="sh", text=command.replace("3f2a", wards[:8]), sites=(site,)))
        assert said.strip(), command
    renewed = "secure-fl pki sign pki ../hub/coordinator-hub.csr.pem --renew"
    machines.until(["authority"], renewed)
    machines.until(["hub"], "secure-fl coordinator join ../authority/reply/coordinator-hub.reply.toml")


def test_no_command_of_the_text_is_left_out() -> None:
    lines = {line for fence in fences(PAGE) for line in fence.text.splitlines()}
    assert set(with_arguments(PAGE)) - lines == IN_THE_TEXT.keys()


def check_loads(code: Path, exported: Path) -> None:
    """What was exported is a state dict of the task's model, as torch itself takes it."""
    spec = spec_from_file_location("wards_of_the_page", code)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.Wards(module.Wards.Settings()).model()
    tensors = load_file(exported)
    assert tensors.keys() == model.state_dict().keys()
    model.load_state_dict(tensors)


def check_refused(machines: Machines) -> None:
    """A node's certificate is no operator's; a renewed one has the same fingerprint, and a revoked site has none."""
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


# --- what the page claims besides -----------------------------------------------------------------------------

EXAMPLES = ROOT / "docs" / "examples"
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
COMMAND = typer.main.get_command(app)


def understood(words: Iterable[str]) -> None:
    """Raise unless these are a command of `secure-fl`, with options it has. Arguments are not looked at."""
    command: Any = COMMAND
    for word in words:
        if word.startswith("-"):
            known = {name for parameter in command.params for name in parameter.opts} | {"--help"}
            assert word in known, f"{command.name} {word}"
        elif hasattr(command, "commands"):
            assert word in command.commands, f"{command.name} {word}"
            command = command.commands[word]


def test_every_command_the_page_names_exists() -> None:
    lines = re.findall(r"^\s*(secure-fl .+?)(?: #.*)?$", PAGE, re.MULTILINE)
    named = [*re.findall(r"`(secure-fl [^`]+)`", PAGE), *lines]
    assert len(named) > 50
    for text in named:
        understood(shlex.split(text.partition(">")[0])[1:])
    for wrong in (["study", "submitt"], ["study", "submit", "--quick"]):
        with pytest.raises(AssertionError):
            understood(wrong)


def defaults(model: type[BaseModel], *, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a file with its default; None where it has to be set."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from defaults(kind, prefix=f"{prefix}{name}.")
            # A file may have other defaults for a section than the section itself.
            if isinstance(field.default, BaseModel):
                yield from flat(field.default.model_dump(exclude_unset=True), prefix=f"{prefix}{name}.")
        else:
            yield prefix + name, None if field.is_required() else field.get_default(call_default_factory=True)


def flat(table: dict[str, Any], *, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """A table's values under dotted keys."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flat(value, prefix=f"{prefix}{key}.")
        else:
            yield prefix + key, tuple(value) if isinstance(value, list) else value


FILES: dict[str, type[PartyFile]] = {
    "coordinator.toml": CoordinatorFile,
    "node.toml": NodeFile,
    "operator.toml": OperatorFile,
}
DIALED = {
    "coordinator": "fl.example.org:8443",
    "fingerprint": re.findall(r'^fingerprint = "(\w+)"', PAGE, re.MULTILINE)[0],
}
TEXTS = {
    "coordinator.toml": coordinator_file("hub"),
    "node.toml": node_file("hospital-a", **DIALED, datasets=(Dataset(id="breast-cancer", path="data.npz"),)),
    "operator.toml": operator_file("lead", **DIALED),
}
# Said in the text around the file: top-level lists, and what only simulations have.
# Named in the text below each file instead: they have no default that TOML could write.
ELSEWHERE = {
    "policy.epsilon",
    "policy.delta",
    "policy.upload_parameters",
    "studies",
    "datasets",
    "simulation",
    "datasets.breast-cancer.units",
    "datasets.breast-cancer.share",
}


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_on_the_page_with_its_default(name: str) -> None:
    # What `new` writes, word for word, and in it every key with its default but for what differs from party to party.
    written = TEXTS[name]
    assert f"```toml\n{written}```" in PAGE
    FILES[name].parse(tomllib.loads(written))
    shown = dict(flat(tomllib.loads(written)))
    expected = dict(defaults(FILES[name]))
    if name == "node.toml":
        expected |= {f"datasets.breast-cancer.{key}": value for key, value in defaults(DatasetSection)}
    assert shown.keys() == expected.keys() - ELSEWHERE
    changed = {key.rpartition(".")[2] for key, value in shown.items() if value != expected[key]}
    assert changed <= {"name", "coordinator", "fingerprint", "certificate", "path"}


def product_text() -> str:
    """The product's source, in which an f-string's text and what varies in it alternate."""
    paths = [path for package in ("secure_fl", "node", "coordinator") for path in (ROOT / package).rglob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def test_every_message_in_the_table_of_symptoms_is_one_that_the_product_writes() -> None:
    source = product_text()
    table = PAGE.partition("## When something is wrong")[2].partition("## Exit codes")[0]
    messages = [
        text for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for text in re.findall("`(.+?)`", cell)
    ]
    assert len(messages) > 25
    for message in messages:
        # What varies is left out on the page; where two messages are joined there is a colon or a semicolon.
        for part in re.split("…|[:;] ", message):
            assert part.strip() in source, f"{message}: {part}"


def test_what_the_lead_is_told_is_what_status_says() -> None:
    """Sentences: the codes behind them are for logs and ledgers."""
    codes = {code for words in (_SET_ASIDE, _REFUSES, _SAT_OUT, _ENDED) for code in words}
    assert not [code for code in codes for form in (f"`{code}`", f"({code})") if form in PAGE]
    used_up = site_words(SiteStatus(connected=True, accepted=True, sat_out="BudgetExceeded", sat_out_round=7))
    assert f"tells the lead `{used_up.replace('7', '…')}`" in PAGE
    not_ready = site_words(SiteStatus(connected=True, refusal="NotReady"))
    assert f"in the lead's status `{not_ready.partition(' (')[0]} …`" in PAGE


def test_the_exit_codes_are_those_of_the_errors() -> None:
    from secure_fl.errors import SecureFLError

    table = PAGE.partition("## Exit codes")[2].partition("##")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    pending, codes = [SecureFLError], set()
    while pending:
        cls = pending.pop()
        pending.extend(cls.__subclasses__())
        if cls is not SecureFLError and cls.__module__.startswith("secure_fl"):
            codes.add(cls.exit_code)
    assert listed == codes | {0, 70, 130}


def test_every_link_leads_somewhere() -> None:
    assert len(links(ROOT / "docs" / "operations.md")) > 20
    assert missing_links(ROOT / "docs" / "operations.md") == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_what_there_is_with_no_more_rights_than_it_needs(unit: Path, tmp_path: Path) -> None:
    text = unit.read_text()
    script, *words = shlex.split(re.findall(r"^ExecStart=(.+)$", text, re.MULTILINE)[0])
    assert words[-1].endswith(".toml")
    understood(words[:-1])
    for line in ("User=secure-fl", "ProtectSystem=strict", "NoNewPrivileges=true", "PrivateTmp=true"):
        assert line in text.splitlines()
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    # The program has to exist for the check; here it is the one of this environment.
    here = tmp_path / unit.name
    here.write_text(text.replace(script, str(Path(sys.executable).parent / "secure-fl")))
    done = subprocess.run(["systemd-analyze", "verify", here], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if unit.name in line or str(here) in line]
    assert (done.returncode, said) == (0, [])


def test_the_container_runs_a_command_that_exists_and_not_as_root() -> None:
    lines = (EXAMPLES / "Containerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if line[:1].isupper())
    assert int(said["USER"]) > 0
    assert json.loads(said["ENTRYPOINT"])[-1].endswith("/secure-fl")
    understood(json.loads(said["CMD"])[:-1])
