"""What the coordinator must not forget: SQLite (WAL) for decisions, files for bulk.

Everything here is synchronous and transactional; the rounds call it in a thread. A decision is committed before
anybody hears of it, so a killed coordinator continues where it was:

* a round attempt is written before it is announced;
* an answer is written before its receipt is sent;
* the end of a phase is written before the next phase is announced;
* a model's files are complete on disk before the row that makes it the current one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import SQLAlchemyError

from coordinator.tables import (
    ABORTED,
    COLLECTING,
    COMMITTED,
    GIVEN_UP,
    MERGED,
    answers,
    models,
    openings,
    phases,
    rounds,
    studies,
)  # fmt: skip
from secure_fl.errors import SchemaError, StorageError
from secure_fl.files import private_folder
from secure_fl.messages import parse
from secure_fl.protect.release.history import CombinationRows, OpenedRow, new_rows
from secure_fl.results.record import RoundRecord, round_from_json
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb

_MIGRATIONS = Path(__file__).parent / "migrations"
# Alembic keeps what it migrates in a module: of two simulations in one process it would take one's for the other's.
_MIGRATING = threading.Lock()

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredStudy:
    """A study and how far it is."""

    id: str
    settings: bytes
    state: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who submitted a study: the operator's name, and the certificate it had then."""

    name: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One attempt at one round, as announced."""

    study_id: str
    number: int
    attempt: int
    kind: RoundKind
    invited: tuple[str, ...]
    model_version: int
    started: float
    asked: tuple[str, ...] = ()  # the blocks that everybody sends; all of them, where there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """A version of the shared blocks."""

    version: int
    digest: bytes
    object: bytes  # SHA-256 of the raw bytes
    state: Mapping[str, Any] = field(default_factory=dict)  # what the strategy remembers, but for its vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAnswer:
    """An accepted answer; its bulk lies in the study's spool."""

    node: str
    phase: str
    header: pb.UploadHeader
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """One attempt at a circle's turn: whether the turn is over with it."""

    number: int
    invited: tuple[str, ...]
    base: int
    asked: tuple[str, ...]
    taken: bool


