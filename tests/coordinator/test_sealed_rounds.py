"""`sealed` in a federation: holders that restart go on, uploads wait for enough of them, keys are erased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.store import Attempt
from node.store import NodeStore
from node.training.jobs import Job, Result
from secure_fl import strategies
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Vector
from secure_fl.checkpoints import load_arrays, save_arrays
from secure_fl.encoding.integers import Integers
from secure_fl.errors import StorageError
from secure_fl.protect.primitives.field import uniform
from secure_fl.protect.release.sketch import sketch
from secure_fl.protect.sealed import terms
from secure_fl.protect.sealed.shares import interpolate
from secure_fl.protect.sealed.terms import Terms
from secure_fl.results import traces
from secure_fl.rounds import RoundKind
from tests.support.federation import Federation, Killed
from tests.support.training import FakeTraining, Faults

SETTINGS: dict[str, Any] = {
    "study": {"rounds": 2},
    "protection": {"kind": "sealed"},
    "rounds": {"deadline": 20, "phase_deadline": 2, "gather": 3},
}
COMBINE = {**SETTINGS, "strategy": {"name": "neighbours"}, "metrics": {"share": "none"}}


def memories(fed: Federation, name: str) -> list[Path]:
    """What a node remembers of attempts."""
    return sorted((fed.workspace.node_folder(name) / "studies" / fed.study.id).glob("memory-*"))


async def _until(fed: Federation, event: str) -> None:
    while all(kind != event for kind, _ in fed.events):  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("point", ["announce:open", "before:open", "after:open"])
def test_a_holder_that_restarts_goes_on_in_the_same_attempt(tmp_path: Path, point: str) -> None:
    async def scenario() -> None:
        calm = Federation(tmp_path / "calm", SETTINGS)
        for name in calm.names:
            calm.start_node(name)
        await calm.coordinate()
        await calm.close()

        fed = Federation(tmp_path / "run", SETTINGS)
        faults = Faults(point)
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(fed.names[0], faults)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.wait_for(faults.fired.wait(), 20)
        if point != "after:open":
            assert [path.name for path in memories(fed, fed.names[0])] == ["memory-1-1.bin"]
        fed.start_node(fed.names[0])
        record = await study
        assert record is not None
        assert [round_.attempts for round_ in record.rounds] == [1, 1, 1]
        assert all(round_.cohort == tuple(fed.names) for round_ in record.rounds)
        assert fed.model() == calm.model()  # It gave the same shares as it would have given.
        await fed.close()
        assert not any(memories(fed, name) for name in fed.names)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_uploads_wait_for_enough_holders_and_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        fed = Federation(tmp_path / "run", {**SETTINGS, "rounds": {**SETTINGS["rounds"], "phase_deadline": 0.5}})
        faults = [Faults("announce:open"), Faults("announce:open")]
        for name in fed.names[2:]:
            fed.start_node(name)
        for name, fault in zip(fed.names[:2], faults, strict=True):
            fed.start_node(name, fault)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.wait_for(_until(fed, "waiting-for-holders"), 40)  # two of four are there, three are needed
        assert next(fields for kind, fields in fed.events if kind == "waiting-for-holders")["missing"] == 1
        await asyncio.sleep(1.5)
        assert not study.done()
        assert all(kind != "round-void" for kind, _ in fed.events)
        fed.start_node(fed.names[0])
        record = await study
        assert record is not None
        assert record.outcome == "finished"
        assert (record.rounds[0].attempts, record.rounds[0].cohort) == (1, tuple(fed.names))
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 90))


def test_what_a_node_remembers_is_unreadable_without_its_key_and_private(tmp_path: Path) -> None:
    async def scenario() -> None:
        fed = Federation(tmp_path / "run", SETTINGS)
        faults = Faults("announce:open")
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(fed.names[0], faults)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.wait_for(faults.fired.wait(), 20)
        (path,) = memories(fed, fed.names[0])
        assert path.stat().st_mode & 0o777 == 0o600
        assert b"site-0" not in path.read_bytes()  # the roster is in there, with everybody's name
        store = NodeStore(fed.workspace.node_folder(fed.names[0])).study(fed.study.id)
        path.write_bytes(bytes(100))  # damaged: it sits out, and the others go on
        assert store.memory(1, 1).load() == bytes(100)
        fed.start_node(fed.names[0])
        record = await study
        assert record is not None
        assert record.outcome == "finished"
        assert record.rounds[0].attempts == 1
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("phase", ["row", "open", "deliver"])
def test_a_recipient_that_restarts_still_gets_its_combination(tmp_path: Path, phase: str) -> None:
    strategies.register("neighbours", "tests.coordinator.test_study_runner:Neighbours")

    async def scenario() -> None:
        fed = Federation(tmp_path / "run", COMBINE, nodes=5)
        faults = Faults(f"announce:{phase}")
        for name in fed.names[1:]:
            fed.start_node(name)
        fed.start_node(fed.names[0], faults)
        study = asyncio.create_task(fed.coordinate())
        await asyncio.wait_for(faults.fired.wait(), 20)
        fed.start_node(fed.names[0])
        record = await study
        assert record is not None
        assert record.combinations_opened == 2 * 5
        for name in fed.names:
            folder = fed.workspace.node_folder(name) / "studies" / fed.study.id
            assert (folder / "combination-2.safetensors").exists()
        await fed.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_the_coordinators_disk_holds_neither_a_key_nor_an_opened_combination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies.register("neighbours", "tests.coordinator.test_study_runner:Neighbours")
    secrets: list[bytes] = []

    def remembered(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            found = function(*arguments, **keywords)
            secrets.append(found.tobytes()[:64])
            return found

        return call

    # Σ w·s, at a recipient
    monkeypatch.setattr("secure_fl.protect.sealed.recipient.interpolate", remembered(interpolate))
    monkeypatch.setattr("secure_fl.protect.sealed.uploader.uniform", remembered(uniform))  # s, at an uploader
    monkeypatch.setattr(Terms, "decode", remembered(Terms.decode))  # what was opened

    async def scenario() -> None:
        fed = Federation(tmp_path / "run", {**COMBINE, "study": {"rounds": 1}}, nodes=5)
        kept: list[bytes] = []
        for name in fed.names:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        folder = fed.workspace.coordinator_file.parent
        while not study.done():
            kept += [path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.exists()]
            await asyncio.sleep(0.05)
        kept += [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        await fed.close()
        assert len(secrets) >= 3 * 5
        assert len({content for content in kept if len(content) > 1000}) > 5  # uploads were on this disk, for a while
        assert not [secret for secret in secrets if any(secret in content for content in kept)]

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    "strategy", [{"name": "fedamp"}, {"name": "fedcca", "criterion": 1.2}], ids=lambda s: s["name"]
)
def test_twelve_sites_get_the_combinations_that_none_gives_them(tmp_path: Path, strategy: dict[str, Any]) -> None:
    """The same distances, hence the same rows, and the same integers in them: only the errors come on top."""

    async def scenario(kind: str) -> tuple[int, dict[str, dict[str, Vector]]]:
        settings = {
            "study": {"rounds": 1},
            "strategy": strategy,
            "protection": {"kind": kind, "bits": 20},
            "metrics": {"share": "none"},
            "rounds": {"deadline": 30, "phase_deadline": 20, "gather": 10},
        }
        fed = Federation(tmp_path / kind, settings, nodes=12)
        for name in fed.names:
            fed.start_node(name)
        record = await fed.coordinate()
        await fed.close()
        assert record is not None
        folders = {name: fed.workspace.node_folder(name) / "studies" / fed.study.id for name in fed.names}
        opened = {
            name: load_arrays(folder / "combination-1.safetensors")
            for name, folder in folders.items()
            if (folder / "combination-1.safetensors").exists()
        }
        assert len(opened) == record.combinations_opened
        return record.combinations_opened, opened

    plain, expected = asyncio.run(asyncio.wait_for(scenario("none"), 60))
    count, found = asyncio.run(asyncio.wait_for(scenario("sealed"), 60))
    assert count == plain == 12
    terms = Terms.among(RequestKind.COMBINE, nodes=12, bits=20)
    bound = (terms.noise + 1) / terms.weight_sum / (2**19 - 1)  # of a mean, with the clip 1; and float32's last place
    for name, blocks in expected.items():
        for block, vector in blocks.items():
            assert 0 < np.abs(found[name][block] - vector).max() <= bound
            assert np.abs(vector).max() > 1000 * bound


@pytest.mark.parametrize("point", ["", "before:keep_opening", "after:keep_opening"])
@pytest.mark.parametrize("kind", ["none", "sealed"])
def test_what_was_opened_is_remembered_by_everybody_also_after_a_kill(tmp_path: Path, kind: str, point: str) -> None:
    strategies.register("neighbours", "tests.coordinator.test_study_runner:Neighbours")
    settings = {**COMBINE, "protection": {"kind": kind}, "rounds": {"deadline": 20, "phase_deadline": 20, "gather": 3}}

    async def scenario() -> None:
        fed = Federation(tmp_path / "run", settings, nodes=5)
        for name in fed.names:
            fed.start_node(name)
        if point:
            with pytest.raises(Killed):
                await fed.coordinate(Faults(point))
        record = await fed.coordinate()
        assert record is not None
        assert [entry.attempts for entry in record.rounds] == [1, 1, 1]
        await fed.close()
        later = Attempt(
            study_id=fed.study.id, number=9, attempt=1, kind=RoundKind.TRAIN, invited=(), model_version=1, started=0.0
        )
        opened = fed.open_store().openings(later)  # everybody asked for the same row in both rounds
        assert tuple(name for name, _ in opened) == fed.names
        assert all(sum(row.values()) == 64 and set(row) == set(fed.names) for _, row in opened)
        assert fed.open_store().openings(replace(later, number=1)) == ()
        for name, row in opened:
            store = NodeStore(fed.workspace.node_folder(name)).study(fed.study.id)
            assert store.asked() == [row]
            memory = store.memory(3, 1)
            # A holder has seen everything; without protection there are no holders.
            assert memory.earlier() == (list(opened) if kind == "sealed" else [])
            memory.opened({name: row})
            assert memory.openings.stat().st_mode & 0o777 == 0o600
            memory.openings.write_bytes(b"{")
            with pytest.raises(StorageError, match=r"openings\.json"):
                memory.earlier()

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize("kind", ["none", "sealed"])
def test_distances_count_until_sites_are_compared_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    compared: list[Vector] = []

    def counted(features: Vector) -> Integers:
        compared.append(features)
        return sketch(features)

    monkeypatch.setattr("node.giving.sketch", counted)
    settings = {
        "study": {"rounds": 3},
        "strategy": {"name": "fedamp", "compare_every": 2, "comparisons": 2},
        "protection": {"kind": kind},
        "rounds": {"deadline": 30, "phase_deadline": 20, "gather": 3},
    }

    async def scenario() -> None:
        fed = Federation(tmp_path / kind, settings, nodes=8)
        early, late = fed.names[:-2], fed.names[-2:]  # one newcomer alone would stand out, and stay out
        folders = {name: fed.workspace.node_folder(name) / "studies" / fed.study.id for name in fed.names}
        for name in early:
            fed.start_node(name)
        study = asyncio.create_task(fed.coordinate())
        while not (folders[fed.names[0]] / "combination-1.safetensors").exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        for name in late:
            fed.start_node(name)
        record = await study
        await fed.close()
        assert record is not None
        rows = {name: traces.read(folder / "rows.jsonl") for name, folder in folders.items()}
        for name in early:
            first, second, third = (rows[name][number]["asked"] for number in (1, 2, 3))
            # Who came after the comparison is weighed by nobody; the others count as they did.
            assert first == second != third
            assert not set(late) & second.keys()
            assert set(late) < third.keys()
        for name in late:
            # And they ask for nobody, until they have been compared themselves.
            assert rows[name].get(2, {"asked": {}})["asked"] == {}
            assert all(NodeStore(fed.workspace.node_folder(name)).study(fed.study.id).asked())
            assert name in rows[name][3]["asked"]
        assert record.combinations_opened == 6 + 6 + 8
        assert len(compared) == 6 + 8

    asyncio.run(asyncio.wait_for(scenario(), 60))


class Everything(FakeTraining):
    """Every coordinate changes by the clip."""

    async def run(self, job: Job) -> Result:
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN:
            path = Path(job.update_to)
            save_arrays(path, {name: np.ones_like(vector) for name, vector in load_arrays(path).items()})
        return result


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_mixtures_at_the_clip_open_and_nobody_is_told_that_they_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    """The errors of `sealed` lift them a little further, beyond what any site can have sent."""
    if not checked:
        monkeypatch.setattr(terms, "_cut", lambda *_: None)

    async def run() -> None:
        settings = {
            "study": {"rounds": 1},
            "protection": {"kind": "sealed", "recovery": False},
            "strategy": {"name": "fedamp"},
            "metrics": {"share": "none"},
        }
        fed = Federation(tmp_path / "run", settings, nodes=5)
        for name in fed.names:
            fed.start_node(name, executor=Everything())
        assert await fed.coordinate() is not None
        await fed.close()
        said = [fields["reason"] for kind, fields in fed.events if kind == "sat-out"]
        folders = (fed.workspace.node_folder(name) / "studies" / fed.study.id for name in fed.names)
        kept = [load_arrays(folder / "combination-1.safetensors") for folder in folders if not said]
        assert said == ([] if checked else ["Protection"] * len(said))
        assert bool(said) != checked
        assert len(kept) == (5 if checked else 0)
        for blocks in kept:
            assert all(np.abs(vector).max() <= fed.study.protection.clip for vector in blocks.values())

    asyncio.run(asyncio.wait_for(run(), 60))
