"""What the processes of a federation on this machine use: processor time and memory, read from /proc.

Parties are found by walking the processes below this one and reading their names, however they were started. Memory is
sampled in a thread of this process, which is no party. What is sampled is `statm`: resident pages, and of those the
anonymous ones (heap and stacks; a mapped file is not among them, a page shared with a parent since a fork is). The
kernel's own high-water mark, which misses nothing but counts mapped files and what a fork inherited, is kept beside it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from secure_fl.errors import UsageError

Role = Literal["coordinator", "node", "worker"]
ROLES: tuple[Role, ...] = ("coordinator", "node", "worker")
_BY_NAME: Mapping[str, Role] = {f"fl-{role}": role for role in ROLES}  # as `process_name` calls them

_PROC = Path("/proc")
_EVERY_SECONDS = 0.02
_LOOK_EVERY = 25  # samples: new processes are looked for twice a second
_STATM_BYTES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One process between two marks, in bytes; the processor seconds and the high-water mark are since its start."""

    pid: int
    role: Role
    anonymous: int
    resident: int
    high_water: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Party:
    """A process under observation."""

    pid: int
    role: Role
    statm: int  # a descriptor: it stays with the process, whoever gets its number later
    anonymous: int = 0
    resident: int = 0
    high_water: int = 0
    seconds: float = 0.0

    def sample(self, page: int) -> bool:
        """Read its memory; False once it is gone."""
        try:
            fields = os.pread(self.statm, _STATM_BYTES, 0).split()
        except ProcessLookupError:
            return False
        if len(fields) < 3 or fields[1] == b"0":
            return False
        resident, shared = int(fields[1]), int(fields[2])
        self.resident = max(self.resident, resident * page)
        self.anonymous = max(self.anonymous, (resident - shared) * page)
        return True

    def account(self, tick: float) -> None:
        """Read what the kernel adds up by itself; of a process that is gone the last figures stay."""
        with contextlib.suppress(OSError):
            fields = _stat_fields(self.pid)
            self.seconds = (int(fields[11]) + int(fields[12])) / tick
            for line in (_PROC / str(self.pid) / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self.high_water = int(line.split()[1]) * 1024


class Watch:
    """Observes every party below this process from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        if not (_PROC / "self" / "statm").exists():
            raise UsageError("there is no /proc here", advice="run this bench on Linux")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._tick = float(os.sysconf("SC_CLK_TCK"))
        self._lock = threading.Lock()
        self._parties: dict[int, _Party] = {}
        self._gone: list[_Party] = []  # since the last mark
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._observe, name="watch", daemon=True)
        self.seconds = 0.0  # processor time that observing took

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for party in (*self._parties.values(), *self._gone):
            os.close(party.statm)

    def mark(self) -> tuple[Use, ...]:
        """What every party used since the last mark."""
        begun = time.thread_time()
        with self._lock:
            self._look()
            self._sample()
            for party in self._parties.values():
                party.account(self._tick)
            uses = tuple(_use(party) for party in (*self._parties.values(), *self._gone))
            for party in self._parties.values():
                party.anonymous = party.resident = 0
            for party in self._gone:
                os.close(party.statm)
            self._gone.clear()
        self.seconds += time.thread_time() - begun
        return uses

    def _observe(self) -> None:
        count, before = 0, 0.0
        while not self._stop.wait(_EVERY_SECONDS):
            with self._lock:
                if count % _LOOK_EVERY == 0:
                    self._look()
                self._sample()
                count += 1
                spent = time.thread_time()
                self.seconds, before = self.seconds + spent - before, spent

    def _sample(self) -> None:
        for party in list(self._parties.values()):
            if not party.sample(self._page):
                self._gone.append(self._parties.pop(party.pid))

    def _look(self) -> None:
        """Find the parties that are new. One without a name yet is found the next time."""
        known = {party.pid for party in (*self._parties.values(), *self._gone)}
        for pid in below(os.getpid()):
            if pid in known:
                continue
            with contextlib.suppress(OSError):  # it left in the meantime
                name = (_PROC / str(pid) / "comm").read_text().strip()
                if (role := _BY_NAME.get(name)) is not None:
                    statm = os.open(_PROC / str(pid) / "statm", os.O_RDONLY | os.O_CLOEXEC)
                    self._parties[pid] = _Party(pid, role, statm)


def _use(party: _Party) -> Use:
    return Use(
        pid=party.pid,
        role=party.role,
        anonymous=party.anonymous,
        resident=party.resident,
        # The kernel counts pages per core and adds them up now and then: a sample may be a little ahead of its mark.
        high_water=max(party.high_water, party.resident),
        seconds=party.seconds,
    )


def below(root: int) -> Iterator[int]:
    """Every living process that descends from `root`."""
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        with contextlib.suppress(OSError):
            state, parent, *_ = _stat_fields(pid)
            if state != b"Z":
                children.setdefault(int(parent), []).append(pid)
    found = list(children.get(root, ()))
    while found:
        pid = found.pop()
        yield pid
        found += children.get(pid, ())


def _stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name, which may itself have spaces and parentheses: the state is [0]."""
    return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
