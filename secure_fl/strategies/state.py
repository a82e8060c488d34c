"""What a strategy remembers at the coordinator from round to round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from secure_fl.blocks import Blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Small values as JSON has them, and vectors."""

    values: Mapping[str, Any] = field(default_factory=dict)
    vectors: Blocks = field(default_factory=dict)
