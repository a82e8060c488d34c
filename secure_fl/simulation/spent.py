"""What each simulated site spent in a study, recomputed from its ledger as an auditor would."""

from __future__ import annotations

from collections.abc import Mapping

from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.privacy.spending import plans
from secure_fl.simulation.workspace import Workspace


def spent_by_site(workspace: Workspace) -> Mapping[str, tuple[float, float]]:
    """Site → (ε, δ) of everything that the study used there; empty without differential privacy."""
    study = workspace.study
    if study.privacy.mode == "none" or study.privacy.delta is None:
        return {}
    from secure_fl.privacy.accounting import epsilon_pld

    authority = (workspace.folder / "ca.pem").read_bytes()
    spent = {}
    for name in study.study.roster:
        entries = read_site_ledger(workspace.node_folder(name) / "ledger.jsonl", authority=authority, site=name)
        events = [event for plan in plans(entries) if plan.study == study.id and plan.counts for event in plan.events]
        spent[name] = (epsilon_pld(events, delta=study.privacy.delta), study.privacy.delta)
    return spent
