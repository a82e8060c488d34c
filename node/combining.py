"""Whom a site is combined with: the strategy's wish, in whole numbers, kept to what holders will open."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from node.store import StudyStore
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.release.combinations import refusal, row_total, steady
from secure_fl.protect.release.levels import passing_row
from secure_fl.results import traces
from secure_fl.strategies.base import Strategy


class Combining:
    """One site's choice in one attempt."""

    def __init__(self, me: str, strategy: Strategy, store: StudyStore, context: RoundContext) -> None:
        self._me = me
        self._strategy = strategy
        self._store = store
        self._context = context

    def attend(self, squared_distances: Mapping[str, float]) -> Mapping[str, int]:
        """How this site weighs those who uploaded, from how far their features are from its own."""
        if self._context.compares:
            self._store.keep_distances(squared_distances)
        elif self._strategy.attention:
            known = self._store.distances()
            squared_distances = {name: known[name] for name in squared_distances if name in known}
        wanted = self._strategy.attend(self._me, squared_distances)
        wanted = self._strategy.widen(self._me, wanted, squared_distances, self._context.min_cohort)
        wish = passing_row(
            wanted,
            row_total(len(self._context.invited)),
            me=self._me,
            uploaded=squared_distances,
            colluders=self._context.colluders,
        )
        row = self._steady(squared_distances, wish)
        traces.note(self._store.rows, self._context.round, {"asked": row})
        return row

    def _steady(self, uploaded: Collection[str], row: Mapping[str, int]) -> Mapping[str, int]:
        """A row that holders will open after those this site asked for before. It is written down before it is said."""
        asked, colluders = self._store.asked(), self._context.colluders
        row = steady(row, me=self._me, uploaded=uploaded, colluders=colluders, asked=asked)
        if not row or row in asked:
            return row
        if not refusal(row, me=self._me, uploaded=uploaded, colluders=colluders, asked=[]):
            self._store.keep_asked([*asked, row])
        return row
