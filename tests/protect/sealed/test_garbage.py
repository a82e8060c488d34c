"""Damaged messages of `sealed` and `masked`: each half takes them or answers with a typed error, nothing else."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.errors import SecureFLError
from secure_fl.protect.combining import coordinator_half
from secure_fl.protect.contract import Ask, Message, Opened, Protection, RoundContext
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from secure_fl.protect.release.sketch import sketch
from secure_fl.protect.sealed.protection import Sealed
from tests.protect.cohorts import Contributions, InMemory, context, contribution, halves

NAMES = ("n0", "n1", "n2", "n3", "n4")
TRIES = 6  # per node and phase, in either direction


def damaged(raw: bytes | memoryview, rng: random.Random) -> bytes:
    """A few bytes changed, cut out, put in or repeated."""
    content = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(content) + 1)
        match rng.randrange(4):
            case 0 if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                del content[at : at + rng.randint(1, 40)]
            case 2:
                content[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                content[at:at] = content[at : at + rng.randint(1, 200)]
    return bytes(content)


def garble(message: Message, rng: random.Random) -> Message:
    body = damaged(message.body, rng) if message.body else rng.randbytes(rng.randrange(20))
    bulk = damaged(message.bulk, rng) if message.bulk and rng.random() < 0.5 else message.bulk
    return Message(body=body, bulk=bulk)


@pytest.mark.parametrize(
    ("protection", "kind"),
    [(Masked(), RequestKind.SUM), (Sealed(), RequestKind.SUM), (Sealed(), RequestKind.COMBINE)],
    ids=["masked sum", "sealed sum", "sealed combine"],
)
def test_garbage_gets_a_typed_error_in_every_phase(protection: Protection, kind: RequestKind) -> None:
    rng = random.Random(7)  # noqa: S311
    combining = kind is RequestKind.COMBINE
    about = context(*NAMES, kind=kind, min_cohort=4 if combining else 3, compares=combining)
    mine = {
        name: replace(
            contribution(64, dict.fromkeys(NAMES, 1), body=[place, 2, 3], head=[4, 5]),
            sketch=sketch(np.array([place], np.float32)) if combining else None,
        )
        for place, name in enumerate(NAMES)
    }
    phases = protection.phases(kind)
    told, said = honest_round(protection, about, mine)
    for position, phase in enumerate(phases):
        for name in sorted(told[phase]):
            for _ in range(TRIES):
                node = halves(protection, about, {name: mine[name]})[name]
                for earlier in phases[:position]:
                    node.answer(earlier, told[earlier][name])
                with suppress(SecureFLError):
                    node.answer(phase, garble(told[phase][name], rng))
                half = coordinator_half(protection, about)
                half.begin()
                for earlier in phases[:position]:
                    for peer, answer in said[earlier].items():
                        half.accept(peer, replace(answer, bulk=b""), InMemory(answer.bulk))
                    half.close()
                bad = garble(said[phase][name], rng)
                with suppress(SecureFLError):
                    half.accept(name, replace(bad, bulk=b""), InMemory(bad.bulk))


def honest_round(
    protection: Protection, about: RoundContext, mine: Contributions
) -> tuple[dict[str, dict[str, Message]], dict[str, dict[str, Message]]]:
    """What everybody is told and says, by phase and node."""
    nodes = halves(protection, about, mine)
    half = coordinator_half(protection, about)
    now: Ask | Opened = half.begin()
    told: dict[str, dict[str, Message]] = {}
    said: dict[str, dict[str, Message]] = {}
    while isinstance(now, Ask):
        told[now.phase] = dict(now.messages)
        said[now.phase] = {name: nodes[name].answer(now.phase, message) for name, message in now.messages.items()}
        for name, answer in said[now.phase].items():
            half.accept(name, replace(answer, bulk=b""), InMemory(answer.bulk))
        now = half.close()
    return told, said
