"""`python -m node.desk approve|status FILE`: the site operator's desk, on a node's state folder, running or not."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.approvals import Approval
from node.commitments import commitments, keep_terms
from node.config import NodeFile
from node.limits import limit_doubt
from node.own_ledger import own_entries
from node.own_start import require_own_start
from node.policy import Policy, require_task
from node.privacy import limit_of, plan_here
from node.store import NodeStore, read_cursor
from secure_fl import tasks
from secure_fl.counting import counted
from secure_fl.errors import RefusedError, SecureFLError, SettingsError, UsageError
from secure_fl.files import private_folder
from secure_fl.operations.ending import ended_by
from secure_fl.privacy.decisions import this_user
from secure_fl.privacy.events import NonPrivate
from secure_fl.privacy.ledger import SENT
from secure_fl.privacy.spending import Plan, cost, plans
from secure_fl.privacy.spending import spent as spent_on
from secure_fl.study.private import require_private
from secure_fl.study.settings import Study
from secure_fl.tasks.files import file_sha256
from secure_fl.tasks.package_digest import package_sha256

if TYPE_CHECKING:
    from secure_fl.tasks.code_digest import TaskCode


_HASH = re.compile("[0-9a-f]{64}")


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
            private_folder(file.state_folder)  # Where it cannot be made, this says so best.
            _approve(file, store, options.studies)
        else:
            _show(file, store, as_json=options.json)
    except SecureFLError as error:
        return ended_by(error, "node")
    return 0


def _approve(file: NodeFile, store: NodeStore, studies: list[str]) -> None:
    if file.policy.approve == "listed":
        raise UsageError(
            'this site approves studies in its file only: [policy] approve = "listed"',
            advice="add the hash to [policy] approved and restart the node",
        )
    # All of them first: where one is not understood, or could not be meant, none is approved.
    chosen = [_chosen(file, store, study) for study in studies]
    costs = [cost_here(file, store, study) if study is not None else () for _, study in chosen]
    for _, study in chosen:
        if study is not None:
            _require_fit(study)
            require_own_start(study)
    for wanted, (study_id, study), price in zip(studies, chosen, costs, strict=True):
        given, code = approval_of(study)
        store.approve(study_id, given)
        if study is not None:
            keep_terms(store, study)
        sys.stdout.write(f"approved: {study_id}{f' ({study.study.name})' if study else ''}\n")
        for line in (*_unwritten(wanted), *code, *price, *(_doubts(file, store, study) if study is not None else ())):
            sys.stdout.write(f"  {line}\n")
        if store.offered(study_id) is None:
            sys.stdout.write(
                "  this node has not been offered such a study yet; it takes part once the coordinator offers it\n"
            )
            if study is None:
                sys.stdout.write("  → compare the hash with what `secure-fl study show` prints\n")
                sys.stdout.write("  → its code was not looked at: approve it once more then\n")


def _unwritten(wanted: str) -> tuple[str, ...]:
    """What is said of a study file that leaves its initial model to be made: another torch may make another one."""
    if _HASH.fullmatch(wanted) or Study.read(Path(wanted)).study.initial:
        return ()
    return (
        "WARNING: this file is not written out (study.initial is missing), so that its hash may differ elsewhere: ask "
        "the study lead for what `secure-fl study check --write` wrote",
    )


def _require_fit(study: Study) -> None:
    """Raise `SettingsError` for what `study check` refuses: its author, or a coordinator, need not have looked."""
    study.check_parts()
    require_private(study.privacy, study.make_strategy(), tasks.create(study.task.name, study.task.settings))


def _doubts(file: NodeFile, store: NodeStore, study: Study) -> tuple[str, ...]:
    """Why this site will not take part all the same, as its file is now, or as the running node has read it."""
    running = limit_doubt(file, store)
    try:
        Policy(file, file.certificate()).check_terms(study)
    except SecureFLError as error:
        return (f"but as this site's file is now, it takes no part: {error.message}",)
    return (f"but {running}",) if running else ()


def code_here(study: Study) -> TaskCode:
    """The task's code as it is here, and the strategy's: what is approved with the study."""
    from secure_fl.tasks.code_digest import task_code  # torch, which `status` does not wait for

    return task_code(type(tasks.create(study.task.name, study.task.settings)), type(study.make_strategy()))


def approval_of(study: Study | None) -> tuple[Approval, tuple[str, ...]]:
    """What this user agrees to now, and lines that say which code that is. A study that is unknown here has none."""
    if study is None:
        return Approval(by=this_user()), ()
    code, name = code_here(study), study.task.name
    file = file_sha256(name)
    given = Approval(by=this_user(), code=code.digest, file=file, package="" if file else package_sha256(name))
    text = f"the file with sha256:{file}, and no other" if file else code.text
    return given, (f"task {name}: {text}", *_brought(study))


def _brought(study: Study) -> tuple[str, ...]:
    if study.study.start != "given":
        return ()
    return (f"first model: brought by whoever submits the study, with the digest {study.study.initial[:16]}…",)


def cost_here(file: NodeFile, store: NodeStore, study: Study) -> tuple[str, ...]:
    """What a study will cost here, and what would remain. Raises `RefusedError` where it is more than there is."""
    plan = plan_here(file, study)
    if plan is None:
        return ("no differential privacy: nothing limits how much its results can reveal about single records",)
    limit, dataset = limit_of(file), study.task.dataset_id
    lines = [
        f"cost here: epsilon {plan.epsilon_total:.3g} with delta {plan.delta:g} for {counted(plan.rounds, 'round')}"
    ]
    if limit is None:
        return (*lines, "this site sets no limit: [policy] epsilon and delta in its file would")
    entries = own_entries(file, store)
    spent = spent_on(entries, dataset)
    fits = limit.rounds_left(spent, plan.cost_per_round) or 0
    if fits < plan.rounds:
        raise RefusedError(
            f"study {study.study.name!r} needs {counted(plan.rounds, 'round')}, and the privacy budget that is "
            f"left of data set {dataset!r} is enough for {fits}; nothing was approved",
            advice="raise [policy] epsilon if the site agrees to that, or ask the study lead for one that costs less",
        )
    this = tuple(plan.cost_per_round * plan.rounds)
    used, after = limit.spent_fraction(spent), limit.spent_fraction((*spent, *this))
    lines.append(f"budget of {dataset!r}: {100 * used:.0f} % used now, {100 * after:.0f} % after this study")
    if others := commitments(file, store, entries, study):
        together = limit.spent_fraction((*spent, *this, *(event for one in others for event in one.events)))
        named = ", ".join(f"{one.name!r} ({counted(one.rounds, 'round')} left)" for one in others)
        lines.append(f"also approved here and not finished: {named}; with all of them {100 * together:.0f} %")
        if together > 1:
            lines.append("WARNING: that is more than there is: the study that comes last stops before its end")
    return tuple(lines)


def _chosen(file: NodeFile, store: NodeStore, wanted: str) -> tuple[str, Study | None]:
    """The hash that is meant and, if it is known here, the study. Raises `RefusedError` for one without this site."""
    if _HASH.fullmatch(wanted):
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
        require_task(file, study)
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
    raise RefusedError(f"the roster of study {study.study.name!r} has another key for {mine.name!r}", advice=advice)


def _study_in(file: NodeFile, path: Path) -> Study:
    """A study file's, as `study show` explains it. Part of a hash approves nothing: another study may share it."""
    if not path.exists():
        if path.suffix or len(path.parts) > 1:  # A file was meant.
            raise UsageError(f"{path}: no such file", advice="give the study's file, or its hash")
        raise UsageError(
            f"{str(path)!r} is neither a study's hash (64 hexadecimal digits) nor a study file",
            advice="`secure-fl study show` prints the hash",
        )
    study = Study.read(path)
    require_task(file, study)  # Completing a study imports its task.
    return study.completed()


