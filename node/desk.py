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
from secure_fl import tasks
from secure_fl.errors import RefusedError, SecureFLError, SettingsError, UsageError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.study.settings import Study


def main(arguments: list[str] | None = None) -> int:
    """Approve a study, or tell what this node knows."""
    parser = argparse.ArgumentParser(prog="python -m node.desk", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    approve = actions.add_parser("approve")
    approve.add_argument("file", type=Path)
    approve.add_argument("studies", nargs="+", help="a study's hash, or its file")
    status = actions.add_parser("status")
    status.add_argument("file", type=Path)
    status.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        file = NodeFile.read(options.file)
        store = NodeStore(file.state_folder)
        if options.action == "approve":
            _approve(file, store, options.studies)
        else:
            _show(store, as_json=options.json)
    except SecureFLError as error:
        sys.stderr.write(f"node: {error.message}\n" + (f"  → {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


def _approve(file: NodeFile, store: NodeStore, studies: list[str]) -> None:
    if file.policy.approve == "listed":
        raise UsageError(
            'this site approves studies in its file only: [policy] approve = "listed"',
            advice="add the hash to [policy] approved and restart the node",
        )
    # All of them first: where one is not understood, none is approved.
    hashes = [study if re.fullmatch(r"[0-9a-f]{64}", study) else _hash_of(file, Path(study)) for study in studies]
    for study_id in hashes:
        store.approve(study_id)
        sys.stdout.write(f"approved: {study_id}\n")


def _hash_of(file: NodeFile, path: Path) -> str:
    """Of a study file, as `study show` prints it. Part of a hash approves nothing: another study may share it."""
    if not path.exists():
        raise UsageError(
            f"{str(path)!r} is neither a study's hash (64 hexadecimal digits) nor a study file",
            advice="`secure-fl study show` prints the hash",
        )
    study = Study.read(path)
    # Completing a study imports its task, which a site allows in its own file and nowhere else.
    if study.task.name not in file.policy.tasks and not tasks.is_installed_id(study.task.name):
        raise RefusedError(f"task {study.task.name!r} is not allowed by [policy] tasks")
    return study.completed().id


def status(store: NodeStore) -> dict[str, Any]:
    """Approvals, studies with their last round, and what the ledger says left the site."""
    approvals = store.approvals()
    entries = list(read_ledger(store.ledger)) if store.ledger.exists() else []
    studies = []
    for folder in sorted((store.folder / "studies").glob("*")):
        if not (folder / "study.json").exists():
            continue  # The node was killed before it had written the study down.
        try:
            study = Study.from_canonical((folder / "study.json").read_bytes())
        except SettingsError as error:
            sys.stderr.write(f"{folder.name[:12]}: {error.message}\n")
            continue
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
        # The round after the last one only measures the finished model.
        evaluated = study["last_round"] > study["rounds_planned"]
        number = "evaluation after" if evaluated else f"round {study['last_round']} of"
        sys.stdout.write(
            f"{study['name']} {study['id'][:12]}: {number} {study['rounds_planned']}{' rounds' if evaluated else ''}, "
            f"{study['releases']} releases, {study['bytes']} bytes, no DP\n"
        )
    sys.stdout.write(f"ledger: {facts['ledger_entries']} entries\n")


if __name__ == "__main__":
    sys.exit(main())
