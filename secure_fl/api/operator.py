"""A study lead's work with a deployed coordinator, from Python. The commands `secure-fl study …` call the same."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.json_format import MessageToDict

from secure_fl import tasks
from secure_fl.api.measured import task_of, with_own_metrics
from secure_fl.api.rows import Table, table
from secure_fl.errors import (
    LateMessageError,
    LayoutMismatchError,
    MalformedMessageError,
    SecureFLError,
    SettingsError,
    TaskUnavailableError,
    UnknownNameError,
    UnknownStudyError,
    UsageError,
)
from secure_fl.files import write_atomically
from secure_fl.hints import shown_hints
from secure_fl.operations.operator import Operator as Connection
from secure_fl.operations.operator import OperatorFile, connect
from secure_fl.report import Step, render
from secure_fl.results.card import ModelCard
from secure_fl.results.history import COLUMNS, history, write_csv
from secure_fl.results.measured import Measured
from secure_fl.results.record import StudyRecord
from secure_fl.results.summary import DEPLOYED, summarise
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.settings import Study
from secure_fl.tasks import files, in_process

if TYPE_CHECKING:
    from secure_fl.study.start import Start
    from secure_fl.tasks.base import Task

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A model that was fetched from a coordinator."""

    path: Path
    card: Path
    version: int
    names: str  # of its tensors: "torch", or "blocks" where the task's code is not here
    rounds_done: int
    rounds_planned: int


def ready(study: Study) -> Study:
    """The study as it is handed in, with everything filled in. Raises `SettingsError` where something does not fit."""
    if not study.study.roster:
        raise SettingsError(
            f"study {study.study.name!r}: [study.roster] is empty, so no site could take part",
            advice="list the sites as `secure-fl pki roster` prints them; `study new --roster FILE` copies them",
        )
    completed = study.completed()
    completed.check()
    return completed


class Operator:
    """The lead's end of a running coordinator: `Operator("operator.toml").status()`.

    Every call connects, asks and returns; it works in a notebook, where an event loop is running, too. A study is meant
    by its hash, the beginning of it, or its name. Errors are typed and say what to do (`secure_fl.errors`).
    """

    @shown_hints()
    def __init__(self, file: str | Path = "operator.toml") -> None:
        self._file = OperatorFile.read(Path(file))

    @property
    def name(self) -> str:
        """The operator's name, by its certificate."""
        return self._file.credential().certificate.name

    @shown_hints()
    def submit(self, study: Study | str | Path, *, start: str | Path | None = None) -> dict[str, Any]:
        """Hand in a study, or the file of one; returns its status. Each site then decides for itself.

        `start` is the model that the study goes on from, where it says so (`secure-fl study new --from`).
        """
        completed = ready(study if isinstance(study, Study) else Study.read(study))
        first = None if start is None else _start(completed, Path(start))
        return plain(self.call(lambda lead: lead.submit(completed, first)))

    @shown_hints()
    def status(self, study: str = "") -> list[dict[str, Any]]:
        """How far studies are, and which sites take part: all of them in short, or one with its record."""

        async def fetch(lead: Connection) -> tuple[pb.StudyStatus, ...]:
            return await lead.status(await find(lead, study) if study else "")

        return [plain(status) for status in self.call(fetch)]

    @shown_hints()
    def stop(self, study: str) -> dict[str, Any]:
        """End a study before its last round; what it has committed stays. Only who submitted it may."""

        async def end(lead: Connection) -> pb.StudyStatus:
            return await lead.stop(await find(lead, study))

        return plain(self.call(end))

    @shown_hints()
    def export(
        self,
        study: str,
        out: str | Path = "model.safetensors",
        *,
        untrained: bool = False,
        task: str | type[Task] | None = None,
    ) -> Exported:
        """Write a study's current model to `out`, with a model card beside it (`.json` and `.md`).

        The tensors have torch's own names where the study's task is installed here as a package, or where `task` says
        which code it is: a class, `FILE.py:Class` or `module:attribute`. Raises `LateMessageError` for a study without
        a finished round, unless its `untrained` model is wanted, and `LayoutMismatchError` where `task` is another
        one than the study's.
        """
        path, code = Path(out), None if task is None else _code(task)

        async def fetch(lead: Connection) -> tuple[int, pb.StudyStatus]:
            (found,) = await lead.status(await find(lead, study))
            if not found.rounds_done and not untrained:
                raise LateMessageError(
                    "the study has not finished a round: its model is untrained",
                    advice="wait for a round (`secure-fl study status`), or write the start model with --untrained",
                )
            _require_own(path, found.study_id)
            return await lead.export(found.study_id, path), found

        version, found = self.call(fetch)
        record = _record(found)
        record = None if record is None else with_own_metrics(record, code)
        try:
            names = "torch" if _to_torch(path, record, code) else "blocks"
        except SecureFLError:
            path.unlink()  # Without a card nobody would know what it is; it can be fetched again.
            raise
        measured = Measured.of(record, predicts_with_shared=_predicts_with_shared(record))
        known = record or _unbegun(found)
        card = ModelCard.of(known, metrics=measured.shared, own_metrics=measured.own, names=names)
        page = replace(card, rounds=found.rounds_done, planned_rounds=found.rounds_planned).write(path)
        return Exported(
            path=path,
            card=page,
            version=version,
            names=names,
            rounds_done=found.rounds_done,
            rounds_planned=found.rounds_planned,
        )

    @shown_hints()
    def report(self, study: str, out: str | Path = "report.html") -> Path:
        """Write a study's rounds so far as one page. Raises `LateMessageError` for one that has not begun."""
        write_report(self, study, Path(out))
        return Path(out)

    @shown_hints()
    def history(self, study: str, out: str | Path | None = None) -> Table:
        """One row for each version of the model so far, in the form of `Run.history`; with `out` also as a CSV file.

        It holds what the study's `metrics.share` lets a lead see. Raises `LateMessageError` as `report` does.
        """
        record, _ = fetch_record(self, study)
        rows = history(record)
        if out is not None:
            write_csv(Path(out), rows)
        return table(rows, COLUMNS)

    @shown_hints()
    def call(self, action: Callable[[Connection], Awaitable[T]]) -> T:
        """Connect, do `action`, and close the connection."""

        async def run() -> T:
            async with connect(self._file) as lead:
                return await action(lead)

        return _wherever(run)


