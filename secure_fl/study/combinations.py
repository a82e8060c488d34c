"""Whether the combinations that a study asks for could ever be opened. What is known without a site is checked here."""

from __future__ import annotations

from secure_fl.blocks import Layout
from secure_fl.errors import SettingsError
from secure_fl.protect.release.comparisons import MORE, allowed, fewest
from secure_fl.strategies.base import Strategy


def require_combinations(
    strategy: Strategy, layout: Layout, head: tuple[str, ...], *, rounds: int, sites: int, minimum: int
) -> None:
    """Raise `SettingsError` where no combination can open, or sites would refuse to be compared so often.

    `sites` is 0 where nobody is named yet; `minimum` is how many sites an opened combination needs.
    """
    _require_width(strategy, sites or minimum, minimum)
    if not strategy.attention:
        return
    planned = sum(strategy.compares(number) for number in range(1, rounds + 1))
    if not planned:
        raise SettingsError(
            f"no combination can open: in {rounds} rounds sites are never compared",
            advice="an earlier strategy.combine_from, or more rounds",
        )
    features = layout.select(strategy.compared(layout, head)).size
    if not allowed(features) and MORE not in strategy.exceptions:
        raise SettingsError(
            f"strategy {strategy.name!r} compares sites by {features} numbers of their models, and sites refuse that "
            f"for fewer than {fewest()}: distances would tell too much about each number",
            advice="a larger model, for example by task.hidden; or strategy.more_comparisons = true where each site "
            f"lists {MORE!r} in its [policy] exceptions",
        )
    if planned > allowed(features) and MORE not in strategy.exceptions:
        raise SettingsError(
            f"strategy.comparisons = {planned}: a site lets each peer compare {features} numbers of its model with its "
            f"own {allowed(features)} times at most",
            advice=f"fewer strategy.comparisons, or strategy.more_comparisons = true where each site lists {MORE!r} "
            "in its [policy] exceptions",
        )


def _require_width(strategy: Strategy, sites: int, minimum: int) -> None:
    widest = strategy.widest_row(sites)
    if widest < minimum:
        raise SettingsError(
            f"no combination can open: at most {widest} sites would be in one, and at least {minimum} have to be",
            advice="a larger strategy.max_selected, strategy.fill, more sites, or fewer protection.colluders",
        )
