"""A hundred thousand hostile messages: nothing crashes, nothing leaks, and the study goes on to its end."""

from __future__ import annotations

import asyncio
import functools
import time
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest

import node.session
from secure_fl.transport.pace import Backoff
from tests.fuzz.coordinator_target import HONEST, World, fuzz_coordinator
from tests.fuzz.node_target import Liar, fuzz_node
from tests.fuzz.plan import MESSAGES, report, seeded
from tests.fuzz.watch import Usage, settled_tasks, watched

COORDINATOR_SHARE, NODE_SHARE = 0.80, 0.17  # the rest goes through a real server, in test_wire.py
ROUNDS = 40


@pytest.mark.timeout(0)
def test_the_coordinator_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    usage = Usage()

    async def run() -> str:
        world = World(tmp_path, rounds=ROUNDS)
        before = len(asyncio.all_tasks())
        started = time.monotonic()
        messages = int(COORDINATOR_SHARE * MESSAGES)
        fuzzer = await fuzz_coordinator(world, seeded(), messages, usage.note)
        seconds = time.monotonic() - started
        record = world.runner.record()
        assert record.outcome == "finished", record.reason
        assert all(set(HONEST) <= set(done.cohort) for done in record.rounds)
        assert list((world.workspace.study_state / "spool").iterdir()) == []
        # The fuzzer is worth something only where it gets past the first check.
        assert {"upload: accepted", "upload: Protection", "upload: ConflictingUpload"} <= fuzzer.outcomes.keys()
        await world.close()
        assert await settled_tasks(before) == []
        return f"{fuzzer.read} messages to the coordinator in {seconds:.0f} s, {fuzzer.read / seconds:.0f}/s, {usage}"

    with watched() as watch:
        said = asyncio.run(run())
    report(capsys, said)
    watch.check()
    usage.check()


@pytest.mark.timeout(0)
def test_a_node_survives(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = Usage()
    # A liar costs the node a pause; a hundred thousand of them would cost the afternoon.
    monkeypatch.setattr(node.session, "Backoff", partial(Backoff, first=0.0, longest=0.0))
    # Every offer looks through the installed packages; no message changes those.
    monkeypatch.setattr(metadata, "entry_points", functools.cache(metadata.entry_points))

    async def run() -> str:
        liar = Liar(tmp_path, seeded(), int(NODE_SHARE * MESSAGES))
        before = len(asyncio.all_tasks())
        started = time.monotonic()
        task = await fuzz_node(liar, usage.note)
        seconds = time.monotonic() - started
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await settled_tasks(before) == []
        assert list(liar.folder.glob("scratch-*")) == []
        assert {"sit_out Refused", "sit_out Protection", "study_answer Settings"} <= liar.answers.keys()
        return f"{liar.read} messages to a node in {seconds:.0f} s, {liar.read / seconds:.0f}/s, {usage}"

    with watched() as watch:
        said = asyncio.run(run())
    report(capsys, said)
    watch.check()
    usage.check()
