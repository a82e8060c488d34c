"""What happens is a value with a name, and crosses a pipe as one line."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import pytest

from secure_fl import events
from secure_fl.errors import StorageError
from secure_fl.events import Event, RoundCommitted, RoundStarted, StudyFailed, each, from_json, to_json
from secure_fl.results.record import NodeRound, RoundRecord
from secure_fl.rounds import RoundKind

VALUES: dict[str, Any] = {
    "str": "text", "int": 3, "float": 0.5, "RoundKind": RoundKind.EVALUATE,
    "tuple[str, ...]": ("a", "b"),
    "RoundRecord": RoundRecord(
        number=2, kind=RoundKind.TRAIN, attempts=1, seconds=0.25, blocks_kept=("head",),
        nodes=(NodeRound(name="a", outcome="took part", bytes_up=3),),
    ),
}  # fmt: skip


def made(kind: type[Any]) -> Any:
    return kind(**{field.name: VALUES[str(field.type)] for field in fields(kind)})


@pytest.mark.parametrize("kind", get_args(Event), ids=lambda kind: kind.__name__)
def test_an_event_survives_the_way_to_another_process(kind: type[Any]) -> None:
    event = made(kind)
    line = to_json(event)
    assert "\n" not in line
    assert from_json(line) == event
    assert type(from_json(line)) is kind


def test_no_two_events_have_one_name() -> None:
    names = [kind.name for kind in get_args(Event)]
    assert len(set(names)) == len(names)


def test_kinds_of_rounds_are_the_enum_again() -> None:
    event = from_json(to_json(made(RoundStarted)))
    assert isinstance(event, RoundStarted)
    assert event.kind is RoundKind.EVALUATE
    committed = from_json(to_json(made(RoundCommitted)))
    assert isinstance(committed, RoundCommitted)
    assert committed.record.kind is RoundKind.TRAIN


def test_an_error_is_an_event_with_its_advice() -> None:
    event = StudyFailed.of(StorageError("no room"), study_id="s")
    assert (event.code, event.message, event.study_id) == ("Storage", "no room", "s")
    assert "free space" in event.hint


def test_several_hear_of_it() -> None:
    heard: list[Event] = []
    each(heard.append, events.ignore, heard.append)(made(RoundStarted))
    assert heard == [made(RoundStarted)] * 2