class Store:
    """The coordinator's memory."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)
        if self._engine.dialect.name == "sqlite":
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
        self._migrate()

    @classmethod
    def in_folder(cls, folder: Path) -> Store:
        """A SQLite store in `folder`."""
        private_folder(folder)
        return cls(f"sqlite:///{cls.path_in(folder)}")

    @staticmethod
    def path_in(folder: Path) -> Path:
        """The database's file."""
        return folder / "coordinator.sqlite"

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()

    # --- studies ----------------------------------------------------------------------------------------------

    def add_study(self, study_id: str, settings: bytes, *, now: float, owner: Owner | None = None) -> None:
        """Remember a study; one that is already there stays as it is, and its owner's."""
        values = {"id": study_id, "settings": settings, "state": "running", "reason": "", "created": now}
        if owner is not None:
            values |= {"owner": owner.name, "owner_fingerprint": owner.fingerprint}
        with self._transaction() as tx:
            if tx.execute(sa.select(studies.c.id).where(studies.c.id == study_id)).first() is None:
                tx.execute(studies.insert().values(**values))

    def owner(self, study_id: str) -> Owner | None:
        """Who submitted a study; None for one that came with the coordinator's file, or before owners were kept."""
        query = sa.select(studies.c.owner, studies.c.owner_fingerprint).where(studies.c.id == study_id)
        with self._transaction() as tx:
            row = tx.execute(query).first()
        return None if row is None or row.owner is None else Owner(name=row.owner, fingerprint=row.owner_fingerprint)

    def studies(self) -> tuple[StoredStudy, ...]:
        """All studies, oldest first."""
        query = sa.select(studies.c.id, studies.c.settings, studies.c.state, studies.c.reason)
        with self._transaction() as tx:
            rows = tx.execute(query.order_by(studies.c.created)).all()
        return tuple(StoredStudy(id=r.id, settings=r.settings, state=r.state, reason=r.reason) for r in rows)

    def end_study(self, study_id: str, *, state: str, reason: str = "") -> None:
        """Mark a study finished or aborted."""
        with self._transaction() as tx:
            tx.execute(studies.update().where(studies.c.id == study_id).values(state=state, reason=reason))

    # --- rounds -----------------------------------------------------------------------------------------------

    def begin_attempt(self, attempt: Attempt) -> None:
        """Write an attempt down, before it is announced."""
        with self._transaction() as tx:
            tx.execute(
                rounds.insert().values(
                    study_id=attempt.study_id,
                    number=attempt.number,
                    attempt=attempt.attempt,
                    kind=str(attempt.kind),
                    state=COLLECTING,
                    reason="",
                    invited=list(attempt.invited),
                    model_version=attempt.model_version,
                    asked=list(attempt.asked) or None,
                    started=attempt.started,
                )
            )

    def open_attempts(self, study_id: str) -> tuple[Attempt, ...]:
        """The attempts that were under way, in their order."""
        query = sa.select(rounds).where(rounds.c.study_id == study_id, rounds.c.state == COLLECTING)
        with self._transaction() as tx:
            rows = tx.execute(query.order_by(rounds.c.number, rounds.c.attempt)).all()
        return tuple(
            Attempt(
                study_id=row.study_id,
                number=row.number,
                attempt=row.attempt,
                kind=RoundKind(row.kind),
                invited=tuple(row.invited),
                model_version=row.model_version,
                started=row.started,
                asked=tuple(row.asked or ()),
            )
            for row in rows
        )

    def attempts(self, study_id: str, number: int) -> int:
        """How many attempts at a round there were."""
        query = sa.select(sa.func.count()).where(rounds.c.study_id == study_id, rounds.c.number == number)
        with self._transaction() as tx:
            return int(tx.execute(query).scalar_one())

    def close_phase(self, attempt: Attempt, position: int, phase: str) -> None:
        """Write down that a phase is over, before the next one is announced."""
        with self._transaction() as tx:
            tx.execute(phases.insert().values(**_key(attempt), position=position, phase=phase))

    def closed_phases(self, attempt: Attempt) -> tuple[str, ...]:
        """The phases of an attempt that are over, in order."""
        query = sa.select(phases.c.phase).where(*_where(phases, attempt)).order_by(phases.c.position)
        with self._transaction() as tx:
            return tuple(tx.execute(query).scalars())

    def add_answer(self, attempt: Attempt, answer: StoredAnswer) -> None:
        """Write an accepted answer down, before its receipt is sent."""
        with self._transaction() as tx:
            tx.execute(
                answers.insert().values(
                    **_key(attempt),
                    phase=answer.phase,
                    node=answer.node,
                    header=answer.header.SerializeToString(),
                    bytes=answer.bytes,
                )
            )

    def answers(self, attempt: Attempt) -> tuple[StoredAnswer, ...]:
        """All answers of an attempt in the order they were accepted."""
        query = sa.select(answers).where(*_where(answers, attempt)).order_by(answers.c.sequence)
        with self._transaction() as tx:
            rows = tx.execute(query).all()
        return tuple(
            StoredAnswer(node=r.node, phase=r.phase, header=parse(pb.UploadHeader, r.header), bytes=r.bytes)
            for r in rows
        )

    def keep_opening(self, attempt: Attempt, rows: CombinationRows) -> None:
        """Which combinations an attempt opens, before holders are asked to: also if it comes to nothing then."""
        plain = {recipient: dict(row) for recipient, row in rows.items()}
        with self._transaction() as tx:
            tx.execute(openings.delete().where(*_where(openings, attempt)))
            tx.execute(openings.insert().values(**_key(attempt), rows=plain))

    def openings(self, attempt: Attempt) -> tuple[OpenedRow, ...]:
        """What the attempts of the study before this one opened, each row once."""
        before = sa.tuple_(openings.c.number, openings.c.attempt) < (attempt.number, attempt.attempt)
        query = sa.select(openings.c.rows).where(openings.c.study_id == attempt.study_id, before)
        opened: list[OpenedRow] = []
        with self._transaction() as tx:
            for rows in tx.execute(query.order_by(openings.c.number, openings.c.attempt)).scalars():
                opened += new_rows(rows, opened)
        return tuple(opened)

    def abort_attempt(self, attempt: Attempt, reason: str, *, last: bool = False) -> None:
        """An attempt came to nothing. `last`: so has its circle's turn, which is not attempted again."""
        state = GIVEN_UP if last else ABORTED
        with self._transaction() as tx:
            tx.execute(rounds.update().where(*_where(rounds, attempt)).values(state=state, reason=reason))
            tx.execute(answers.delete().where(*_where(answers, attempt)))

    def give_up_turn(self, study_id: str, number: int, circle: tuple[str, ...]) -> None:
        """A turn none of whose attempts is under way is not attempted again."""
        mine = (rounds.c.study_id == study_id, rounds.c.number == number, rounds.c.state == ABORTED)
        with self._transaction() as tx:
            for row in tx.execute(sa.select(rounds.c.attempt, rounds.c.invited).where(*mine)).all():
                if tuple(row.invited) == circle:
                    tx.execute(rounds.update().where(*mine, rounds.c.attempt == row.attempt).values(state=GIVEN_UP))

    def commit_round(
        self, attempts: Sequence[Attempt], record: RoundRecord, model: StoredModel | None, *, alone: bool = True
    ) -> None:
        """The one transaction that makes a round's result, opened in these attempts, the study's current state.

        Unless `alone`, other attempts of the same number go on: they are other circles' turns.
        """
        first, *others = attempts
        with self._transaction() as tx:
            tx.execute(rounds.update().where(*_where(rounds, first)).values(state=COMMITTED, record=asdict(record)))
            for other in others:
                tx.execute(rounds.update().where(*_where(rounds, other)).values(state=MERGED))
            if model is not None:
                _insert_model(tx, first.study_id, model)
            if alone:
                # A circle that was not complete comes to nothing with the round.
                this_round = (rounds.c.study_id == first.study_id, rounds.c.number == first.number)
                tx.execute(rounds.update().where(*this_round, rounds.c.state == COLLECTING).values(state=ABORTED))
                tx.execute(
                    answers.delete().where(answers.c.study_id == first.study_id, answers.c.number == first.number)
                )
            for attempt in attempts:
                # What the nodes said has served its purpose; only the sum remains.
                tx.execute(answers.delete().where(*_where(answers, attempt)))

    def records(self, study_id: str) -> tuple[RoundRecord, ...]:
        """The committed rounds, in order."""
        query = sa.select(rounds.c.record).where(rounds.c.study_id == study_id, rounds.c.state == COMMITTED)
        with self._transaction() as tx:
            rows: Sequence[Any] = tx.execute(query).scalars().all()
        return tuple(sorted((round_from_json(row) for row in rows), key=lambda record: record.number))

    def turns(self, study_id: str) -> tuple[StoredTurn, ...]:
        """Every attempt at training, and what became of it, in their order."""
        query = sa.select(rounds).where(rounds.c.study_id == study_id, rounds.c.kind == str(RoundKind.TRAIN))
        with self._transaction() as tx:
            rows = tx.execute(query.order_by(rounds.c.number, rounds.c.attempt)).all()
        return tuple(
            StoredTurn(
                number=row.number,
                invited=tuple(row.invited),
                base=row.model_version,
                asked=tuple(row.asked or ()),
                taken=row.state in (COMMITTED, MERGED, GIVEN_UP),
            )
            for row in rows
        )

    # --- models -----------------------------------------------------------------------------------------------

    def add_model(self, study_id: str, model: StoredModel) -> None:
        """The model a study starts from."""
        with self._transaction() as tx:
            _insert_model(tx, study_id, model)

    def model(self, study_id: str, *, version: int | None = None) -> StoredModel | None:
        """The current version, or a particular one."""
        query = sa.select(models).where(models.c.study_id == study_id).order_by(models.c.version.desc())
        if version is not None:
            query = query.where(models.c.version == version)
        with self._transaction() as tx:
            row = tx.execute(query).first()
        if row is None:
            return None
        return StoredModel(version=row.version, digest=row.digest, object=row.object, state=row.state or {})

    # --- internals --------------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            log.exception("the store failed")
            raise StorageError(f"the coordinator's store failed ({type(error).__name__})") from error

    def _migrate(self) -> None:
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS))
        config.set_main_option("version_locations", str(_MIGRATIONS / "versions"))
        config.set_main_option("path_separator", "os")
        with self._transaction() as connection:
            if connection.dialect.name == "sqlite":
                # Half a database answers some questions rightly; better to ask none.
                found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if found != "ok":
                    raise StorageError("the coordinator's database is damaged", advice="restore it from a backup")
            config.attributes["connection"] = connection
            known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
            if sa.inspect(connection).has_table("alembic_version"):
                have = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
                if have is not None and have not in known:
                    raise SchemaError(f"the store has schema {have}, which this version does not know")
            try:
                with _MIGRATING:
                    command.upgrade(config, "head")
            except CommandError as error:
                raise SchemaError(f"the store cannot be upgraded ({error})") from error


def _insert_model(tx: sa.Connection, study_id: str, model: StoredModel) -> None:
    tx.execute(models.insert().values(study_id=study_id, **asdict(model)))


def _key(attempt: Attempt) -> dict[str, str | int]:
    return {"study_id": attempt.study_id, "number": attempt.number, "attempt": attempt.attempt}


def _where(table: sa.Table, attempt: Attempt) -> list[sa.ColumnElement[bool]]:
    return [table.c[name] == value for name, value in _key(attempt).items()]


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # A committed round survives a power cut, not only a crash.
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
