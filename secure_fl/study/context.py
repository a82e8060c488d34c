"""The facts of one attempt that both halves of a protection are bound to, derived in one place for both processes."""

from __future__ import annotations

from collections.abc import Sequence

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding.metrics import with_metrics
from secure_fl.protect.contract import RoundContext
from secure_fl.rounds import RoundKind
from secure_fl.study.resolved import ResolvedStudy


def round_context(
    resolved: ResolvedStudy,
    *,
    number: int,
    attempt: int,
    kind: RoundKind,
    base_model: bytes,
    invited: tuple[str, ...],
    shared: Layout,
    asked: Sequence[str] = (),
) -> RoundContext:
    """The context of an attempt, from what was announced. With `asked`, the blocks that everybody in it sends."""
    model = shared.model.select(asked) if asked else shared.model
    study, protection = resolved.study, resolved.protection_in(kind)
    request = resolved.request_in(kind)
    return RoundContext(
        study_id=resolved.id,
        round=number,
        attempt=attempt,
        base_model=base_model,
        invited=invited,
        roster={name: study.study.roster[name] for name in invited},
        # What the coordinator ships beside the model never leaves a node again.
        layout=with_metrics(
            Layout(()) if kind is RoundKind.EVALUATE else model,
            request,
            share=study.metrics.share,
            sizes=study.metrics.sizes,
            bits=study.protection.bits,
        ),
        kind=request,
        bits=study.protection.bits,
        colluders=study.protection.colluders,
        min_cohort=study.min_cohort(request),
        protection=protection.name,
        payload_version=protection.payload_version,
        settings=protection.canonical_settings,
        weighting=study.weighting,
        whole=bool(resolved.circles_in(kind)),
        partial=resolved.strategy.partial,
        declared=b"" if kind is RoundKind.DECLARE else resolved.division.digest,
        compares=request is RequestKind.COMBINE and resolved.strategy.compares(number),
        # A flush makes the next version, and has its number.
        staleness=study.rounds.staleness if study.rounds.by_sites and kind is RoundKind.TRAIN else None,
        version=number - 1 if study.rounds.by_sites and kind is RoundKind.TRAIN else 0,
    )
