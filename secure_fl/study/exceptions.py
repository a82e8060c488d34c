"""The guarantees that a site may agree to give up, by the name that its file lists and `study show` explains."""

from __future__ import annotations

from secure_fl import strategies
from secure_fl.settings import nearest, require_known

KNOWN = (
    "changing-cohorts",
    "hidden-membership",
    "honest-coordinator",
    "metrics-without-noise",
    "more-comparisons",
    "unverified-combinations",
)
_ALIKE = 0.8  # beyond this a word is taken for a slip, and not for one that somebody else's strategy brings


def require_exception(name: str) -> None:
    """Raise `UnknownNameError` for a name that no study can need: a misspelt one would agree to nothing.

    Installed strategies may have exceptions of their own, which only their settings tell. Where there are such
    strategies, only what looks like one of ours is refused.
    """
    foreign = any(not strategies.is_built_in(strategy) for strategy in strategies.known())
    if name in KNOWN or (foreign and nearest(name, KNOWN, cutoff=_ALIKE) is None):
        return
    require_known("[policy] exception", name, KNOWN)
