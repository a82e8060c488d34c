"""Which sites of a flush use one history."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError
from secure_fl.protect.cohort.signed import threshold
from secure_fl.protect.versions import Origin, Version, agreeing, require_one_history, usable


def version(number: int, story: int = 0) -> Version:
    return Version(number=number, digest=hashlib.sha256(f"{number} {story}".encode()).digest())


@st.composite
def told_stories(draw: st.DrawFn) -> tuple[dict[str, Origin], int]:
    """Honest sites, each of which was told one of two stories of each version, and colluders that name both."""
    count, colluders = draw(st.integers(2, 9)), draw(st.integers(0, 2))
    liars = draw(st.integers(0, min(colluders, count)))
    origins = {}
    for index in range(count):
        numbers = draw(st.sets(st.integers(0, 3), min_size=1))
        if index < liars:
            told = [version(number, story) for number in numbers for story in (0, 1)]
        else:
            told = [version(number, draw(st.integers(0, 1))) for number in sorted(numbers)]
        origins[f"n{index}"] = Origin(made_from=draw(st.sampled_from(told)), told=frozenset(told))
    return origins, colluders


@given(told_stories())
def test_whoever_is_usable_together_uses_one_story_of_each_version(case: tuple[dict[str, Origin], int]) -> None:
    origins, colluders = case
    left = {name: origins[name] for name in usable(origins, colluders=colluders)}
    require_one_history(left, mine=(), colluders=colluders)  # Nobody among them would refuse for want of others.
    stories: dict[int, set[bytes]] = {}
    for origin in left.values():
        stories.setdefault(origin.made_from.number, set()).add(origin.made_from.digest)
    assert all(len(digests) == 1 for digests in stories.values())


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 9), min_size=3), st.integers(0, 1))
def test_whoever_was_told_the_same_is_usable(made_from: dict[str, int], colluders: int) -> None:
    told = frozenset(version(number) for number in range(10))
    origins = {name: Origin(made_from=version(number), told=told) for name, number in made_from.items()}
    assert usable(origins, colluders=colluders) == origins.keys()
    require_one_history(origins, mine=told, colluders=colluders)


def test_a_site_contradicts_what_it_was_told_otherwise_however_many_say_so() -> None:
    told = frozenset({version(1)})
    origins = {name: Origin(made_from=version(1), told=told) for name in "abcde"}
    with pytest.raises(ProtectionError, match="another version 1"):
        require_one_history(origins, mine=[version(1, story=1)], colluders=1)


def test_as_many_have_to_agree_as_in_the_rest_of_the_protocol() -> None:
    assert all(agreeing(n, c) == threshold(n, c) for n in range(3, 40) for c in range(4))


def test_a_version_is_a_number_and_a_digest() -> None:
    for number, digest in ((-1, bytes(32)), (0, bytes(31))):
        with pytest.raises(ProtectionError):
            Version(number=number, digest=digest)
