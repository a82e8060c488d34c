"""A site that changes its own ledger, with its own key: every signature in it is right, and its peers convict it.

On the ledgers of a real run. Without a witness each of these attacks succeeds.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import pytest
from typer.testing import CliRunner

from coordinator.machine import RoundMachine
from node.config import NodeFile
from node.witnessing import Witnessing
from secure_fl.cli import app
from secure_fl.errors import RewrittenLedgerError, SecureFLError
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead, sign_head
from secure_fl.privacy.audit import examine
from secure_fl.privacy.ledger import Ledger, end_of, read_site_ledger
from secure_fl.privacy.witness import WitnessFile, WitnessNote, read_witness
from secure_fl.protect.contract import OpenedSums
from secure_fl.protect.masked.protection import Masked
from tests.protect.cohorts import InMemory, context, contribution, host
from tests.protect.members import authority, member
from tests.support.ledgers import signed_again

VICTIM = "site-01"
Attack: TypeAlias = Callable[["Run"], None]


@dataclass(frozen=True)
class Run:
    """The folder that a run left behind."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """That of the site that cheats."""
        return self.folder / "nodes" / VICTIM / "ledger.jsonl"

    @property
    def witnesses(self) -> list[Path]:
        """The other sites' notes."""
        found = sorted((self.folder / "nodes").glob("*/witness.jsonl"))
        return [path for path in found if path.parent.name != VICTIM]

    @property
    def key(self) -> Credential:
        """The cheating site's own."""
        return NodeFile.read(self.folder / "nodes" / VICTIM / "node.toml").credential()

    def verify(self, *witnesses: Path) -> tuple[str, BaseException | None]:
        """`secure-fl audit verify`: what it prints, and the error that it ends with."""
        named = [part for path in witnesses for part in ("--witness", str(path))]
        done = CliRunner().invoke(
            app, ["audit", "verify", str(self.ledger), "--ca", str(self.folder / "ca.pem"), *named]
        )
        return done.output, done.exception


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two rounds of digits among four sites, once for all tests here."""
    folder = tmp_path_factory.mktemp("witnesses") / "run"
    done = CliRunner().invoke(
        app, ["run", "--engine", "threads", "--nodes", "4", "--rounds", "2", "--out", str(folder), "--json"]
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Run:
    found = Run(shutil.copytree(finished, tmp_path / "run"))
    end_of(found.ledger).unlink()  # Whoever has the site's key does not forget it.
    return found


def cut(run: Run) -> None:
    """Without the last three lines."""
    lines = run.ledger.read_bytes().splitlines(keepends=True)
    run.ledger.write_bytes(b"".join(lines[:-3]))


def rewritten(run: Run) -> None:
    """As if the second round had used half as much, signed anew from there on."""
    bodies = [json.loads(line) for line in run.ledger.read_bytes().splitlines()]
    sent = [body for body in bodies if body["kind"] == "sent"]
    sent[1]["facts"]["release"]["bytes"] //= 2
    run.ledger.write_bytes(signed_again(bodies, run.key))


def without_a_round(run: Run) -> None:
    """As if the first round had never been, with as many lines as before: the closing round is in it twice."""
    bodies = [json.loads(line) for line in run.ledger.read_bytes().splitlines()]
    rounds = [body for body in bodies if body["kind"] in ("planned", "sent")]
    last = rounds[-1]["time"]
    again = [{**body, "time": last, "facts": {**body["facts"], "attempt": 2}} for body in rounds[-2:]]
    run.ledger.write_bytes(signed_again([*(b for b in bodies if b not in rounds[:2]), *again], run.key))


def anew(run: Run) -> None:
    """From its first line on."""
    run.ledger.unlink()
    key = run.key
    ca = (run.folder / "ca.pem").read_bytes()
    Ledger(run.ledger, certificate=key.certificate, key=key.signing_key, authority=ca)


def test_an_honest_ledger_is_confirmed_by_every_other_site(run: Run) -> None:
    assert len(run.witnesses) == 3
    for witness in run.witnesses:
        printed, error = run.verify(witness)
        assert error is None, printed
        assert (
            "3 notes of other sites about this ledger were compared with it" in printed
        )  # two rounds and the closing one
        assert "everything holds" in printed


@pytest.mark.parametrize("attack", [cut, rewritten, without_a_round, anew])
def test_a_changed_ledger_verifies_alone_and_is_convicted_by_any_peer(run: Run, attack: Attack) -> None:
    attack(run)
    printed, error = run.verify()
    assert error is None, printed  # The attack succeeds: chain, signatures and sums are right.
    assert "no witness: that the end was not cut off" in printed
    for witness in run.witnesses:
        printed, error = run.verify(witness)
        assert isinstance(error, RewrittenLedgerError)
        assert "everything holds" not in printed
        assert "FAULT: entry" in printed
        assert f"{VICTIM} signed that line" in printed


def test_with_the_comparison_taken_out_a_witness_is_worth_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(run)
    monkeypatch.setattr("secure_fl.privacy.audit_faults.missing_from", lambda *_: [])
    assert isinstance(run.verify(*run.witnesses)[1], RewrittenLedgerError)  # The plan that peers saw is missing, too.
    monkeypatch.setattr("secure_fl.privacy.audit_faults._unplanned", lambda *_: [])
    printed, error = run.verify(*run.witnesses)
    assert error is None
    assert "everything holds" in printed


def test_a_cut_of_the_newest_plan_is_seen_and_without_its_end_it_counts(run: Run) -> None:
    """What peers see last is the plan for the last attempt. Its end stands after that, and a cut end hides nothing."""
    lines = run.ledger.read_bytes().splitlines(keepends=True)
    run.ledger.write_bytes(b"".join(lines[:-1]))
    printed, error = run.verify(*run.witnesses)
    assert error is None
    assert "never closed" in printed
    assert "counts as used" in printed
    run.ledger.write_bytes(b"".join(lines[:-2]))
    assert isinstance(run.verify(*run.witnesses)[1], RewrittenLedgerError)


def test_a_site_that_took_part_cannot_deny_it_afterwards(run: Run) -> None:
    """What was computed is never taken back, so a plan that peers saw cannot have been cancelled."""
    bodies = [json.loads(line) for line in run.ledger.read_bytes().splitlines()]
    facts = {name: value for name, value in bodies[-1]["facts"].items() if name != "release"}
    denied = {**bodies[-1], "kind": "cancelled", "facts": {**facts, "reason": "Training"}}
    run.ledger.write_bytes(signed_again([*bodies[:-1], denied], run.key))
    assert run.verify()[1] is None
    assert isinstance(run.verify(*run.witnesses)[1], RewrittenLedgerError)
    earlier = {**denied, "time": bodies[-3]["time"], "facts": {**denied["facts"], "round": 2}}
    run.ledger.write_bytes(signed_again([*bodies[:-3], earlier, *bodies[-2:]], run.key))
    assert run.verify()[1] is None
    assert isinstance(run.verify(*run.witnesses)[1], RewrittenLedgerError)


def test_a_witness_s_word_is_the_other_site_s_own(run: Run) -> None:
    """Nobody can accuse a site by editing a note: each is signed by the site that it is about."""
    witness = run.witnesses[0]
    notes = [json.loads(line) for line in witness.read_bytes().splitlines()]
    for note in notes:
        note["length"] += 1 if note["site"] == VICTIM else 0
    witness.write_text("".join(json.dumps(note) + "\n" for note in notes))
    error = run.verify(witness)[1]
    assert isinstance(error, SecureFLError)
    assert error.code == "Witness"


# --- while it happens -----------------------------------------------------------------------------------------

NAMES = ("n0", "n1", "n2", "n3")


class Sites:
    """Sites with their ledgers and notes on disk, in one study."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledgers = {name: self._ledger(name) for name in NAMES}
        self.witness = {name: self._witnessing(name) for name in NAMES}

    def path(self, name: str) -> Path:
        """A site's ledger."""
        return self.folder / name / "ledger.jsonl"

    def _ledger(self, name: str) -> Ledger:
        me = member(name)
        return Ledger(self.path(name), certificate=me.certificate, key=me.key, authority=authority().ca_pem)

    def _witnessing(self, name: str) -> Witnessing:
        return Witnessing(self.ledgers[name], WitnessFile(self.folder / name / "witness.jsonl"))

    def restart(self, name: str) -> None:
        """A node that goes on from what is on its disk now."""
        self.ledgers[name] = self._ledger(name)
        self.witness[name] = self._witnessing(name)

    def attempt(self, number: int) -> OpenedSums:
        """An attempt at the first round, and what it opens."""
        about = context(*NAMES, whole=True, attempt=number)
        values = contribution(64, body=[1, 2, 3], head=[4, 5])
        facts = {"study": about.study_id, "round": 1, "attempt": number, "dataset": "ward", "privacy": None}
        for name in NAMES:
            self.ledgers[name].append("planned", facts)
        halves = {name: Masked().node(about, values, replace(host(name), witness=self.witness[name])) for name in NAMES}
        machine = RoundMachine(Masked(), about)
        machine.begin()
        while machine.phase:
            phase = machine.phase
            for name in sorted(machine.waiting):
                answer = halves[name].answer(phase, machine.asked[name])
                machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            opened = machine.close()
        for name in NAMES:
            self.ledgers[name].append("sent", {**facts, "release": {"bytes": 20, "protection": "masked"}})
        assert isinstance(opened, OpenedSums)
        return opened


