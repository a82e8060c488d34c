"""A full disk on either side: the study pauses or a site sits out, both say why, and nothing committed is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.bulk_files import BulkFiles
from coordinator.store import Attempt, Store
from secure_fl.errors import StorageError
from secure_fl.privacy.ledger import read_ledger
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import reference
from tests.support.disk import FullDisk
from tests.support.federation import FaultyStore, Federation
from tests.support.outcomes import ending

SETTINGS: dict[str, Any] = {
    "task": {"name": "tests.support.task:Line"},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 1},
}
ATTEMPT = Attempt(study_id="s", number=1, attempt=1, kind=RoundKind.TRAIN, invited=("a",), model_version=0, started=1.0)


@pytest.fixture
def disk() -> Iterator[FullDisk]:
    with FullDisk().mounted() as full:
        yield full


async def until(fed: Federation, kind: str, **fields: Any) -> None:
    """Wait for an event."""
    while not any(k == kind and all(f.get(n) == v for n, v in fields.items()) for k, f in fed.events):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def test_the_coordinators_disk_is_full_for_a_while_and_the_study_goes_on(tmp_path: Path, disk: FullDisk) -> None:
    async def run() -> StudyRecord | None:
        fed = Federation(tmp_path / "run", SETTINGS)
        study = asyncio.create_task(fed.coordinate(storage_pause=0.1))
        for name in fed.names:
            fed.start_node(name)
        await until(fed, "round-committed", number=1)
        disk.folders.add(fed.workspace.study_state)
        while disk.refusals < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not study.done()
        disk.folders.clear()
        record = await study
        await fed.close()
        assert ending(fed).lost == 0
        return record

    record = asyncio.run(asyncio.wait_for(run(), 60))
    assert record is not None
    assert [len(round_.cohort) for round_ in record.rounds] == [4, 4, 4]
    assert [round_.attempts for round_ in record.rounds] == [1, 1, 1]


def test_a_coordinator_that_does_not_wait_ends_with_a_typed_error_and_resumes_later(
    tmp_path: Path, disk: FullDisk
) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        study = asyncio.create_task(fed.coordinate())
        for name in fed.names:
            fed.start_node(name)
        await until(fed, "round-committed", number=1)
        disk.folders.add(fed.workspace.study_state / "checkpoints")
        await study
        assert fed.events[-1][0] == "study-failed"
        assert fed.events[-1][1]["code"] == "Storage"
        assert "free space" in fed.events[-1][1]["hint"]
        disk.folders.clear()
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        assert [round_.number for round_ in record.rounds] == [1, 2, 3]
        assert ending(fed).lost == 0

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.parametrize("transaction", ["begin_attempt", "add_answer", "close_phase", "commit_round", "end_study"])
def test_the_store_has_no_room_for_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transaction: str
) -> None:
    """SQLite itself says that the disk is full; the study pauses and goes on to the same record."""
    real = getattr(FaultyStore, transaction)
    calls = 0

    def cramped(self: FaultyStore, *arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != 2 and transaction != "end_study":
            return real(self, *arguments, **keywords)
        if calls == 1 or transaction != "end_study":
            with self._transaction():
                raise_full(tmp_path)
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(FaultyStore, transaction, cramped)

    async def run() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        for name in fed.names:
            fed.start_node(name)
        record = await fed.coordinate(storage_pause=0.05)
        await fed.close()
        assert record is not None
        assert [round_.cohort for round_ in record.rounds] == [fed.names] * 3
        assert [round_.attempts for round_ in record.rounds] == [1, 1, 1]
        assert any(kind == "study-paused" and fields["code"] == "Storage" for kind, fields in fed.events)
        assert ending(fed).lost == 0

    asyncio.run(asyncio.wait_for(run(), 60))
    assert calls >= 2


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def raise_full(folder: Path) -> None:
    """What SQLAlchemy raises when SQLite finds no room, from a real database that may not grow."""
    import sqlalchemy as sa

    engine = sa.create_engine(f"sqlite:///{folder / 'small.sqlite'}")
    with engine.begin() as connection:
        connection.execute(sa.text("PRAGMA max_page_count=2"))
        connection.execute(sa.text("CREATE TABLE IF NOT EXISTS t (x BLOB)"))
        connection.execute(sa.text("INSERT INTO t VALUES (zeroblob(100000))"))


def test_a_store_that_may_not_grow_raises_a_storage_error_and_keeps_what_it_has(tmp_path: Path) -> None:
    store = Store.in_folder(tmp_path)
    store.add_study("s", b"{}", now=0.0)
    store.begin_attempt(ATTEMPT)
    with store._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count=1")  # SQLite takes the present size as the limit.
    with pytest.raises(StorageError, match="OperationalError"):
        store.add_study("t", bytes(1_000_000), now=0.0)
    assert store.open_attempts("s") == (ATTEMPT,)
    assert [study.id for study in store.studies()] == ["s"]
    store.close()


def test_an_upload_finds_no_room_in_the_spool(tmp_path: Path, disk: FullDisk) -> None:
    files = BulkFiles(tmp_path / "study")
    files.open_uploads("1-1")

    def receive(content: bytes) -> None:
        incoming = files.incoming("1-1", "name", reference(content))
        incoming.write(pb.Chunk(offset=0, data=content))
        incoming.finish(durable=True)

    disk.folders.add(tmp_path)
    with pytest.raises(StorageError):
        receive(b"content")
    with pytest.raises(StorageError):
        files.put(b"object", attempt="1-1")
    assert _files(tmp_path) == []
    disk.folders.clear()
    receive(b"content")
    assert files.upload("1-1", "name", reference(b"content")).read(0, 7) == b"content"


def test_a_sites_disk_is_full_for_a_round_and_the_site_comes_back(tmp_path: Path, disk: FullDisk) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", {**SETTINGS, "study": {"rounds": 4}})
        site = fed.names[0]
        study = asyncio.create_task(fed.coordinate())
        for name in fed.names:
            fed.start_node(name)
        await until(fed, "round-committed", number=1)
        disk.folders.add(fed.workspace.node_folder(site))
        await until(fed, "sat-out", node=site)
        disk.folders.clear()
        record = await study
        await fed.close()
        assert record is not None
        reasons = {next(n.reason for n in round_.nodes if n.name == site) for round_ in record.rounds}
        assert reasons == {"", "NotReady"}
        assert site in record.rounds[-1].cohort
        assert ending(fed).lost == 0
        list(read_ledger(fed.workspace.node_folder(site) / "ledger.jsonl"))

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_site_whose_disk_is_full_when_the_study_is_offered_joins_when_there_is_room(
    tmp_path: Path, disk: FullDisk
) -> None:
    async def run() -> None:
        fed = Federation(tmp_path / "run", {**SETTINGS, "rounds": {**SETTINGS["rounds"], "gather": 15}})
        site = fed.names[0]
        study = asyncio.create_task(fed.coordinate())
        fed.start_node(site)
        disk.folders.add(fed.workspace.node_folder(site))
        await until(fed, "refused", node=site, reason="Storage")
        disk.folders.clear()
        for name in fed.names[1:]:
            fed.start_node(name)
        record = await study
        await fed.close()
        assert record is not None
        assert record.rounds[0].cohort == fed.names

    asyncio.run(asyncio.wait_for(run(), 60))
