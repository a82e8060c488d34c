"""What a node keeps between rounds and restarts. Every file is whole or absent."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from node.approvals import Approval, Approvals
from secure_fl.errors import RefusedError, StorageError
from secure_fl.files import private_folder, write_atomically, write_private
from secure_fl.protect.release.history import CombinationRows, OpenedRow, new_rows
from secure_fl.randomness import SystemRandomness
from secure_fl.study.division import Division

_ROUND = re.compile(r"(personal|combination|state)-(\d+)\.(safetensors|json)")
_KEPT = re.compile(r"(?:update|features)-(\d+)\.safetensors")
_SECRET_BYTES = 32
_LEFT_BY_A_CRASH = (".*.part", "*.part", "scratch-*")  # half-written files, and those of an attempt
_SPENT = "spent"  # in place of a digest: no cohort has this one

T = TypeVar("T")

log = logging.getLogger(__name__)


class StudyStore:
    """One study's files on this node.

    What a round leaves behind carries the round's number. A later attempt at the same round starts from the files
    of the rounds before it, so a failed attempt leaves no trace in the training.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()  # over what is decided once: it is read and written as one
        private_folder(folder)
        _sweep(folder)

    @property
    def settings(self) -> Path:
        """The approved study, as canonical JSON."""
        return self.folder / "study.json"

    @property
    def model(self) -> Path:
        """The site's model after the last round."""
        return self.folder / "model.safetensors"

    @property
    def traces(self) -> Path:
        """What the strategy noted here, round by round."""
        return self.folder / "traces.jsonl"

    @property
    def rows(self) -> Path:
        """Whom this site asked to be combined with, round by round."""
        return self.folder / "rows.jsonl"

    def latest(self, kind: str, *, before: int) -> Path | None:
        """The newest `personal`, `state` or `combination` file of a round before `before`."""
        numbers = [
            int(match[2])
            for path in self.folder.iterdir()
            if (match := _ROUND.fullmatch(path.name)) and match[1] == kind and int(match[2]) < before
        ]
        return self.path(kind, max(numbers)) if numbers else None

    def combination(self, *, before: int) -> Path | None:
        """What was opened here in the last round this node took; None if that round opened nothing."""
        opened, kept = self.latest("combination", before=before), self.latest("personal", before=before)
        return opened if opened is not None and (kept is None or _round(opened) >= _round(kept)) else None

    def path(self, kind: str, number: int) -> Path:
        """Where a round's `personal` or `combination` blocks go, or what the strategy remembers (`state`)."""
        return self.folder / f"{kind}-{number}.{'json' if kind == 'state' else 'safetensors'}"

    def keep_distances(self, squared: Mapping[str, float]) -> None:
        """How far peers' features are from this site's, squared: until they are compared again."""
        write_atomically(self.folder / "distances.json", json.dumps(dict(squared)).encode(), mode=0o600)

    def distances(self) -> dict[str, float]:
        """What was kept last; nothing if this node has been compared with nobody."""
        kept = read_json(self.folder / "distances.json", Distances)
        return {} if kept is None else kept

    def keep_asked(self, rows: Sequence[Mapping[str, int]]) -> None:
        """The different rows that this site has asked for, in their order: for as long as the study lasts."""
        write_atomically(self.folder / "asked.json", json.dumps([dict(row) for row in rows]).encode(), mode=0o600)

    def asked(self) -> list[dict[str, int]]:
        """What was kept last."""
        return read_json(self.folder / "asked.json", Asked) or []

    def advance(self, number: int, attempt: int, cohort: bytes) -> None:
        """Note that an attempt begins. Raises `RefusedError` for one that is past or spent, or has other sites now.

        Two cohorts that differ by one site reveal that site's update, so an attempt has one cohort for ever, and time
        does not run backwards, whatever the coordinator says and however often this node restarts.
        """
        with self._lock:
            self._advance(self.folder / "cursor.json", (number, attempt, cohort.hex()))

    def _advance(self, path: Path, mine: tuple[int, int, str]) -> None:
        last = read_cursor(path)
        if mine[:2] < last[:2] or (mine[:2] == last[:2] and mine != last):
            raise RefusedError(
                "this attempt is over, has gone further here, or was announced to other sites before",
                advice="if the coordinator was restored from a backup, stop the study there and submit a new one",
            )
        if mine != last:
            self.forget()
            self.forget_round(mine[0] - 1)
            write_atomically(path, json.dumps(mine).encode())

    @property
    def declared(self) -> Path:
        """What sites declared, as this node saw it first: its circle follows from it for the whole study."""
        return self.folder / "declared.bin"

    def keep_declared(self, division: Division, listed: Path) -> None:
        """Settle the study's circles by a list that was fetched, durably. Raises `SecureFLError`."""
        raw = listed.read_bytes()
        with self._lock:
            division.settle(raw, keep=partial(write_atomically, self.declared))

    def load_declared(self, division: Division) -> None:
        """Settle the circles by the list that was kept, if there is one. Raises `StorageError`."""
        if division.declares and self.declared.exists():
            try:
                division.settle(self.declared.read_bytes())
            except OSError as error:
                raise StorageError(f"{self.declared}: cannot be read ({error.strerror})") from error

    def fix_base(self, number: int, digest: bytes) -> None:
        """Note which model a round begins from, in every attempt. Raises `RefusedError` if it was another before.

        Two answers to one round from models of the coordinator's choosing would tell how this site's training answers
        to the difference.
        """
        with self._lock:
            self._fix_base(self.folder / "base.json", (number, digest.hex()))

    def _fix_base(self, path: Path, mine: tuple[int, str]) -> None:
        fixed = read_json(path, Base)
        if fixed == mine:
            return
        if fixed is not None and fixed[0] >= mine[0]:
            raise RefusedError(
                "this round was announced with another model before",
                advice="if the coordinator was restored from a backup, stop the study there and submit a new one",
            )
        write_atomically(path, json.dumps(mine).encode())

    def spend(self, number: int, attempt: int) -> None:
        """Note that an attempt went beyond its first phase: from now on `advance` refuses it, with any sites.

        Who is invited does not decide who is in a sum; who answers does. Gone through twice, one attempt trains the
        same update twice, and two sums of it over survivors that differ by one site reveal that site's.
        """
        path = self.folder / "cursor.json"
        with self._lock:
            if read_cursor(path)[:2] > (number, attempt):
                raise RefusedError("a later attempt has begun here")  # Time does not run backwards.
            write_atomically(path, json.dumps((number, attempt, _SPENT)).encode())

    def kept_update(self, number: int) -> Path:
        """Where the integers of a round are kept until it is over."""
        return self.folder / f"update-{number}.safetensors"

    def kept_features(self, number: int) -> Path:
        """And what peers are compared by, in a round that compares."""
        return self.folder / f"features-{number}.safetensors"

    def note_sent(self, number: int) -> None:
        """Note that something made of a round's integers is about to leave: no others may for this round."""
        write_atomically(self.folder / "sent.json", json.dumps(number).encode())

    def was_sent(self, number: int) -> bool:
        """Whether something made of a round's integers may have left."""
        return read_json(self.folder / "sent.json", Sent) == number

    def require_unsent(self, number: int) -> None:
        """Raise `RefusedError` if integers of this round may have left and are not here any more."""
        if self.was_sent(number):
            raise RefusedError(
                "what this site sent for this round is not on its disk any more, and other values must not follow",
                advice="the site takes part again in the next round",
            )

    def require_first(self, number: int) -> None:
        """Raise `RefusedError` if integers of this round have left in an earlier attempt, or may have."""
        if self.was_sent(number):
            raise RefusedError(
                "what this site computed for this round has left it in an earlier attempt; with protection.recovery "
                "it leaves once",
                advice="the site takes part again in the next round",
            )

    def forget_round(self, number: int) -> None:
        """A round is over: erase what was kept for its attempts, and for those of earlier ones."""
        for path in self.folder.iterdir():
            match = _KEPT.fullmatch(path.name)
            if match and int(match[1]) <= number:
                path.unlink(missing_ok=True)

    def require_under_way(self, number: int, attempt: int) -> None:
        """Raise `RefusedError` unless this node has gone beyond the first phase of just this attempt."""
        if read_cursor(self.folder / "cursor.json") != (number, attempt, _SPENT):
            raise RefusedError("this attempt is not the one that this node took part in last")

    def memory(self, number: int, attempt: int) -> AttemptMemory:
        """Where a protection keeps what it must not forget of an attempt."""
        return AttemptMemory(self.folder / f"memory-{number}-{attempt}.bin", self.folder / "openings.json")

    def forget(self) -> None:
        """Erase what was remembered of attempts: they are over."""
        for path in self.folder.glob("memory-*.bin"):
            path.unlink(missing_ok=True)

    def leave(self, *, rounds: int) -> None:
        """The study is said to be over: erase what was remembered of attempts, and after the closing round the model.

        Before, the model stays: the next one has to be one step from it, also if the study is offered once more.
        """
        self.forget()
        for path in (*self.folder.glob("update-*.safetensors"), *self.folder.glob("features-*.safetensors")):
            path.unlink(missing_ok=True)
        if read_cursor(self.folder / "cursor.json")[0] <= rounds:
            return
        for path in self.folder.glob("verified-*.bin"):
            path.unlink(missing_ok=True)

    def forget_attempt(self, number: int, attempt: int) -> None:
        """The same for one of them: the next one may have begun."""
        (self.folder / f"memory-{number}-{attempt}.bin").unlink(missing_ok=True)

    def scratch(self, name: str) -> Path:
        """A file of the round under way."""
        return self.folder / f"scratch-{name}"

    def clear_scratch(self, number: int, attempt: int) -> None:
        """After an attempt, however it went."""
        for path in self.folder.glob(f"scratch-{number}-{attempt}-*"):
            path.unlink(missing_ok=True)

    def tidy(self, *, number: int) -> None:
        """After a round that was taken part in: drop all but the last two rounds' state."""
        for path in self.folder.iterdir():
            match = _ROUND.fullmatch(path.name)
            if match and int(match[2]) < number - 1:
                path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class AttemptMemory:
    """A protection's memory of one attempt, and of what the study opened: files that only this user reads."""

    path: Path
    openings: Path

    def load(self) -> bytes | None:
        """What was saved last; None if nothing was."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be read ({error.strerror})") from error

    def save(self, content: bytes) -> None:
        """Whole and durable when it returns."""
        write_atomically(self.path, content, mode=0o600)

    def earlier(self) -> list[OpenedRow]:
        """What was opened in the study, each row once."""
        return [*(read_json(self.openings, Openings) or ())]

    def opened(self, rows: CombinationRows) -> None:
        """Added to what was opened."""
        earlier = self.earlier()
        if new := new_rows(rows, earlier):
            write_atomically(self.openings, json.dumps([*earlier, *new]).encode(), mode=0o600)


Base = TypeAdapter(tuple[int, str])
Sent = TypeAdapter(int)
Distances = TypeAdapter(dict[str, float])
Asked = TypeAdapter(list[dict[str, int]])
Openings = TypeAdapter(list[tuple[str, dict[str, int]]])


def read_json(path: Path, kind: TypeAdapter[T]) -> T | None:
    """What is in a file, as what it is said to be; None where there is none. Raises `StorageError`."""
    try:
        return kind.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error


def read_cursor(path: Path) -> tuple[int, int, str]:
    """The last round and attempt a node took part in, and with whom; zeros for none. Raises `StorageError`."""
    try:
        number, attempt, cohort = json.loads(path.read_text(encoding="utf-8"))
        return int(number), int(attempt), str(cohort)
    except FileNotFoundError:
        return 0, 0, ""
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error


def _sweep(folder: Path) -> None:
    for pattern in _LEFT_BY_A_CRASH:
        for leftover in folder.glob(pattern):
            leftover.unlink(missing_ok=True)


def _round(path: Path) -> int:
    match = _ROUND.fullmatch(path.name)
    return int(match[2]) if match else 0


class NodeStore:
    """The node's state folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ledger(self) -> Path:
        """The privacy ledger, one per node."""
        return self.folder / "ledger.jsonl"

    @property
    def comparisons(self) -> Path:
        """With whom this site was compared how often, one per node."""
        return self.folder / "comparisons.json"

    @property
    def has_secret(self) -> bool:
        """Whether this node has run already."""
        return (self.folder / "secret.key").exists()

    def secret(self) -> bytes:
        """A secret of this node, made when it is first needed. Raises `StorageError`."""
        path = self.folder / "secret.key"
        try:
            if not path.exists():
                private_folder(self.folder)
                write_private(path, SystemRandomness().bytes(_SECRET_BYTES))
            secret = path.read_bytes()
        except OSError as error:
            raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        if len(secret) != _SECRET_BYTES:
            raise StorageError(f"{path}: is not a secret of this node", advice="remove it; the node makes another one")
        return secret

    def study(self, study_id: str) -> StudyStore:
        """One study's files. `study_id` was checked to be 64 hexadecimal digits."""
        for folder in (self.folder, self.folder / "studies"):
            private_folder(folder)
        return StudyStore(self.folder / "studies" / study_id)

    def sweep(self) -> None:
        """Erase what a crash left of attempts, in every study: among it may be an update as it was trained.

        For a node that starts, before it talks to anybody: whether the study is ever offered again is not its to know.
        Raises `StorageError`.
        """
        try:
            for folder in (self.folder / "studies").glob("*"):
                _sweep(folder)
            for offer in (self.folder / "offers").glob("*"):  # They are made anew when the node connects.
                offer.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{error.filename}: cannot be erased ({error.strerror})") from error

    def keep_offer(self, study_id: str, settings: bytes) -> None:
        """Remember a study that was offered and not accepted, for whoever decides about it. Raises `StorageError`."""
        for folder in (self.folder, self.folder / "offers"):
            private_folder(folder)
        write_private(self.folder / "offers" / f"{study_id}.json", settings)

    def forget_offer(self, study_id: str) -> None:
        """It was accepted: it is among the studies now. Raises `OSError`."""
        (self.folder / "offers" / f"{study_id}.json").unlink(missing_ok=True)

    def offers(self) -> tuple[str, ...]:
        """Hashes of the studies offered since the node's last start and not accepted."""
        return tuple(sorted(path.stem for path in (self.folder / "offers").glob("*.json") if path.name[0] != "."))

    def offered(self, study_id: str) -> bytes | None:
        """A study as the coordinator offered it, accepted or not; None for one that this node has not seen."""
        for path in (self.folder / "offers" / f"{study_id}.json", self.folder / "studies" / study_id / "study.json"):
            try:
                return path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(f"{path}: cannot be read ({error.strerror})") from error
        return None

    def approvals(self) -> frozenset[str]:
        """Study hashes approved by hand."""
        return frozenset(Approvals(self.folder).read())

    def approve(self, study_id: str, given: Approval = Approval()) -> None:  # noqa: B008 - it is frozen
        """Add a study to those approved by hand; a running node sees it within a second."""
        Approvals(self.folder).add(study_id, given)
