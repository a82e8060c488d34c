"""Where circles do not wait for each other: what a record's turns say about each circle and each site."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from secure_fl.results.record import CircleRound, RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind


@dataclass(frozen=True, slots=True, kw_only=True)
class CircleTurns:
    """One circle's part in the versions so far."""

    members: tuple[str, ...]
    turns: int  # that were merged
    dropped: int  # that came to nothing, most of them because they were too old
    share: float  # of all updates of sites that were merged, which a circle has one of per turn and site
    mean_age: float | None  # versions that its turns were old when they were merged
    oldest: int | None
    seconds: float | None  # a turn took on average, from its beginning until it was opened
    last: int | None  # the version that it was merged into last


def merged_turns(record: StudyRecord) -> list[tuple[RoundRecord, CircleRound]]:
    """Every turn that was merged and the version it is in, in order; none where circles go round by round."""
    return [
        (entry, turn)
        for entry in record.rounds
        if entry.kind is RoundKind.TRAIN
        for turn in entry.circles
        if turn.turn is not None and turn.opened
    ]


def circle_turns(record: StudyRecord) -> tuple[CircleTurns, ...]:
    """Every circle, by the names of its sites, also one that was never heard; none where circles go round by round."""
    merged = merged_turns(record)
    if not merged:
        return ()
    updates = sum(len(turn.members) for _, turn in merged)
    everybody = {turn.members for _, turn in merged} | set(record.circles)
    if all(len(members) == 1 for members in everybody):
        everybody |= {(site,) for site in record.roster}
    found = []
    for members in sorted(everybody):
        mine = [(entry, turn) for entry, turn in merged if turn.members == members]
        ages = [turn.staleness or 0 for _, turn in mine]
        seconds = [turn.seconds for _, turn in mine if turn.seconds is not None]
        found.append(
            CircleTurns(
                members=members,
                turns=len(mine),
                dropped=sum(
                    turn.members == members and not turn.opened for entry in record.rounds for turn in entry.circles
                ),
                share=len(mine) * len(members) / updates,
                mean_age=fmean(ages) if ages else None,
                oldest=max(ages, default=None),
                seconds=fmean(seconds) if seconds else None,
                last=mine[-1][0].number if mine else None,
            )
        )
    return tuple(found)


def site_shares(record: StudyRecord) -> dict[str, float]:
    """Of all updates that were merged, the part that is each site's. Nobody's where nothing was merged."""
    tally = Counter(site for _, turn in merged_turns(record) for site in turn.members)
    return {site: tally[site] / tally.total() for site in sorted({*record.roster, *tally})} if tally else {}


def block_bytes(record: StudyRecord) -> dict[str, int]:
    """How much sites sent of each shared block, in all turns that were merged.

    What they sent in a turn was counted. It is divided among the blocks that the turn asked for by their parameters: a
    message has no part that is one block's alone. So the sum over all blocks is what was counted.
    """
    sent = dict.fromkeys(record.blocks, 0.0)
    for entry, turn in merged_turns(record):
        names = [name for name in turn.asked or record.blocks if name in record.blocks]
        parameters = sum(record.blocks[name] for name in names)
        counted = sum(node.bytes_up for node in entry.nodes if node.name in turn.members)
        for name in names:
            sent[name] += counted * record.blocks[name] / max(1, parameters)
    return {name: round(count) for name, count in sent.items()}


def measured_version(entry: RoundRecord) -> int:
    """The version that a round's measurements are of: the newest that some of its circles began from."""
    bases = [turn.base for turn in entry.circles if turn.base is not None and turn.opened]
    return max(bases) if bases else entry.number - 1
