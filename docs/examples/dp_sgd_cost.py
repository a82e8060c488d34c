"""What DP-SGD costs in time: plain training, the quick path and Opacus' hooks on the same model.

    python docs/examples/dp_sgd_cost.py [TASK]

Prints processor time per step with one thread, each the best of five turns of a hundred steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from secure_fl import tasks
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.strategies.base import LocalTraining
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Split
from secure_fl.tasks.model_blocks import initial_blocks

ROWS, BATCH, STEPS, TURNS = 144, 16, 100, 5
SHAPES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "heart": (35,), "breast-cancer": (30,)}


def site_for(name: str, *, private: bool) -> Site:
    """A site with random rows of a task's shape; under privacy with q = 1/9."""
    task = tasks.create(name, {})
    _, initial = initial_blocks(task, 0)
    rows = Split(inputs=torch.rand(ROWS, *SHAPES[name]), targets=torch.randint(0, 2, (ROWS,)))
    mechanism = Mechanism(
        unit="record", units=ROWS, sampling=BATCH / ROWS, noise=1.0, clip=1.0, epoch_steps=ROWS // BATCH
    )
    site = Site(
        task=task,
        data=LocalData(train=rows, test=rows),
        training=LocalTraining(batch_size=BATCH),
        initial=initial,
        received=initial,
        personal={},
        combination={},
        seed=0,
        privacy=mechanism if private else None,
        reserved_steps=10 * STEPS * TURNS,
    )
    site.load(initial)
    return site


def seconds(train: Callable[[int], None]) -> float:
    """Per step; an epoch has nine."""
    epochs = -(-STEPS // (ROWS // BATCH))
    train(1)
    best = float("inf")
    for _ in range(TURNS):
        began = time.process_time()
        train(epochs)
        best = min(best, time.process_time() - began)
    return best / epochs / (ROWS // BATCH)


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    name = sys.argv[1] if len(sys.argv) > 1 else "digits"
    plain, quick, opacus = (site_for(name, private=private) for private in (False, True, True))
    if opacus._noisy is not None:
        opacus._noisy._gradients._quick = False
    base = 0.0
    for title, site in (("plain", plain), ("quick", quick), ("Opacus", opacus)):
        took = seconds(lambda epochs, site=site: site.train(epochs=epochs))  # type: ignore[misc]
        base = base or took
        print(f"{name} {title:7} {1e3 * took:6.2f} ms a step   x{took / base:.2f}")  # noqa: T201


if __name__ == "__main__":
    main()
