"""Files to validated values: every mistake is named, with the nearest thing that would have been right."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.settings import Settings, nearest, read_toml, require_known, section_name, set_dotted


class Inner(Settings):
    rounds: int = 3
    rate: float = 0.5
    tags: tuple[str, ...] = ()


class Outer(Settings):
    inner: Inner = Inner()
    label: str


def test_unknown_keys_are_named_with_the_nearest_valid_one() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown key 'lable'; did you mean 'label'\?$") as top:
        Outer.parse({"label": "x", "lable": "y"})
    assert top.value.nearest == "label"
    with pytest.raises(UnknownNameError, match=r"^unknown key 'inner\.round'; did you mean 'rounds'\?$"):
        Outer.parse({"label": "x", "inner": {"round": 1}})
    with pytest.raises(UnknownNameError, match=r"^unknown key 'qqqq'$") as far:
        Outer.parse({"label": "x", "qqqq": 1})
    assert far.value.hint == "known: inner, label"


def test_the_place_of_a_table_is_part_of_the_key() -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown key 'strategy\.round'; did you mean 'rounds'\?$"):
        Inner.parse({"round": 1}, where="strategy")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"^label: this key is required$"),
        ({"label": 3}, r"^label: must be text \(got 3\)$"),
        ({"label": "x", "inner": {"rounds": "3"}}, r"^inner\.rounds: must be a whole number \(got '3'\)$"),
        ({"label": "x", "inner": {"rounds": True}}, r"^inner\.rounds: must be a whole number"),
        ({"label": "x", "inner": {"rounds": 3.0}}, r"^inner\.rounds: must be a whole number"),
        ({"label": "x", "inner": {"rate": float("nan")}}, r"^inner\.rate: must be a finite number"),
        ({"label": "x", "inner": {"rate": float("inf")}}, r"^inner\.rate: must be a finite number"),
        ({"label": "x", "inner": 3}, r"^inner: must be a section"),
    ],
)
def test_nothing_is_converted_in_silence(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Outer.parse(table)


class Many(Settings):
    """One key for each of the commonest mistakes."""

    rounds: int = Field(1, ge=1, le=9)
    least: int | None = Field(None, ge=3)
    part: float = Field(0.5, gt=0, lt=1)
    rate: float = Field(0.5, ge=0, lt=1)
    even: int = Field(2, multiple_of=2)
    on: bool = False
    mark: str = Field("ab", pattern="^[a-f]{2}$", description="two letters from a to f")
    code: str = Field("ab", pattern="^[a-f]{2}$")
    word: str = Field("ab", min_length=2, max_length=3)
    mode: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] = Field(("a",), min_length=1, max_length=2)
    table: dict[str, int] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": 0}, "rounds: must be from 1 to 9 (got 0)"),
        ({"rounds": 10}, "rounds: must be from 1 to 9 (got 10)"),
        ({"rounds": "3"}, "rounds: must be a whole number from 1 to 9 (got '3')"),
        ({"rounds": True}, "rounds: must be a whole number from 1 to 9 (got true)"),
        ({"rounds": None}, "rounds: must be a whole number from 1 to 9 (got nothing)"),
        ({"least": 2}, "least: must be 3 or more (got 2)"),
        ({"least": 2.5}, "least: must be a whole number, 3 or more (got 2.5)"),
        ({"part": -1}, "part: must be above 0 and below 1 (got -1)"),
        ({"part": "x"}, "part: must be a number above 0 and below 1 (got 'x')"),
        ({"part": float("nan")}, "part: must be a finite number above 0 and below 1 (got nan)"),
        ({"rate": 1.0}, "rate: must be 0 or more and below 1 (got 1.0)"),
        ({"even": 3}, "even: must be a multiple of 2 (got 3)"),
        ({"on": 1}, "on: must be true or false (got 1)"),
        ({"mark": "xy"}, "mark: must be two letters from a to f (got 'xy')"),
        ({"code": "xy"}, "code: does not have the form ^[a-f]{2}$ (got 'xy')"),
        ({"word": "a"}, "word: must have 2 characters or more (got 'a')"),
        ({"word": "abcd"}, "word: may have 3 characters at most (got 'abcd')"),
        ({"mode": "fats"}, "mode: 'fats' is not possible; did you mean 'fast'?"),
        ({"names": "a"}, "names: must be a list (got 'a')"),
        ({"names": []}, "names: must not be empty (got [])"),
        ({"names": ["a", "b", "c"]}, "names: may have 2 entries at most (got ['a', 'b', 'c'])"),
        ({"names": ["a", 2]}, "names, entry 2: must be text (got 2)"),
        ({"table": 1}, "table: must be a table (got 1)"),
        ({"table": {"a": "b"}}, "table.a: must be a whole number (got 'b')"),
    ],
)
def test_a_wrong_value_is_told_with_its_key_and_what_is_allowed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Many.parse(given)
    assert caught.value.message == message


def test_a_long_value_is_cut() -> None:
    with pytest.raises(SettingsError) as caught:
        Many.parse({"on": [list(range(50))] * 50})
    assert len(caught.value.message) < 130


def test_values_are_frozen_all_the_way_down() -> None:
    parsed = Outer.parse({"label": "x", "inner": {"tags": ["a", "b"]}})
    assert parsed.inner.tags == ("a", "b")
    with pytest.raises(ValueError, match="frozen"):
        parsed.label = "y"  # type: ignore[misc]


def test_settings_nested_beyond_reason_are_refused() -> None:
    deep: Any = 0
    for _ in range(500):
        deep = [deep]
    with pytest.raises(SettingsError, match="nested too deeply"):
        Outer.parse({"label": deep})


# --- files ------------------------------------------------------------------------------------------------------


def test_a_missing_file_is_named_with_advice(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"study\.toml: no such file$") as caught:
        read_toml(tmp_path / "study.toml", missing="write one")
    assert caught.value.hint == "write one"


def test_a_folder_or_binary_file_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "binary.toml"):
        with pytest.raises(SettingsError, match="cannot be read"):
            read_toml(path)


@pytest.mark.parametrize("text", ["rounds = ", "[study\nrounds = 1", "rounds = 1\nrounds = 2", "x = " + "[" * 5000])
def test_broken_toml_names_the_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=r"study\.toml: not valid TOML"):
        read_toml(path)


# --- names ------------------------------------------------------------------------------------------------------


def test_nearest_is_silent_when_nothing_is_like_it() -> None:
    assert nearest("fedvag", ("fedavg", "local")) == "fedavg"
    assert nearest("xyz", ("fedavg", "local")) is None


def test_require_known() -> None:
    require_known("engine", "threads", ("threads", "processes"))
    with pytest.raises(UnknownNameError, match=r"^unknown engine 'thread'; did you mean 'threads'\?$") as caught:
        require_known("engine", "thread", ("threads", "processes"))
    assert (caught.value.kind, caught.value.name, caught.value.nearest) == ("engine", "thread", "threads")
    assert caught.value.hint == "known: processes, threads"


# --- --set key=value --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a=2", {"a": 2}),
        ("a=0.5", {"a": 0.5}),
        ("a=true", {"a": True}),
        ("a=[1, 2]", {"a": [1, 2]}),
        ('a="2"', {"a": "2"}),
        ("a=dirichlet", {"a": "dirichlet"}),
        ("a=x=y", {"a": "x=y"}),
        ("a=", {"a": ""}),
        (" a =2", {"a": 2}),
        ("b.c.d=2", {"b": {"c": {"d": 2}}}),
    ],
)
def test_an_assignment_is_toml_or_text(assignment: str, expected: dict[str, Any]) -> None:
    table: dict[str, Any] = {}
    set_dotted(table, assignment)
    assert table == expected


def test_an_assignment_keeps_its_neighbours() -> None:
    table: dict[str, Any] = {"study": {"rounds": 1, "seed": 2}}
    set_dotted(table, "study.rounds=5")
    assert table == {"study": {"rounds": 5, "seed": 2}}


@pytest.mark.parametrize("assignment", ["rounds", "=3", " =3", ""])
def test_an_assignment_needs_key_and_value(assignment: str) -> None:
    with pytest.raises(SettingsError, match="expected key=value") as caught:
        set_dotted({}, assignment)
    assert "--set strategy.epochs=2" in caught.value.hint


def test_an_assignment_below_a_value_is_refused() -> None:
    with pytest.raises(SettingsError, match="'study' is a value, not a section"):
        set_dotted({"study": 3}, "study.rounds=5")


@pytest.mark.parametrize("key", ["a[0]", "[", "\x1b[2J"])
def test_an_unknown_key_is_named_whatever_is_in_it(key: str) -> None:
    class Section(Settings):
        rounds: int = 1

    with pytest.raises(UnknownNameError) as caught:
        Section.parse({key: 1})
    assert caught.value.name == key


@pytest.mark.parametrize("name", ["wards", "wards:Wards", 'a "b"', "breast-cancer"])
def test_a_heading_is_one_that_toml_reads(name: str) -> None:
    text = section_name("datasets", name)
    assert tomllib.loads(f"{text}\nunits = 3\n") == {"datasets": {name: {"units": 3}}}
    assert ('"' in text) == (name not in ("wards", "breast-cancer"))
