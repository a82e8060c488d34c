"""What is allowed in a study and yet hardly meant: said wherever a study is checked, and refused nowhere."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.study.settings import Study
from secure_fl.study.simulated import SimulationSection, simulated_names

# Above this, a guess about one record may become e^10 = 22,000 times as likely through what is published.
WEAK_EPSILON = 10.0

# Which partitions look at a key of [simulation].
_ONLY_FOR = {
    "alpha": ("dirichlet",),
    "classes": ("pathological", "rotated-pathological"),
    "domains": ("rotated", "rotated-pathological"),
    "degrees": ("rotated", "rotated-pathological"),
}


def doubts(study: Study) -> tuple[str, ...]:
    """One sentence for each, with what to do about it."""
    found = []
    epsilon = study.privacy.epsilon
    if study.privacy.mode != "none" and epsilon is not None and epsilon > WEAK_EPSILON:
        found.append(
            f"privacy.epsilon = {epsilon:g} is practically no protection of single records; {WEAK_EPSILON:g} is a lot, "
            "and 1 to 3 are usual"
        )
    if study.make_protection().coordinator_sees_updates:
        found.append(
            f"protection.kind = {study.protection.kind!r} shows every site's update to the coordinator; it is for tests"
        )
    sites = study.study.roster or simulated_names(study.simulation.nodes)
    if (weighs_by := study.make_strategy().weighs_by) != "samples" and study.privacy.mode == "none":
        found.extend(_weights_alike(study, sites, weighs_by))
    if study.rounds.is_buffered and not study.rounds.by_sites:
        if len(study.circles(sites)) == 1:
            found.append(
                f"rounds.mode = 'buffered', but {len(sites)} sites are one circle: everybody waits for the slowest all "
                "the same; with more sites there are more circles"
            )
        elif study.rounds.buffer > 1 and study.rounds.flush_after is None:
            found.append(
                f"a version is made of {study.rounds.buffer} turns, and nothing limits how long the first of them "
                "waits: one absent site may hold every circle up until rounds.patience is over; set rounds.flush_after"
            )
    return (*found, *_unused(study))


def _weights_alike(study: Study, sites: Collection[str], weighs_by: str) -> tuple[str, ...]:
    """Where a strategy weighs sites by more than their samples, and the study lets every site count the same."""
    reference = study.protection.reference_samples
    least = max(study.min_cohort(RequestKind.SUM), min(map(len, study.circles(sites)), default=0))
    if reference is not None and weight_floor(least, study.protection.colluders) < WEIGHT_UNITS:
        return ()
    mend = (
        "set protection.reference_samples, for example to the number of rows of the largest site"
        if reference is None
        else f"in circles of {least} one weight could stand out, so that they need more sites"
    )
    name = study.strategy.name
    return (f"strategy {name!r} weighs sites by {weighs_by}, and here every site counts the same: {mend}",)


def _unused(study: Study) -> Iterator[str]:
    """Values of [simulation] that the partition does not look at. At its default, a value may be nobody's."""
    simulation = study.simulation
    for key, partitions in _ONLY_FOR.items():
        value = getattr(simulation, key)
        if simulation.partition not in partitions and value != SimulationSection.model_fields[key].default:
            several = " and ".join(repr(one) for one in partitions)
            yield (
                f"simulation.{key} = {value:g} changes nothing: simulation.partition is {simulation.partition!r}, and "
                f"only {several} look{'s' if len(partitions) == 1 else ''} at it"
            )
