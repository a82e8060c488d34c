"""`python -m tests.support.party coordinator|node FILE …`: the real process, with test protections registered.

With SECURE_FL_TEST_PAUSE=<phase> a node stops dead in that phase, once, after leaving a marker file; `encrypted_party`
says how one does under `encrypted`, `watched_party` how a coordinator dies in a flush. With SECURE_FL_TEST_ON_LOOP what
should leave the event loop stays on it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from secure_fl import protect
from secure_fl.encoding.integers import BlockSum
from secure_fl.protect.combining import CombineContribution, CombineHost, CombiningNodeHalf
from secure_fl.protect.contract import Contribution, Host, Message, NodeHalf, RoundContext
from secure_fl.protect.masked.protection import Masked
from secure_fl.protect.recovery.protection import MaskedWithRecovery
from secure_fl.protect.sealed.protection import Sealed
from tests.protect.double import OneTimePad
from tests.support.training import FakeTraining
from tests.support.watched_party import watch


class PausingPad(OneTimePad):
    """The double, whose node half stops where a test wants to kill it."""

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half, wrapped."""
        return _Pausing(super().node(context, contribution, host))


class PausingMasked(Masked):
    """`masked`, in the same way."""

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half, wrapped."""
        return _Pausing(super().node(context, contribution, host))


class PausingRecovery(MaskedWithRecovery):
    """`masked` with recovery, in the same way."""

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half, wrapped."""
        return _Pausing(super().node(context, contribution, host))


class PausingSealed(Sealed):
    """`sealed`, in the same way."""

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """The node half, wrapped."""
        return _Pausing(super().node(context, contribution, host))

    def combining_node(
        self, context: RoundContext, contribution: CombineContribution, host: CombineHost
    ) -> CombiningNodeHalf:
        """The node half, wrapped."""
        return _PausingRecipient(super().combining_node(context, contribution, host))


class _Pausing:
    def __init__(self, inner: NodeHalf) -> None:
        self._inner = inner

    def answer(self, phase: str, message: Message) -> Message:
        marker = Path(os.environ.get("SECURE_FL_TEST_MARK", "unused"))
        if os.environ.get("SECURE_FL_TEST_PAUSE") == phase and not marker.exists():
            marker.touch()
            time.sleep(120)
        return self._inner.answer(phase, message)


class _PausingRecipient(_Pausing):
    def __init__(self, inner: CombiningNodeHalf) -> None:
        super().__init__(inner)
        self._recipient = inner

    def combination(self) -> Mapping[str, BlockSum]:
        return self._recipient.combination()


async def _on_the_loop(work: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """In place of a thread. What takes a while takes a second more, so that a busy machine does not hide it."""
    begun = time.monotonic()
    try:
        return work(*arguments, **named)
    finally:
        if time.monotonic() - begun > 0.02:
            time.sleep(1.0)  # noqa: ASYNC251


def main() -> int:
    """Register what can pause and become the process."""
    protect.register("double", "tests.support.party:PausingPad")
    protect.register("masked", "tests.support.party:PausingMasked", recovering="tests.support.party:PausingRecovery")
    protect.register("sealed", "tests.support.party:PausingSealed")
    protect.register("encrypted", "tests.support.encrypted_party:WatchedEncrypted")
    if os.environ.get("SECURE_FL_TEST_ON_LOOP"):
        vars(asyncio)["to_thread"] = _on_the_loop
    watch()
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
