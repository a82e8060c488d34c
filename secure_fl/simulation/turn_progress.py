"""What circles are doing that do not wait for each other, in words for a progress display."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from secure_fl.events import Answered, RoundVoid, TurnBegun
from secure_fl.results.record import CircleRound, RoundRecord, StudyRecord
from secure_fl.results.turns import circle_turns
from secure_fl.study.settings import Study

_SHOWN_CIRCLES = 3
_SHOWN_SITES = 2


@dataclass(slots=True)
class _UnderWay:
    turn: TurnBegun
    waiting: set[str] = field(default_factory=set)  # who has not answered yet


class TurnsUnderWay:
    """Which circle is in which turn, and for whom it waits."""

    def __init__(self) -> None:
        self._circles: dict[tuple[str, ...], _UnderWay] = {}

    def begun(self, event: TurnBegun) -> None:
        """A circle trains."""
        self._circles[event.sites] = _UnderWay(event, set(event.sites))

    def answered(self, event: Answered) -> None:
        """A site has trained."""
        for circle in self._circles.values():
            circle.waiting.discard(event.node)

    def committed(self, record: RoundRecord) -> None:
        """A version was made of some circles' turns."""
        for turn in record.circles:
            under_way = self._circles.get(turn.members)
            if under_way is not None and under_way.turn.turn == turn.turn:  # One that was dropped has begun anew.
                del self._circles[turn.members]

    def over(self) -> None:
        """Nobody trains any more: turns that were left are not taken up again."""
        self._circles.clear()

    def failed(self, event: RoundVoid) -> str:
        """A sentence about an attempt that came to nothing."""
        for sites, circle in self._circles.items():
            if (circle.turn.turn, circle.turn.attempt) == (event.round, event.attempt):
                what = f"turn {event.round} of {named(sites)}"
                break
        else:
            what = f"turn {event.round}"
        return f"{what}, attempt {event.attempt}: {event.reason}"

    def __str__(self) -> str:
        shown = [_described(circle) for circle in list(self._circles.values())[:_SHOWN_CIRCLES]]
        more = len(self._circles) - len(shown)
        return "; ".join(shown) + (f"; and {more} more circles" if more else "")


def named(sites: tuple[str, ...]) -> str:
    """A circle by its first site; a site that goes at its own pace by its name."""
    return sites[0] if len(sites) == 1 else f"the circle of {sites[0]}"


def age(turn: CircleRound) -> str:
    """How old a turn was when it was merged."""
    if not turn.staleness:
        return "from the newest version"
    return f"{turn.staleness} version{'s' if turn.staleness > 1 else ''} old"


def joined(count: int) -> str:
    """How many sites have work in the flush under way."""
    return "1 site has joined" if count == 1 else f"{count} sites have joined"


def merged(turns: list[CircleRound]) -> str:
    """What a version is made of. Of single sites only those are named whose work is old."""
    if all(len(turn.members) == 1 for turn in turns):
        old = [f"{named(turn.members)} {age(turn)}" for turn in turns if turn.staleness]
        return f"{len(turns)} sites" + (f", {', '.join(old)}" if old else "")
    return "; ".join(f"turn {turn.turn} of {named(turn.members)}, {age(turn)}" for turn in turns)


def _described(circle: _UnderWay) -> str:
    turn, waiting = circle.turn, sorted(circle.waiting)
    if len(waiting) == len(turn.sites):
        doing = "trains"
    elif len(waiting) > _SHOWN_SITES:
        doing = f"waits for {len(waiting)} of its {len(turn.sites)} sites"
    elif waiting:
        doing = f"waits for {' and '.join(waiting)}"
    else:
        doing = "has trained"
    return f"{named(turn.sites)} {doing} (turn {turn.turn}, from version {turn.version})"


def standing(record: StudyRecord, *, absent: Collection[str]) -> list[str]:
    """A line for each circle of a buffered study: its turns so far, and for which of the `absent` sites it waits.

    None for a study whose circles go round by round.
    """
    study = Study.from_canonical(record.settings.encode()) if record.settings else None
    if study is None or not study.rounds.is_buffered:
        return []
    taken = {circle.members: circle for circle in circle_turns(record)}
    known = record.circles
    if study.rounds.by_sites:
        known = tuple((site,) for site in sorted(study.study.roster))
    lines = []
    for sites in known:
        circle = taken.get(sites)
        told = f"{circle.turns if circle else 0} of at most {study.study.rounds} turns"
        if circle is not None and circle.mean_age is not None:
            told += f", the last in version {circle.last}, on average {circle.mean_age:.1f} versions old"
        if circle is not None and circle.dropped:
            told += f"; {circle.dropped} dropped"
        missing = [site for site in sites if site in absent]
        if missing and record.outcome == "running":
            told += f"; waits for {', '.join(missing)}"
        lines.append(f"{named(sites)} ({len(sites)} sites): {told}" if len(sites) > 1 else f"{sites[0]}: {told}")
    return lines
