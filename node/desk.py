"""`python -m node.desk approve|status FILE`: the site operator's desk, on a node's state folder, running or not."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

from node.config import NodeFile
from node.own_ledger import own_entries
from node.store import NodeStore, read_cursor
from secure_fl import tasks
from secure_fl.errors import RefusedError, SecureFLError, SettingsError, UsageError
from secure_fl.privacy.ledger import SENT
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
            _show(file, store, as_json=options.json)
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
    # All of them first: where one is not understood, or could not be meant, none is approved.
    chosen = [_chosen(file, store, study) for study in studies]
    for study_id, study in chosen:
        store.approve(study_id)
        sys.stdout.write(f"approved: {study_id}{f' ({study.study.name})' if study else ''}\n")
        if store.offered(study_id) is None:
            sys.stdout.write(
                "  this node has not been offered such a study yet; it takes part once the coordinator offers it\n"
            )
            if study is None:
                sys.stdout.write("  → compare the hash with what `secure-fl study show` prints\n")


def _chosen(file: NodeFile, store: NodeStore, wanted: str) -> tuple[str, Study | None]:
    """The hash that is meant and, if it is known here, the study. Raises `RefusedError` for one without this site."""
    if re.fullmatch(r"[0-9a-f]{64}", wanted):
        study_id, settings = wanted, store.offered(wanted)
        study = None if settings is None else Study.from_canonical(settings)
        if study is not None and study.id != wanted:
            raise RefusedError(
                f"what this node keeps as study {wanted[:12]} is another study", advice="restart the node"
            )
    else:
        study = _study_in(file, Path(wanted))
        study_id = study.id
    if study is not None:
        _require_this_site(file, study)
    return study_id, study


def _require_this_site(file: NodeFile, study: Study) -> None:
    mine = file.certificate()
    listed = study.study.roster.get(mine.name)
    if listed == mine.fingerprint:
        return
    advice = "ask the study lead for a study with this site in it (`secure-fl pki roster`); nothing was approved"
    if listed is None:
        raise RefusedError(
            f"study {study.study.name!r} is without this site: {mine.name!r} is not in its roster", advice=advice
        )
    raise RefusedError(
        f"the roster of study {study.study.name!r} has another certificate for {mine.name!r}", advice=advice
    )


def _study_in(file: NodeFile, path: Path) -> Study:
    """A study file's, as `study show` explains it. Part of a hash approves nothing: another study may share it."""
    if not path.exists():
        raise UsageError(
            f"{str(path)!r} is neither a study's hash (64 hexadecimal digits) nor a study file",
            advice="`secure-fl study show` prints the hash",
        )
    study = Study.read(path)
    # Completing a study imports its task, which a site allows in its own file and nowhere else.
    if study.task.name not in file.policy.tasks and not tasks.is_installed_id(study.task.name):
        raise RefusedError(f"task {study.task.name!r} is not allowed by [policy] tasks")
    return study.completed()


def status(file: NodeFile, store: NodeStore) -> dict[str, Any]:
    """Approvals, studies with their last round, those that were offered, and what the ledger says left the site."""
    approvals = store.approvals()
    entries = own_entries(file, store)
    studies = []
    for folder in sorted((store.folder / "studies").glob("*")):
        if not (folder / "study.json").exists():
            continue  # The node was killed before it had written the study down.
        try:
            study = Study.from_canonical((folder / "study.json").read_bytes())
        except SettingsError as error:
            sys.stderr.write(f"{folder.name[:12]}: {error.message}\n")
            continue
        sent = [entry for entry in entries if entry.kind == SENT and entry.facts["study"] == folder.name]
        studies.append(
            {
                "id": folder.name,
                "name": study.study.name,
                "approved": folder.name in approvals,
                "last_round": read_cursor(folder / "cursor.json")[0],
                "rounds_planned": study.study.rounds,
                "releases": len(sent),
                "bytes": sum(entry.facts["release"]["bytes"] for entry in sent),
                "epsilon": None,
            }
        )
    return {
        "approvals": sorted(approvals),
        "studies": studies,
        "offered": [{"id": study_id, "name": _name_of(store, study_id)} for study_id in store.offers()],
        "ledger_entries": len(entries),
    }


def _name_of(store: NodeStore, study_id: str) -> str:
    settings = store.offered(study_id)
    try:
        return "" if settings is None else Study.from_canonical(settings).study.name
    except SettingsError:  # after an upgrade, until the node starts again
        return ""


def _show(file: NodeFile, store: NodeStore, *, as_json: bool) -> None:
    facts = status(file, store)
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    for study_id in facts["approvals"]:
        sys.stdout.write(f"approved {study_id}\n")
    for offer in facts["offered"]:
        sys.stdout.write(f"offered, and not taken part in: {offer['name']} {offer['id']}\n")
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
