"""A node as an uploader, before it uploads: says who it is, and shares a sketch of its features where they count."""

from __future__ import annotations

from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.signed import make_manifest
from secure_fl.protect.combining import CombineContribution, CombineHost
from secure_fl.protect.contract import Contribution, Message
from secure_fl.protect.uploads.comparing import deal_sketch
from secure_fl.protect.uploads.party import SKETCH, Party
from secure_fl.protect.uploads.statements import row_hash


class Advertiser:
    """In a sum or, with what a combine has besides, in a combine."""

    def __init__(self, party: Party, contribution: Contribution, combining: CombineHost | None = None) -> None:
        self._combining = combining
        self._of = party
        self._blocks = dict(contribution.blocks)  # each goes as it is hidden: its memory is needed for what comes of it
        self._weight = contribution.weight
        self._sketch = contribution.sketch if isinstance(contribution, CombineContribution) else None
        self._sketch_shares: list[bytes] = []
        self._made_from = contribution.made_from

    def advertise(self, _message: Message) -> Message:
        """Which blocks it holds, under which fresh keys, and what it has opened in the study before, signed."""
        party = self._of
        dealt = deal_sketch(party, self._sketch)
        self._sketch_shares = dealt.shares if dealt else []
        opened = [] if self._combining is None else self._combining.history.earlier()
        self._manifest = make_manifest(
            party.context,
            party.host,
            protocol=party.manifests.protocol,
            blocks=self._blocks,
            extension=party.extension(dealt, [row_hash(*row) for row in opened], self._made_from),
        )
        return say(self._manifest)

    def _count_comparisons(self) -> None:
        """The last thing before the upload, which has shares of the sketch in it.

        Whoever is here may then be told its distance: whether or not the attempt comes to anything, and also if this
        node should never hear of it.
        """
        if self._sketch_shares and self._combining is not None:
            self._combining.comparisons.count([name for name in self._of.cohort.names if name != self._of.name])

    def _sealed_sketches(self) -> dict[str, bytes]:
        """For each holder its share of the sketch, sealed; empty where features do not count."""
        shares, self._sketch_shares = self._sketch_shares, []
        party = self._of
        return {
            holder: party.seal(shares[party.place(holder) - 1], holder, purpose=SKETCH) if shares else b""
            for holder in party.cohort.names
        }
