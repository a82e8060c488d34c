"""How much sites' values change from one round of a simulation to the next, beside how large they are.

    python docs/examples/how_values_change.py SHORTER LONGER

Both are runs of the same study (`secure-fl run --engine threads --out DIR`), the second with one round more. A value is
how a site's model differs from the study's first one; what is printed is ‖longer − shorter‖ / ‖longer‖, the mean and
the largest over the sites.
"""

import sys
from pathlib import Path

import numpy as np

from secure_fl import load_model, tasks
from secure_fl.study.settings import Study
from secure_fl.tasks.model_blocks import initial_blocks, read_blocks


def changes(shorter: Path, longer: Path) -> list[float]:
    """One ratio per site."""
    study = Study.read(longer / "study.toml")
    task = tasks.create(study.task.name, study.task.settings)
    layout, start = initial_blocks(task, study.study.seed)
    found = []
    for site in study.study.roster:
        before, after = (
            np.concatenate([blocks[name] - start[name] for name in layout.names])
            for run in (shorter, longer)
            for blocks in [read_blocks(task, load_model(run / "nodes" / site / "model.safetensors", task))]
        )
        found.append(float(np.linalg.norm(after - before) / np.linalg.norm(after)))
    return found


if __name__ == "__main__":
    ratios = changes(*map(Path, sys.argv[1:]))
    sys.stdout.write(f"mean {np.mean(ratios):.4f}, largest {max(ratios):.4f}\n")
