"""The study file: its mistakes are named where they stand, and it survives TOML and canonical JSON."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from secure_fl import limits, strategies
from secure_fl.aggregation import RequestKind
from secure_fl.errors import SettingsError, UnknownNameError
from secure_fl.plain_text import is_plain
from secure_fl.study.settings import Study
from secure_fl.tasks.digits import Digits
from tests.protect.laws import few, law
from tests.protect.rosters import roster, study

# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"protecton": {}}, r"^unknown key 'protecton'; did you mean 'protection'\?$"),
        ({"study": {"round": 3}}, r"^unknown key 'study\.round'; did you mean 'rounds'\?$"),
        ({"protection": {"colluder": 1}}, r"^unknown key 'protection\.colluder'; did you mean 'colluders'\?$"),
        ({"strategy": {"epoch": 3}}, r"^unknown key 'strategy\.epoch'; did you mean 'epochs'\?$"),
        ({"strategy": {"name": "fedprox", "nu": 1.0}}, r"^unknown key 'strategy\.nu'; did you mean 'mu'\?$"),
    ],
)
def test_an_unknown_key_is_named_on_reading(table: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message):
        Study.parse(table)


def test_an_unknown_setting_of_a_task_is_named_by_the_check() -> None:
    read = Study.parse({"task": {"hiden": 3}})
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown key 'task\.hiden'; did you mean 'hidden'\?$"):
        read.check()


def test_a_slip_in_python_is_named_at_once() -> None:
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown key 'strategy\.epoch'; did you mean 'epochs'\?$"):
        Study.of({"strategy.epoch": 2})
    with pytest.raises(SettingsError, match=r"(?m)^strategy\.epochs: must be from 1 to 1000 \(got 0\)$"):
        Study.of({"strategy.epochs": 0})
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown key 'task\.hiden'; did you mean 'hidden'\?$"):
        Study.of({"task.hiden": 3}, task=Digits)  # a class that is here already


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"task": "digits"},
            r"^'task' is a section of a study; in Python write Study\.of\(task='digits'\), in a file \[",
        ),
        ({"task": Digits}, r"write Study\.of\(task=Digits\), in a file \[task\] name = …$"),
        ({"privacy": "dp-sgd"}, r"write Study\.of\(privacy='dp-sgd'\), in a file \[privacy\] mode = …$"),
        ({"nodes": 5}, r"^'nodes' is no section of a study; in Python write Study\.of\(nodes=5\)"),
        ({"rouns": {}}, r"^unknown key 'rouns'; did you mean 'rounds'\?$"),
        ({"study": {"rounds": 0}}, r"^study\.rounds: must be from 1 to 100000 \(got 0\)$"),
    ],
)
def test_a_study_made_without_of_says_what_to_write(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Study(**given)
    with pytest.raises(SettingsError, match=message):
        Study.parse(given)
    section = Study.of(rounds=3).study
    assert Study(study=section) == Study.parse({"study": {"rounds": 3}}) == Study.of(rounds=3)


def test_settings_of_a_strategy_that_is_not_installed_here_are_left_to_whoever_has_it() -> None:
    assert Study.parse({"strategy": {"name": "elsewhere", "their": 1}}).strategy.settings == {"their": 1}


@pytest.mark.parametrize(
    ("protection", "message"),
    [
        ({"kind": "masked", "recompute": True}, r"^unknown key 'protection\.recompute'"),
        ({"kind": "none", "recompute": True}, r"^unknown key 'protection\.recompute'"),
        ({"kind": "sealed", "recompte": True}, r"^unknown key 'protection\.recompte'; did you mean 'recompute'\?$"),
        ({"kind": "sealed", "colluder": 2}, r"^unknown key 'protection\.colluder'; did you mean 'colluders'\?$"),
        ({"kind": "sealed", "settings": {"colluders": 2}}, r"^unknown key 'protection\.colluders'"),
    ],
)
def test_a_setting_of_another_protection_is_refused_on_reading(protection: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownNameError, match=message) as caught:
        study(protection=protection)
    assert ("recompute" in caught.value.hint) == (protection["kind"] == "sealed")
    assert "colluders" in caught.value.hint


def test_a_setting_of_a_protection_has_its_type() -> None:
    with pytest.raises(SettingsError, match=r"^protection\.recompute: "):
        study(protection={"kind": "sealed", "recompute": 1})


def test_settings_of_a_protection_stand_beside_the_others_in_a_file_and_apart_in_the_canonical_form() -> None:
    written = study(protection={"kind": "sealed", "colluders": 0}).completed()
    assert written.to_table()["protection"] == {
        "kind": "sealed", "colluders": 0, "bits": 20, "clip": 1.0, "recompute": True,
        "circles": "auto", "recovery": False, "robust": "none",
    }  # fmt: skip
    assert json.loads(written.canonical())["protection"]["settings"] == {"recompute": True}
    chosen = study(protection={"kind": "sealed", "recompute": True})
    assert chosen.make_protection().canonical_settings == b'{"recompute":true}'
    assert study(protection={"kind": "masked"}).completed().protection.settings == {}


@pytest.mark.parametrize("name", ["", "Study", "../study", "a..b", "a/b", "-a", "a-", "a" * 65, "a\n"])
def test_a_study_and_its_sites_have_plain_names(name: str) -> None:
    with pytest.raises(SettingsError, match=r"^study\.name: a name has"):
        study(study={"name": name})
    with pytest.raises(SettingsError, match=r"^study\.roster: .* is not a site name"):
        study(study={"roster": {name: "0" * 64}})


@pytest.mark.parametrize("fingerprint", ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, "00:" * 21 + "0"])
def test_a_roster_has_fingerprints(fingerprint: str) -> None:
    with pytest.raises(SettingsError, match="64 hexadecimal digits"):
        study(study={"roster": {"north": fingerprint}})


def test_a_roster_has_no_two_names_for_one_certificate() -> None:
    with pytest.raises(SettingsError, match="same key"):
        study(study={"roster": {"north": "0" * 64, "south": "0" * 64}})


def test_a_roster_is_bounded() -> None:
    assert len(study(limits.NODES).study.roster) == limits.NODES
    with pytest.raises(SettingsError, match=f"at most {limits.NODES} sites"):
        study(limits.NODES + 1)


@pytest.mark.parametrize(
    "section",
    [
        {"protection": {"bits": 3}},
        {"protection": {"bits": 25}},
        {"protection": {"clip": 0.0}},
        {"protection": {"clip": float("inf")}},
        {"protection": {"min_cohort": 2}},
        {"protection": {"colluders": -1}},
        {"protection": {"reference_samples": 0}},
        {"study": {"rounds": 0}},
        {"study": {"seed": -1}},
        {"rounds": {"deadline": 0}},
        {"rounds": {"attempts": 0}},
        {"rounds": {"mode": "async"}},
        {"metrics": {"share": "all"}},
        {"privacy": {"delta": 1.0}},
    ],
)
def test_values_out_of_range_are_refused_by_name(section: dict[str, dict[str, Any]]) -> None:
    ((name, values),) = section.items()
    with pytest.raises(SettingsError, match=rf"^{name}\.{next(iter(values))}: "):
        Study.parse(section)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("nan")], tomllib.loads("d = 2026-01-01")["d"]])
def test_a_setting_is_something_json_can_say(value: Any) -> None:
    # NaN, infinity and "nothing" would all be `null` in the canonical form: three studies with one id.
    with pytest.raises(SettingsError, match=r"^strategy\.settings: "):
        study(strategy={"learning_rate": value})


def test_a_missing_study_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no such file") as caught:
        Study.read(tmp_path / "study.toml")
    assert "secure-fl study new" in caught.value.hint


# --- there and back ---------------------------------------------------------------------------------------------

settings_of_a_strategy = st.dictionaries(
    st.text("abcdef_", min_size=1, max_size=6).filter(lambda key: key not in ("name", "dataset", "settings")),
    st.recursive(
        st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text().filter(is_plain),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=4,
    ),
    max_size=3,
)
tables = st.fixed_dictionaries(
    {
        "study": st.fixed_dictionaries(
            {"rounds": st.integers(1, 100), "seed": st.integers(0, 2**63 - 1), "roster": st.integers(0, 5).map(roster)}
        ),
        "task": settings_of_a_strategy,
        # Not installed here: what its settings may be, nobody can say.
        "strategy": settings_of_a_strategy.map(lambda own: {"name": "elsewhere", **own}),
        "protection": st.fixed_dictionaries(
            {"clip": st.floats(0.01, 100), "bits": st.integers(4, 24)}, optional={"min_cohort": st.integers(3, 9)}
        ),
        "simulation": st.fixed_dictionaries({"nodes": st.integers(1, 256)}),
    }
)


@law
@given(tables)
def test_a_study_survives_its_own_toml(table: dict[str, Any]) -> None:
    parsed = Study.parse(table)
    again = Study.parse(tomllib.loads(tomli_w.dumps(parsed.to_table())))
    assert again == parsed
    assert again.id == parsed.id


@pytest.mark.parametrize("name", strategies.known())
def test_every_strategys_completed_study_survives_its_own_toml(name: str) -> None:
    cells = {"name": "bearings", "network": "cells", "windows": 2}  # what fedasa needs
    settings = {"auxiliary_epochs": 0} if name == "fedasa" else {}
    written = study(task=cells, strategy={"name": name, **settings}).completed()
    assert written.study.initial
    read = Study.parse(tomllib.loads(tomli_w.dumps(written.to_table())))
    assert read.canonical() == written.canonical()


@law
@given(tables)
def test_a_study_survives_its_canonical_form(table: dict[str, Any]) -> None:
    parsed = Study.parse(table)
    again = Study.from_canonical(parsed.canonical())
    assert again.canonical() == parsed.canonical()
    assert again.id == parsed.id
    # All but [simulation], which no site is told.
    assert again == parsed.model_copy(update={"simulation": Study().simulation})


@law
@given(tables, st.randoms(use_true_random=False))
def test_the_canonical_form_does_not_depend_on_the_order_of_keys(table: dict[str, Any], random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        items = [(key, shuffled(item)) for key, item in value.items()]
        random.shuffle(items)
        return dict(items)

    assert Study.parse(shuffled(table)).canonical() == Study.parse(table).canonical()


def test_the_canonical_form_is_sorted_ascii_json_with_defaults_written_out() -> None:
    raw = study().canonical()
    values = json.loads(raw)
    assert raw == json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")
    assert values["version"] == 6
    assert values["protection"]["bits"] == 16
    assert "simulation" not in values


# --- an offer from a hostile coordinator ------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [17, 100, 260, 480, 960, 5_000, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_deeply_nested_offer_is_refused(depth: int, opening: bytes, closing: bytes) -> None:
    nest = opening * depth + b"0" + closing * depth
    for offer in (
        nest,
        b'{"version":6,"study":' + nest + b"}",
        b'{"version":6,"strategy":{"name":"fedavg","epochs":' + nest + b"}}",
    ):
        with pytest.raises(SettingsError):
            Study.from_canonical(offer)


@pytest.mark.parametrize(
    "change",
    [
        {"task": {"name": "digits", "settings": {"x": {"\\ud800": 1}}}},
        {"task": {"name": "digits", "settings": {"x": ["\\udfff"]}}},
        {"task": {"name": "digits", "dataset": "\\ud83d"}},
    ],
)
def test_half_a_character_is_refused(change: dict[str, Any]) -> None:
    """JSON can spell it, and nothing can encode it: it once ended the node that was offered it."""
    offer = (
        json.dumps({"version": 6, "task": {"name": "digits"}, "protection": {"kind": "none"}} | change)
        .replace("\\\\", "\\")
        .encode()
    )
    with pytest.raises(SettingsError, match="not Unicode"):
        Study.from_canonical(offer)


OBEYED = ("\x1b[2J", "\r", "\x07", "\x9b2J", "\u2028", "\u202e")


@pytest.mark.parametrize("obeyed", OBEYED, ids=ascii)
@pytest.mark.parametrize(
    "change",
    [
        lambda text: {"task": {"name": f"{text}:Wards"}},
        lambda text: {"task": {"name": "digits", "dataset": text}},
        lambda text: {"task": {"name": "digits", text: 1}},
        lambda text: {"protection": {"kind": "masked", "circles": [["a", "b", text]]}},
        lambda text: {"privacy": {"rationale": text}},
    ],
)
def test_text_that_a_terminal_obeys_is_refused(change: Callable[[str], dict[str, Any]], obeyed: str) -> None:
    """Whoever decides about a study reads it in one: `node approve` once showed what the study's author painted."""
    said = change(f"a{obeyed}approved")
    with pytest.raises(SettingsError, match="a terminal would obey") as refused:
        Study.parse(said)
    assert is_plain(refused.value.message)
    offer = {"version": 6, "task": {"name": "digits"}, "protection": {"kind": "none"}} | said
    with pytest.raises(SettingsError, match="a terminal would obey"):
        Study.from_canonical(json.dumps(offer).encode())