@pytest.mark.parametrize("lines", [2, 4])
def test_a_site_that_cuts_its_ledger_between_rounds_is_named_at_once_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lines: int
) -> None:
    sites = Sites(tmp_path)
    for number in (1, 2, 3):
        honest = sites.attempt(number)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    kept = sites.path("n1").read_bytes().splitlines(keepends=True)[:-lines]
    sites.path("n1").write_bytes(b"".join(kept))
    end_of(sites.path("n1")).unlink()
    sites.restart("n1")
    opened = sites.attempt(4)
    assert opened.blocks["body"].total.tolist() == honest.blocks["body"].total.tolist() == [4, 8, 12]
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warned
    assert all(said.startswith("n1 ") for said in warned)
    assert sum("n1 has cut its ledger" in said for said in warned) == 3  # one for each of its peers
    # With what any of them noted, an auditor convicts it whatever it shows from now on.
    entries = read_site_ledger(sites.path("n1"), authority=authority().ca_pem, site="n1")
    for peer in ("n0", "n2", "n3"):
        notes = read_witness(tmp_path / peer / "witness.jsonl", authority=authority().ca_pem)
        assert {fault.error for fault in examine(entries, notes=notes).faults} >= {"RewrittenLedger"}


def test_a_site_that_takes_part_and_plans_nothing_is_convicted(run: Run) -> None:
    """Its ledger is whole, has every line that peers saw, and is silent about what the site did."""
    bodies = [json.loads(line) for line in run.ledger.read_bytes().splitlines()]
    harmless = [
        {**body, "kind": "refused", "facts": {"study": body["facts"]["study"], "round": 1, "reason": "Refused"}}
        if body["kind"] in ("planned", "sent")
        else body
        for body in bodies
    ]
    run.ledger.write_bytes(signed_again(harmless, run.key))
    silent = run.ledger.read_bytes().splitlines()
    notes = []
    for line in run.witnesses[0].read_bytes().splitlines():
        note = WitnessNote.from_facts(json.loads(line))
        if note.head.site == VICTIM:  # As if the site had shown the heads of the ledger that it really kept.
            head = LedgerHead(
                site=VICTIM, length=note.head.length, head=hashlib.sha256(silent[note.head.length - 1]).hexdigest()
            )
            signature = sign_head(run.key.signing_key, head, study=note.study, round=note.round, attempt=note.attempt)
            notes.append(replace(note, head=head, signature=signature))
    run.witnesses[0].write_bytes(b"".join(note.line() for note in notes))
    assert run.verify()[1] is None
    error = run.verify(run.witnesses[0])[1]
    assert isinstance(error, RewrittenLedgerError)
    assert "had not planned it" in error.message
