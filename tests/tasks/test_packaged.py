"""Reading scikit-learn's files without scikit-learn gives what scikit-learn gives."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from secure_fl.errors import DataError
from secure_fl.tasks import breast_cancer, digits, packaged


def test_the_digits_are_the_same_byte_for_byte() -> None:
    theirs, ours = load_digits(), digits._common()
    assert ours.x.tobytes() == (theirs.images / 16).astype(np.float32).tobytes()
    assert ours.y.tobytes() == theirs.target.astype(np.int64).tobytes()
    assert ours.x.shape == (1797, 8, 8)


def test_the_cancers_are_the_same_byte_for_byte() -> None:
    theirs = load_breast_cancer()
    table = packaged.read_table("breast_cancer.csv", header_rows=1)
    assert np.ascontiguousarray(table[:, :-1]).tobytes() == theirs.data.tobytes()  # before they are rounded to float32
    ours = breast_cancer._common()
    assert ours.x.tobytes() == theirs.data.astype(np.float32).tobytes()
    assert ours.y.tobytes() == theirs.target.astype(np.int64).tobytes()


@pytest.mark.parametrize("task", ["digits", "breast-cancer", "bearings"])
def test_loading_a_task_imports_no_more_than_it_uses(task: str) -> None:
    program = (
        "import sys; from secure_fl import tasks; from secure_fl.tasks.base import PartitionSettings, Share, Source; "
        f"task = tasks.create({task!r}, {{}}); task.model(); "
        "share = Share(index=0, of=2, seed=0, partition=PartitionSettings.parse({})); "
        f"{task!r} == 'bearings' or task.load(Source(share=share)); "
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert {"sklearn", "scipy", "opacus", "tenseal"}.isdisjoint(run.stdout.split())


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DataError, match=r"nothing\.csv"):
        packaged.read_table("nothing.csv", header_rows=0)