def _require_own(path: Path, study_id: str) -> None:
    """Raise `UsageError` unless there is nothing yet at `path`, or an earlier model of the same study."""
    if not path.exists():
        return
    try:
        card = json.loads(path.with_suffix(".json").read_bytes())
        same = card["study_id"] == study_id
    except (OSError, ValueError, TypeError, KeyError):
        same = False
    if not same:
        raise UsageError(f"{path}: is there already, and is no earlier model of this study", advice="another --out")


def fetch_record(operator: Operator, study: str) -> tuple[StudyRecord, pb.StudyStatus]:
    """The rounds so far of the study that is meant, and no other, and its status. Raises `LateMessageError`."""

    async def fetch(lead: Connection) -> tuple[str, pb.StudyStatus]:
        wanted = await find(lead, study)
        (found,) = await lead.status(wanted)
        return wanted, found

    wanted, found = operator.call(fetch)
    record = _record(found)
    if record is None:
        raise LateMessageError("the study has not begun", advice="ask again once its first round is under way")
    settings = _settings(record)
    if record.study_id != wanted or (settings and settings.id != wanted):
        raise MalformedMessageError("the coordinator sent another study's record")
    return with_own_metrics(record), found


def write_report(operator: Operator, study: str, path: Path) -> pb.StudyStatus:
    """Write a study's page; returns its status."""
    record, found = fetch_record(operator, study)
    seconds = sum(entry.seconds for entry in record.rounds)
    summary = summarise(record, engine=DEPLOYED, seconds=seconds, report=str(path))
    page = render(record, summary, _settings(record), steps=_steps(record), written=datetime.now(UTC))
    write_atomically(path, page.encode())
    return found


def _settings(record: StudyRecord) -> Study | None:
    return Study.from_canonical(record.settings.encode()) if record.settings else None


