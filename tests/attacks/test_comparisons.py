"""A site that chooses what it is compared with, in attempts that come to nothing, to find its peers' features out.

With features 0 and then 100·e_k, k = 1, 2, …, the distances to a peer that stays where it is solve for everything that
a comparison can tell of it. Node halves are the real ones, and so is the book in which nodes count.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from node.comparisons import ComparisonBook, SiteComparisons, data_key
from node.config import DatasetSection
from secure_fl.encoding.integers import Integers
from secure_fl.errors import RefusedError, StorageError
from secure_fl.protect.release.comparisons import Comparisons, allowed
from secure_fl.protect.release.history import ProcessMemory
from secure_fl.protect.release.sketch import SIZE, sketch, sketched
from tests.protect.sealed.table import NAMES, RECOMPUTES, Table, combine_round, values
from tests.support.federation import Federation

STEPS = 1 << 14
PROBE = 100 * STEPS


def book(path: Path, about: Any, name: str, features: int) -> Comparisons:
    """What a real node counts with."""
    return SiteComparisons(
        book=ComparisonBook(path / f"{name}.json"), data="scans", roster=about.roster, limit=allowed(features)
    )


class Prober:
    """n0, in one attempt after the other; the coordinator lets each come to nothing once n0 has its distances."""

    def __init__(self, features: int, counts: Mapping[str, Comparisons], seed: int = 5) -> None:
        rng = np.random.default_rng(seed)
        self.features = {name: rng.normal(size=features).astype(np.float32) for name in NAMES[1:]}
        self.counts = counts
        self.attempts = 0

    def distances(self, probe: Integers) -> dict[str, int]:
        """How far everybody is from `probe`, squared and in steps."""
        self.attempts += 1
        about = combine_round(compares=True, attempt=self.attempts, settings=RECOMPUTES.canonical_settings)
        seen: dict[str, float] = {}

        def attend(squared: Mapping[str, float]) -> Mapping[str, int]:
            seen.update(squared)
            return {}

        everybody = {
            name: replace(mine, sketch=sketch(self.features[name]) if name in self.features else probe)
            for name, mine in values(about).items()
        }
        everybody["n0"] = replace(everybody["n0"], attend=attend)
        table = Table(about, everybody, comparisons=self.counts).until("row")
        table.tell("n0", table.asked["n0"])
        return {name: round(squared * STEPS**2) for name, squared in seen.items()}

    def read(self, numbers: int) -> dict[str, npt.NDArray[np.float64]]:
        """Everybody's first `numbers` of the sketch: ‖a‖² − 2·P·a_k + P², after ‖a‖² itself."""
        lengths = self.distances(np.zeros(SIZE, np.int32))
        found = {name: np.zeros(numbers) for name in self.features}
        for place in range(numbers):
            probe = np.zeros(SIZE, np.int32)
            probe[place] = PROBE
            for name, squared in self.distances(probe).items():
                if name in found:
                    found[name][place] = (lengths[name] + PROBE**2 - squared) / (2 * PROBE)
        return found


