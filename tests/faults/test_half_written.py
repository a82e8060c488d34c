"""Files left half-written by a crash or a bad disk: a clean recovery or a typed error, and no committed round lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.service import Coordinator
from coordinator.store import Store
from node import desk
from node.config import NodeFile
from node.service import Node
from node.store import NodeStore
from secure_fl.checkpoints import load_arrays
from secure_fl.errors import SecureFLError, StorageError
from secure_fl.privacy.ledger import Ledger, end_of, read_ledger
from secure_fl.results.record import StudyRecord
from tests.support.federation import Federation, Killed
from tests.support.outcomes import ending
from tests.support.training import FakeTraining, Faults

SETTINGS: dict[str, Any] = {
    "task": {"name": "tests.support.task:Line"},
    "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 2},
}


def halve(path: Path) -> None:
    """Keep the first half of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


async def killed(fed: Federation, point: str, occurrence: int) -> None:
    """Run until the coordinator is killed, and let the nodes go."""
    for name in fed.names:
        fed.start_node(name)
    with pytest.raises(Killed):
        await fed.coordinate(Faults(point, occurrence))
    await fed.close()


async def resumed(fed: Federation) -> StudyRecord | None:
    """Everybody again."""
    for name in fed.names:
        fed.start_node(name)
    record = await fed.coordinate()
    await fed.close()
    return record


def play(folder: Path, scenario: Callable[[Federation], Any]) -> None:
    """One federation, one scenario."""

    async def run() -> None:
        await asyncio.wait_for(scenario(Federation(folder / "run", SETTINGS)), 60)

    asyncio.run(run())


# --- the coordinator ------------------------------------------------------------------------------------------


def test_leftovers_of_a_killed_coordinator_are_cleared_away(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "before:commit_round", 2)
        state = fed.workspace.study_state
        left = [
            state / "objects" / f".{'0' * 64}.0a0b0c0d.part",
            state / "checkpoints" / ".000002.safetensors.0a0b0c0d.part",
            state / "spool" / "2-1-site-01-00.0a0b0c0d.part",
            state / ".record.json.0a0b0c0d.part",
        ]
        for path in left:
            path.write_bytes(b"half")
        record = await resumed(fed)
        assert record is not None
        assert [round_.cohort for round_ in record.rounds] == [fed.names] * 3
        assert [path for path in left if path.exists()] == []
        assert ending(fed).lost == 0

    play(tmp_path, scenario)


def test_a_checkpoint_of_a_round_that_was_never_committed_is_written_anew(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "before:commit_round", 2)
        path = fed.workspace.study_state / "checkpoints" / "000002.safetensors"
        whole = path.read_bytes()
        halve(path)
        assert await resumed(fed) is not None
        assert path.read_bytes() == whole

    play(tmp_path, scenario)


@pytest.mark.parametrize("damage", ["halved", "missing"])
def test_the_current_models_object_is_damaged_and_the_coordinator_says_so(tmp_path: Path, damage: str) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 2)
        for path in (fed.workspace.study_state / "objects").iterdir():
            if damage == "halved":
                halve(path)
            else:
                path.unlink()
        assert await resumed(fed) is None
        end = ending(fed)
        assert str(end) == "aborted: Storage"
        assert "model" in fed.events[-1][1]["message"]
        assert end.lost == 0
        assert [record.number for record in end.records] == [1]

    play(tmp_path, scenario)


@pytest.mark.parametrize("damage", ["halved", "missing"])
def test_an_accepted_upload_is_damaged_and_no_wrong_sum_is_opened(tmp_path: Path, damage: str) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:add_answer", 6)
        uploads = sorted((fed.workspace.study_state / "spool" / "2-1").iterdir())
        assert uploads
        for path in uploads:
            if damage == "halved":
                halve(path)
            else:
                path.unlink()
        await resumed(fed)
        end = ending(fed)
        assert end.is_typed
        assert end.lost == 0
        assert all(len(record.cohort) >= 3 for record in end.records)

    play(tmp_path, scenario)


