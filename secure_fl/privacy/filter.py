"""A site's privacy budget for one data set: what decides whether there may be one more training.

**Why not simply compare the reported ε with the allowed one?** Because what happens next depends on what came out
before. A study goes on, or is planned, because an earlier one looked promising; an attempt is repeated; the next
study takes another batch size. The usual theorems, also those behind tight accountants (privacy loss distributions,
f-DP), add up a list of mechanisms that was fixed before the first one ran. "Compose what was run so far, and stop
when ε is reached" sounds the same and is not: those theorems say nothing about lists that are chosen on the way.

**What is true** is a theorem about Rényi divergence at one order α. Let every training, given all that came out
before it, have a divergence of at most ρᵢ between neighbours (one unit more or less), where ρᵢ may be chosen from all
that came out before. If ρ₁ + ρ₂ + … never exceeds B, whatever comes out, then everything that came out together has a
divergence of at most B at the same α (Feldman and Zrnic, "Individual privacy accounting via a Rényi filter", NeurIPS
2021, arXiv 2008.11193). A *filter* is the rule that makes "never exceeds B" true: before each training, refuse it if
the sum would pass B. Nothing is lost against a list that was fixed in advance, and there are no constants. It stays
true if several studies use one data set side by side (Haney et al., "Concurrent composition for interactive
differential privacy with adaptive privacy-loss parameters", CCS 2023, arXiv 2309.05901).

**The order is fixed with the policy**, from (ε, δ) alone, before any data are used. To take whichever order looks
best at the end would be a choice that depends on what came out, to which the theorem does not apply.

**From B to (ε, δ).** A divergence of at most B at order α implies (ε, δ) with

    ε = B + ln(1 − 1/α) − ln(δ·α) / (α − 1)

(Canonne, Kamath and Steinke, "The discrete Gaussian for differential privacy", NeurIPS 2020, arXiv 2004.00010v4,
Proposition 12; dp-accounting's and Opacus' conversion). It is about any two distributions, so it holds for whatever
the filter let through. `limit` is this equation solved for B.

**Which order.** A training with Gaussian noise and without sampling costs exactly ρ·α, so that limit(α)/α says how
much fits: `order_for` takes the whole number where that is largest. With sampling the cost grows faster than α (so it
was found wherever it was computed; convenience rests on it, no guarantee), which leads to a law that people expect of
policies: whoever allows more (no less of ε and of δ) admits all that somebody with less admits. It would be lost with
an order that suits one kind of training better. Whole orders have a closed form that cannot fail to converge. (The
rule of thumb 1 + 2·ln(1/δ)/ε comes from an older conversion: for ε = 1, δ = 1e-5 it says 24, where 18 needs 4 % less
noise.)

**What the theorem does not cover.** That the declared costs are true (noise, sampling and clipping are as `Mechanism`
says), and a policy that is changed because of what came out: a raised ε is a new promise, not this one. Refusals
themselves tell nothing: they depend on costs, which depend on no record.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from secure_fl.errors import BudgetExceededError, SettingsError
from secure_fl.privacy.accounting import LEAST_DELTA, rdp_at
from secure_fl.privacy.events import Event, NoisySteps

_ORDERS = range(2, 1025)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetFilter:
    """The budget (ε, δ) of one data set over everything that is ever released from it.

    It keeps no state: what was spent is handed in, from the ledger, and so a restart decides as before. Raises
    `SettingsError` for an (ε, δ) that is none or that no order can enforce.
    """

    epsilon: float
    delta: float
    order: int = 0  # α; 0 stands for `order_for(epsilon, delta)`. A ledger knows which one its policy began with.

    def __post_init__(self) -> None:
        if not 0 < self.epsilon < math.inf:  # Written so that NaN is refused too.
            raise SettingsError(
                f"epsilon = {self.epsilon} is no privacy budget",
                advice="choose a positive number: 1 is strong, 3 usual, above 10 promises little",
            )
        if not LEAST_DELTA <= self.delta < 1:
            raise SettingsError(
                f"delta = {self.delta} is no privacy budget",
                advice=f"choose a number from {LEAST_DELTA:g} to well below 1 / (number of records), such as 1e-6",
            )
        if self.order == 0:
            object.__setattr__(self, "order", order_for(self.epsilon, self.delta))
        if self.order not in _ORDERS or not self.limit > 0:
            raise SettingsError(
                f"epsilon = {self.epsilon} with delta = {self.delta} is so little that it leaves nothing to spend",
                advice="choose a larger epsilon or a larger delta",
            )

    @property
    def limit(self) -> float:
        """B: the Rényi divergence at `order` that everything together may have."""
        return _limit(self.epsilon, self.delta, self.order)

    def cost(self, events: Iterable[Event]) -> float:
        """What events take of `limit`; infinite with a release without noise among them."""
        return rdp_at(events, order=self.order)

    def converted(self, events: Iterable[Event]) -> float:
        """The ε that the filter's theorem gives for these events: above `epsilon` exactly if they do not fit.

        It is larger than what accountants say of the same events, and it does not start at zero: for showing how far a
        budget is used, `spent_fraction` is the better number.
        """
        cost = self.cost(events)
        return max(0.0, self.epsilon - (self.limit - cost)) if cost else 0.0

    def spent_fraction(self, spent: Iterable[Event]) -> float:
        """How much of the budget is used: 0 for nothing, 1 for all, infinite with a release without noise."""
        return self.cost(spent) / self.limit

    def allows(self, spent: Iterable[Event], wanted: Iterable[Event]) -> bool:
        """Whether `wanted` still fits beside what was spent. Nothing at all (the same bytes sent again) always does."""
        asked = tuple(wanted)
        return not asked or self.cost((*spent, *asked)) <= self.limit  # False for NaN and infinity.

    def require(self, spent: Iterable[Event], wanted: Iterable[Event]) -> None:
        """Raise `BudgetExceededError` unless `wanted` fits. To be asked before anything is computed from the data."""
        before, asked = tuple(spent), tuple(wanted)
        if self.allows(before, asked):
            return
        used, needed = self.spent_fraction(before), self.spent_fraction(asked)
        policy = f"epsilon = {self.epsilon:g}, delta = {self.delta:g}"
        if not used < math.inf:
            message = f"something left this data set without noise: no budget ({policy}) can hold any more"
        else:
            message = (
                f"this training needs {_percent(needed)} of the data set's privacy budget ({policy}), and "
                f"{_percent(max(0.0, 1 - used))} is left: everything together would come to "
                f"epsilon {self.converted((*before, *asked)):.6g}"
            )
        limit = self.limit
        raise BudgetExceededError(
            message, requested=self.cost(asked), allowed=limit, remaining=max(0.0, limit - self.cost(before))
        )

    def rounds_left(self, spent: Iterable[Event], each: Iterable[Event]) -> int | None:
        """How many more rounds of the cost `each` fit, one after the other; None if they cost nothing."""
        before, once = tuple(spent), tuple(each)
        if not once:
            return None
        fits, refused = 0, 1  # It asks what `require` asks, since a division would round differently.
        while self.allows(before, _repeated(once, refused)):
            fits, refused = refused, 2 * refused
        while refused - fits > 1:
            middle = (fits + refused) // 2
            if self.allows(before, _repeated(once, middle)):
                fits = middle
            else:
                refused = middle
        return fits


@lru_cache(maxsize=256)
def order_for(epsilon: float, delta: float) -> int:
    """The order at which a budget is kept: a function of (ε, δ) alone. See the module's text for how it is chosen."""
    return max(_ORDERS, key=lambda order: _limit(epsilon, delta, order) / order)


def _limit(epsilon: float, delta: float, order: int) -> float:
    # Canonne, Kamath and Steinke, Proposition 12, solved for the divergence.
    return epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


def _repeated(events: Iterable[Event], count: int) -> tuple[Event, ...]:
    return tuple(
        replace(event, steps=event.steps * count) if isinstance(event, NoisySteps) else event for event in events
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %" if fraction < math.inf else "more than all"
