"""Which of an attempt's sites are there. Whoever is away for long is not waited for; whoever is back is asked again."""

from __future__ import annotations

from collections.abc import Callable, Collection

from coordinator.machine import RoundMachine
from secure_fl.errors import NotConnectedError


class Presence:
    """One attempt's sites, from its first phase to its last."""

    def __init__(self, ready: Callable[[], frozenset[str]], *, grace: float, expected: Collection[str]) -> None:
        """`ready`: who is connected now. `grace`: seconds that somebody who vanished is waited for."""
        self._ready = ready
        self._grace = grace
        self._met = set(expected)  # They were there when the attempt was planned.
        self._away_since: dict[str, float] = {}

    @property
    def met(self) -> frozenset[str]:
        """Who was there to be asked."""
        return frozenset(self._met)

    def begin(self, machine: RoundMachine) -> None:
        """Nobody waits for a site that was not expected, and is not there."""
        self._met |= machine.waiting & self._ready()
        for node in machine.waiting - self._met:
            machine.leave(node, NotConnectedError.code)

    def let_go_of_absent(self, machine: RoundMachine, *, now: float) -> None:
        """Whoever has been away for long enough is not waited for."""
        ready = self._ready()
        for node in machine.waiting:
            if node in ready:
                self._met.add(node)
                self._away_since.pop(node, None)
            elif now - self._away_since.setdefault(node, now) > self._grace:
                machine.leave(node, NotConnectedError.code)

    def back(self, machine: RoundMachine) -> tuple[str, ...]:
        """Who was let go of, and is back: they are waited for again."""
        found = tuple(node for node in sorted(self._ready()) if machine.readmit(node))
        for node in found:
            self._away_since.pop(node, None)
        return found
