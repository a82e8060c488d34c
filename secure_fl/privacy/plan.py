"""How much noise a study needs at one site, worked out before it begins.

A study says what it may cost, (ε, δ), and how much it trains: rounds, passes over the data in a round, batch size. A
site adds how many units it declares. The noise follows: the least with which all planned trainings, and
`spare_attempts` more for attempts that fail after training, stay within (ε, δ).

**Which accountant calibrates.** The site's filter (`filter.py`), not the tight one. A site whose policy is the study's
own (ε, δ) must be able to finish the study, and its filter is what would stop it: with noise that only a tight
accountant finds sufficient, the site would be refused some rounds before the end. What the filter accepts is within
(ε, δ) by the tight accountant, too. The price is noise. With a sampling rate of 1/9, 360 steps and δ = 1e-5:

    ε                              1      3      8
    σ by loss distributions     7.98   3.08   1.48
    σ by the filter             8.65   3.33   1.58      8 %, 8 %, 7 % more
    ε of that σ, tight          0.91   2.74   7.28      what `epsilon_after` reports

So the ε that is reported at the end is below the one that was promised. That is the cost of a promise that holds
whatever sites and study leads decide on the way; nothing is hidden in the difference, and nothing can be spent from it.

A site that allows more than the study's (ε, δ) can finish it, too, although its filter has another order; and what the
study takes of its budget is less than the ratio of the two ε.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Self

from secure_fl.counting import counted
from secure_fl.errors import SettingsError
from secure_fl.privacy.accounting import LEAST_DELTA, epsilon_pld
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.mechanism import Mechanism

_LEAST_NOISE = 0.1  # Less would be called noise and be none; an ε that would allow it is not used up.
_MOST_NOISE = 10  # times the batch: ten times what all units of a batch together can say, in every single parameter
_PLACES = 1e6  # The noise is rounded up to six decimals, so that it reads the same everywhere.

_LESS = "choose a larger privacy.epsilon, fewer rounds or passes over the data, or let the site bring more data"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyPlan:
    """What one site's part in a study costs, and the noise that makes it so.

    Making one raises `SettingsError` if there is no sensible noise for it. It is quick, and quicker the second time.
    """

    epsilon: float
    delta: float
    rounds: int
    epochs: int  # passes over the data in a round that are trained under noise
    batch_size: int
    units: int  # that the site declares
    spare_attempts: int = 2
    unit: Literal["record", "group"] = "record"
    clip: float = 1.0
    group_rows: int = 1

    @classmethod
    def make(
        cls,
        *,
        epsilon: float | None,
        delta: float | None,
        rounds: int,
        epochs: int,
        batch_size: int,
        units: int,
        spare_attempts: int = 2,
        unit: Literal["record", "group"] = "record",
        clip: float = 1.0,
        group_rows: int = 1,
    ) -> Self:
        """The plan for a study's settings, in which ε and δ may be missing: then it raises `SettingsError`, too."""
        if epsilon is None or delta is None:
            raise SettingsError(
                f"privacy.{'epsilon' if epsilon is None else 'delta'} is missing",
                advice="say what the study may cost, such as epsilon = 3.0 and delta = 1e-5: nobody else can",
            )
        return cls(
            epsilon=epsilon,
            delta=delta,
            rounds=rounds,
            epochs=epochs,
            batch_size=batch_size,
            units=units,
            spare_attempts=spare_attempts,
            unit=unit,
            clip=clip,
            group_rows=group_rows,
        )

    def __post_init__(self) -> None:
        if not (self.rounds >= 1 and self.epochs >= 1 and self.spare_attempts >= 0):
            raise SettingsError(
                "a privacy plan needs at least one round and one pass over the data in it",
                advice='a strategy that trains nothing that leaves needs no noise: use privacy.mode = "none"',
            )
        if not (self.units >= 1 and 1 <= self.batch_size <= self.units):
            raise SettingsError(
                f"a batch of {self.batch_size} out of {self.units} {self.unit}s",
                advice="choose a batch size of at least 1 and at most what the site declares as [datasets.ID] units",
            )
        if not (self.group_rows >= 1 and 0 < self.clip < math.inf):
            raise SettingsError(
                "privacy.clip and privacy.group_rows are positive", advice="leave them out, or correct them"
            )
        if not LEAST_DELTA <= self.delta < 1 / self.units:
            raise SettingsError(
                f"privacy.delta = {self.delta} at a site with {self.units} {self.unit}s",
                advice=f"choose it from {LEAST_DELTA:g} to below 1 / {self.units}, a tenth of that or less as a rule: "
                f"with more, to publish one {self.unit} as it is would count as private",
            )
        if self.noise > _MOST_NOISE * self.batch_size:
            raise SettingsError(
                f"privacy.epsilon = {self.epsilon:g} needs noise of {self.noise:.4g} times what one {self.unit} may "
                f"say, on batches of {self.batch_size}: nothing would be learnt",
                advice=_LESS,
            )

    @property
    def sampling(self) -> float:
        """q: how likely one unit is in a step's sample."""
        return self.batch_size / self.units

    @property
    def epoch_steps(self) -> int:
        """Steps that stand for one pass over the data."""
        return max(1, round(self.units / self.batch_size))

    @property
    def trainings(self) -> int:
        """How many trainings the noise is enough for: one for each round, and the spare ones."""
        return self.rounds + self.spare_attempts

    @property
    def noise(self) -> float:
        """σ, in multiples of the clip."""
        steps = self.trainings * self.epochs * self.epoch_steps
        return _calibrated(self.sampling, steps, self.epsilon, self.delta)

    @property
    def mechanism(self) -> Mechanism:
        """The constants that the site trains with."""
        return Mechanism(
            unit=self.unit,
            units=self.units,
            sampling=self.sampling,
            noise=self.noise,
            clip=self.clip,
            epoch_steps=self.epoch_steps,
            group_rows=self.group_rows,
        )

    @property
    def cost_per_round(self) -> tuple[NoisySteps, ...]:
        """What one training costs, whether it is a round's first or another attempt."""
        return self.mechanism.cost(self.epochs)

    @property
    def epsilon_total(self) -> float:
        """ε of the planned rounds without spare attempts, by privacy loss distributions."""
        return self.epsilon_after(self.rounds)

    def epsilon_after(self, rounds: int) -> float:
        """ε once so many trainings were done, by privacy loss distributions."""
        return epsilon_pld(self.cost_per_round * rounds, delta=self.delta)

    def explain(self) -> tuple[str, ...]:
        """For people who decide about a study: a few sentences in plain English."""
        one = f"one {self.unit}"
        odds = f"{math.exp(self.epsilon):.3g}" if self.epsilon < 100 else "an astronomical number"
        lines = [
            f"Noise protects every single {self.unit}: epsilon is at most {self.epsilon:g} (delta {self.delta:g}) for "
            "all that leaves the site in this study.",
            f"That is: whether {one} is among the data or not makes anything that somebody might see at most {odds} "
            f"times as likely, but for a chance of about {self.delta:g}.",
            f"Every step draws each of about {self.units} {self.unit}s with a chance of {self.sampling:.3g}, limits "
            f"what {one} can say, and adds noise {self.noise:.3g} times as large as that limit.",
            f"{counted(self.rounds, 'round')} of {counted(self.epochs * self.epoch_steps, 'step')} "
            f"use{'s' if self.rounds == 1 else ''} epsilon {self.epsilon_total:.3g}.",
        ]
        if self.spare_attempts:
            most = self.epsilon_after(self.trainings)
            lines.append(
                f"It is enough for {self.spare_attempts} more trainings, where attempts fail (then epsilon {most:.3g})."
            )
        lines.append("A site that allows exactly this much for its data refuses any training after that.")
        if self.epsilon > 10:
            lines.append("An epsilon above 10 promises little by itself: ask why so much is needed.")
        return tuple(lines)


