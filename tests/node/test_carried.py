"""Work that waits for a flush: what is kept of it, how much it weighs, and when it is not used any more."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.carried import CarriedWork, OngoingTraining
from node.kept import KeptUpdate
from node.store import StudyStore
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.metrics import METRICS_BLOCK, SiteMetrics
from secure_fl.errors import RefusedError
from secure_fl.randomness import KeyStream
from secure_fl.rounds import RoundKind
from secure_fl.study.context import round_context
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study

LAYOUT = Layout((BlockShape(name="body", tensors=(TensorShape(name="w", shape=(4000,)),)),))
STREAM = KeyStream(bytes(32))


def study(min_cohort: int, rounds: Mapping[str, Any]) -> ResolvedStudy:
    return ResolvedStudy.of(
        Study.parse(
            {
                "study": {"rounds": 9, "roster": {f"site-{index}": f"{index:064x}" for index in range(6)}},
                "protection": {"kind": "sealed", "recovery": True, "clip": 1.0, "min_cohort": min_cohort},
                "rounds": {"mode": "buffered", "unit": "site", "merge": "delta", **rounds},
            }
        )
    )


class Site:
    """A site that trained in one round."""

    def __init__(self, folder: Path, *, trained: int = 2, min_cohort: int = 5, **rounds: Any) -> None:
        self.resolved = study(min_cohort, rounds)
        self.store = StudyStore(folder)
        self.work = CarriedWork(self.resolved, self.store)
        codec = self.resolved.codec
        self.values = np.random.default_rng(1).uniform(-1, 1, LAYOUT.size).astype("<f4")
        self.values[:2] = (1, -1)
        blocks: dict[str, Integers] = {"body": codec.encode(self.values, weight=64, stream=STREAM)[0]}
        blocks[METRICS_BLOCK] = np.full(6, codec.limit, np.int32)
        kept = KeptUpdate(base=b"\1" * 32, blocks=blocks, weight=64, metrics=SiteMetrics(), trained=trained)
        self.work.keep(kept)
        self.kept = kept

    def join(self, number: int) -> KeptUpdate:
        """What enters a flush."""
        about = round_context(
            self.resolved,
            number=number,
            attempt=1,
            kind=RoundKind.TRAIN,
            base_model=b"\2" * 32,
            invited=tuple(self.resolved.study.study.roster),
            shared=LAYOUT,
        )
        waiting = self.work.waiting(number, 1)
        assert waiting is not None
        return self.work.joining(waiting, about, stream=STREAM)


@pytest.mark.parametrize(("age", "weight"), [(0, 64), (1, 45), (2, 37), (7, 37)])
def test_old_work_weighs_less_and_never_too_little(tmp_path: Path, age: int, weight: int) -> None:
    """1/√(1 + age), and at least 37/64: below that another of the five could stand out."""
    site = Site(tmp_path)
    entered = site.join(2 + age)
    assert entered.weight == weight
    assert entered.made_from == site.kept.made_from
    codec = site.resolved.codec
    found = entered.blocks["body"] / (codec.scale * weight / 64)
    assert np.abs(found - site.values).max() <= 2.5 * 64 / (weight * codec.scale)  # rounded twice at most
    assert abs(float((found - site.values).mean())) < 0.1 / codec.scale  # and without bias
    assert np.abs(entered.blocks["body"]).max() <= codec.limit * weight / 64 + 1  # what an opened sum is checked for
    # Measurements count the same from every site.
    assert np.array_equal(entered.blocks[METRICS_BLOCK], site.kept.blocks[METRICS_BLOCK])


def test_with_the_smallest_cohort_all_work_weighs_the_same(tmp_path: Path) -> None:
    site = Site(tmp_path, min_cohort=3)
    entered = site.join(9)
    assert entered.weight == 64
    assert np.array_equal(entered.blocks["body"], site.kept.blocks["body"])


def test_every_attempt_at_a_flush_sends_the_same(tmp_path: Path) -> None:
    site = Site(tmp_path)
    entered = site.join(4)
    site.work.leaves(2)
    again = CarriedWork(site.resolved, site.store).entered(4, 2)
    assert again is not None
    assert (again.weight, again.trained) == (entered.weight, 2)
    assert np.array_equal(again.blocks["body"], entered.blocks["body"])


def test_work_that_left_enters_no_other_flush_also_if_it_is_found_again(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.join(4)
    site.work.leaves(2)
    site.work.keep(site.kept)  # a file that a disk brought back
    assert site.work.waiting(5, 1) is None
    assert site.work.waiting(5, 1) is None


def test_what_left_stays_noted_whatever_leaves_later(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.work.leaves(2)
    site.work.leaves(0)
    site.work.keep(site.kept)
    assert site.work.waiting(5, 1) is None


def test_work_is_used_up_to_a_certain_age(tmp_path: Path) -> None:
    site = Site(tmp_path, staleness=3)
    assert site.work.waiting(5, 1) is not None
    assert site.work.waiting(6, 1) is None
    assert site.work.waiting(5, 1) is None  # It is gone.


def test_the_last_attempt_at_a_flush_does_without_old_work(tmp_path: Path) -> None:
    """Attempts may fail because too few others know its version."""
    site = Site(tmp_path, attempts=3)
    site.join(4)
    assert site.work.entered(4, 2) is not None
    assert site.work.entered(4, 3) is None
    assert site.work.waiting(4, 3) is None
    fresh = Site(tmp_path / "fresh", trained=4, attempts=3)
    fresh.join(4)
    assert fresh.work.entered(4, 3) is not None


def test_what_was_sent_enters_no_other_attempt(tmp_path: Path) -> None:
    site = Site(tmp_path, attempts=2)
    site.join(4)
    site.work.leaves(2)
    site.store.note_sent(4)
    with pytest.raises(RefusedError, match="it leaves once"):
        site.work.entered(4, 2)
    assert site.work.waiting(5, 1) is None  # It is in no later flush, either.


# --- training that outlives its attempt -------------------------------------------------------------------------------


def test_training_goes_on_when_nobody_waits_and_is_not_begun_twice() -> None:
    async def play() -> None:
        ongoing, begun, free = OngoingTraining(), [], asyncio.Event()

        async def train() -> None:
            begun.append(1)
            await free.wait()

        first = asyncio.create_task(ongoing.done((1, 1), train))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait((first,))
        assert ongoing.holds((1, 1))
        second = asyncio.create_task(ongoing.done((2, 1), train))
        await asyncio.sleep(0)
        assert not ongoing.holds((2, 1))
        free.set()
        await second
        assert begun == [1]
        await ongoing.done((3, 1), train)
        assert begun == [1, 1]

    asyncio.run(play())


def test_training_that_is_not_wanted_any_more_ends() -> None:
    async def play() -> None:
        ongoing, ended = OngoingTraining(), []

        async def train() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(1)

        await ongoing.ended()  # nothing to wait for
        waiting = asyncio.create_task(ongoing.done((1, 1), train))
        await asyncio.sleep(0.01)
        ongoing.cancel()
        await ongoing.ended()
        assert ended == [1]
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(play())
