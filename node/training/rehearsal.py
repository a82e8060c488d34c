"""Before a model is fetched: do the data, the task and this machine work at all?

What fails here says nothing about a model, because there is none yet. After the fetch a failure would.
"""

from __future__ import annotations

import torch

from secure_fl.errors import DataError
from secure_fl.privacy.readiness import require_ready
from secure_fl.strategies.site import Site
from secure_fl.study.private import PrivacySection
from secure_fl.tasks.base import LocalData, Split


def rehearse(site: Site, *, privacy: PrivacySection | None = None) -> str:
    """Look through a site's data and train on one batch, from a model that nobody sent; returns what was found.

    Raises `DataError` for data that no model can be trained on, `NotPrivateError` for a task, model or data to which
    noise cannot be added, and whatever the task raises.
    """
    _require_numbers(site.data)
    if privacy is not None and privacy.mode != "none":
        require_ready(site.task, site.model, site.data, unit=privacy.unit)
    settings, train, test = site.training, site.data.train, site.data.test
    if site.privacy is None:
        _try_batch(site)
    else:
        site.try_noise()  # It passes over rows on which code fails: code that always does is found here.
    some = slice(0, settings.batch_size)
    measured = site.task.evaluate(site.model, Split(inputs=test.inputs[some], targets=test.targets[some]))
    if broken := [metric.name for metric in site.task.metrics if metric.name not in measured.sums]:
        raise DataError(
            f"the task's metrics fail on the first test rows: {', '.join(broken)}",
            advice="the traceback is in the node's log; docs/tasks.md says what a metric returns",
        )
    return f"{len(train)} rows to train on, {len(test)} to test on; one batch was trained"


def _try_batch(site: Site) -> None:
    optimizer = site.optimizer()
    site.model.train()
    site.descend(optimizer, next(iter(site.batches(1))))
    if site.skipped:
        raise DataError(
            "the first batch of the local data has no finite loss",
            advice="check the data for huge values, and scale inputs and targets to about unit size",
        )


def _require_numbers(data: LocalData) -> None:
    for which, split in (("training", data.train), ("test", data.test)):
        if len(split) == 0:
            raise DataError(f"there are no {which} rows")
        for what, values in (("inputs", split.inputs), ("targets", split.targets)):
            if values.is_floating_point() and not torch.isfinite(values).all():
                rows = int((~torch.isfinite(values.reshape(len(values), -1)).all(dim=1)).sum())
                raise DataError(
                    f"{rows} of {len(values)} {which} rows have NaN or infinity among their {what}",
                    advice="repair or leave out those rows; a deployed node tries again by itself",
                )
