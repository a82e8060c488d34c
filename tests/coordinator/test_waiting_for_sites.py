"""For whom a flush of single sites waits in its first phase, and for whom it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from coordinator.machine import RoundMachine
from coordinator.waiting import Waiting
from secure_fl.study.filling import Filling

LEAST = 3


class Collecting:
    """What `Waiting` sees of an attempt's first phase: six sites are asked."""

    def __init__(self) -> None:
        self.asked = dict.fromkeys("abcdef")
        self.left: dict[str, str] = {}
        self.there: set[str] = set()  # who has answered
        self.fit: Callable[[set[str]], int] = len  # how many of them fit together

    @property
    def waiting(self) -> frozenset[str]:
        return frozenset(self.asked) - self.there - self.left.keys()

    @property
    def answered(self) -> int:
        return len(self.there)

    @property
    def lacking(self) -> int:
        return max(0, LEAST - self.fit(self.there))

    @property
    def missing(self) -> int:
        may_come = sum(self.left.get(node, "NotConnected") == "NotConnected" for node in self.asked.keys() - self.there)
        return self.lacking if self.lacking <= may_come else 0

    def leave(self, node: str, reason: str) -> None:
        self.left[node] = reason

    def readmit(self, node: str) -> bool:
        return self.left.get(node) == "NotConnected" and bool(self.left.pop(node))


def wait(machine: Collecting, *steps: Callable[[set[str]], None], ready: str) -> tuple[bool, list[str]]:
    """Whether waiting ends once these steps were taken, each when everybody else has nothing to do; and who was asked.

    A step is given who is connected.
    """
    connected, asked, left = set(ready), list[str](), list(steps)

    async def change(_: float) -> None:
        if not left:
            raise TimeoutError
        left.pop(0)(connected)

    async def ask(node: str) -> None:
        asked.append(node)

    waiting = Waiting(lambda: frozenset(connected), grace=0, expected=(), change=change, ask=ask, tell=lambda _: None)

    async def scenario() -> None:
        with_machine = cast(RoundMachine, machine)
        waiting.begin(with_machine)
        deadline = asyncio.get_running_loop().time() + 1e6
        filling = Filling(wanted=LEAST, flush_after=None)
        await waiting.for_enough(with_machine, filling, least=LEAST, deadline=deadline)

    try:
        asyncio.run(scenario())
    except TimeoutError:
        return False, asked
    assert not left, "it did not wait for what happened next"
    return True, asked


def test_it_waits_for_whoever_is_away_while_too_few_are_there() -> None:
    machine = Collecting()
    machine.there = {"a", "b"}
    assert wait(machine, ready="ab") == (False, [])
    machine = Collecting()
    machine.there = {"a", "b"}
    came = wait(machine, lambda connected: connected.add("f"), lambda _: machine.there.add("f"), ready="ab")
    assert came == (True, ["f"])


def test_enough_who_do_not_fit_together_are_not_told_to_wait_for_others() -> None:
    """Another attempt lets one of them train anew; whoever is away may be so for days."""
    machine = Collecting()
    machine.fit = lambda there: len(there) - 1
    steps = [lambda _, node=node: machine.there.add(node) for node in "abc"]
    assert wait(machine, *steps, ready="abc") == (True, [])


@pytest.mark.parametrize("returns", [True, False])
def test_a_site_that_sat_out_and_is_back_is_asked_in_the_next_attempt(returns: bool) -> None:
    machine = Collecting()

    def sits_out(connected: set[str]) -> None:
        machine.there = {"b", "c"}
        machine.leave("a", "NotReady")
        connected.discard("a")

    steps = [sits_out, *([lambda connected: connected.add("a")] if returns else [])]
    assert wait(machine, *steps, ready="abc") == (returns, [])
