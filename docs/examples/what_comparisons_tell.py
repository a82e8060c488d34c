"""What an attacker makes of the comparisons that a site allows, with shadow models of its own as prior knowledge.

    python docs/examples/what_comparisons_tell.py

The attacker knows the study's start and trains shadow sites as the victim trains (`fedcca`, one round, other draws of
the same data set, so that it even has the victim's records among others). They give it the mean and the covariance of
features. Each comparison then gives it one linear function of the victim's sketch, of its choice, exactly; or four of
them, which is more than a number of 61 bits can carry. It chooses those in which shadows differ most, as many as serve
it best on shadows that it keeps aside, and takes the best linear estimate. Printed are cosines with the victim's
features less the common start: of the estimate, and of the part in which it differs from the shadows' mean with the
part in which the victim does. Medians over the victims.
"""

import sys
from statistics import median

import numpy as np
import numpy.typing as npt
import torch

from secure_fl import strategies, tasks
from secure_fl.protect.release.comparisons import allowed
from secure_fl.protect.release.sketch import sketch, sketched
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import PartitionSettings, Share, Source
from secure_fl.tasks.model_blocks import InitialBlocks, layout_of, seeded

Matrix = npt.NDArray[np.float64]

SITES, SHADOW_SEEDS = 10, range(1, 7)
PARTITION = PartitionSettings(kind="dirichlet", alpha=0.5)


def trained(task_name: str, seed: int) -> list[dict[str, Matrix]]:
    """How φ of each of ten sites differs from the common start after a round, block by block."""
    task = tasks.create(task_name, {})
    strategy = strategies.create("fedcca", {"epochs": 5})
    with seeded(0):
        layout = layout_of(task, task.model())
    start = InitialBlocks(task, 0, layout)
    found = []
    for index in range(SITES):
        share = Share(index=index, of=SITES, seed=seed, partition=PARTITION)
        site = Site(
            task=task,
            data=task.load(Source(share=share)),
            training=strategy.settings,
            initial=start,
            received={name: start[name] for name in layout.names},
            personal={},
            combination={},
            seed=1000 * seed + index,
        )
        strategy.fit(site)
        found.append({name: site.personal[f"{name}: phi"].astype(np.float64) - start[name] for name in layout.names})
    return found


def projection(shadows: Matrix) -> Matrix:
    """What the sketch makes of each shadow, in units; a sketch is linear."""
    return np.array([sketch(row.astype(np.float32))[: sketched(row.size)] for row in shadows]) / 2.0**14


def cosine(a: Matrix, b: Matrix) -> float:
    """Of two vectors; 0 where one is nothing."""
    return float(a @ b / max(np.sqrt((a @ a) * (b @ b)), 1e-30))


def estimates(victims: Matrix, shadows: Matrix, functions: int) -> Matrix:
    """The best linear estimate of each victim from so many functions of its sketch."""
    mean, seen = shadows.mean(0), projection(shadows)
    away, seen_away = shadows - mean, seen - seen.mean(0)
    _, _, directions = np.linalg.svd(seen_away, full_matrices=False)
    chosen = directions[:functions]
    told = seen_away @ chosen.T  # of the shadows: what the attacker would be told of each
    answer, *_ = np.linalg.lstsq(told, away, rcond=1e-6)
    return mean + (projection(victims) - seen.mean(0)) @ chosen.T @ answer


def attack(victims: Matrix, shadows: Matrix, functions: int) -> tuple[float, float]:
    """Cosines of an estimate from at most so many functions: as many as are best for shadows kept aside."""
    aside = len(shadows) // 3

    def score(count: int) -> float:
        pairs = zip(estimates(shadows[:aside], shadows[aside:], count), shadows[:aside], strict=True)
        return median(cosine(guess, truth) for guess, truth in pairs)

    best = max((count for count in (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32) if count <= functions), key=score)
    mean, guesses = shadows.mean(0), estimates(victims, shadows, best)
    pairs = list(zip(guesses, victims, strict=True))
    return median(cosine(*pair) for pair in pairs), median(cosine(a - mean, b - mean) for a, b in pairs)


def main() -> None:
    """One table."""
    torch.set_num_threads(1)  # Models are small.
    out = sys.stdout.write
    out("| features | allowed | told | cosine with the features | with what is the site's own |\n")
    out("|---|---|---|---|---|\n")
    for task, blocks in {"digits": ("head", "hidden"), "breast-cancer": ("head",)}.items():
        sites = [trained(task, seed) for seed in (0, *SHADOW_SEEDS)]
        for block in blocks:
            victims, *others = (np.array([site[block] for site in drawn]) for drawn in sites)
            shadows, size = np.concatenate(others), victims.shape[1]
            limit, whole_sketch = allowed(size), min(sketched(size), 2 * len(shadows) // 3 - 1)
            tries = {"nothing": 0, f"{limit} functions": limit, f"{limit} times four": 4 * limit}
            for name, functions in {**tries, "the whole sketch": whole_sketch}.items():
                if functions or name == "nothing":
                    whole, apart = attack(victims, shadows, functions)
                    out(f"| {task}, {block}, {size:,} | {limit} | {name} | {whole:.2f} | {apart:.2f} |\n")
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
