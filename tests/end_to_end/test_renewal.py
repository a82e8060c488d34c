"""Certificates renewed in the middle of a study, with real processes: it goes on, and nobody else changes anything."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from secure_fl.files import write_atomically
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate, utc_now
from secure_fl.identity.credential import Credential, make_renewal
from secure_fl.privacy.ledger import read_ledger
from tests.support.processes import Processes


def renew(fed: Processes, stem: str) -> tuple[Certificate, Certificate]:
    """A new certificate for the same keys, in the place of the old one; returns both."""
    pki = fed.workspace.folder / "pki"
    before = Credential.load(pki, stem=stem)
    later = Authority.open(pki, now=lambda: utc_now() + timedelta(seconds=2))
    certificate = later.issue_from_request(make_renewal(before), renew=True)
    write_atomically(pki / f"{stem}.pem", certificate.pem)
    replace(before, certificate=certificate)  # raises unless the keys are the same
    return before.certificate, certificate


def test_a_sites_and_the_coordinators_certificate_are_renewed_while_a_study_runs(tmp_path: Path) -> None:
    settings = {
        "study": {"rounds": 4},
        "protection": {"kind": "masked"},
        "rounds": {"deadline": 120, "phase_deadline": 120, "gather": 120, "attempts": 9},
    }
    with Processes(tmp_path / "run", settings, nodes=3, grace=60.0) as fed:
        fed.start_all()
        fed.wait_event("round-committed", number=1)
        site = fed.names[0]
        fed.kill(site)
        before, after = renew(fed, f"node-{site}")
        assert before.digest != after.digest
        fed.start_node(site)
        fed.wait_event("round-committed", number=2)
        fed.kill("coordinator")
        renew(fed, "coordinator-coordinator")
        fed.start_coordinator()
        record = fed.finish()
        assert record.outcome == "finished"
        # Four rounds and the closing one, always with the whole circle: peers took the site for the same one.
        assert [r.cohort for r in record.rounds] == [fed.names] * 5
        # The site's own evidence has the change, and goes on after it.
        kinds = [entry.kind for entry in read_ledger(fed.workspace.node_folder(site) / "ledger.jsonl")]
        assert kinds.count("renewed") == 1
        assert kinds.index("renewed") < len(kinds) - 1
