"""`secure-fl audit`: exit 0 only if everything holds, and otherwise the first bad entry by its number."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import secure_fl.cli
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy.decisions import approval
from secure_fl.privacy.ledger import end_of
from secure_fl.privacy.witness import WitnessFile
from secure_fl.study.settings import Study
from tests.support.ledgers import HEART, LUNG, Story, noisy, note_of, signed_again
from tests.support.processes import ROOT


class Desk:
    """An auditor's machine: a ledger, the CA, a witness's file, and the console script."""

    def __init__(self, folder: Path, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        self.folder, self.story = folder, story
        self._monkeypatch, self._capsys = monkeypatch, capsys
        (folder / "ca.pem").write_bytes(story.authority.ca_pem)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, output and errors."""
        self._monkeypatch.setattr(sys, "argv", ["secure-fl", "audit", *arguments])
        self._monkeypatch.setenv("COLUMNS", "140")
        with pytest.raises(SystemExit) as left:
            secure_fl.cli.main()
        told = self._capsys.readouterr()
        return int(left.value.code or 0), told.out, told.err

    def verify(self, *more: str) -> tuple[int, str, str]:
        """Of the site's own ledger."""
        return self.run("verify", "ledger.jsonl", "--ca", "ca.pem", *more)


@pytest.fixture
def desk(
    tmp_path: Path,
    consortium: Authority,
    north: Credential,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Desk:
    monkeypatch.chdir(tmp_path)
    story = Story(tmp_path / "ledger.jsonl", consortium, north)
    facts = approval(study_id=HEART, name="heart", by="ada", dataset="ward-7", epsilon=3.0, code=None)
    story.ledger.append("approved", facts)
    story.rounds(HEART, (1, 2), privacy=noisy())
    return Desk(tmp_path, story, monkeypatch, capsys)


def test_a_sound_ledger_is_told_in_words(desk: Desk) -> None:
    desk.story.cancel(desk.story.plan(HEART, 3, privacy=noisy()))
    desk.story.plan(HEART, 4, privacy=noisy())
    code, out, err = desk.verify("--site", "north")
    assert (code, err) == (0, "")
    assert "9 entries of north" in out
    assert "If the site ran the stated code, ε ≤" in out
    assert "limit ε = 3 at δ = 1e-05, never exceeded" in out
    assert "planned, never closed" in out
    assert "no witness: that the end was not cut off" in out
    assert "note: 1 planned round was never closed" in out
    (first,) = [line for line in out.splitlines() if " heart " in line and " 1 " in line and "masked" in line]
    assert "ward-7" in first
    assert "2,048" in first


def test_the_same_as_json(desk: Desk) -> None:
    desk.story.rounds(LUNG, (1,), dataset="clinic")
    code, out, _ = desk.verify("--json")
    told = json.loads(out)
    assert (code, told["ok"], told["site"], told["entries"]) == (0, True, "north", 8)
    clinic, ward = told["datasets"]
    assert (clinic["epsilon"], clinic["unbounded"]) == (None, "a release without differential privacy")
    assert ward["epsilon"] == told["uses"][1]["epsilon"] > 0
    assert (ward["policy"]["epsilon"], ward["exceeded_at"]) == (3.0, None)
    assert [use["study_name"] for use in told["uses"]] == ["heart", "heart", None]


def test_releases_without_noise_are_said_in_words_and_never_as_zero(desk: Desk) -> None:
    desk.story.rounds(LUNG, (1,), dataset="clinic")
    _, out, _ = desk.verify()
    assert "Nothing limits how much the results can reveal about single records" in out
    (row,) = [line for line in out.splitlines() if LUNG[:12] in line]
    assert row.rstrip().endswith("no bound")


def changed(desk: Desk) -> None:
    content = desk.story.path.read_bytes()
    desk.story.path.write_bytes(content.replace(b'"bytes": 2048', b'"bytes": 1048', 1))


def missing(desk: Desk) -> None:
    desk.story.path.unlink()


def another_consortium(desk: Desk) -> None:
    Authority.create(desk.folder / "other", consortium="other")
    (desk.folder / "ca.pem").write_bytes((desk.folder / "other" / "ca.pem").read_bytes())


def no_ca(desk: Desk) -> None:
    (desk.folder / "ca.pem").unlink()


def no_ledger(desk: Desk) -> None:
    desk.story.path.write_text('[node]\nname = "north"\n')


def no_certificate(desk: Desk) -> None:
    (desk.folder / "ca.pem").write_text('[node]\nname = "north"\n')


def first_line_damaged(desk: Desk) -> None:
    desk.story.path.write_bytes(b"x" + desk.story.path.read_bytes())


def never_planned(desk: Desk) -> None:
    desk.story.send({"study": LUNG, "round": 1, "attempt": 1, "dataset": "ward-7", "privacy": None, "repeats": False})


def beyond(desk: Desk) -> None:
    desk.story.plan(HEART, 3, privacy=noisy(steps=100_000))


@pytest.mark.parametrize(
    ("trouble", "code", "says"),
    [
        (changed, 6, "entry 3 is not genuine"),
        (missing, 6, "there is no ledger"),
        (another_consortium, 5, "entry 0: node 'north': not issued by this consortium"),
        (no_ledger, 6, "ledger.jsonl: is no ledger\n  → correct the path"),
        (no_certificate, 5, "ca.pem: the consortium's certificate cannot be read (ValueError)\n  → give"),
        (first_line_damaged, 6, "entry 0 is not genuine"),
        (no_ca, 5, "ca.pem: cannot be read"),
        (never_planned, 6, "entry 6 (sent) closes what was never planned"),
        (beyond, 6, "entry 6 goes beyond the limit that the site had set for data set 'ward-7'"),
    ],
)
def test_what_does_not_hold_is_named_with_its_exit_code(desk: Desk, trouble: Any, code: int, says: str) -> None:
    assert desk.verify()[0] == 0
    trouble(desk)
    left, _, err = desk.verify()
    assert left == code
    assert says in err
    assert "  → " in err
    left, out, _ = desk.verify("--json")
    assert left == code
    assert json.loads(out)["ok"] is False


def test_another_sites_ledger_is_not_taken_for_this_ones(desk: Desk) -> None:
    code, _, err = desk.verify("--site", "south")
    assert code == 5
    assert "belongs to 'north', not to 'south'" in err


def test_a_witness_convicts_a_site_that_rewrote_its_ledger_with_its_own_key(desk: Desk, north: Credential) -> None:
    WitnessFile(desk.folder / "witness.jsonl").note(desk.story.note())
    assert desk.verify("--witness", "witness.jsonl")[0] == 0
    content = desk.story.path.read_bytes()
    bodies = [json.loads(line) for line in content.splitlines()]
    for forged in (signed_again(bodies[:-2], north), signed_again([*bodies[:2], *bodies[4:]], north)):
        desk.story.path.write_bytes(forged)
        end_of(desk.story.path).unlink(missing_ok=True)
        assert desk.verify()[0] == 0  # The ledger alone looks right.
        code, out, err = desk.verify("--witness", "witness.jsonl")
        assert code == 6
        assert "FAULT: entry 4: the ledger ends after 4 lines" in out
        assert "ask the site" in err


def test_two_witnesses_that_were_told_two_stories(desk: Desk, north: Credential) -> None:
    WitnessFile(desk.folder / "bonn.jsonl").note(desk.story.note())
    length = desk.story.ledger.head.length
    other = note_of(north, LedgerHead(site="north", length=length, head="ab" * 32))
    WitnessFile(desk.folder / "ulm.jsonl").note(other)
    assert desk.verify("--witness", "bonn.jsonl")[0] == 0
    code, out, _ = desk.verify("--witness", "bonn.jsonl", "--witness", "ulm.jsonl")
    assert code == 6
    assert "two stories: north signed that line 6" in out


def test_a_forged_witness_is_named_and_convicts_nobody(desk: Desk) -> None:
    note = desk.story.note()
    (desk.folder / "witness.jsonl").write_bytes(note.line().replace(b'"length": 6', b'"length": 9'))
    code, _, err = desk.verify("--witness", "witness.jsonl")
    assert code == 6
    assert "witness.jsonl: line 1 is not what a site signed" in err


def test_a_study_s_file_gives_its_name(desk: Desk) -> None:
    study = Study.parse({"study": {"name": "lungs"}})
    (desk.folder / "study.json").write_bytes(study.canonical())
    desk.story.rounds(study.id, (1,), dataset="clinic")
    code, out, _ = desk.verify("--study", "study.json")
    assert code == 0
    assert " lungs " in out


def test_a_report_and_a_registry_entry_are_written_also_of_what_does_not_hold(desk: Desk) -> None:
    arguments = ("report", "ledger.jsonl", "--ca", "ca.pem", "--out", "audit.html", "--registry", "audit.yaml")
    code, out, _ = desk.run(*arguments)
    assert code == 0
    assert "audit.html: 6 entries of north" in out
    assert "everything holds" in (desk.folder / "audit.html").read_text()
    never_planned(desk)
    assert desk.run(*arguments)[0] == 6
    assert "does not hold" in (desk.folder / "audit.html").read_text()
    assert "DO NOT SUBMIT" in (desk.folder / "audit.yaml").read_text()


def test_help_does_not_load_what_only_an_audit_needs() -> None:
    script = (
        "import sys; import secure_fl.cli; "
        "sys.exit(any(name in sys.modules for name in ('dp_accounting', 'opacus', 'secure_fl.privacy.accounting')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


PAGE = (ROOT / "docs" / "audit.md").read_text(encoding="utf-8")


def test_the_officers_page_names_commands_and_messages_that_there_are() -> None:
    command = typer.main.get_command(secure_fl.cli.app)
    lines = re.findall(r"^(secure-fl audit .+)$", PAGE, re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        name, *words = shlex.split(line)[2:]
        known = {option for parameter in command.commands["audit"].commands[name].params for option in parameter.opts}  # type: ignore[attr-defined]
        assert {word for word in words if word.startswith("-")} <= known
    packages = [path for package in ("privacy", "identity") for path in (ROOT / "secure_fl" / package).glob("*.py")]
    source = "\n".join(path.read_text(encoding="utf-8") for path in packages)
    table = PAGE.partition("## When it says")[2].partition("A ledger that an older")[0]
    messages = [
        text for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for text in re.findall("`(.+?)`", cell)
    ]
    assert len(messages) > 8
    for message in messages:
        for part in re.split("…|[:;] ", message):
            assert part.strip() in source, part


# --- what an auditor is told to do --------------------------------------------------------------------------------


def test_advice_is_for_whoever_audits_and_not_for_the_sites_operator(desk: Desk) -> None:
    content = (desk.folder / "ledger.jsonl").read_bytes()
    told = [desk.run("verify", "nowhere.jsonl", "--ca", "ca.pem")[2], desk.verify("--site", "south")[2]]
    (desk.folder / "ledger.jsonl").write_bytes(content.replace(b"ward-7", b"ward-8", 1))
    told.append(desk.verify()[2])
    (desk.folder / "ledger.jsonl").write_bytes(b"")
    told.append(desk.verify()[2])
    (desk.folder / "ledger.jsonl").write_bytes(content)
    (desk.folder / "witness.jsonl").write_text("{}\n")
    told.append(desk.verify("--witness", "witness.jsonl")[2])
    for said in told:
        assert "→" in said
        assert "ask the" in said.lower()
        # What an operator would do at the site: none of it is an auditor's to do.
        for operators in ("sits out", "put this site's own", "start with an empty state", "the node begins"):
            assert operators not in said, said


def test_a_witness_file_that_shows_nothing_is_not_taken_for_one_that_does(desk: Desk, consortium: Authority) -> None:
    (desk.folder / "empty.jsonl").write_bytes(b"")
    south = consortium.issue("node", "south-east")
    other = note_of(south, LedgerHead(site="south-east", length=3, head="ab" * 32), study=HEART, round=1)
    WitnessFile(desk.folder / "own.jsonl").note(other)  # As north's own: it has noted others, and not itself.
    code, out, _ = desk.verify("--witness", "empty.jsonl", "--witness", "own.jsonl")
    assert code == 0
    assert "note: empty.jsonl is empty: it shows nothing about north" in out
    assert "note: own.jsonl has no note about north, and shows nothing about it: it is north's own file" in out
    assert "no witness: that the end was not cut off" in out
    WitnessFile(desk.folder / "witness.jsonl").note(desk.story.note())
    assert "shows nothing" not in desk.verify("--witness", "witness.jsonl")[1]
