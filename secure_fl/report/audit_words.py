"""What an audit says in words, for people and for registries alike."""

from __future__ import annotations

from secure_fl.privacy.audit import Audit, DatasetAudit
from secure_fl.privacy.audit_faults import StudyTerms

NEIGHBOURS = (
    "Two data sets are neighbours if one has one unit more than the other (add or remove one). What leaves is almost as"
    " likely with the unit as without it; ε and δ say how nearly."
)
COMPOSITION = (
    "Everything that was ever planned with this data set, in all studies, attempts and restarts, is added up: the"
    " reported ε is computed with privacy loss distributions from the entries of the ledger alone. The site's own limit"
    " is kept by a Rényi filter at one order, fixed with the limit, since studies are chosen after earlier results."
)
TRUST = (
    "The site trains and adds the noise itself, before anything leaves: for ε nobody outside the site is trusted."
    " Before the noise is added, the raw data and the gradients are seen by the site's own node process, its"
    " administrators and whoever can read its memory and disk."
)
NO_NOISE = (
    "No noise is added. Whoever sees a sum, or a model made of it, may learn something about single records of the"
    " sites in it; who can see what is said above, for each protection."
)

# NIST SP 800-226 calls for these to be said. A site's entries may add to them.
_NEVER = (
    "that the site took part, in which studies and rounds, and when",
    "sizes and timing of messages",
    "the number of rows or units that the site declared",
    "measurements that a study shares, unless their noise was charged here",
    "runs for tuning or trying out that are not in this ledger",
    "copies of the same records at other sites or under other data set names",
)


def not_covered(dataset: DatasetAudit) -> tuple[str, ...]:
    """What ε says nothing about: always, and as the site itself has written down."""
    told = dataset.privacy.get("not_covered") or ()
    own = [str(one) for one in told] if isinstance(told, list | tuple) else [str(told)]
    return tuple(dict.fromkeys((*_NEVER, *own)))


def unit(dataset: DatasetAudit) -> str:
    """Whom ε protects, with how much of theirs."""
    facts = dataset.privacy
    if not facts:
        return "none: no differential privacy"
    if facts.get("unit") == "group":
        return f"one group (a patient, a machine), of whose rows at most {facts.get('group_rows')} count in a step"
    return "one record (one row)"


def mechanism(dataset: DatasetAudit) -> str:
    """How the noise comes about."""
    facts = dataset.privacy
    if not facts:
        return "None."
    steps = "; ".join(
        f"{event.steps:,} steps with sampling rate {event.sampling:.4g} and noise multiplier {event.noise:.4g}"
        for event in dataset.events
    )
    return (
        f"DP-SGD ({facts.get('mode')}): Poisson sampling of units, each unit's gradient clipped to norm"
        f" {facts.get('clip')}, Gaussian noise on the sum; {steps}. Declared number of units: {facts.get('units')}."
    )


def libraries(dataset: DatasetAudit) -> str:
    """With which versions, as the site states."""
    told = dataset.privacy.get("libraries")
    if not isinstance(told, dict) or not told:
        return "not stated"
    return ", ".join(f"{name} {version}" for name, version in sorted(told.items()))


def rationales(found: Audit, dataset: DatasetAudit) -> list[StudyTerms]:
    """The studies of a data set that say why they chose what they chose."""
    mine = {use.plan.study for use in dataset.uses}
    return [study for study in found.terms if study.id in mine and study.rationale]


def randomness(dataset: DatasetAudit) -> str:
    """Where noise and samples come from."""
    kind = dataset.privacy.get("randomness")
    if kind == "system":
        return "the operating system's secure generator, fresh in every execution, never shown to anybody"
    if kind == "seeded":
        return "a seed that others can know: no guarantee"
    return "not stated"
