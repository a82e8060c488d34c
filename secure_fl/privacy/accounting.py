"""What a list of events costs, computed by dp-accounting: nothing here composes by itself.

Three questions, for neighbours that differ by one unit added or removed:

- `epsilon_pld`: the ε that is reported. Privacy loss distributions are tight up to their discretisation.
- `epsilon_rdp`: the ε by Rényi divergences, shown beside it. Larger, and what Opacus computes at the same orders.
- `rdp_at`: the Rényi divergence at one order, in which a site's budget is kept (`filter.py` says why).

The first two are statements about a list that was fixed in advance, or about what has been spent so far. They decide
nothing: whether there may be one more training is the filter's question.

Whatever cannot be computed costs infinity, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from secure_fl.privacy.events import Event, NoisySteps, NonPrivate, merged

# Privacy losses are rounded up to multiples of this. Coarser is faster and says more than was spent.
INTERVAL = 1e-4

# Distributions are cut off at tails of about 1e-15 each, so that a δ near it comes out far too large or infinite.
LEAST_DELTA = 1e-10

# Where ε is least for all but extreme events. Whole orders have a closed form; the series for those below 3 does not
# converge for a site that samples half of its units, and the library logs a warning for each of them.
ORDERS = (
    2.0,
    *(tenths / 10 for tenths in range(30, 110)),
    *map(float, range(11, 64)),
    *(64.0 * 2 ** (eighths / 8) // 1 for eighths in range(33)),
)

# How many intervals ε may have, and how many an ε of 3 has. More than the first take minutes, for digits of an enormous
# ε that do not matter; up to the second it takes a fraction of a second.
_MOST_INTERVALS = 1_000_000
_USUAL_INTERVALS = 30_000


def epsilon_pld(events: Iterable[Event], *, delta: float, interval: float = INTERVAL) -> float:
    """ε at `delta` by privacy loss distributions; infinite if anything was released without noise.

    Never more than `epsilon_rdp`. The interval is made finer where one step's loss is not much larger than it (a tiny
    sampling rate or much noise), and wider beyond an ε of 100. Raises `ValueError` for a delta outside (0, 1) or an
    interval that is not positive.
    """
    if not 0 < interval < math.inf:
        raise ValueError("the interval is a positive number")
    listed = _checked(events, delta)
    if listed is None:
        return math.inf
    if not listed:
        return 0.0
    rough = epsilon_rdp(listed, delta=delta)
    if not 0 < rough < math.inf:
        return rough
    loss = min(event.sampling / event.noise for event in listed)  # about what one step says, at its least
    finer = min(interval, max(loss / 4, rough / _USUAL_INTERVALS))
    try:
        return min(rough, _pld(listed, delta, max(finer, rough / _MOST_INTERVALS)))
    except ArithmeticError:  # Beyond what distributions can hold, the rougher bound is all there is.
        return rough


def epsilon_rdp(events: Iterable[Event], *, delta: float, orders: Sequence[float] | None = None) -> float:
    """ε at `delta` by Rényi divergences, the least over `orders` (`ORDERS`, unless told).

    Infinite if anything was released without noise. Raises `ValueError` for a delta outside (0, 1).
    """
    listed = _checked(events, delta)
    if listed is None:
        return math.inf
    if not listed:
        return 0.0
    from dp_accounting import rdp

    at = ORDERS if orders is None else tuple(orders)
    return float(rdp.compute_epsilon(at, _rdp(listed, at), delta)[0])


def rdp_at(events: Iterable[Event], *, order: float) -> float:
    """The Rényi divergence of the whole list at one order above 1; infinite if anything was released without noise.

    Raises `ValueError` for another order.
    """
    if not 1 < order < math.inf:
        raise ValueError("an order is a finite number above 1")
    listed = _listed(events)
    if listed is None:
        return math.inf
    return _rdp(listed, (order,))[0] if listed else 0.0


def composed(events: Iterable[Event]) -> Any:
    """The events as dp-accounting writes them (a `DpEvent`), with one entry for each (sampling, noise)."""
    import dp_accounting as dp

    every = list(events)
    parts = [_dp_event(event) for event in merged(event for event in every if isinstance(event, NoisySteps))]
    if any(isinstance(event, NonPrivate) for event in every):
        parts.append(dp.NonPrivateDpEvent())
    return dp.ComposedDpEvent(parts)


def _dp_event(event: NoisySteps) -> Any:
    import dp_accounting as dp

    step = dp.PoissonSampledDpEvent(event.sampling, dp.GaussianDpEvent(event.noise))
    return dp.SelfComposedDpEvent(step, event.steps)


def _checked(events: Iterable[Event], delta: float) -> tuple[NoisySteps, ...] | None:
    if not 0 < delta < 1:  # Written so that NaN is refused too.
        raise ValueError("delta is between 0 and 1")
    return _listed(events)


def _listed(events: Iterable[Event]) -> tuple[NoisySteps, ...] | None:
    """The merged events; None if one of them has no bound at all."""
    noisy = []
    for event in events:
        if not isinstance(event, NoisySteps):
            return None
        noisy.append(event)
    return merged(noisy)


@lru_cache(maxsize=1024)
def _pld(events: tuple[NoisySteps, ...], delta: float, interval: float) -> float:
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant(
        neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=interval
    )
    epsilon = float(accountant.compose(composed(events)).get_epsilon(delta))
    return math.inf if math.isnan(epsilon) else epsilon


@lru_cache(maxsize=4096)
def _rdp(events: tuple[NoisySteps, ...], orders: tuple[float, ...]) -> tuple[float, ...]:
    """The divergence at each order; infinite at one where that of some event cannot be computed.

    Extreme events make the library divide by zero, or lose all digits and say zero or less: that is not for free.
    """
    from dp_accounting import NeighboringRelation, rdp

    relation = NeighboringRelation.ADD_OR_REMOVE_ONE
    try:
        total = rdp.RdpAccountant(orders=orders, neighboring_relation=relation).compose(composed(events)).rdp
    except ArithmeticError:
        return (math.inf,) * len(orders)
    if len(events) > 1:  # A sum could hide a part that is not positive.
        each = [_rdp((event,), orders) for event in events]
        return tuple(
            float(whole) if max(parts) < math.inf else math.inf for whole, *parts in zip(total, *each, strict=True)
        )
    return tuple(float(value) if value > 0 else math.inf for value in total)
