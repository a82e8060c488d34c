"""The facts of one attempt that both halves of a protection are bound to, derived in one place for both processes."""

from __future__ import annotations

from secure_fl.blocks import Layout
from secure_fl.metrics import with_metrics
from secure_fl.protect.base import RequestKind, RoundContext
from secure_fl.study import Study


def round_context(
    study: Study,
    *,
    number: int,
    attempt: int,
    training: bool,
    base_model: bytes,
    invited: tuple[str, ...],
    shared: Layout,
    kind: RequestKind,
) -> RoundContext:
    """The context of an attempt. A closing evaluation opens metrics only, and those as a sum."""
    kind = kind if training else RequestKind.SUM
    return RoundContext(
        study_id=study.id,
        round=number,
        attempt=attempt,
        base_model=base_model,
        invited=invited,
        roster={name: study.study.roster[name] for name in invited},
        # What the coordinator ships beside the model never leaves a node again.
        layout=with_metrics(shared.model if training else Layout(()), kind, share=study.metrics.share),
        kind=kind,
        bits=study.protection.bits,
        colluders=study.protection.colluders,
        min_cohort=study.min_cohort(kind),
        recompute=kind is RequestKind.COMBINE and study.protection.recompute,
        attention=kind is RequestKind.COMBINE and study.make_strategy().compares(number),
    )
