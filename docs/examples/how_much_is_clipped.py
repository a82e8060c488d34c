"""Which part of sites' updates lies beyond a clip: for choosing a task's `clip`, or `protection.clip` of a study.

    python docs/examples/how_much_is_clipped.py TASK PARTITION [KEY=VALUE ...]

Ten simulated sites train with FedAvg and the settings that `secure-fl study new` writes, for five rounds, and the mean
of their changes is the next model. Printed is, for each clip, the largest part of one site's update that is beyond it
in any round. KEY=VALUE are settings of the task.
"""

import json
import sys

import numpy as np

from secure_fl import strategies, tasks
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import PartitionSettings, Share, Source
from secure_fl.tasks.model_blocks import initial_blocks

CLIPS = (1.0, 0.5, 0.25, 0.1, 0.05)
SITES, ROUNDS = 10, 5


def beyond(name: str, partition: str, settings: dict[str, object]) -> dict[float, float]:
    """The largest part by clip."""
    task = tasks.create(name, settings)
    strategy = strategies.create("fedavg", {"epochs": 2, "batch_size": 16, "learning_rate": 0.05})
    divided = PartitionSettings.parse({"kind": partition})
    data = [task.load(Source(share=Share(index=index, of=SITES, seed=0, partition=divided))) for index in range(SITES)]
    layout, model = initial_blocks(task, 0)
    parts = dict.fromkeys(CLIPS, 0.0)
    for number in range(ROUNDS):
        changes = []
        for index, rows in enumerate(data):
            site = Site(
                task=task, data=rows, training=strategy.settings, initial=model, received=model, personal={},
                combination={}, seed=number * SITES + index,
            )  # fmt: skip
            change = strategy.fit(site)
            changes.append(np.concatenate([change[block] for block in layout.names]))
        for clip in CLIPS:
            parts[clip] = max(parts[clip], *(float((np.abs(change) > clip).mean()) for change in changes))
        flat = np.concatenate([model[block] for block in layout.names]) + np.mean(changes, axis=0)
        model = layout.unflatten(flat.astype("<f4").tobytes())
    return parts


if __name__ == "__main__":
    given = dict(argument.split("=", 1) for argument in sys.argv[3:])
    found = beyond(sys.argv[1], sys.argv[2], {key: json.loads(value) for key, value in given.items()})
    sys.stdout.write("  ".join(f"±{clip:g}: {part:.5f}" for clip, part in found.items()) + "\n")
