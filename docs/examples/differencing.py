"""How much of one site's update a coordinator learns by comparing sums, with and without circles.

    python docs/examples/differencing.py [--sites 5] [--pairs 4] [--seeds 3]

Sites train on their part of the
digits; the coordinator knows every sum that is opened and nothing else, and estimates the first site's update.

    rounds    a sum of everybody in one round, a sum without the site in the next, from the next model; several times
    attempts  the same in attempts at one round, which train anew from one model
    calm      the same from one "calm" model, whose last layer is zero
    full      two attempts, with batches as large as the data: training has no noise

With circles the same sites are in every sum and a round's integers are the same in each attempt: whatever is opened,
the best estimate is the circle's mean. The table has the cosine of each estimate with the true update, the mean over
seeds. Sites have different mixtures of digits (Dirichlet, alpha .3).
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from secure_fl import tasks
from secure_fl.blocks import Blocks, Vector
from secure_fl.strategies import create
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Share, Source
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.tasks.partition import PartitionSettings

_ALL = 4096  # more than any site has


def update(data: LocalData, model: Blocks, *, seed: int, batch_size: int) -> Vector:
    """What one site's training for a round comes to, as one vector."""
    task = tasks.create("digits", {})
    strategy = create("fedavg", {"batch_size": batch_size})
    site = Site(
        task=task, data=data, training=strategy.settings, initial=dict(model), received=dict(model),
        personal={}, combination={}, seed=seed,
    )  # fmt: skip
    changed = strategy.fit(site)
    return np.concatenate([changed[name] for name in sorted(changed)]).astype(np.float64)


def cosine(one: Vector, other: Vector) -> float:
    """Of two vectors."""
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))


def experiment(sites: int, seed: int, pairs: int) -> dict[str, tuple[float, float]]:
    """Per way of comparing: the cosine without circles, and with."""
    task = tasks.create("digits", {})
    layout, start = initial_blocks(task, seed)
    mixed = PartitionSettings(kind="dirichlet", alpha=0.3)
    data = [task.load(Source(share=Share(index=index, of=sites, partition=mixed, seed=seed))) for index in range(sites)]
    names = sorted(layout.names)

    def trained(model: Blocks, draw: int, batch_size: int = 16) -> list[Vector]:
        return [update(mine, model, seed=1000 * draw + index, batch_size=batch_size) for index, mine in enumerate(data)]

    def after(model: Blocks, updates: list[Vector]) -> Blocks:
        mean, position, moved = np.mean(updates, axis=0), 0, {}
        for name in names:
            size = layout[name].size
            moved[name] = (model[name] + mean[position : position + size]).astype(np.float32)
            position += size
        return moved

    calm = {
        name: np.zeros_like(vector) if name in task.head(layout.names) else vector for name, vector in start.items()
    }
    found: dict[str, tuple[float, float]] = {}
    ways = {"rounds": (start, 16), "attempts": (start, 16), "calm": (calm, 16), "full": (start, _ALL)}
    for way, (first, batch_size) in ways.items():
        model: Blocks = first
        differences, means, truth = [], [], []
        for pair in range(1 if way == "full" else pairs):
            with_site = trained(model, 2 * pair + 1, batch_size)
            if way == "rounds":
                model = after(model, with_site)
            without = trained(model, 2 * pair + 2, batch_size)[1:]
            if way == "rounds":
                model = after(model, without)
            differences.append(np.sum(with_site, axis=0) - np.sum(without, axis=0))
            means.append(np.mean(with_site, axis=0))
            truth.append(with_site[0])
        mine = np.mean(truth, axis=0)
        found[way] = cosine(np.mean(differences, axis=0), mine), cosine(np.mean(means, axis=0), mine)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="What comparing sums tells about one site")
    parser.add_argument("--sites", type=int, default=5, help="sites of the one circle")
    parser.add_argument("--pairs", type=int, default=4, help="of sums with and without the site, averaged")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    runs = [experiment(arguments.sites, seed, arguments.pairs) for seed in range(arguments.seeds)]
    sizes = f"{arguments.sites} sites, {arguments.pairs} pairs, mean of {arguments.seeds} seeds"
    lines = [f"cosine with one site's update, {sizes}"]
    lines.append(f"{'sums differ between':<20}{'without circles':>16}{'with circles':>14}")
    for way in runs[0]:
        without, whole = (float(np.mean([run[way][column] for run in runs])) for column in (0, 1))
        lines.append(f"{way:<20}{without:>16.3f}{whole:>14.3f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
