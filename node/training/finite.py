"""Training always ends with numbers, whatever the model was.

Whoever chooses the model can make one that overflows on one record only. A site that then sat the round out would have
said that it holds this record. So nothing that a model does to the arithmetic keeps a site from answering: what becomes
NaN or infinite counts as unchanged, and so does a round whose training raised. Code that fails whatever the model is
was found before the model was fetched (`node.training.rehearsal`).
"""

from __future__ import annotations

import logging
from collections import ChainMap
from collections.abc import Mapping
from typing import cast

import numpy as np

from secure_fl.blocks import Blocks, Vector
from secure_fl.errors import NotPrivateError, UnaccountedTrainingError
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.site import Site

log = logging.getLogger(__name__)

# What code does wrong under differential privacy, with any rows. All else may depend on one row: torch's own losses
# raise a RuntimeError for NaN, research code asserts, int(nan) is a ValueError.
_WITH_ANY_ROWS = (NotPrivateError, UnaccountedTrainingError)


def settled_fit(strategy: Strategy, site: Site) -> Blocks:
    """What `strategy.fit` makes of a site, all of it finite: the update that is returned and what the site keeps."""
    kept, state = dict(site.personal), dict(site.state)
    try:
        update = strategy.fit(site)
    except _WITH_ANY_ROWS:
        raise
    except Exception as error:
        reason = type(error).__name__
        log.warning("training went astray (%s): nothing changes here in this round", reason, exc_info=True)
        site.personal, site.state, site.traces = kept, state, {}
        update = {name: np.zeros_like(vector) for name, vector in site.received.items()}
    if site.skipped:
        log.warning(
            "%d batches gave no finite gradient and were passed over; lower strategy.learning_rate or check the data",
            site.skipped,
        )
    before = ChainMap(kept, dict(site.received), cast("dict[str, Vector]", site.initial))
    site.personal = {name: settled(vector, name, before) for name, vector in site.personal.items()}
    # What a circle is not asked for stays here, also where training went astray or a strategy does not look.
    return {name: settled(vector) for name, vector in update.items() if site.asked is None or name in site.asked}


def settled(values: Vector, name: str = "", before: Mapping[str, Vector] | None = None) -> Vector:
    """`values`, with what `before` has under `name`, or else zero, in place of NaN and infinity."""
    finite = np.isfinite(values)
    if finite.all():
        return values
    log.warning("%d of %d values are not finite and count as unchanged", values.size - finite.sum(), values.size)
    fallback = before[name] if before is not None and name in before else None
    if fallback is None or fallback.shape != values.shape or not np.isfinite(fallback).all():
        fallback = np.zeros_like(values)
    return np.where(finite, values, fallback)
