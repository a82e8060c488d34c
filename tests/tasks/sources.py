"""Where test tasks get their data: shares of files, and the real data sets where somebody has them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from secure_fl.tasks.base import PartitionSettings, Share, Source


def share_of(path: Path | None = None, index: int = 0, of: int = 1, **values: Any) -> Source:
    """Node `index` out of `of` of a simulation, with these partition settings."""
    share = Share(index=index, of=of, seed=1, partition=PartitionSettings.parse(values))
    return Source(path=path, share=share)


def real(name: str) -> Path:
    """The file or folder `name` of the real data; skips the test where there is none."""
    folder = os.environ.get("SECURE_FL_DATA")
    if not folder:
        pytest.skip("SECURE_FL_DATA names no folder with real data sets")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"no {name} in the folder that SECURE_FL_DATA names")
    return path
