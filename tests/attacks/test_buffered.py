"""Circles that do not wait for each other: versions and blocks of the coordinator's choosing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import node.attempt
from coordinator.machine import RoundMachine
from node.models import VerifiedModels
from node.service import Node
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import RefusedError, SignatureError
from secure_fl.protect.combining import node_half
from secure_fl.protect.contract import OpenedSums, RoundContext
from secure_fl.protect.masked.protection import Masked
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.transport.wire import reference
from tests.attacks import test_attacks
from tests.attacks.test_attacks import EvilCoordinator, against_a_node
from tests.protect.cohorts import InMemory, context, contribution, host

both = pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])

FIRST = np.array([3, -2, 5], "<f4").tobytes()
LAYOUT = Layout(
    tuple(BlockShape(name=name, tensors=(TensorShape(name="w", shape=(size,)),)) for name, size in (("a", 1), ("b", 2)))
)
STUDY = {
    "study": {"rounds": 6, "initial": LAYOUT.digest(LAYOUT.unflatten(FIRST)).hex()},
    "protection": {"kind": "none", "recovery": False},
    "rounds": {"mode": "buffered", "flushes": 5, "merge": "delta"},
    "strategy": {"name": "aifed", "gating": "public"},
}


@pytest.fixture(autouse=True)
def _two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_attacks, "LAYOUT", LAYOUT)


def play(folder: Path, scenario: Callable[[EvilCoordinator], Any], **settings: Any) -> None:
    async def run(evil: EvilCoordinator, _task: asyncio.Task[None], _node: Node) -> None:
        await scenario(evil)

    against_a_node(folder, run, settings={**STUDY, **settings})


def moved(steps: int) -> bytes:
    """The first model, so many of the largest steps away."""
    return np.array([3 + steps, -2, 5], "<f4").tobytes()


@both
def test_there_are_no_more_steps_than_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """Other circles' flushes are steps that a site has not seen. The coordinator says how many, up to a limit."""
    if not checked:
        monkeypatch.setattr(VerifiedModels, "_most_steps", lambda *_: 99)

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=2, weights=moved(2), version=2)  # more than one step, since others flushed
        await evil.next_upload(2)
        evil.announce(number=3, weights=moved(5), version=5)
        if checked:
            assert await evil.answer() == "Refused"
        else:
            await evil.next_upload(3)

    play(tmp_path, scenario)


@pytest.mark.parametrize("circles", ["speed", "auto"])
def test_where_sites_declare_their_first_training_is_from_the_first_model(tmp_path: Path, circles: str) -> None:
    """They train to declare, before anything is opened. Elsewhere a circle may come late, and begin from the newest."""
    rosters = {f"site-{index}": f"{index:064x}" for index in range(8)}
    first = LAYOUT.digest(LAYOUT.unflatten(moved(0)))
    table = {
        "study": {"rounds": 6, "roster": rosters, "initial": first.hex()},
        "protection": {"kind": "masked", "circles": circles, "clip": 1.0},
        "rounds": {"mode": "buffered", "flushes": 5, "merge": "delta"},
    }
    models = VerifiedModels(ResolvedStudy.of(Study.parse(table)), tmp_path, LAYOUT)
    later = pb.ModelRef(
        version=3,
        digest=LAYOUT.digest(LAYOUT.unflatten(moved(3))),
        object=reference(moved(3)),
        first=reference(moved(0)),
    )
    if circles == "auto":
        assert [target.version for target in models.route(later, number=1)] == [0, 3]
        return
    for number in (0, 1):
        with pytest.raises(RefusedError, match="first training is from the study's first model"):
            models.route(later, number=number)


@both
def test_a_model_is_no_further_away_than_there_were_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(node.models, "require_step", lambda *_, **__: None)

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=2, weights=moved(3), version=2)
        if checked:
            assert await evil.answer() == "Protection"
        else:
            await evil.next_upload(2)

    play(tmp_path, scenario)


def test_no_older_version_is_trained_from_even_if_it_was_published_before(tmp_path: Path) -> None:
    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST)
        await evil.next_upload(1)
        evil.announce(number=2, weights=moved(2), version=2)
        await evil.next_upload(2)
        evil.announce(number=3, weights=FIRST)
        assert await evil.answer() == "Refused"
        evil.announce(number=3, attempt=2, weights=moved(1), version=2)  # a version has one model
        assert await evil.answer() == "Protection"

    play(tmp_path, scenario)


@both
def test_one_turn_has_one_choice_of_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checked: bool) -> None:
    """What is asked for is fixed with the base: another attempt cannot have other blocks of the same training."""
    if not checked:
        monkeypatch.setattr(node.attempt, "_base", lambda announcement: announcement.model.digest)

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST, asked=["a"])
        await evil.next_upload(1)
        evil.announce(attempt=2, weights=FIRST, asked=["b"])
        if checked:
            assert await evil.answer() == "Refused"
            evil.announce(attempt=3, weights=FIRST, asked=["a"])
            await evil.next_upload(2)
        else:
            await evil.next_upload(2)  # It answers a second question about the same training.

    play(tmp_path, scenario)


@pytest.mark.parametrize("asked", [["b", "a"], ["a", "a"], ["c"], ["a", "b", "c"]])
def test_only_blocks_of_the_model_are_asked_for_once_and_in_order(tmp_path: Path, asked: list[str]) -> None:
    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST, asked=asked)
        assert await evil.answer() == "Refused"
        assert not evil.fetched

    play(tmp_path, scenario)


@both
def test_a_version_that_is_shown_to_one_site_only_opens_nothing(checked: bool) -> None:
    """The classic attack: others train from a model that makes their updates vanish, and what is left is one site's."""
    names = ("n0", "n1", "n2", "n3")
    ours = context(*names, whole=True, protection=Masked())
    theirs = replace(ours, base_model=b"\1" * 32)
    if not checked:
        object.__setattr__(theirs, "binding", ours.binding)  # as if nobody signed which model it trained from
    values = {name: contribution(64, body=[place, 2, 3], head=[4, 5]) for place, name in enumerate(names)}

    def about(name: str) -> RoundContext:
        return theirs if name == "n0" else ours

    halves = {name: node_half(Masked(), about(name), mine, host(name)) for name, mine in values.items()}
    machine = RoundMachine(Masked(), ours)
    machine.begin()

    def everybody(phase: str) -> None:
        for name in sorted(machine.waiting):
            answer = halves[name].answer(phase, machine.asked[name])
            machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))

    if checked:
        with pytest.raises(SignatureError):  # already at the coordinator, and at every site that it shows it to
            everybody("advertise")
        return
    opened = None
    for phase in ("advertise", "commit", "upload"):
        everybody(phase)
        opened = machine.close()
    assert isinstance(opened, OpenedSums)


@pytest.mark.parametrize("settings", [{"strategy": {"name": "aifed"}}, {"strategy": {"name": "fedbuff"}}], ids=str)
def test_only_a_strategy_that_says_so_has_circles_asked_for_some_blocks(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """`study show` says of all others that every block is sent: training for one block alone is not what was agreed."""

    async def scenario(evil: EvilCoordinator) -> None:
        evil.announce(weights=FIRST, asked=["a"])
        assert await evil.outcome(1) == RefusedError.code
        evil.announce(weights=FIRST, attempt=2)
        assert await evil.outcome(1) == "uploaded"

    play(tmp_path, scenario, **settings)
