"""`python -m node.desk approve|status FILE`: the site operator's desk, on a node's state folder, running or not."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from node.config import NodeFile
from node.store import NodeStore, read_cursor
from secure_fl.errors import SecureFLError, UsageError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.study import Study


def main(arguments: list[str] | None = None) -> int:
    """Approve a study, or tell what this node knows."""
    parser = argparse.ArgumentParser(prog="python -m node.desk", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    approve = actions.add_parser("approve")
    approve.add_argument("file", type=Path)
    approve.add_argument("study_id")
    status = actions.add_parser("status")
    status.add_argument("file", type=Path)
    status.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        store = NodeStore(NodeFile.read(options.file).state_folder)
        if options.action == "approve":
            _approve(store, options.study_id)
        else:
            _show(store, as_json=options.json)
    except SecureFLError as error:
        sys.stderr.write(f"node: {error.message}\n" + (f"  → {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


def _approve(store: NodeStore, study_id: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", study_id):
        raise UsageError("a study's hash is 64 hexadecimal digits", advice="`secure-fl study show` prints it")
    store.approve(study_id)
    sys.stdout.write(f"approved: {study_id}\n")


def status(store: NodeStore) -> dict[str, Any]:
    """Approvals, studies with their last round, and what the ledger says left the site."""
    approvals = store.approvals()
    entries = list(read_ledger(store.ledger)) if store.ledger.exists() else []
    studies = []
    for folder in sorted((store.folder / "studies").glob("*")):
        if not (folder / "study.json").exists():
            continue  # The node was killed before it had written the study down.
        study = Study.from_canonical((folder / "study.json").read_bytes())
        spent = [entry for entry in entries if entry.kind == "spent" and entry.facts["study"] == folder.name]
        studies.append(
            {
                "id": folder.name,
                "name": study.study.name,
                "approved": folder.name in approvals,
                "last_round": read_cursor(folder / "cursor.json")[0],
                "rounds_planned": study.study.rounds,
                "releases": len(spent),
                "bytes": sum(entry.facts["release"]["bytes"] for entry in spent),
                "epsilon": None,
            }
        )
    return {"approvals": sorted(approvals), "studies": studies, "ledger_entries": len(entries)}


def _show(store: NodeStore, *, as_json: bool) -> None:
    facts = status(store)
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    for study_id in facts["approvals"]:
        sys.stdout.write(f"approved {study_id}\n")
    for study in facts["studies"]:
        sys.stdout.write(
            f"{study['name']} {study['id'][:12]}: round {study['last_round']} of {study['rounds_planned']}, "
            f"{study['releases']} releases, {study['bytes']} bytes, no DP\n"
        )
    sys.stdout.write(f"ledger: {facts['ledger_entries']} entries\n")


if __name__ == "__main__":
    sys.exit(main())
