"""The key of an encrypted attempt is nowhere at the coordinator: not on its disk, not in its memory.

The nodes of the test write their keys down, and the test looks for them while the coordinator has seen all that it ever
sees, and when everything is over. `tests/coordinator/test_encrypted_rounds.py` looks at the wire.

    ./scripts/test -m slow tests/end_to_end/test_encrypted_secrets.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.protect.encrypted.scheme import Key, Scheme
from secure_fl.protect.encrypted.terms import Terms
from tests.end_to_end.test_encrypted import CIRCLES
from tests.faults.test_kill import wait_for
from tests.support.processes import Processes

NODES = 4
WINDOW = 32  # a key is thousands of bytes: parts of it would be enough to find it
SETTINGS: dict[str, Any] = {**CIRCLES, "study": {"rounds": 1}}


def windows(raw: bytes) -> list[bytes]:
    """The beginning, the middle and the end of a key, as it is sent and as numbers in memory."""
    terms = Terms.among(RequestKind.SUM, nodes=NODES, bits=16)
    forms = (raw, Key.read(Scheme(terms), raw).words().tobytes())
    return [form[at : at + WINDOW] for form in forms for at in (0, len(form) // 2, len(form) - WINDOW)]


def on_disk(folder: Path) -> Iterator[bytes]:
    """Every file of a folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield path.read_bytes()


def in_memory(pid: int) -> Iterator[bytes]:
    """Everything that a process can write to, area by area."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            area, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, end = (int(place, 16) for place in area.split("-"))
                memory.seek(start)
                yield _read(memory, end - start)


def _read(memory: Any, size: int) -> bytes:
    try:
        return bytes(memory.read(size))
    except OSError:  # reserved, and not there yet
        return b""


def found(wanted: list[bytes], places: Iterator[bytes]) -> set[bytes]:
    """Which of `wanted` are somewhere in `places`."""
    return {one for place in places for one in wanted if one in place}


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [True, False])
def test_the_coordinator_never_has_the_key(tmp_path: Path, sealed: bool) -> None:
    """Once as it is; and once without envelopes, when the same search finds it."""
    keys, marks = tmp_path / "keys", tmp_path / "marks"
    keys.mkdir()
    marks.mkdir()
    environment = {
        "SECURE_FL_TEST_KEYS": str(keys),
        "SECURE_FL_TEST_MARKS": str(marks),
        "SECURE_FL_TEST_STOPS": "1/open@seeds",
        "SECURE_FL_TEST_UNSEALED": "" if sealed else "yes",
    }
    with Processes(tmp_path / "run", SETTINGS, nodes=NODES) as fed:
        fed.start_coordinator()
        for name in fed.names:
            fed.start_node(name, **environment)
        wait_for(marks / "0")  # All but the last answer are in: uploads, halves, and the key's envelopes.
        (key,) = {path.read_bytes() for path in keys.glob("*.key")}
        (identity,) = {path.read_bytes() for path in keys.glob("*.id")}
        assert len(list(keys.glob("*.key"))) == NODES
        folder, pid = fed.workspace.coordinator_file.parent, fed.children["coordinator"].pid
        secrets = windows(key)
        on_its_disk = found([*secrets, identity], on_disk(folder))
        remembered = found([*secrets, identity], in_memory(pid))
        # The key's name is there, so the search looks where it has to.
        assert identity in on_its_disk & remembered
        assert bool(on_its_disk & set(secrets)) == bool(remembered & set(secrets)) == (not sealed)
        victim = (marks / "0").read_text()
        fed.kill(victim)
        fed.start_node(victim, **environment)
        assert fed.finish(seconds=120).outcome == "finished"
        every = [window for path in keys.glob("*.key") for window in windows(path.read_bytes())]
        assert len(set(every)) >= 3 * 6  # two attempts at the round, and one at its measurement
        assert not sealed or not found(every, on_disk(folder))
        # Nor does a site keep one.
        assert not found(every, on_disk(tmp_path / "run" / "nodes"))
