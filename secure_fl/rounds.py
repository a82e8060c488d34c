"""The two kinds of rounds there are."""

from __future__ import annotations

from enum import StrEnum


class RoundKind(StrEnum):
    """What sites are asked to do in a round. The values are what stores, records and jobs hold."""

    TRAIN = "train"
    EVALUATE = "evaluate"  # the closing round: the finished model is measured, nobody trains
