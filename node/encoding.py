"""Step 7 of the data's path: floats become integers on the study's grid, and stay so until a mean is opened."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from node.kept import KeptUpdate
from node.training.jobs import Result
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.checkpoints import open_arrays
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.metrics import METRICS_BLOCK, encode_metrics
from secure_fl.encoding.update import encode_update
from secure_fl.encoding.weights import WEIGHT_UNITS, quantise_weight
from secure_fl.protect.contract import RoundContext
from secure_fl.randomness import KeyStream
from secure_fl.study.resolved import ResolvedStudy

_MANY = 1000  # A clip that cuts fewer than one value of so many fits the task.

log = logging.getLogger(__name__)


def encode(
    resolved: ResolvedStudy,
    context: RoundContext,
    result: Result,
    *,
    base: bytes,
    trained: Path | None,
    stream: KeyStream,
    check_size: Callable[[int], None],
) -> KeptUpdate:
    """Clip, weigh and round what was `trained` and measured, from the model with the digest `base`.

    Raises whatever `check_size` says to that many parameters, and `StorageError`.
    """
    study, weight = resolved.study, WEIGHT_UNITS
    if context.kind is RequestKind.SUM:
        weight = quantise_weight(
            result.samples,
            reference_samples=study.protection.reference_samples,
            min_cohort=context.min_cohort,
            colluders=context.colluders,
            richness=result.richness,
        )
    blocks = {} if trained is None else _update(resolved, context, trained, weight, stream, check_size)
    if METRICS_BLOCK in context.layout.names:
        blocks[METRICS_BLOCK] = encode_metrics(
            result.metrics,
            ceiling=study.metrics.ceiling,
            sizes=study.metrics.sizes,
            bits=study.protection.bits,
            stream=stream,
        )
    return KeptUpdate(base=base, blocks=blocks, weight=weight, metrics=result.metrics)


def _update(
    resolved: ResolvedStudy,
    context: RoundContext,
    trained: Path,
    weight: int,
    stream: KeyStream,
    check_size: Callable[[int], None],
) -> dict[str, Integers]:
    codec = resolved.codec
    layout = Layout(tuple(shape for shape in context.layout if shape.name != METRICS_BLOCK))
    with open_arrays(trained) as update:
        size = layout.select(update).size
        check_size(size)
        blocks, clipped = encode_update(update, layout=layout, codec=codec, weight=weight, stream=stream)
    if clipped * _MANY > size:
        log.warning(
            "%d of %d values were beyond ±%g and were clipped; if this repeats, tell the study's lead: a larger "
            "protection.clip, or smaller steps, would help",
            clipped, size, codec.clip,
        )  # fmt: skip
    return blocks
