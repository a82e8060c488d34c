"""A thousand random tamperings with one ledger: each is found, two kinds of them only by what its peers noted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from secure_fl.errors import SecureFLError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.privacy.audit import examine
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.privacy.witness import WitnessNote
from tests.support.ledgers import HEART, LUNG, Story, noisy, signed_again

TAMPERINGS = 1000


class Free:
    """Accounting takes no part in this: nothing costs anything."""

    def epsilon(self, events: object, *, delta: float) -> float:
        return 0.0

    def used(self, events: object, policy: object) -> float:
        return 0.0

    def allows(self, events: object, policy: object) -> bool:
        return True


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, consortium: Authority, north: Credential) -> Story:
    story = Story(tmp_path_factory.mktemp("told") / "ledger.jsonl", consortium, north)
    story.rounds(HEART, (1, 2), privacy=noisy())
    story.cancel(story.plan(HEART, 3, privacy=noisy()))
    story.rounds(LUNG, (1,), dataset="clinic")
    story.plan(HEART, 4, privacy=noisy())
    return story


def holds(path: Path, authority: Authority, notes: Sequence[WitnessNote] = ()) -> bool:
    """What `audit verify` decides, without its words."""
    try:
        entries = read_site_ledger(path, authority=authority.ca_pem, site="north")
        return examine(entries, notes=notes, accounting=Free()).ok
    except SecureFLError:
        return False


def flipped(content: bytes, dice: random.Random) -> bytes:
    position = dice.randrange(len(content))
    return content[:position] + bytes([content[position] ^ 1 << dice.randrange(8)]) + content[position + 1 :]


def removed(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[dice.randrange(len(lines) - 1)]
    return b"".join(lines)


def reordered(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    one, other = dice.sample(range(len(lines)), 2)
    lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def duplicated(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(dice.randrange(len(lines) + 1), dice.choice(lines))
    return b"".join(lines)


def appended(content: bytes, dice: random.Random, stranger: Credential) -> bytes:
    """By somebody without the site's key."""
    lines = content.splitlines()
    made = signed_again([*map(json.loads, lines), {**json.loads(lines[-1]), "kind": "cancelled"}], stranger)
    return content + dice.choice((made.splitlines(keepends=True)[-1], dice.randbytes(40) + b"\n", b"{}\n", b"\n"))


def cut(content: bytes, dice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    return b"".join(lines[: dice.randrange(1, len(lines))])


def rewritten(content: bytes, dice: random.Random, north: Credential) -> bytes:
    """With the site's own key: a round never happened, cost less, was smaller, or was at another time."""
    bodies = [json.loads(line) for line in content.splitlines()]
    sent = [place for place, body in enumerate(bodies) if body["kind"] == "sent"]
    place = dice.choice(sent)
    choice = dice.randrange(3)
    if choice == 0:
        del bodies[place - 1 : place + 1]
    elif choice == 1:
        cheaper = noisy(steps=dice.randrange(1, 30))
        for body in bodies[place - 1 : place + 1]:
            body["facts"]["privacy"] = cheaper
    else:
        bodies[place]["facts"]["release"]["bytes"] = dice.randrange(2000)
    return signed_again(bodies, north)


@pytest.fixture(scope="module")
def damage(north: Credential, south: Credential) -> dict[str, Callable[[bytes, random.Random], bytes]]:
    return {
        "a bit": flipped,
        "a line removed": removed,
        "two lines swapped": reordered,
        "a line twice": duplicated,
        "a line appended": lambda content, dice: appended(content, dice, south),
        "the end cut off": cut,
        "the chain rewritten": lambda content, dice: rewritten(content, dice, north),
    }


ONLY_WITNESSES = {"the end cut off", "the chain rewritten"}


def test_a_thousand_random_tamperings_are_found(
    told: Story,
    tmp_path: Path,
    consortium: Authority,
    damage: dict[str, Callable[[bytes, random.Random], bytes]],
) -> None:
    content, notes = told.path.read_bytes(), [told.note()]
    assert holds(told.path, consortium, notes)
    path, dice = tmp_path / "ledger.jsonl", random.Random(20260301)  # noqa: S311
    kinds = list(damage)
    missed = []
    for number in range(TAMPERINGS):
        kind = kinds[number % len(kinds)]
        changed = damage[kind](content, dice)
        if changed == content:
            continue
        path.write_bytes(changed)
        if holds(path, consortium, notes):
            missed.append((number, kind))
        # The chain alone finds what was done without the site's key, and nothing of what was done with it.
        if number < 200:
            assert holds(path, consortium) == (kind in ONLY_WITNESSES), (number, kind)
    assert missed == []


def test_every_kind_changes_something(told: Story, damage: dict[str, Callable[[bytes, random.Random], bytes]]) -> None:
    content = told.path.read_bytes()
    for kind, change in damage.items():
        made = [change(content, random.Random(seed)) for seed in range(20)]  # noqa: S311
        assert sum(one != content for one in made) >= 18, kind
