"""The coordinator's memory for a sum is one model, however many nodes send."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from coordinator.bulk_files import BulkFile
from coordinator.machine import RoundMachine
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.protect.contract import Message, OpenedSums, RoundContext
from secure_fl.protect.none import UnsafeNone
from secure_fl.rpc.protect_none_pb2 import PlainUpload

PARAMETERS = 2_000_000
MODEL_BYTES = 4 * PARAMETERS


def peak(folder: Path, nodes: int) -> int:
    """The most memory that opening a sum over `nodes` uploads ever holds."""
    names = tuple(f"site-{index:02d}" for index in range(nodes))
    layout = Layout((BlockShape(name="all", tensors=(TensorShape(name="w", shape=(PARAMETERS,)),)),))
    context = RoundContext(
        study_id="0" * 64, round=1, attempt=1, base_model=bytes(32), invited=names, layout=layout,
        roster=dict.fromkeys(names, "0" * 64),
        kind=RequestKind.SUM, bits=16, colluders=1, min_cohort=3, protection="none", payload_version=1, settings=b"{}",
    )  # fmt: skip
    path = folder / "upload"
    path.write_bytes(np.arange(PARAMETERS, dtype=np.int64).astype("<i2").clip(-32767).tobytes())
    body = PlainUpload(blocks=["all"], weight=64).SerializeToString()
    tracemalloc.start()
    machine = RoundMachine(UnsafeNone(), context)
    machine.begin()
    for name in names:
        machine.accept(name, "upload", Message(body=body), BulkFile(path, path.stat().st_size, bytes(32)))
    opened = machine.close()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(opened, OpenedSums)
    assert opened.blocks["all"].contributors == nodes
    return most


def test_memory_does_not_grow_with_the_number_of_nodes(tmp_path: Path) -> None:
    few, many = peak(tmp_path, 3), peak(tmp_path, 12)
    # 64-bit totals are two 32-bit models; pieces of an upload pass through a buffer of constant size.
    assert many < 3 * MODEL_BYTES
    assert many == pytest.approx(few, rel=0.02)
