"""What a log says of a study: one line for each round, nothing that crowds it."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

import coordinator.round_log
import node.round_log
from node.events import AnswerSent, RoundDone, SatOut, Trained
from secure_fl.events import Answered, PhaseClosed, RoundCommitted, StudyEnded, Waiting
from secure_fl.operations import loop_lag
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.results.record import NodeRound, RoundRecord
from secure_fl.rounds import RoundKind

STUDY = "ab" * 32


def test_the_coordinator_writes_a_line_for_each_round(caplog: pytest.LogCaptureFixture) -> None:
    log = coordinator.round_log.RoundLog()
    sites = tuple(NodeRound(name=name, outcome="took part") for name in ("a", "b"))
    record = RoundRecord(number=3, kind=RoundKind.TRAIN, attempts=2, seconds=1.25, nodes=sites, mean_accuracy=0.5)
    with caplog.at_level(logging.INFO):
        for ready in (1, 1, 1, 2):
            log(Waiting(study_id=STUDY, ready=ready, roster=3, minimum=3))
        log(Answered(study_id=STUDY, round=3, phase="upload", node="a"))
        log(PhaseClosed(study_id=STUDY, phase="upload", seconds=1.0))
        log(RoundCommitted(study_id=STUDY, record=record))
        closing = RoundRecord(number=4, kind=RoundKind.EVALUATE, attempts=1, seconds=0.5, nodes=sites)
        log(RoundCommitted(study_id=STUDY, record=closing))
        log(StudyEnded(study_id=STUDY, outcome="finished", reason=""))
    assert [entry.getMessage() for entry in caplog.records] == [
        "waiting for sites: 1 of 3 are ready, 3 are needed",
        "waiting for sites: 2 of 3 are ready, 3 are needed",
        "round 3 is done: 2 of 2 sites, 1.2 s, 2 attempts, mean accuracy 0.500",
        "the closing evaluation is done: 2 of 2 sites, 0.5 s",
        "the study is finished",
    ]


def test_a_node_writes_a_line_for_each_round(caplog: pytest.LogCaptureFixture) -> None:
    log = node.round_log.RoundLog()
    with caplog.at_level(logging.INFO):
        log(Trained(study_id=STUDY, round=1, seconds=2.5))
        log(AnswerSent(study_id=STUDY, round=1, phase="a", bytes=40))
        log(AnswerSent(study_id=STUDY, round=1, phase="b", bytes=60))
        log(RoundDone(study_id=STUDY, round=1))
        log(AnswerSent(study_id=STUDY, round=2, phase="a", bytes=5))
        log(SatOut(study_id=STUDY, round=2, code="Refused"))
        log(RoundDone(study_id=STUDY, round=2))
        log(Trained(study_id=STUDY, round=3, seconds=0.0))
        log(AnswerSent(study_id=STUDY, round=3, phase="a", bytes=7))
        log(RoundDone(study_id=STUDY, round=3, kind=RoundKind.EVALUATE))
    assert [entry.getMessage() for entry in caplog.records] == [
        "round 1 is answered, trained for 2.5 s, 100 bytes sent",
        "round 2 is answered, 0 bytes sent",
        "the closing evaluation is answered, 7 bytes sent",
    ]


def test_a_late_loop_is_a_warning_where_it_matters_and_not_again_and_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_lag, "_WORTH_A_WARNING", 0.3)

    async def busy() -> None:
        async with LoopLag().watched():
            for seconds in (0.2, 0.5, 0.5):
                await asyncio.sleep(0.1)
                time.sleep(seconds)  # noqa: ASYNC251 - what must not happen
            await asyncio.sleep(0.1)

    with caplog.at_level(logging.DEBUG, logger=loop_lag.__name__):
        asyncio.run(busy())
    levels = [entry.levelname for entry in caplog.records if "kept waiting" in entry.getMessage()]
    assert levels.count("WARNING") == 1
    assert levels.count("DEBUG") >= 2
