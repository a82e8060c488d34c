"""`python -m tests.support.party coordinator|node FILE …`: the real process, with test protections registered.

With SECURE_FL_TEST_PAUSE=<phase> a node stops dead in that phase, once, after leaving a marker file.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from secure_fl import protect
from secure_fl.identity.member import Member
from secure_fl.protect.base import BlockSum, Contribution, Message, NodeHalf, RoundContext
from secure_fl.protect.masked import Masked
from secure_fl.protect.memory import Memory
from secure_fl.protect.sealed import Sealed
from secure_fl.randomness import Randomness
from tests.library.double import OneTimePad
from tests.support.training import FakeTraining


class _Pauses:
    """A protection whose node half stops where a test wants to kill it."""

    def node(
        self,
        context: RoundContext,
        me: Member,
        contribution: Contribution,
        randomness: Randomness,
        memory: Memory | None = None,
    ) -> NodeHalf:
        """The node half, wrapped."""
        return _Pausing(super().node(context, me, contribution, randomness, memory))  # type: ignore[misc]


class PausingPad(_Pauses, OneTimePad):
    """The double."""


class PausingMasked(_Pauses, Masked):
    """`masked`."""


class PausingSealed(_Pauses, Sealed):
    """`sealed`."""


class _Pausing:
    def __init__(self, inner: NodeHalf) -> None:
        self._inner = inner

    def answer(self, phase: str, message: Message) -> Message:
        marker = Path(os.environ.get("SECURE_FL_TEST_MARK", "unused"))
        if os.environ.get("SECURE_FL_TEST_PAUSE") == phase and not marker.exists():
            marker.touch()
            time.sleep(120)
        return self._inner.answer(phase, message)

    def combination(self) -> Mapping[str, BlockSum]:
        return self._inner.combination()


def main() -> int:
    """Register what can pause and become the process."""
    protect.register("double", "tests.support.party:PausingPad")
    protect.register("masked", "tests.support.party:PausingMasked")
    protect.register("sealed", "tests.support.party:PausingSealed")
    role, *arguments = sys.argv[1:]
    if role == "coordinator":
        from coordinator.main import main as run
    else:
        import node.main

        if os.environ.get("SECURE_FL_TEST_TRAINING") == "fake":
            vars(node.main)["WorkerProcess"] = FakeTraining
        run = node.main.main
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
