"""Manifests of a sealed round, and how many holders a recipient waits for."""

from __future__ import annotations

from secure_fl.protect.uploads.manifest import UploadCohort, UploadManifests

MANIFESTS = UploadManifests("sealed")


def answers_to_open(cohort: UploadCohort, colluders: int) -> int:
    """How many holders' shares a recipient wants to see before it opens its combination: t + c, if there are so many.

    Of t shares, one that a colluder bent bends the key, and with it what is opened, by as much as the colluder likes.
    Of t + c at least t are honest, and a bent one lies off their polynomial.
    """
    return min(cohort.threshold + colluders, len(cohort.names))
