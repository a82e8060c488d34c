"""Where each site joins a sum at its own pace: which version of the model each update was made from.

The classic attack shows one site a model of its own: if the others' updates vanish, what is left of the sum is that
site's. So a site says, signed, which version its update was made from, and the digest of every recent version that it
was told of. A sum is opened only if each version that is used in it was told, with the same digest, to so many of its
sites that no other digest can have as many. A coordinator can show two sites two models for one version; it cannot open
a sum in which both are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from secure_fl.errors import ProtectionError

DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Version:
    """One version of the study's model: its number, from 0, and the digest of what it is."""

    number: int
    digest: bytes

    def __post_init__(self) -> None:
        if self.number < 0 or len(self.digest) != DIGEST_BYTES:
            raise ProtectionError("a version has a number, from 0, and a digest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What one site says: the version that its update was made from, and every recent version that it was told of."""

    made_from: Version
    told: frozenset[Version]


def agreeing(nodes: int, colluders: int) -> int:
    """How many of so many sites have to name a version: the least number above (n + c)/2.

    Of two digests for one number an honest site names one, a colluder both: together at most n + c.
    """
    return (nodes + colluders) // 2 + 1


def usable(origins: Mapping[str, Origin], *, colluders: int) -> frozenset[str]:
    """Sites that can be in one sum: each made its update from a version that enough of the others were told of.

    One at a time is left out, the one whose version the fewest know, until that holds of all who are left.
    """
    left = dict(origins)
    while left:
        known = _known(left)
        weakest = min(sorted(left), key=lambda name: known[left[name].made_from])
        if known[left[weakest].made_from] >= agreeing(len(left), colluders):
            break
        del left[weakest]
    return frozenset(left)


def require_one_history(origins: Mapping[str, Origin], *, mine: Collection[Version], colluders: int) -> None:
    """At a site, before anything is made for these sites: raise `ProtectionError` unless all use one history.

    `mine` are the versions that this site was told of.
    """
    digests = {version.number: version.digest for version in mine}
    known, need = _known(origins), agreeing(len(origins), colluders)
    for name, origin in sorted(origins.items()):
        version = origin.made_from
        if digests.get(version.number, version.digest) != version.digest:
            raise ProtectionError(f"{name} made its update from another version {version.number} than is known here")
        if known[version] < need:
            raise ProtectionError(
                f"{name} made its update from a version {version.number} that only {known[version]} of the sites know",
                advice=f"{need} of {len(origins)} have to: the coordinator may have shown sites different models",
            )


def _known(origins: Mapping[str, Origin]) -> Counter[Version]:
    """By version, how many of these sites were told of it."""
    return Counter(version for origin in origins.values() for version in origin.told)