def _wherever(run: Callable[[], Awaitable[T]]) -> T:
    """The result of a coroutine, also where an event loop is running: then in a thread."""

    async def outcome() -> T:
        return await run()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(outcome())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(outcome())).result()


async def find(lead: Connection, wanted: str) -> str:
    """The hash of the one study that is meant: by its whole hash, by the beginning of it, or by name."""
    if re.fullmatch(r"[0-9a-f]{64}", wanted):
        return wanted
    found = [study for study in await lead.status() if study.name == wanted or study.study_id.startswith(wanted)]
    if not found:
        raise UnknownStudyError(f"no study here has the name {wanted!r}, or a hash that begins so")
    if len(found) > 1:
        several = ", ".join(f"{study.name} {study.study_id[:12]}" for study in found)
        raise UsageError(f"{wanted!r} could be any of: {several}", advice="give more of the hash")
    return found[0].study_id


def plain(status: pb.StudyStatus) -> dict[str, Any]:
    """A status as a dict: what `secure-fl study status --json` prints."""
    fields = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    record = status.record.decode()
    return {
        **fields,
        "rounds_done": int(status.rounds_done),
        "rounds_planned": int(status.rounds_planned),
        "record": json.loads(record) if record else None,
    }


def _start(study: Study, model: Path) -> Start:
    from secure_fl.study.given import start_from  # torch

    if study.study.start != "given":
        raise UsageError(
            "the study does not say that it goes on from a model",
            advice="write it with `secure-fl study new --from MODEL`: sites approve what the study says",
        )
    return start_from(study, model)


def _record(status: pb.StudyStatus) -> StudyRecord | None:
    return StudyRecord.from_json(json.loads(status.record)) if status.record else None


def _predicts_with_shared(record: StudyRecord | None) -> bool:
    """Whether sites predict with the shared model. Where the strategy is not installed here, nobody says they do."""
    try:
        study = None if record is None else _settings(record)
        return study is not None and study.make_strategy().predicts_with_shared
    except SecureFLError:
        return False


def _unbegun(status: pb.StudyStatus) -> StudyRecord:
    return StudyRecord(
        study=status.name,
        study_id=status.study_id,
        task="",
        strategy="",
        protection="",
        planned_rounds=status.rounds_planned,
        roster=tuple(site.name for site in status.sites),
    )


def _code(task: str | type[Task]) -> type[Task]:
    """The code that whoever exports says the study's task is. Raises `TaskUnavailableError`."""
    if not isinstance(task, str):
        in_process.require_task(task)
        return task
    try:
        listed = files.parse_entry(task)
    except ValueError as error:
        raise UsageError(str(error), advice="for example wards.py:Wards") from None
    if listed is None:
        return tasks.resolve(task)
    name, path = listed
    if not Path(path).is_file():
        raise UsageError(f"{path}: no such file", advice="say where the task's code lies: FOLDER/FILE.py:Class")
    files.register(name, files.TaskFile(path=Path(path)))
    return tasks.resolve(name)


def _to_torch(path: Path, record: StudyRecord | None, code: type[Task] | None) -> bool:
    """Give an exported checkpoint torch's own names, in place. False where the task's code is not here."""
    if record is None or not record.settings:
        return False
    from secure_fl.tasks.state_dict import convert

    try:
        study = Study.from_canonical(record.settings.encode())
        task = task_of(study, code)
        if task is None:
            return False
        convert(path, path, task, seed=study.study.seed)
    except LayoutMismatchError as error:
        if code is not None:
            error.hint = "name the task that the study has, in the version that its sites have"
        raise
    except (TaskUnavailableError, UnknownNameError):
        if code is not None:
            raise
        return False
    return True


def _steps(record: StudyRecord) -> tuple[Step, ...]:
    """What a study lead can do after reading the report."""
    watch = Step(why="See who is connected now.", command=f"secure-fl study status {record.study_id}")
    model = Step(why="Fetch the model with its card.", command=f"secure-fl study export {record.study_id}")
    again = Step(
        why="Try the same settings with simulated sites: save the study file below as study.toml.",
        command=f"secure-fl run study.toml --nodes {len(record.roster)}",
    )
    return (watch, model, again) if record.outcome == "running" else (model, again)