def status(file: NodeFile, store: NodeStore) -> dict[str, Any]:
    """Approvals, studies with their last round, those that were offered, and what the ledger says left the site."""
    approvals = store.approvals()
    entries = own_entries(file, store)
    used = plans(entries)
    studies = []
    for folder in sorted((store.folder / "studies").glob("*")):
        if not (folder / "study.json").exists():
            continue  # The node was killed before it had written the study down.
        try:
            study = Study.from_canonical((folder / "study.json").read_bytes())
        except SettingsError as error:
            sys.stderr.write(f"{folder.name[:12]}: {error.message}\n")
            continue
        study_plans = [plan for plan in used if plan.study == folder.name and plan.counts]
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
                **_spent_in(study, study_plans),
            }
        )
    return {
        "approvals": sorted(approvals),
        "studies": studies,
        "offered": [{"id": study_id, "name": _name_of(store, study_id)} for study_id in store.offers()],
        "datasets": _budgets(file, used),
        "ledger_entries": len(entries),
        "restart_needed": limit_doubt(file, store),
    }


def _spent_in(study: Study, used: Sequence[Plan]) -> dict[str, float | None]:
    delta = study.privacy.delta
    if study.privacy.mode == "none" or delta is None:
        return {"epsilon": None, "delta": None}
    from secure_fl.privacy.accounting import epsilon_pld

    return {"epsilon": epsilon_pld([event for plan in used for event in plan.events], delta=delta), "delta": delta}


