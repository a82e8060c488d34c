"""Files to validated values: every mistake is named, with the nearest thing that would have been right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.settings import Settings, nearest, read_toml, require_known, set_dotted


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
