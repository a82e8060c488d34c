"""What each simulated site spent in a study, recomputed from its ledger as an auditor would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from secure_fl.privacy.ledger import Entry, read_site_ledger
from secure_fl.privacy.spending import cost, plans
from secure_fl.privacy.spending import spent as spent_on
from secure_fl.results.summary import Spent
from secure_fl.simulation.workspace import Workspace


def spent_by_site(workspace: Workspace) -> Mapping[str, Spent]:
    """Site → what the study cost there; empty without differential privacy."""
    if workspace.study.privacy.mode == "none":
        return {}
    authority = (workspace.folder / "ca.pem").read_bytes()
    found = {}
    for name in workspace.study.study.roster:
        ledger = workspace.node_folder(name) / "ledger.jsonl"
        found[name] = _spent(workspace, read_site_ledger(ledger, authority=authority, site=name))
    return found


def _spent(workspace: Workspace, entries: Sequence[Entry]) -> Spent:
    from secure_fl.privacy.accounting import epsilon_pld
    from secure_fl.privacy.filter import BudgetFilter

    study, policy = workspace.study, workspace.policy
    events = [event for plan in plans(entries) if plan.study == study.id for event in cost(plan)]
    delta = study.privacy.delta or 0.0
    used = None
    if "epsilon" in policy and "delta" in policy:
        limit = BudgetFilter(epsilon=policy["epsilon"], delta=policy["delta"])
        used = limit.spent_fraction(spent_on(entries, study.task.dataset_id))
    return Spent(epsilon=epsilon_pld(events, delta=delta), delta=delta, budget_used=used)