def _budgets(file: NodeFile, used: Sequence[Plan]) -> list[dict[str, Any]]:
    """By data set: what is spent, what is set aside for rounds under way, and how much of the limit that is."""
    limit = limit_of(file)
    rows = []
    for name in sorted({*file.datasets, *(plan.dataset for plan in used)}):
        here = [plan for plan in used if plan.dataset == name]
        plain = any(isinstance(event, NonPrivate) for plan in here for event in cost(plan))
        row: dict[str, Any] = {"dataset": name, "unbounded": plain, "limit": None}
        if limit is not None:
            sent = [event for plan in here if plan.state == "sent" for event in cost(plan)]
            every = [event for plan in here for event in cost(plan)]
            row["limit"] = {"epsilon": limit.epsilon, "delta": limit.delta, "order": limit.order}
            row["sent"], row["used"] = (None if plain else limit.spent_fraction(events) for events in (sent, every))
        rows.append(row)
    return rows


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
            f"sent {study['releases']} times, {study['bytes']} bytes, {_epsilon(study)}\n"
        )
    for row in facts["datasets"]:
        sys.stdout.write(_bar(row) + "\n")
    sys.stdout.write(f"ledger: {facts['ledger_entries']} entries\n")
    if facts["restart_needed"]:
        sys.stdout.write(f"WARNING: {facts['restart_needed']}\n")


_BAR = 24


def _epsilon(study: dict[str, Any]) -> str:
    if study["epsilon"] is None:
        return "no differential privacy"
    return f"epsilon {study['epsilon']:.3g} (delta {study['delta']:g})"


def _bar(row: dict[str, Any]) -> str:
    """A data set's budget as a person reads it: sent, set aside, remaining."""
    name = f"data set {row['dataset']}"
    if row["unbounded"]:
        return f"{name}: something left without noise, so that no epsilon bounds it"
    if row["limit"] is None:
        return f"{name}: no limit ([policy] epsilon and delta)"
    sent, used = row["sent"], row["used"]
    full, aside = (min(_BAR, round(_BAR * part)) for part in (sent, used))
    bar = "█" * full + "▒" * max(0, aside - full) + "·" * (_BAR - max(full, aside))
    limit = row["limit"]
    return (
        f"{name}: {bar} {100 * sent:.0f} % of epsilon {limit['epsilon']:g} (delta {limit['delta']:g}) sent, "
        f"{100 * max(0.0, used - sent):.0f} % set aside, {100 * max(0.0, 1 - used):.0f} % left"
    )


if __name__ == "__main__":
    sys.exit(main())
