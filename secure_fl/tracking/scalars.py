"""What a tracker is told of a round: which numbers, under which names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from secure_fl.results.history import costs, measurements
from secure_fl.results.record import RoundRecord
from secure_fl.results.turns import measured_version
from secure_fl.rounds import RoundKind

_OF_SITES = ("accuracy", "loss", "mse")
# Means over sites; the task's own metrics are of all test rows together.
_NAMES = {**{name: f"{name}/mean" for name in _OF_SITES}, "global_accuracy": "accuracy/global"}
_COSTS = ("seconds", "bytes_up", "bytes_down", "sites")


def scalars(record: RoundRecord, *, per_site: bool) -> Mapping[int, Mapping[str, float]]:
    """Version of the model → numbers. A round measures the version it begins with, and makes the next one.

    Without `per_site` there is no number of one site among them, whatever the record has.
    """
    found: defaultdict[int, dict[str, float]] = defaultdict(dict)
    version = measured_version(record)
    for name, value in measurements(record).items():
        if value is not None:
            found[version][_NAMES.get(name, f"{name}/all-rows")] = float(value)
    if record.kind is RoundKind.TRAIN:
        taken = costs(record)
        found[record.number] |= {f"round/{name}": float(taken[name]) for name in _COSTS}
    if per_site:
        for node in record.nodes:
            own = {name: getattr(node, name) for name in _OF_SITES} | dict(node.metrics)
            found[version] |= {f"{name}/{node.name}": value for name, value in own.items() if value is not None}
    return dict(found)
