"""Who is opened together in a study: known from its text, or, once, from what sites declared."""

from __future__ import annotations

from collections.abc import Callable

from secure_fl.errors import RefusedError
from secure_fl.protect.declarations import Declared
from secure_fl.study.circles import Circle, in_order
from secure_fl.study.settings import Study


class Division:
    """A study's circles. Where they follow from declarations they are settled once, and never again otherwise."""

    def __init__(self, study: Study) -> None:
        self._study = study
        self.declares = study.declares
        self._circles: tuple[Circle, ...] | None = None if self.declares else study.circles()
        self._declared: Declared | None = None

    @property
    def settled(self) -> bool:
        """Whether the circles are known."""
        return self._circles is not None

    @property
    def circles(self) -> tuple[Circle, ...]:
        """The circles; none under recovery. Raises `RefusedError` before sites have declared what they depend on."""
        if self._circles is None:
            raise RefusedError("the study's circles are not known before its sites have declared what they share")
        return self._circles

    @property
    def declared(self) -> Declared | None:
        """What the circles follow from, if they follow from declarations and are settled."""
        return self._declared

    @property
    def digest(self) -> bytes:
        """Of the declarations; empty where there are none."""
        return b"" if self._declared is None else self._declared.digest

    def is_decided(self, declared: int) -> bool:
        """Whether so many declarations are enough to form circles.

        Where circles are formed by speed, sites that are still training are slower than those who have declared. If
        there are no more of them than the last circle has sites, that circle is theirs. They are given as long again,
        so that sites of about the same speed are divided by what they say, not by chance. Whoever is slower finishes
        training, and begins the first round with it.
        """
        return self._study.protection.circles == "speed" and declared >= sum(map(len, self._study.circles()[:-1]))

    def settle(self, raw: bytes, *, keep: Callable[[bytes], None] = lambda _: None) -> None:
        """Take this list for the study's. Raises `RefusedError` after another one, `SecureFLError` if it is not one.

        It is the study's once `keep` has put it where a restart finds it.
        """
        if self._declared is not None and self._declared.raw != raw:
            raise RefusedError("the circles of this study were formed from another list before")
        study = self._study
        declared = Declared.read(raw, study_id=study.id, roster=study.study.roster)
        # A name decides between equals, so that everybody finds the same circles.
        if study.protection.circles == "speed":
            # Slow sites wait for slow sites. Whoever was absent counts as the slowest.
            slowest = max(declared.paces.values(), default=0) + 1
            sites = sorted(study.study.roster, key=lambda site: (declared.paces.get(site, slowest), site))
        else:
            # Whoever shares most comes first.
            sites = sorted(study.study.roster, key=lambda site: (-len(declared.blocks.get(site, ())), site))
        circles = in_order(sites, sizes=[len(circle) for circle in study.circles()])
        keep(raw)
        self._circles, self._declared = circles, declared

    def shared_by_some_circle(self) -> frozenset[str]:
        """The blocks that all members of at least one circle declared: what the study is expected to open."""
        if self._declared is None:
            return frozenset()
        said = self._declared.blocks
        return frozenset().union(
            *(frozenset.intersection(*(said.get(site, frozenset()) for site in circle)) for circle in self.circles)
        )
