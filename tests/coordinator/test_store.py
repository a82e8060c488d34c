"""The coordinator's store: durable settings, a schema version, and respect for a newer one."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.store import Attempt, Store
from secure_fl.errors import SchemaError, StorageError
from secure_fl.rounds import RoundKind

ATTEMPT = Attempt(
    study_id="s", number=1, attempt=1, kind=RoundKind.TRAIN, invited=("a", "b"), model_version=0, started=1.0
)


def test_a_store_is_migrated_once_and_remembers(tmp_path: Path) -> None:
    store = Store.in_folder(tmp_path)
    store.add_study("s", b"{}", now=0.0)
    store.begin_attempt(ATTEMPT)
    store.close()
    again = Store.in_folder(tmp_path)
    assert again.open_attempts("s") == (ATTEMPT,)
    again.close()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as raw:
        assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("0005",)]


def test_a_store_of_the_first_version_goes_on(tmp_path: Path) -> None:
    store = Store.in_folder(tmp_path)
    store.add_study("s", b"{}", now=0.0)
    store.begin_attempt(ATTEMPT)
    store.close()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as raw:
        raw.execute("DROP TABLE openings")
        raw.execute("ALTER TABLE models DROP COLUMN state")
        for column in ("owner", "owner_fingerprint"):
            raw.execute(f"ALTER TABLE studies DROP COLUMN {column}")
        raw.execute("ALTER TABLE rounds DROP COLUMN asked")
        raw.execute("UPDATE alembic_version SET version_num = '0001'")
    upgraded = Store.in_folder(tmp_path)
    assert upgraded.open_attempts("s") == (ATTEMPT,)
    later = replace(ATTEMPT, number=2)
    assert upgraded.openings(later) == ()
    for _ in range(2):  # as after a crash
        upgraded.keep_opening(ATTEMPT, {"a": {"a": 30, "b": 34}, "b": {"a": 64}})
    assert upgraded.openings(later) == (("a", {"a": 30, "b": 34}), ("b", {"a": 64}))
    assert upgraded.openings(ATTEMPT) == ()
    upgraded.close()


def test_a_store_of_a_newer_version_is_left_untouched(tmp_path: Path) -> None:
    store = Store.in_folder(tmp_path)
    store.add_study("s", b"{}", now=0.0)
    store.close()
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SchemaError, match="9999"):
        Store.in_folder(tmp_path)
    with sqlite3.connect(tmp_path / "coordinator.sqlite") as raw:
        assert raw.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]
        assert raw.execute("SELECT id FROM studies").fetchall() == [("s",)]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        Store.in_folder(tmp_path / "file" / "state")


def test_stores_may_be_made_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: Store.in_folder(tmp_path / str(number)), range(24)))
    for store in made:
        assert store.studies() == ()
        store.close()
