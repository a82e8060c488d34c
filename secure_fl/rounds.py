"""The kinds of rounds there are."""

from __future__ import annotations

from enum import StrEnum


class RoundKind(StrEnum):
    """What sites are asked to do in a round. The values are what stores, records and jobs hold."""

    DECLARE = (
        "declare"  # before the first: sites say which parts of the model they share, so that circles can be formed
    )
    TRAIN = "train"
    EVALUATE = "evaluate"  # the closing round: the finished model is measured, nobody trains
