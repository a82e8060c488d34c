"""`secure-fl bench round`: the fields of the contract, from real processes, and figures that mean what they say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from secure_fl.bench import round as bench
from secure_fl.bench import synthetic
from secure_fl.bench.parties import Role, Use, Watch, below
from secure_fl.cli import app
from secure_fl.errors import SecureFLError, StorageError, UnknownNameError, UsageError
from secure_fl.results.record import RoundRecord, StudyRecord
from secure_fl.rounds import RoundKind
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import PartitionSettings, Share, Source
from secure_fl.tasks.model_blocks import initial_blocks

MIB = 1 << 20


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bench", "round", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


# --- the contract ---------------------------------------------------------------------------------------------


def test_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    size = ("--nodes", "4", "--parameters", "2000", "--rounds", "2", "--repeat", "1", "--protections", "none,masked")
    told = json.loads(invoke(*size, "--out", str(tmp_path / "kept"), "--json"))
    assert (told["nodes"], told["parameters"], told["rounds"], told["repeat"]) == (4, 2000, 2, 1)
    assert list(told["protections"]) == ["none", "masked"]
    for figures in told["protections"].values():
        assert figures["seconds_per_round"] > 0
        assert figures["incomplete_rounds"] == 0
        spent = figures["cpu"]
        assert spent.keys() == {"coordinator", "node", "node_max", "worker", "total"}
        assert 0 < spent["total"] == pytest.approx(spent["coordinator"] + 4 * (spent["node"] + spent["worker"]))
        assert spent["node"] <= spent["node_max"]
        assert figures["memory"].keys() == {"coordinator", "node", "worker"}
        for used in figures["memory"].values():
            assert 5 * MIB < used["anonymous_bytes"] < used["resident_bytes"] <= used["high_water_bytes"] < 2048 * MIB
            assert used["growth"] is None  # of two rounds
            assert used.keys() >= {"models", "resident_models"}
        # The model once down, and its integers up: two bytes each, and what the protocol says besides.
        assert figures["bytes_down_per_node_round"] > 4 * 2000
        assert 2 * 2000 < figures["bytes_up_per_node_round"] < 8 * 2000
    assert told["protections"]["none"]["ratio"] == told["protections"]["none"]["cpu_ratio"] == 1
    assert told["protections"]["masked"]["ratio"] > 0
    assert 0 < told["observer"] < 0.5
    kept = json.loads((tmp_path / "kept" / "round.json").read_text())
    assert [run["parameters"] for run in kept.pop("runs")["masked"]] == [1000, 2000]
    assert kept == told
    assert not list(folder.iterdir())


def test_an_interrupt_leaves_neither_folder_nor_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from secure_fl.cli import main; main()", "bench", "round", "--nodes", "3"]
    command += ["--parameters", "2000"]
    bench_process = subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/run/nodes/*/node.log")):
            assert time.monotonic() < deadline
            assert bench_process.poll() is None
            time.sleep(0.05)
        started = set(below(bench_process.pid))
        assert started
        bench_process.send_signal(signal.SIGINT)
        _, said = bench_process.communicate(timeout=30)
    finally:
        if bench_process.poll() is None:
            bench_process.kill()
            bench_process.wait()
    assert bench_process.returncode == 130
    assert b"interrupted" in said
    assert not list(tmp_path.glob("secure-fl-*"))
    deadline = time.monotonic() + 10
    while alive := [pid for pid in started if is_alive(pid)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# --- mistakes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        (("--protections", "none,maskd"), UnknownNameError, "maskd"),
        (("--protections", ","), UsageError, "no protection"),
        (("--flat", "--rounds", "6"), UsageError, "8 rounds"),
        (("--set", "rounds.deadlin=3"), UnknownNameError, "deadlin"),
        (("--out", "/dev/null/here"), StorageError, "/dev/null/here"),
    ],
)
def test_a_mistake_comes_to_light_before_anything_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], kind: type[SecureFLError], said: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(kind, match=said):
        invoke(*arguments)
    assert not list(tmp_path.iterdir())


def test_the_nearest_protection_is_named() -> None:
    with pytest.raises(UnknownNameError) as caught:
        invoke("--protections", "maskd")
    assert "masked" in str(caught.value.hint)


# --- the task -------------------------------------------------------------------------------------------------


def task(parameters: int) -> synthetic.Synthetic:
    return synthetic.Synthetic(synthetic.SyntheticSettings(parameters=parameters))


@pytest.mark.parametrize("parameters", [8, 1003, 2000, 100_000])
def test_the_model_has_exactly_as_many_parameters_in_nearly_equal_blocks(parameters: int) -> None:
    layout, _ = initial_blocks(task(parameters), 0)
    assert layout.size == parameters
    assert len(layout.names) == synthetic.BLOCKS
    sizes = [shape.size for shape in layout]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("parameters", [1000, 100_000])
def test_every_parameter_changes_by_about_a_hundredth_in_every_round(parameters: int) -> None:
    study = bench.Plan(nodes=4, parameters=parameters, rounds=2, repeat=1, protections=("none",)).study(
        "none", parameters
    )
    made, strategy = task(parameters), study.make_strategy()
    share = Share(index=3, of=4, partition=PartitionSettings(kind="natural"), seed=0)
    received = initial_blocks(made, 0)[1]
    for _ in range(2):
        site = Site(
            task=made, data=made.load(Source(share=share)), training=strategy.settings, initial=received,
            received=received, personal={}, combination={}, seed=0,
        )  # fmt: skip
        change = strategy.fit(site)
        for vector in change.values():
            np.testing.assert_allclose(vector, -0.01 * 1.75, rtol=1e-4)
        received = {name: vector + change[name] for name, vector in received.items()}


# --- the figures ----------------------------------------------------------------------------------------------

CHILD = """
import mmap, pathlib, sys
pathlib.Path("/proc/self/comm").write_text("fl-worker")
held = bytearray(b"x") * (64 << 20)
file = open(sys.argv[1], "rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
seen = sum(mapped[at] for at in range(0, len(mapped), 4096))
print("ready", flush=True)
sys.stdin.readline()
del held
print("less", flush=True)
sys.stdin.readline()
"""


@contextmanager
def child(file: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", CHILD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[bytes], say: bytes = b"") -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(say)
    process.stdin.flush()
    return process.stdout.readline()


def test_anonymous_memory_and_mapped_files_are_told_apart_and_marks_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 * MIB))
    with child(tmp_path / "file") as process, Watch() as watch:
        assert next_line(process) == b"ready\n"
        (first,) = [use for use in watch.mark() if use.pid == process.pid]
        assert first.role == "worker"
        assert 64 * MIB <= first.anonymous < 96 * MIB
        assert first.resident >= first.anonymous + 64 * MIB
        assert first.high_water >= first.resident - MIB
        assert first.seconds > 0
        assert next_line(process, b"\n") == b"less\n"
        watch.mark()
        time.sleep(0.1)
        (later,) = [use for use in watch.mark() if use.pid == process.pid]
        assert later.anonymous < 32 * MIB
        assert later.high_water >= 128 * MIB
        process.kill()
        process.wait()
        watch.mark()
        assert process.pid not in [use.pid for use in watch.mark()]


PARTIES: tuple[tuple[int, Role, int], ...] = ((1, "coordinator", 1), (2, "node", 2), (3, "node", 4), (4, "worker", 1))


def played(peaks: list[int], *, walls: list[float], seconds: list[float]) -> bench.Played:
    marks = [
        bench.Mark(
            at=sum(walls[: number + 1]),
            round=RoundRecord(number=number + 1, kind=RoundKind.TRAIN, attempts=1, seconds=0, nodes=()),
            uses=tuple(
                Use(pid=pid, role=role, anonymous=peak, resident=peak, high_water=peak, seconds=spent * share)
                for pid, role, share in PARTIES
            ),
        )
        for number, (peak, spent) in enumerate(zip(peaks, seconds, strict=True))
    ]
    record = StudyRecord(
        study="s", study_id="", task="", strategy="", protection="", planned_rounds=len(peaks), roster=()
    )
    return bench.Played(marks=tuple(marks), record=record, summary={}, seconds=1.0, watching=0.0)


def test_the_first_round_does_not_count_and_growth_is_from_the_fifth_on() -> None:
    rounds = 10
    run = played(
        [900, 100, 100, 130, 120, 100, 150, 170, 180, 160],
        walls=[50.0] + [1.0] * (rounds - 1),
        seconds=[7.0 + 0.5 * number for number in range(rounds)],
    )
    assert run.walls() == [1.0] * 9
    assert run.processor() == {"coordinator": [0.5], "node": [1.0, 2.0], "worker": [0.5]}
    assert run.peak("node", "anonymous") == 900
    assert run.growth("node") == 180 - 130
    assert played([1] * 7, walls=[1.0] * 7, seconds=[1.0] * 7).growth("node") is None
