"""What a site's training for one round came to, kept until the round is over.

One round, one base model, one vector of integers: every attempt at a round sends the same ones, so that two openings of
a circle in a round are equal, and a failed attempt costs no second training. Written whole before the first answer that
depends on the data; only this user reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from secure_fl.checkpoints import load_integers, save_integers
from secure_fl.encoding.integers import Integers
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.errors import StorageError
from secure_fl.protect.versions import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptUpdate:
    """Everything an attempt needs of training."""

    base: bytes  # digest of the model it was trained from
    blocks: Mapping[str, Integers]
    weight: int
    metrics: SiteMetrics
    seconds: float = 0.0  # that training took
    trained: int = 0  # the round that it was trained in, where work may enter a later one; 0: its own

    @property
    def made_from(self) -> Version | None:
        """The version that it was trained from, where work may enter a later round."""
        return Version(number=self.trained - 1, digest=self.base) if self.trained else None

    def save(self, path: Path, *, bits: int) -> None:
        """Whole and durable when it returns. Raises `StorageError`."""
        notes = {
            "base": self.base.hex(),
            "weight": str(self.weight),
            "metrics": json.dumps(asdict(self.metrics)),
            "seconds": f"{self.seconds:.3f}",
            "trained": str(self.trained),
        }
        save_integers(path, self.blocks, bits=bits, notes=notes)

    @classmethod
    def load(cls, path: Path) -> Self | None:
        """What was kept; None where nothing was. Raises `StorageError`."""
        if not path.exists():
            return None
        blocks, notes = load_integers(path)
        try:
            return cls(
                base=bytes.fromhex(notes["base"]),
                blocks=blocks,
                weight=int(notes["weight"]),
                metrics=SiteMetrics(**json.loads(notes["metrics"])),
                seconds=float(notes.get("seconds", 0.0)),
                trained=int(notes.get("trained", 0)),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error
