"""Waiting for an attempt's sites: for answers, for enough of them, for those without whom nothing can be opened.

Whoever is away for long is not waited for. Whoever is back is asked again, where more answers help.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection

from coordinator.machine import STILL_TRAINING, RoundMachine
from secure_fl.errors import NotConnectedError
from secure_fl.study.filling import Filling

_LONGEST = 1.0  # Sessions end without telling each attempt; this often it looks for itself.


class Waiting:
    """One attempt's, from its first phase to its last."""

    def __init__(
        self,
        ready: Callable[[], frozenset[str]],
        *,
        grace: float,
        expected: Collection[str],
        change: Callable[[float], Awaitable[None]],
        ask: Callable[[str], Awaitable[None]],
        tell: Callable[[int], None],
    ) -> None:
        """`ready`: who is connected now. `grace`: seconds that somebody who vanished is waited for.

        `change` waits until something changes, or for so long; `ask` asks a site what it is to answer now; `tell` says
        how many more sites have to come.
        """
        self._ready = ready
        self._grace = grace
        self._met = set(expected)  # They were there when the attempt was planned.
        self._away_since: dict[str, float] = {}
        self._change, self._ask, self._tell = change, ask, tell

    @property
    def met(self) -> frozenset[str]:
        """Who was there to be asked."""
        return frozenset(self._met)

    def begin(self, machine: RoundMachine) -> None:
        """Nobody waits for a site that was not expected, and is not there."""
        self._met |= machine.waiting & self._ready()
        for node in machine.waiting - self._met:
            machine.leave(node, NotConnectedError.code)

    def resume(self, machine: RoundMachine) -> None:
        """After a restart of the coordinator: who was there is known of those who were still training."""
        self._met |= {node for node, reason in machine.left.items() if reason == STILL_TRAINING}
        self._met |= self._ready() & machine.asked.keys()

    async def for_answers(
        self, machine: RoundMachine, *, deadline: float, decided: Callable[[], bool], began: float
    ) -> None:
        """Until everybody has answered who is there. Once the others make no difference they have as long again."""
        loop = asyncio.get_running_loop()
        while machine.waiting and loop.time() < deadline:
            if decided():
                deadline = min(deadline, 2 * loop.time() - began)
            await self._change(min(_LONGEST, max(0.01, deadline - loop.time())))
            self._let_go_of_absent(machine)

    async def for_enough(self, machine: RoundMachine, filling: Filling, *, least: int, deadline: float) -> None:
        """Where sites join at their own pace: until enough have, whoever they are.

        Whoever is away may come as long as fewer than `least` are there. If so many are, and have said all they have to
        say, and do not fit together, another attempt may do better.
        """
        loop, told = asyncio.get_running_loop(), False
        while loop.time() < deadline:
            while await self._welcome(machine):  # Somebody may come while another one is asked.
                pass
            self._let_go_of_absent(machine)
            if not machine.waiting and not (machine.missing and len(self._ready() & machine.asked.keys()) < least):
                return
            soon = filling.closes_in(there=machine.answered, lacking=machine.lacking, now=loop.time())
            if soon <= 0:
                return
            missing = machine.lacking - len(machine.waiting)
            if missing > 0 and not told:
                told = True
                self._tell(missing)
            await self._change(min(_LONGEST, soon, max(0.01, deadline - loop.time())))

    async def for_holders(self, machine: RoundMachine, *, patience: float) -> None:
        """After a deadline, while too few who can open it have answered."""
        loop, told = asyncio.get_running_loop(), False
        end = loop.time() + patience
        while machine.missing and loop.time() < end:
            if not told:
                told = True
                self._tell(machine.missing)
            await self._welcome(machine)
            await self._change(_LONGEST)

    async def _welcome(self, machine: RoundMachine) -> bool:
        """Ask whoever is back again; whether anybody was."""
        back = [node for node in sorted(self._ready()) if machine.readmit(node)]
        for node in back:
            self._met.add(node)
            self._away_since.pop(node, None)
            await self._ask(node)
        return bool(back)

    def _let_go_of_absent(self, machine: RoundMachine) -> None:
        now, ready = asyncio.get_running_loop().time(), self._ready()
        for node in machine.waiting:
            if node in ready:
                self._met.add(node)
                self._away_since.pop(node, None)
            elif now - self._away_since.setdefault(node, now) > self._grace:
                machine.leave(node, NotConnectedError.code)
