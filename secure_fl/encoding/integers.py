"""What an update is between clipping and opening: integers per block, and sums of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int32]
Totals: TypeAlias = npt.NDArray[np.signedinteger[Any]]  # of 32 bits, where a protection has made sure that they suffice


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSum:
    """One opened block: Σ of the integers, Σ of the weights, and how many contributed."""

    total: Totals
    weight: int
    contributors: int
