"""What is on the coordinator's disk while one circle's version is published and another circle's attempt goes on."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from coordinator import bulk_files
from coordinator.bulk_files import BulkFiles
from secure_fl.files import write_pieces

CONTENT = b"what the openers of another circle download"
DIGEST = hashlib.sha256(CONTENT).digest()


@pytest.mark.parametrize("when", ["before it is written", "while it is written", "after it was written"])
def test_what_another_attempt_announces_outlives_the_models_of_old_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Old objects go at any moment of an announcement, which is made in another thread."""
    files, reached, go_on = BulkFiles(tmp_path), threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        assert go_on.wait(20)

    def slowly(path: Path, pieces: Iterable[bytes | memoryview], *, mode: int = 0o644) -> None:
        def parts() -> Iterable[bytes | memoryview]:
            for piece in pieces:
                yield piece[:5]
                if when == "while it is written":
                    pause()
                yield piece[5:]

        if when == "before it is written":
            pause()
        write_pieces(path, parts(), mode=mode)
        if when == "after it was written":
            pause()

    monkeypatch.setattr(bulk_files, "write_pieces", slowly)
    announcing = threading.Thread(target=lambda: files.put(CONTENT, attempt="7-1"))
    announcing.start()
    assert reached.wait(20)
    files.prune(newest=3, versions={3}, objects=set())
    go_on.set()
    announcing.join()
    files.prune(newest=3, versions={3}, objects=set())
    assert files.object_path(DIGEST).read_bytes() == CONTENT
    files.clear_uploads("7-1")
    files.prune(newest=3, versions={3}, objects=set())
    assert not files.has(DIGEST)


def test_what_an_attempt_announces_again_stays_although_an_earlier_one_is_over(tmp_path: Path) -> None:
    files = BulkFiles(tmp_path)
    files.put(CONTENT, attempt="7-1")
    files.put(CONTENT, attempt="8-1")
    files.clear_uploads("7-1")
    files.prune(newest=3, versions={3}, objects=set())
    assert files.has(DIGEST)


def test_what_a_strategy_remembers_is_kept_beside_the_newest_versions_only(tmp_path: Path) -> None:
    """It may be a model for each circle; versions that a slow turn began from need none of it."""
    import numpy as np

    files = BulkFiles(tmp_path)
    for version in range(1, 6):
        files.put_state(version, {"memory": np.full(3, version, np.float32)})
        (tmp_path / "checkpoints" / f"{version:06d}.safetensors").write_bytes(b"a model")
    files.prune(newest=4, versions={1, 3, 4}, objects=set())
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [
        "000001.safetensors",
        "000003.safetensors",
        "000003.state.safetensors",
        "000004.safetensors",
        "000004.state.safetensors",
        # Written before its version is committed: a coordinator that is killed now goes on with it, or writes it again.
        "000005.state.safetensors",
    ]
