"""The process that others are forked from: what its children are like, and who goes when somebody dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from secure_fl.simulation.forks import Forked, Forks
from tests.faults.test_kill import alive, children_of
from tests.support.processes import ROOT

CHILD = "tests.simulation.child"
SECONDS = 30.0


@contextmanager
def template(*modules: str, folder: Path = ROOT) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A template that has imported little."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-P", "-m", "secure_fl.simulation.template", *modules]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (
        ours,
        subprocess.Popen(
            command, stdin=theirs.fileno(), stderr=subprocess.PIPE, cwd=folder, env=environment
        ) as process,
    ):
        theirs.close()
        try:
            yield process, ours
        finally:
            ours.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
            process.kill()


def with_template(test: Callable[[subprocess.Popen[bytes], Forks, int], Awaitable[None]], tmp_path: Path) -> None:
    """Run a test in a loop, with a template and a file for what children complain of."""
    with template(CHILD) as (process, connection), (tmp_path / "log").open("wb") as log:
        asyncio.run(asyncio.wait_for(_awaited(test(process, Forks(connection), log.fileno())), SECONDS))


async def _awaited(test: Awaitable[None]) -> None:
    await test


async def report(child: Forked) -> dict[str, Any]:
    """What a child says of itself."""
    assert child.stdout is not None
    return dict(json.loads(await child.stdout.readline()))


async def gone(*pids: int) -> None:
    """Until processes are no more."""
    while any(alive(pid) for pid in pids):  # noqa: ASYNC110 - the kernel sets no event
        await asyncio.sleep(0.02)


def test_a_child_shares_the_imports_and_nothing_else(tmp_path: Path) -> None:
    async def test(process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        children = [await forks.start(CHILD, "a", str(n), stderr=log, forks=n == 1) for n in range(3)]
        first, second, third = [await report(child) for child in children]
        assert [said["pid"] for said in (first, second, third)] == [child.pid for child in children]
        assert first["imported_in"] == process.pid
        assert first["argv"] == [CHILD, "a", "0"]
        assert (first["session"], first["threads"], first["blocked"]) == (first["pid"], 1, [])
        # Neither the template's connections nor a pipe of a sibling: they would keep somebody alive.
        assert sorted(first["descriptors"]) == sorted(third["descriptors"]) == ["0", "1", "2"]
        assert len(second["descriptors"]) == 4
        own = [said["descriptors"][name] for said in (first, second, third) for name in ("0", "1")]
        assert len(set(own)) == 6
        assert len({said["drawn"] for said in (first, second, third)}) == 3
        assert len(list(Path(f"/proc/{process.pid}/task").iterdir())) == 1  # noqa: ASYNC240
        assert Path(f"/proc/{process.pid}/comm").read_text() == "fl-template\n"  # noqa: ASYNC240

    with_template(test, tmp_path)


@pytest.mark.parametrize(
    ("order", "code", "words"),
    [("exit 0", 0, ""), ("exit 7", 7, ""), ("raise", 1, "RuntimeError: as told"), ("quit", 1, "a last word")],
)
def test_a_child_leaves_as_an_interpreter_would(tmp_path: Path, order: str, code: int, words: str) -> None:
    async def test(_process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        child = await forks.start(CHILD, stderr=log)
        await report(child)
        assert child.returncode is None
        child.stdin.write(order.encode())
        assert await child.wait() == child.returncode == code
        assert words in (tmp_path / "log").read_text()
        child.kill()  # too late, and no harm to anybody who has its number now

    with_template(test, tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_can_be_ended_and_replaced(tmp_path: Path, number: signal.Signals) -> None:
    async def test(_process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        for _ in range(2):
            child = await forks.start(CHILD, stderr=log)
            await report(child)
            child.terminate() if number == signal.SIGTERM else child.kill()
            assert await child.wait() == -number
            assert not alive(child.pid)

    with_template(test, tmp_path)


def test_a_start_that_nobody_waits_for_any_more_leaves_nobody_and_the_next_gets_its_own(tmp_path: Path) -> None:
    async def test(process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        cancelled = asyncio.create_task(forks.start(CHILD, "cancelled", stderr=log))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        await asyncio.wait([cancelled])
        os.kill(process.pid, signal.SIGCONT)
        child = await forks.start(CHILD, "wanted", stderr=log)
        assert (await report(child))["argv"] == [CHILD, "wanted"]
        await gone(*set(children_of(process.pid)) - {child.pid})

    with_template(test, tmp_path)


def test_a_grandchild_dies_with_the_child_that_asked_for_it(tmp_path: Path) -> None:
    async def test(_process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        child = await forks.start(CHILD, stderr=log, forks=True)
        await report(child)
        child.stdin.write(b"fork")
        grandchild = (await report(child))["grandchild"]
        assert grandchild["argv"] == [CHILD, "grandchild"]
        assert alive(grandchild["pid"])
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        await gone(grandchild["pid"])

    with_template(test, tmp_path)


def test_one_that_dies_with_news_unread_does_no_harm(tmp_path: Path) -> None:
    async def test(process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        child = await forks.start(CHILD, stderr=log, forks=True)
        await report(child)
        child.stdin.write(b"rush")
        assert await child.wait() == 5
        other = await forks.start(CHILD, "other", stderr=log)
        assert (await report(other))["argv"] == [CHILD, "other"]
        await gone(*set(children_of(process.pid)) - {other.pid})

    with_template(test, tmp_path)


def test_a_killed_template_takes_its_children_along_and_is_missed(tmp_path: Path) -> None:
    async def test(process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        child = await forks.start(CHILD, stderr=log)
        await report(child)
        process.kill()
        assert await child.wait() == -signal.SIGKILL
        assert forks.lost
        await gone(child.pid)
        with pytest.raises(ConnectionError):
            await forks.start(CHILD, stderr=log)

    with_template(test, tmp_path)


def test_everybody_goes_with_whoever_started_the_template(tmp_path: Path) -> None:
    pids: list[int] = []

    async def test(process: subprocess.Popen[bytes], forks: Forks, log: int) -> None:
        child = await forks.start(CHILD, stderr=log)
        await report(child)
        process.terminate()  # it does not leave before those it has to take along
        pids.extend((process.pid, child.pid))
        await asyncio.sleep(0.2)
        assert all(alive(pid) for pid in pids)

    with_template(test, tmp_path)
    asyncio.run(asyncio.wait_for(gone(*pids), SECONDS))


def test_with_a_second_thread_it_refuses_to_fork(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    with template("busy", folder=tmp_path) as (process, _):
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert b"2 threads" in said