def test_several_lines_of_a_rationale_are_fine() -> None:
    assert Study.parse({"privacy": {"rationale": "one\n\ttwo – “three”"}}).privacy.rationale.count("\n") == 1


@pytest.mark.parametrize(
    "offer",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"version":7}',
        b'{"version":3}',
        b'{"version":2}',
        b'{"version":0}',
        b'{"version":true}',
        b'{"version":"1"}',
        b'{"version":6,"study":[]}',
        b'{"version":6,"study":{"name":"\\ud800"}}',
        b'{"version":6,"strategy":{"learning_rate":NaN}}',
        b'{"version":6,"strategy":{"learning_rate":1e999}}',
        b'{"version":6,"study":{"seed":' + b"9" * 4_000 + b"}}",
        b'{"version":6,"study":{"seed":' + b"9" * 40_000 + b"}}",
        b'{"version":6,"unknown":{}}',
        b"\xff\xfe\xfa",
    ],
)
def test_a_malformed_offer_is_refused(offer: bytes) -> None:
    with pytest.raises(SettingsError):
        Study.from_canonical(offer)


def test_a_study_of_an_older_version_is_named_as_such() -> None:
    with pytest.raises(SettingsError, match=r"^the study was made by an older version of secure-fl$") as caught:
        Study.from_canonical(b'{"version":1}')
    assert caught.value.hint == "submit it again"


