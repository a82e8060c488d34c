"""Sites that do not wait for each other and each send some of the blocks: what is opened, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest

from node.config import NodeFile
from node.local import InlineExecutor
from node.past import PastSums
from node.training.jobs import Job, Result
from secure_fl import tasks
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Blocks
from secure_fl.checkpoints import open_arrays, save_arrays
from secure_fl.encoding.weights import aged_weight
from secure_fl.protect.past import Known
from secure_fl.protect.release.guard import releasable
from secure_fl.results.record import StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.strategies.merging import discount
from secure_fl.study.start import start_of
from tests.coordinator.test_site_flushes import (
    ROUNDS,
    SLOW,
    PacedTraining,
    committed,
    entries_of,
    flushes_of,
    last_version,
    require_sent_once,
    update_of,
)
from tests.support.federation import Federation

SITES = tuple(f"site-{number:02d}" for number in range(1, 9))
LIGHT = SITES[:3]  # These have fewer samples.
FEATURES, HIDDEN, HEAD = "features", "hidden", "head"
Sends: TypeAlias = Callable[[str, int], set[str]]  # by site and round of its training


def some(site: str, number: int) -> set[str]:
    """All send the first block. In the first round five send the second one and four the third, in the next seven and
    five; then everybody sends everything.
    """
    hidden = {1: SITES[3:], 2: SITES[1:]}.get(number, SITES)
    head = {1: SITES[:4], 2: SITES[3:]}.get(number, SITES)
    return {FEATURES, *([HIDDEN] if site in hidden else []), *([HEAD] if site in head else [])}


def samples(site: str) -> int:
    return 80 if site in LIGHT else 100


class Picky(PacedTraining):
    """Sends some of the blocks only."""

    def __init__(self, sends: Sends, may_end: Callable[[int], bool] = lambda _: True) -> None:
        super().__init__(may_end)
        self._sends = sends

    async def run(self, job: Job) -> Result:
        result = await super().run(job)
        if job.kind is RoundKind.TRAIN:
            path = Path(job.update_to)
            with open_arrays(path) as found:
                update = {name: np.array(found[name]) for name in self._sends(job.me, job.round)}
            save_arrays(path, update)
        return replace(result, samples=samples(job.me))


def play(
    folder: Path,
    executor: Callable[[Federation, str], Any],
    *,
    flushes: int = 3,
    kind: str = "sealed",
    share: str = "aggregate",
    **sections: dict[str, Any],
) -> tuple[StudyRecord, Federation]:
    async def run() -> tuple[StudyRecord | None, Federation]:
        settings = {
            "study": {"rounds": flushes},
            "strategy": {"name": "aifed", "gating": "rank"},
            "protection": {"kind": kind, "recovery": True, "min_cohort": 5, "reference_samples": 100},
            "metrics": {"share": share},
            **sections,
            "rounds": {**ROUNDS, "buffer": 8, **sections.get("rounds", {})},
        }
        fed = Federation(folder, settings, nodes=len(SITES))
        try:
            for name in fed.names:
                fed.start_node(name, executor=executor(fed, name))
            return await asyncio.wait_for(fed.coordinate(), 100), fed
        finally:
            await fed.close()

    record, fed = asyncio.run(run())
    assert record is not None
    return record, fed


def first_version(fed: Federation) -> Blocks:
    study = fed.study
    return start_of(tasks.create(study.task.name, study.task.settings), study.make_strategy(), study.study.seed).blocks


def require_oracle(fed: Federation, record: StudyRecord, sends: Sends) -> None:
    """The last version follows from who was in which flush, with work of which version, and what each sent of it.

    A block's mean is Σω·change over those who sent it, by Σω over all who were there.
    """
    versions = [first_version(fed)]
    minimum = fed.study.min_cohort(RequestKind.SUM)
    for flush in flushes_of(record):
        newest, current = len(versions) - 1, dict(versions[-1])
        weights, changes, senders = {}, {}, dict[str, list[str]]()
        for one in flush.circles:
            assert one.base is not None
            (site,) = one.members
            part = discount("root", newest - one.base)
            weights[site] = aged_weight(round(0.64 * samples(site)), part, min_cohort=minimum, colluders=1)
            changes[site] = update_of(site, one.base + 1, versions[one.base])
            for name in sends(site, one.base + 1):
                senders.setdefault(name, []).append(site)
        there = sorted(weights)
        opened = dict(
            zip(
                (None, *current),
                releasable(
                    [there, *(senders.get(name, []) for name in current)], nodes=there, colluders=1, minimum=minimum
                ),
                strict=True,
            )
        )
        assert set(flush.blocks_kept) == {name for name in current if not opened[name]}
        for name, vector in current.items():
            if opened[name]:
                total = sum(weights[site] * changes[site][name] for site in senders[name])
                mean = total / sum(weights.values())
                current[name] = (vector + len(there) / len(SITES) * mean).astype(np.float32)
        versions.append(current)
    # Every change is rounded to the study's grid twice at most, once per version, and sealed adds its noise.
    step = (fed.study.protection.clip or 1.0) / 2 ** (fed.study.protection.bits - 1)
    for name, vector in last_version(fed).items():
        assert np.abs(vector - versions[-1][name]).max() <= 4 * step * len(versions) + 1e-5


def known_to(fed: Federation, site: str) -> Known:
    file = NodeFile.read(fed.workspace.node_file(site))
    return PastSums(file.state_folder / "openings.json").known()


@pytest.mark.parametrize("kind", ["sealed", "encrypted"])
def test_a_flush_opens_what_enough_sent_and_shows_nobody_by_what_differs(tmp_path: Path, kind: str) -> None:
    record, fed = play(tmp_path, lambda _, __: Picky(some), kind=kind)
    first, second, third = flushes_of(record)
    assert all(flush.cohort == SITES for flush in (first, second, third))
    assert first.blocks_kept == (HEAD,)  # Four are too few: it was not even uploaded.
    # Seven of eight: the difference would be the eighth's alone, although all agreed to differences between flushes.
    assert second.blocks_kept == (HIDDEN,)
    assert third.blocks_kept == ()
    # What was opened of each block is remembered as any sum is: others, who agreed to nothing, are judged by it.
    assert {SITES, SITES[3:]} <= set(known_to(fed, SITES[7]).rows)
    require_oracle(fed, record, some)
    require_sent_once(fed, record)


@pytest.mark.parametrize("kind", ["sealed", "encrypted"])
def test_old_work_of_some_blocks_enters_later_and_weighs_less(tmp_path: Path, kind: str) -> None:
    def sends(site: str, number: int) -> set[str]:
        return {FEATURES, HIDDEN} if number % 2 or site == SLOW else {FEATURES, HIDDEN, HEAD}

    def executor(fed: Federation, name: str) -> Picky:
        return Picky(sends, (lambda number: committed(fed) > number) if name == SLOW else (lambda _: True))

    record, fed = play(tmp_path, executor, flushes=6, kind=kind, rounds={"buffer": 7})
    late = entries_of(record, SLOW)
    assert late
    assert all(age >= 2 for _, age in late)
    assert any(flush.blocks_kept == (HEAD,) for flush in flushes_of(record))
    require_oracle(fed, record, sends)
    require_sent_once(fed, record)


def test_without_measurements_the_largest_block_says_what_sites_weigh(tmp_path: Path) -> None:
    """Nothing is opened of all sites then. Whoever sent other blocks counts as these do on average."""

    def sends(site: str, _: int) -> set[str]:
        return {HIDDEN, HEAD} if site in SITES[:2] else {FEATURES, HIDDEN}

    record, fed = play(
        tmp_path,
        lambda _, __: Picky(sends),
        flushes=1,
        share="none",
        protection={"kind": "sealed", "recovery": True, "min_cohort": 5},  # All weigh alike, so that it is exact.
    )
    (flush,) = flushes_of(record)
    assert flush.blocks_kept == (FEATURES, HEAD)  # Six of eight would show two, and two are too few.
    before, after = first_version(fed), last_version(fed)
    assert np.array_equal(before[FEATURES], after[FEATURES])
    mean = np.mean([update_of(site, 1, before)[HIDDEN] for site in SITES], axis=0)
    np.testing.assert_allclose(after[HIDDEN], before[HIDDEN] + mean, rtol=0, atol=1e-3)


@pytest.mark.parametrize("unit", ["site", "sync"])
def test_a_block_that_half_of_the_sites_send_moves_half_as_far(tmp_path: Path, unit: str) -> None:
    """In a synchronous round with recovery as in a flush of all sites."""

    def sends(site: str, _: int) -> set[str]:
        return {FEATURES, HIDDEN, HEAD} if site in SITES[3:] else {FEATURES, HIDDEN}

    rounds = {"mode": "sync", "unit": "circle", "merge": "cache"} if unit == "sync" else {}
    record, fed = play(tmp_path, lambda _, __: Picky(sends), flushes=1, rounds=rounds)
    assert flushes_of(record)[0].blocks_kept == ()
    before, after = first_version(fed), last_version(fed)
    weights = [51 if site in LIGHT else 64 for site in SITES]
    changes = [update_of(site, 1, before) for site in SITES]
    for name in (FEATURES, HIDDEN, HEAD):
        sent = [
            weight * change[name] * (name in sends(site, 1))
            for site, weight, change in zip(SITES, weights, changes, strict=True)
        ]
        np.testing.assert_allclose(after[name], before[name] + sum(sent) / sum(weights), rtol=0, atol=1e-3)


@pytest.mark.parametrize("gating", ["none", "rank", "site"])
def test_aifed_learns_with_every_gate_of_single_sites(tmp_path: Path, gating: str) -> None:
    record, fed = play(
        tmp_path,
        lambda _, __: InlineExecutor(),
        flushes=3,
        strategy={"name": "aifed", "gating": gating, "full_every": 2, "richness": "none"},
    )
    first, _, last = flushes_of(record)
    assert first.blocks_kept == last.blocks_kept == ()
    assert last.mean_accuracy is not None
    assert first.mean_accuracy is not None
    assert last.mean_accuracy > first.mean_accuracy
    assert not any(np.array_equal(vector, last_version(fed)[name]) for name, vector in first_version(fed).items())
