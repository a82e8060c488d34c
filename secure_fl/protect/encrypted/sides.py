"""Who may be given which half of the uploads.

A ciphertext has two halves, its body and the seed of its mask, and every site has the key. Whoever had both halves of
one upload could read it. So the sites of an attempt are on one of two sides: some are only ever given bodies, the
others only seeds. The sides follow from the attempt's transcript, and a site on one side never looks at what belongs
to the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from enum import StrEnum

from secure_fl.identity.signing import transcript
from secure_fl.protect.uploads.manifest import UploadCohort

_VOUCHERS = 2  # of a recipient: one may drop out


class Side(StrEnum):
    """What a site on it is given."""

    BODIES = "bodies"
    SEEDS = "seeds"

    @property
    def other(self) -> Side:
        """Whoever is on it has the other half."""
        return Side.SEEDS if self is Side.BODIES else Side.BODIES


class Sides:
    """Of everybody in one attempt. Both halves of the protocol derive the same."""

    def __init__(self, cohort: UploadCohort) -> None:
        ranked = sorted(cohort.names, key=lambda name: _rank(cohort.rho, name))
        self.key_maker = ranked[0]
        self._members = {Side.BODIES: ranked[0::2], Side.SEEDS: ranked[1::2]}
        self._side = {name: side for side, names in self._members.items() for name in names}

    def of(self, name: str) -> Side:
        """A member's."""
        return self._side[name]

    def openers(self, present: Collection[str], *, spare: bool) -> tuple[str, ...]:
        """Who opens a sum: one of each side or, with `spare`, two, so that one may drop out."""
        count = 2 if spare else 1
        return tuple(
            name
            for members in self._members.values()
            for name in [member for member in members if member in present][:count]
        )

    def vouchers(self, recipient: str, present: Collection[str]) -> tuple[str, ...]:
        """Who adds up the half of a recipient's combination that it must not see the parts of."""
        side = self.of(recipient)
        others = [name for name in self._members[side.other] if name in present]
        place = self._members[side].index(recipient)
        return tuple(dict.fromkeys(others[(place + step) % len(others)] for step in range(_VOUCHERS) if others))

    def handled(self, name: str, recipients: Collection[str], *, present: Collection[str]) -> tuple[str, ...]:
        """For whom a member adds its side's half up: for itself, and for those it vouches to."""
        return tuple(
            recipient
            for recipient in sorted(recipients)
            if recipient == name or name in self.vouchers(recipient, present)
        )


def _rank(rho: bytes, name: str) -> bytes:
    return hashlib.sha256(transcript("encrypted sides", rho, name.encode())).digest()
