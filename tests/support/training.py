"""Training without torch, and the faults that may strike it."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from node.training.jobs import FEATURES, Job, Result, layout_from_json
from secure_fl.blocks import Vector
from secure_fl.checkpoints import save_arrays
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.rounds import RoundKind


@dataclass
class Faults:
    """Kills a party when it reaches a named point for the n-th time."""

    point: str = ""
    occurrence: int = 1
    seen: dict[str, int] = field(default_factory=dict)
    fired: asyncio.Event = field(default_factory=asyncio.Event)
    struck: bool = False  # in a thread, a moment before the loop hears of it

    def reaches(self, point: str) -> bool:
        """Whether this is the moment."""
        self.seen[point] = self.seen.get(point, 0) + 1
        return point == self.point and self.seen[point] == self.occurrence and not self.fired.is_set()


def features(site: str) -> Vector:
    """What sites are compared by: about as far from each other as from anybody, and enough for four comparisons."""
    place = hashlib.sha256(site.encode()).digest()[0]
    vector = np.zeros(12_000, np.float32)
    vector[place], vector[256] = 1, place / 512
    return vector


class FakeTraining:
    """Deterministic updates without torch, so that a matrix of faults runs in seconds.

    In a process of its own it takes SECURE_FL_TEST_SECONDS.
    """

    def __init__(self, faults: Faults | None = None, *, poison: Callable[[Job], float] | None = None) -> None:
        self._faults = faults or Faults()
        self._poison = poison

    async def rehearse(self, job: Job) -> Mapping[str, str]:
        """There are no data that could fail."""
        return {}

    async def run(self, job: Job) -> Result:
        """Write an update that depends on site, round and received model."""
        await asyncio.sleep(float(os.environ.get("SECURE_FL_TEST_SECONDS", "0")))
        if self._faults.reaches("train"):
            self._faults.fired.set()
            await asyncio.Event().wait()
        if job.kind is RoundKind.TRAIN:
            layout = layout_from_json(job.layout)
            received = layout.unflatten(Path(job.received).read_bytes())  # noqa: ASYNC240
            seed = int.from_bytes(hashlib.sha256(f"{job.me}/{job.round}".encode()).digest()[:8], "little")
            rng = np.random.default_rng(seed)
            update = {
                name: (rng.uniform(-0.5, 0.5, vector.size) - 0.1 * vector).astype("<f4")
                for name, vector in received.items()
            }
            if self._poison is not None:
                update = {name: vector * np.float32(self._poison(job)) for name, vector in update.items()}
            update = {name: vector for name, vector in update.items() if not job.asked or name in job.asked}
            save_arrays(Path(job.update_to), update)
            if job.features_to:
                save_arrays(Path(job.features_to), {FEATURES: features(job.me)})
        return Result(samples=100, metrics=SiteMetrics(samples=100, accuracy=0.5, loss=1.0))

    async def close(self) -> None:
        """Nothing runs."""