def test_a_study_that_ended_just_before_the_kill_has_ended_in_its_record_too(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:end_study", 1)
        record = await resumed(fed)
        assert record is not None
        assert record.outcome == "finished"
        assert StudyRecord.load(fed.workspace.study_state / "record.json") == record
        assert [round_.number for round_ in record.rounds] == [1, 2, 3]
        assert ending(fed).lost == 0

    play(tmp_path, scenario)


def test_a_record_that_is_half_there_is_a_typed_error_and_written_anew(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 3)
        path = fed.workspace.study_state / "record.json"
        halve(path)
        with pytest.raises(StorageError, match=r"record\.json"):
            StudyRecord.load(path)
        assert await resumed(fed) is not None
        assert len(StudyRecord.load(path).rounds) == 3

    play(tmp_path, scenario)


def _torn_frame(wal: Path) -> None:
    """The next transaction had begun to reach the disk."""
    wal.write_bytes(wal.read_bytes() + wal.read_bytes()[32:1500])


def _garbage(wal: Path) -> None:
    wal.write_bytes(wal.read_bytes() + bytes(range(256)) * 20)


def _no_index(wal: Path) -> None:
    wal.with_name(wal.name.replace("-wal", "-shm")).unlink()


def _bad_index(wal: Path) -> None:
    halve(wal.with_name(wal.name.replace("-wal", "-shm")))


@pytest.mark.parametrize("damage", [_torn_frame, _garbage, _no_index, _bad_index])
def test_what_sqlite_leaves_at_a_kill_is_recovered(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """The files as they are while the coordinator runs, copied away: nothing was checkpointed or closed."""

    async def scenario(fed: Federation) -> None:
        copy = tmp_path / "copy"
        for name in fed.names:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        while not any(kind == "round-started" and fields["round"] == 2 for kind, fields in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        committed = [fields["number"] for kind, fields in fed.events if kind == "round-committed"]
        shutil.copytree(fed.workspace.coordinator_state, copy)
        assert await study is not None
        await fed.close()
        assert committed == [1]
        wal = copy / "coordinator.sqlite-wal"
        assert wal.stat().st_size > 4096
        damage(wal)
        store = Store.in_folder(copy)
        assert [record.number for record in store.records(fed.study.id)] == [1]
        (attempt,) = store.open_attempts(fed.study.id)
        assert attempt is not None
        assert attempt.number == 2
        store.close()

    play(tmp_path, scenario)


def test_half_a_database_is_a_typed_error(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 2)
        path = fed.workspace.coordinator_state / "coordinator.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or the log would heal what is cut off
        halve(path)
        kept = path.read_bytes()
        with pytest.raises(StorageError, match=r"damaged|failed"):
            Coordinator(fed.workspace.coordinator_state)
        assert path.read_bytes() == kept

    play(tmp_path, scenario)


# --- a node ---------------------------------------------------------------------------------------------------


def start(fed: Federation, name: str) -> Node:
    """A node on what is on its disk, not running."""
    file = NodeFile.read(fed.workspace.node_file(name))
    return Node(file, None, FakeTraining())  # type: ignore[arg-type]


def test_leftovers_of_a_killed_node_are_cleared_away(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 2)
        folder = fed.workspace.node_folder(fed.names[0]) / "studies" / fed.study.id
        left = [folder / name for name in (".cursor.json.00.part", "scratch-2-1-received.bin.part", "scratch-2-1-x")]
        for path in left:
            path.write_bytes(b"half")
        record = await resumed(fed)
        assert record is not None
        assert record.rounds[1].cohort == fed.names
        assert [path for path in left if path.exists()] == []

    play(tmp_path, scenario)


def test_a_half_written_cursor_makes_its_site_sit_out_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 2)
        site = fed.names[0]
        cursor = fed.workspace.node_folder(site) / "studies" / fed.study.id / "cursor.json"
        halve(cursor)
        damaged = cursor.read_bytes()
        record = await resumed(fed)
        assert record is not None
        nodes = [next(node for node in round_.nodes if node.name == site) for round_ in record.rounds]
        assert [(node.outcome, node.reason) for node in nodes[1:]] == [("sat out", "NotReady")] * 2
        # Which attempts it took part in is not known any more, so it must not guess.
        assert cursor.read_bytes() == damaged
        assert "cursor.json" in caplog.text
        assert "what was remembered of an attempt cannot be erased" in caplog.text  # as the study ended
        assert desk.main(["status", str(fed.workspace.node_file(site))]) == StorageError.exit_code
        assert "cursor.json" in capsys.readouterr().err
        assert ending(fed).lost == 0

    play(tmp_path, scenario)


def test_a_study_folder_without_its_study_does_not_break_the_desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node killed between making the folder and writing the study into it."""

    async def scenario(fed: Federation) -> None:
        site = fed.names[0]
        start(fed, site)
        (fed.workspace.node_folder(site) / "studies" / fed.study.id).mkdir(parents=True)
        assert desk.main(["status", str(fed.workspace.node_file(site)), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["studies"] == []

    play(tmp_path, scenario)


@pytest.mark.parametrize("content", [b"", b'["', b"\xff\xfe", b"null", b"7", b'{"a": [}', b"[[]]"])
def test_a_damaged_list_of_approvals_approves_nothing_and_is_a_typed_error(tmp_path: Path, content: bytes) -> None:
    store = NodeStore(tmp_path)
    store.approve("0" * 64)
    (tmp_path / "approvals.json").write_bytes(content)
    with pytest.raises(StorageError, match="approvals"):
        store.approvals()
    with pytest.raises(StorageError, match="approvals"):
        store.approve("1" * 64)
    assert (tmp_path / "approvals.json").read_bytes() == content


def test_a_node_with_a_damaged_list_of_approvals_takes_part_once_it_is_repaired(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        site = fed.names[0]
        fed.set_policy(site, approve="ask", approved=[])
        approvals = fed.workspace.node_folder(site) / "approvals.json"
        approvals.write_bytes(b'["')
        study = asyncio.create_task(fed.coordinate())
        fed.start_node(site)
        while not any(kind == "refused" for kind, _ in fed.events):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        approvals.unlink()
        NodeStore(fed.workspace.node_folder(site)).approve(fed.study.id)
        for name in fed.names[1:]:
            fed.start_node(name)
        record = await study
        await fed.close()
        assert record is not None
        assert record.rounds[0].cohort == fed.names

    play(tmp_path, scenario)


def test_a_ledger_cut_at_any_byte_of_its_last_line_goes_on(tmp_path: Path) -> None:
    async def scenario(fed: Federation) -> None:
        await killed(fed, "after:begin_attempt", 2)
        file = NodeFile.read(fed.workspace.node_file(fed.names[0]))
        credential = file.credential()
        path = file.state_folder / "ledger.jsonl"
        whole = path.read_bytes()
        before = list(read_ledger(path))
        last = whole.rstrip(b"\n").rfind(b"\n") + 1
        for position in range(last, len(whole)):
            path.write_bytes(whole[:position])
            end_of(path).write_text(f"{len(before) - 1} {before[-2].digest}\n")  # It comes last.
            ledger = Ledger(
                path, certificate=credential.certificate, key=credential.signing_key, authority=file.ca_pem()
            )
            ledger.append("cancelled", {"round": 9})
            entries = list(read_ledger(path))
            assert entries[: len(before) - 1] == before[:-1]
            assert [entry.kind for entry in entries[len(before) - 1 :]] == ["cancelled"]

    play(tmp_path, scenario)


def test_half_a_safetensors_file_is_a_typed_error_and_costs_its_site_the_round_only(tmp_path: Path) -> None:
    class Halving(FakeTraining):
        async def run(self, job: Any) -> Any:
            result = await super().run(job)
            if job.round == 1:
                halve(Path(job.update_to))
            return result

    async def scenario(fed: Federation) -> None:
        site = fed.names[0]
        fed.start_node(site, executor=Halving())
        for name in fed.names[1:]:
            fed.start_node(name)
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        first = next(node for node in record.rounds[0].nodes if node.name == site)
        assert (first.outcome, first.reason) == ("sat out", "NotReady")
        assert record.rounds[1].cohort == fed.names

    play(tmp_path, scenario)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 40, 100])
def test_a_safetensors_file_cut_anywhere_is_a_typed_error(tmp_path: Path, size: int) -> None:
    import numpy as np

    from secure_fl.checkpoints import save_arrays

    save_arrays(tmp_path / "x", {"block": np.arange(30, dtype="<f4")})
    content = (tmp_path / "x").read_bytes()
    assert size < len(content)
    (tmp_path / "x").write_bytes(content[:size])
    with pytest.raises(SecureFLError):
        load_arrays(tmp_path / "x")
