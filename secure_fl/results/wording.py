"""How results are said in words: which model was measured, on whose rows, and how sites count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

# The one definition: accuracy, loss and squared error of a study are means over sites, in which each site counts the
# same, also those of the shared model. Metrics that a task declares are of the test rows of all sites together.
OVER_SITES = "mean over sites"
ALL_ROWS = "all test rows together"
OWN_ROWS = "the site's own test rows"
_MEANS = ("accuracy", "loss", "mse", "global_accuracy")


def counted(metric: str) -> str:
    """How sites count in a metric of a whole study."""
    return OVER_SITES if metric in _MEANS else ALL_ROWS


def whose(metrics: Iterable[str]) -> str:
    """How sites count in each of several metrics, in one line; nothing where there are none."""
    said: dict[str, list[str]] = {}
    for name in metrics:
        said.setdefault(counted(name), []).append(name)
    return "; ".join(f"{', '.join(names)}: {how}" for how, names in said.items())


def sentences(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What a study reached, from its summary; nothing where nothing was shared."""
    said = []
    if (mse := summary["mean_mse"]) is not None:
        said.append(f"squared error {figure(mse)} ({OVER_SITES})")
    elif (accuracy := summary["mean_accuracy"]) is not None:
        spread = f" ± {figure(summary['std_accuracy'])}" if summary["std_accuracy"] is not None else ""
        shared = summary["global_accuracy"]
        alone = f"; of the shared model alone {figure(shared)}" if shared is not None else ""
        said.append(f"accuracy {figure(accuracy)}{spread}{alone} ({OVER_SITES})")
    if metrics := metrics_text(summary["metrics"]):
        said.append(f"{metrics} ({ALL_ROWS})")
    return tuple(said)


def metrics_text(metrics: Mapping[str, float | None]) -> str:
    """Metrics in one line; one that is not known is left out."""
    return ", ".join(f"{name} {figure(value)}" for name, value in metrics.items() if value is not None)


def figure(value: float | None) -> str:
    """Four places, or a dash."""
    return "–" if value is None else f"{value:.4f}"