@lru_cache(maxsize=256)
def _calibrated(sampling: float, steps: int, epsilon: float, delta: float) -> float:
    """The least noise, to six decimals, at which the filter of (ε, δ) lets so many steps through."""
    import dp_accounting as dp

    budget = BudgetFilter(epsilon=epsilon, delta=delta)

    def enough(noise: float) -> bool:
        return budget.allows((), (NoisySteps(sampling=sampling, noise=noise, steps=steps),))

    if enough(_LEAST_NOISE):
        return _LEAST_NOISE
    try:
        # With the filter's one order, this accountant's ε is above the target exactly if the filter refuses.
        least = dp.calibrate_dp_mechanism(
            lambda: dp.rdp.RdpAccountant(orders=[budget.order]),
            lambda noise: dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(sampling, dp.GaussianDpEvent(noise)), steps),
            target_epsilon=epsilon,
            target_delta=delta,
            bracket_interval=dp.LowerEndpointAndGuess(_LEAST_NOISE, 1.0),
        )
    except dp.mechanism_calibration.NoBracketIntervalFoundError:
        raise SettingsError(f"no noise is enough for {steps} steps at epsilon = {epsilon:g}", advice=_LESS) from None
    noise = math.ceil(float(least) * _PLACES) / _PLACES
    while not enough(noise):  # At most once or twice: where the two ways to write the limit round differently.
        noise += 1 / _PLACES
    return noise