@few
@given(st.binary(max_size=64))
def test_noise_is_no_study(offer: bytes) -> None:
    with pytest.raises(SettingsError):
        Study.from_canonical(offer)


# --- derived values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protection", "sums", "combinations"),
    [
        ({}, 4, 4),  # the one circle of four sites
        ({"recovery": True}, 3, 4),
        ({"colluders": 0, "recovery": True}, 3, 4),
        ({"colluders": 3}, 5, 6),
        ({"min_cohort": 7}, 7, 7),
        ({"min_cohort": 3, "colluders": 4}, 6, 7),
    ],
)
def test_the_minimum_cohort_is_never_below_what_is_safe(
    protection: dict[str, Any], sums: int, combinations: int
) -> None:
    parsed = study(protection=protection)
    assert parsed.min_cohort(RequestKind.SUM) == sums
    assert parsed.min_cohort(RequestKind.COMBINE) == combinations


def test_the_data_set_is_named_after_the_task_unless_the_study_says_otherwise() -> None:
    assert study().task.dataset_id == "digits"
    assert study(task={"dataset": "ward-7"}).task.dataset_id == "ward-7"


def test_a_study_without_a_clip_gets_the_one_that_suits_its_task() -> None:
    assert study().completed().protection.clip == 1.0
    assert study(task={"name": "sine"}).completed().protection.clip == 0.25
    assert study(task={"name": "sine"}, protection={"clip": 2.0}).completed().codec().clip == 2.0
    assert study(task={"name": "sine"}).completed().codec().clip == 0.25
    assert study().codec().clip == 1.0
