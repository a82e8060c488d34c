"""How a node trains: the settings that every strategy has."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import Field

from secure_fl.settings import Settings

Array: TypeAlias = npt.NDArray[np.float32]  # of any shape; a block is flat


class LocalTraining(Settings):
    """How a node trains; every strategy has these settings and may add its own."""

    epochs: int = Field(2, ge=1, le=1000)
    batch_size: int = Field(16, ge=1)
    learning_rate: float = Field(0.05, gt=0)
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