def cosine(mine: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    a, b = np.asarray(mine, np.float64), np.asarray(theirs, np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def test_thirty_six_probes_read_every_sketch_where_nobody_counts() -> None:
    """What the count is for. And what the projection is for: even then most of the features stay unseen."""
    features = 400
    prober = Prober(features, {name: ProcessMemory() for name in NAMES})
    assert sketched(features) == 36
    found = prober.read(36)
    columns = np.stack([sketch(row) for row in 64 * np.eye(features, dtype=np.float32)])[:, :36].T / (64 * STEPS)
    for name, guess in found.items():
        assert cosine(guess, sketch(prober.features[name])[:36]) > 0.9999
        best, *_ = np.linalg.lstsq(columns, guess / STEPS, rcond=None)  # the shortest features with that sketch
        assert cosine(best, prober.features[name]) == pytest.approx(np.sqrt(36 / features), abs=0.1)


@pytest.mark.parametrize(("features", "comparisons"), [(400, 0), (650, 2), (5_000, 4)])
def test_a_node_answers_as_often_as_it_may_and_never_again(tmp_path: Path, features: int, comparisons: int) -> None:
    about = combine_round()
    counts = {name: book(tmp_path, about, name, features) for name in NAMES[1:]}
    prober = Prober(features, counts)
    with pytest.raises(RefusedError, match=f"{comparisons} is the most"):
        prober.read(36)
    assert prober.attempts == comparisons + 1
    # Nor after a restart, nor in another study: the book is the node's.
    again = Prober(features, {name: book(tmp_path, about, name, features) for name in NAMES[1:]})
    with pytest.raises(RefusedError):
        again.read(1)
    assert again.attempts == 1


def test_it_is_written_before_anything_leaves(tmp_path: Path) -> None:
    about = combine_round(compares=True)
    counts = {"n1": book(tmp_path, about, "n1", 650)}
    table = Table(about, comparisons=counts).until("upload")
    assert not (tmp_path / "n1.json").exists()  # Hashes of shares and a masked proof are no comparison.
    (tmp_path / "n1.json").mkdir()  # It cannot be written.
    with pytest.raises(StorageError):
        table.tell("n1", table.asked["n1"])
    assert table.memories["n1"].load() is None
    (tmp_path / "n1.json").rmdir()
    table = Table(about, comparisons=counts).until("upload")
    table.tell("n1", table.asked["n1"])
    written = json.loads((tmp_path / "n1.json").read_text())["scans"]
    others = [name for name in NAMES if name != "n1"]
    assert written == dict.fromkeys((*others, *(about.roster[name] for name in others)), 1)


def test_neither_a_new_name_nor_a_new_certificate_nor_another_id_begins_anew(tmp_path: Path) -> None:
    kept = ComparisonBook(tmp_path / "book.json")
    kept.add("d", {"a": "f1"}, limit=2)
    kept.add("d", {"a": "f2"}, limit=2)
    for peers in ({"a": "f3"}, {"z": "f2"}, {"b": "f9", "a": "f3"}):
        with pytest.raises(RefusedError):
            kept.add("d", peers, limit=2)
    kept.add("d", {"b": "f9"}, limit=1)  # The refusal above counted nobody.
    kept.add("other", {"a": "f1"}, limit=1)
    kept.add("d", {"a": "f1"}, limit=None)
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    keys = {data_key(DatasetSection(path=path), tmp_path) for path in ("data", "./data", "link")}
    assert keys == {str((tmp_path / "data").resolve())}
    (tmp_path / "book.json").write_text("{")
    with pytest.raises(StorageError):
        kept.add("d", {"c": "f7"}, limit=None)


@pytest.mark.parametrize("kind", ["none", "sealed"])
@pytest.mark.parametrize("agreed", [False, True])
def test_nodes_count_over_rounds_and_go_on_only_where_sites_agreed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, agreed: bool
) -> None:
    """Five rounds compare 12,000 numbers, of which four are allowed. The coordinator does not check."""
    monkeypatch.setattr("secure_fl.study.settings.require_combinations", lambda *_, **__: None)
    settings = {
        "study": {"rounds": 5},
        "strategy": {"name": "fedamp", "comparisons": 5, "more_comparisons": agreed},
        "protection": {"kind": kind},
        "rounds": {"deadline": 20, "phase_deadline": 10, "gather": 2, "attempts": 2},
    }

    async def scenario() -> None:
        fed = Federation(tmp_path / "run", settings, nodes=5)
        for name in fed.names:
            fed.start_node(name)
        record = await fed.coordinate()
        await fed.close()
        assert (record is not None) == agreed
        for name in fed.names:
            counts = json.loads((fed.workspace.node_folder(name) / "comparisons.json").read_text())
            ((_, peers),) = counts.items()
            assert set(peers.values()) == {5 if agreed else 4}
            assert set(fed.names) - {name} == {peer for peer in peers if len(peer) < 64}

    asyncio.run(asyncio.wait_for(scenario(), 60))
