"""A process that can be killed at any step of a flush, and that keeps a copy of what it opened or trained.

SECURE_FL_TEST_DIE is `before:<step>/<n>` or `after:<step>/<n>`: the coordinator kills itself with signal 9 before or
after the n-th time that it takes this step. With SECURE_FL_TEST_OPENED every sum that a coordinator opens is also
written to that folder, with SECURE_FL_TEST_KEPT every vector of integers that a node is about to send. A file's name
begins with what it is of; the process's id follows, since others may open or train the same again. With
SECURE_FL_TEST_KNOCK a node that lost its coordinator tries again after so many seconds at most.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from secure_fl.encoding.integers import BlockSum

# Everything durable that a coordinator does between a turn's last answer and the next turn's announcement, in order.
# By name: a node's process does not import the coordinator.
STEPS: Mapping[str, tuple[str, str, str]] = {
    "add_answer": ("coordinator.store", "Store", "add_answer"),
    "close_phase": ("coordinator.store", "Store", "close_phase"),
    "put_model": ("coordinator.bulk_files", "BulkFiles", "put_model"),
    "put_state": ("coordinator.bulk_files", "BulkFiles", "put_state"),
    "commit_round": ("coordinator.store", "Store", "commit_round"),
    "clear_uploads": ("coordinator.bulk_files", "BulkFiles", "clear_uploads"),
    "prune": ("coordinator.bulk_files", "BulkFiles", "prune"),
    "save_record": ("secure_fl.results.record", "StudyRecord", "save"),
    "begin_attempt": ("coordinator.store", "Store", "begin_attempt"),
}


def watch() -> None:
    """Do what the environment asks for."""
    if point := os.environ.get("SECURE_FL_TEST_DIE"):
        _die_at(point)
    if folder := os.environ.get("SECURE_FL_TEST_OPENED"):
        _copy_opened(Path(folder))
    if folder := os.environ.get("SECURE_FL_TEST_KEPT"):
        _copy_kept(Path(folder))
    if longest := os.environ.get("SECURE_FL_TEST_KNOCK"):
        from secure_fl.transport.pace import Backoff

        (Backoff.__init__.__kwdefaults__ or {})["longest"] = float(longest)


def _die_at(point: str) -> None:
    when, _, rest = point.partition(":")
    step, _, occurrence = rest.partition("/")
    module, owner_name, name = STEPS[step]
    owner = getattr(import_module(module), owner_name)
    method: Callable[..., Any] = getattr(owner, name)
    lock, seen = threading.Lock(), 0

    def mortal(*arguments: Any, **named: Any) -> Any:
        nonlocal seen
        with lock:
            seen += 1
            last = seen == int(occurrence)
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **named)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, mortal)


def _copy_opened(folder: Path) -> None:
    from coordinator.attempt import AttemptRunner
    from secure_fl.protect.contract import Opened, OpenedSums

    collect = AttemptRunner.collect

    async def copied(self: AttemptRunner) -> Opened:
        opened = await collect(self)
        if isinstance(opened, OpenedSums):
            name = f"{self.plan.invited[0]}-turn-{self.plan.number}-{self.plan.attempt}"
            about = {block: [each.weight, each.contributors] for block, each in opened.blocks.items()}
            _write(folder, name, {block: each.total for block, each in opened.blocks.items()}, about)
        return opened

    setattr(AttemptRunner, collect.__name__, copied)


def _copy_kept(folder: Path) -> None:
    from node.kept import KeptUpdate

    save = KeptUpdate.save

    def copied(self: KeptUpdate, path: Path, *, bits: int) -> None:
        site, number = path.parents[2].name, path.stem.rpartition("-")[2]
        _write(folder, f"{site}-turn-{number}", self.blocks, {"weight": self.weight})
        save(self, path, bits=bits)

    setattr(KeptUpdate, save.__name__, copied)


def _write(folder: Path, name: str, blocks: Mapping[str, npt.NDArray[Any]], about: Mapping[str, Any]) -> None:
    """Whole or not at all: the next moment may be the process's last."""
    part = folder / f"{name}-{os.getpid()}.part"
    with part.open("wb") as file:
        arrays: dict[str, Any] = {**blocks, "about": np.array(json.dumps(about))}
        np.savez(file, **arrays)
    part.rename(part.with_suffix(".npz"))


@dataclass(frozen=True, slots=True)
class Copies:
    """What was written to one folder."""

    folder: Path

    def opened(self, first: str, number: int) -> dict[str, BlockSum]:
        """What a turn of the circle of `first` opened: in one attempt and, if in several lives, the same in each."""
        paths = sorted(self.folder.glob(f"{first}-turn-{number}-*.npz"))
        assert paths, f"turn {number} of the circle of {first} was never opened"
        assert len({path.stem.split("-turn-")[1].split("-")[1] for path in paths}) == 1, "opened in two attempts"
        blocks, about = _same(paths)
        return {
            name: BlockSum(total=total, weight=about[name][0], contributors=about[name][1])
            for name, total in blocks.items()
        }

    def lives(self, first: str, number: int) -> list[str]:
        """The ids of the processes that opened a turn, one after the other."""
        paths = self.folder.glob(f"{first}-turn-{number}-*.npz")
        return [path.stem.rpartition("-")[2] for path in sorted(paths, key=lambda path: path.stat().st_mtime)]

    def kept(self, site: str, number: int) -> tuple[dict[str, npt.NDArray[Any]], int]:
        """The integers that a site sent in a turn, and its weight: the same, however often it had to train."""
        paths = sorted(self.folder.glob(f"{site}-turn-{number}-*.npz"))
        assert paths, f"{site} never trained for turn {number}"
        blocks, about = _same(paths)
        return blocks, about["weight"]


def _same(paths: list[Path]) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    found = [dict(np.load(path)) for path in paths]
    about = [json.loads(str(each.pop("about"))) for each in found]
    for other, its in zip(found[1:], about[1:], strict=True):
        assert its == about[0]
        assert other.keys() == found[0].keys()
        assert all(np.array_equal(other[name], found[0][name]) for name in other)
    return found[0], about[0]
