"""A study's record is the same after a restart."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from secure_fl.plain_text import is_plain
from secure_fl.results.record import LeftOut, NodeRound, RoundRecord, StudyRecord, round_from_json
from secure_fl.rounds import RoundKind
from tests.protect.laws import few


def texts(*, max_size: int = 20) -> st.SearchStrategy[str]:
    """What a record may hold: nothing that a terminal obeys."""
    return st.text(max_size=max_size).filter(is_plain)


numbers = st.none() | st.floats(allow_nan=False)
counts = st.integers(0, 2**50)
nodes = st.builds(
    NodeRound,
    name=texts(max_size=5),
    outcome=st.sampled_from(["took part", "dropped", "sat out", "absent"]),
    reason=texts(max_size=5),
    bytes_up=counts,
    bytes_down=counts,
    samples=st.none() | counts,
    accuracy=numbers,
    loss=numbers,
    mse=numbers,
    global_accuracy=numbers,
    metrics=st.dictionaries(texts(max_size=3), numbers, max_size=2),
    sums=st.dictionaries(texts(max_size=3), st.lists(counts, max_size=3), max_size=2),
)
rounds = st.builds(
    RoundRecord,
    number=counts,
    kind=st.sampled_from(RoundKind),
    attempts=counts,
    seconds=st.floats(0, 1e9),
    nodes=st.lists(nodes, max_size=3).map(tuple),
    blocks_kept=st.lists(texts(max_size=3), max_size=2).map(tuple),
    mean_accuracy=numbers,
    mean_loss=numbers,
    mean_mse=numbers,
    global_accuracy=numbers,
    metrics=st.dictionaries(texts(max_size=3), numbers, max_size=2),
    sums=st.dictionaries(texts(max_size=3), st.lists(counts, max_size=3), max_size=2),
)
records = st.builds(
    StudyRecord,
    study=texts(max_size=5),
    study_id=st.just("5a" * 32),
    task=st.just("digits"),
    strategy=st.just("fedavg"),
    protection=st.just("none"),
    planned_rounds=counts,
    roster=st.lists(texts(max_size=5), max_size=3).map(tuple),
    outcome=st.sampled_from(["running", "finished", "aborted"]),
    parameters=counts,
    rounds=st.lists(rounds, max_size=3).map(tuple),
    settings=texts(max_size=5),
    left_out=st.lists(st.builds(LeftOut, node=texts(), round=counts, what=texts()), max_size=2).map(tuple),
)


@few
@given(records)
def test_a_record_survives_json(record: StudyRecord) -> None:
    assert StudyRecord.from_json(json.loads(json.dumps(asdict(record)))) == record


@few
@given(rounds)
def test_a_round_survives_json(record: RoundRecord) -> None:
    assert round_from_json(json.loads(json.dumps(asdict(record)))) == record


def example() -> StudyRecord:
    took_part = NodeRound(name="north", outcome="took part", bytes_up=10, bytes_down=1, accuracy=0.5)
    dropped = NodeRound(name="süd", outcome="dropped", reason="LateMessage", bytes_up=5, bytes_down=2)
    only = RoundRecord(
        number=1, kind=RoundKind.TRAIN, attempts=2, seconds=0.5, nodes=(took_part, dropped), blocks_kept=("head",)
    )
    return StudyRecord(
        study="heart",
        study_id="5a" * 32,
        task="digits",
        strategy="fedavg",
        protection="none",
        planned_rounds=1,
        roster=("north", "süd"),
        rounds=(only,),
    )


def test_a_record_survives_its_file(tmp_path: Path) -> None:
    example().save(tmp_path / "folder" / "record.json")
    assert StudyRecord.load(tmp_path / "folder" / "record.json") == example()


def test_what_a_round_adds_up_to() -> None:
    (only,) = example().rounds
    assert only.cohort == ("north",)
    assert (only.bytes_up, only.bytes_down) == (15, 3)


def test_a_record_from_before_sites_could_be_left_out_is_read() -> None:
    record = StudyRecord(
        study="s", study_id="5a" * 32, task="digits", strategy="fedavg", protection="none", planned_rounds=1, roster=()
    )
    old = asdict(record)
    del old["left_out"]
    assert StudyRecord.from_json(old) == record
