"""How much to fuzz, from which seed, and how to say so. `scripts/fuzz` sets both."""

from __future__ import annotations

import os
import random

import pytest

MESSAGES = int(os.environ.get("SECURE_FL_FUZZ_MESSAGES", "100000"))  # over all tests of this package
SEED = int(os.environ.get("SECURE_FL_FUZZ_SEED", "1"))


def seeded() -> random.Random:
    """The fuzzer's dice."""
    return random.Random(SEED)  # noqa: S311


def report(capsys: pytest.CaptureFixture[str], text: str) -> None:
    """Print, whatever pytest captures: a finding is worth little without its seed."""
    with capsys.disabled():
        print(f"\nfuzz: seed {SEED}: {text}")
