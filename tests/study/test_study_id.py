"""The id is what a site approves: nothing of the agreement can change under it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from secure_fl.study.settings import Study
from tests.protect.rosters import roster, study

# One other value for every setting there is. A setting that is added later fails the first test until it is here.
OTHER: dict[str, dict[str, Any]] = {
    "study": {"name": "other", "rounds": 11, "seed": 1, "initial": "ab" * 32, "start": "given", "roster": roster(5)},
    "task": {"name": "breast-cancer", "dataset": "ward-7", "settings": {"hidden": 65}},
    "strategy": {"name": "fedprox", "settings": {"epochs": 3}},
    "protection": {
        "kind": "other",
        "colluders": 2,
        "min_cohort": 4,
        "bits": 17,
        "clip": 1.5,
        "reference_samples": 100,
        "circles": [["site-1", "site-2", "site-3", "site-4"]],
        "recovery": True,
        "robust": "median",
        "settings": None,  # each protection has its own
    },
    "privacy": {
        "mode": "dp-sgd",
        "epsilon": 1.0,
        "delta": 1e-5,
        "clip": 2.0,
        "unit": "group",
        "group_rows": 9,
        "spare_attempts": 9,
        "rationale": "because",
    },
    "rounds": {
        "mode": "buffered",
        "unit": "site",
        "deadline": 601.0,
        "phase_deadline": 61.0,
        "gather": 61.0,
        "attempts": 4,
        "patience": 1.0,
        "flushes": 11,
        "buffer": 2,
        "flush_after": 9.0,
        "staleness": 5,
        "merge": "delta",
        "discount": "none",
        "rate": 0.5,
    },
    "metrics": {"share": "none", "ceiling": 99.0, "of": ["auc"]},
}


def test_this_list_is_complete() -> None:
    agreed = {name: field.annotation for name, field in Study.model_fields.items() if name != "simulation"}
    assert {name: set(fields) for name, fields in OTHER.items()} == {
        name: set(section.model_fields)  # type: ignore[union-attr]
        for name, section in agreed.items()
    }


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [(section, key, value) for section, keys in OTHER.items() for key, value in keys.items() if value is not None],
)
def test_the_id_changes_with_every_setting(section: str, key: str, value: Any) -> None:
    assert study(4, **{section: {key: value}}).id != study().id


def test_the_id_changes_with_a_protections_own_setting() -> None:
    sealed = study(protection={"kind": "sealed"})
    assert study(protection={"kind": "sealed", "recompute": False}).id != sealed.id
    assert study(protection={"kind": "sealed", "settings": {"recompute": False}}).id != sealed.id


def test_the_id_changes_with_one_fingerprint_and_with_one_name() -> None:
    sites = roster(4)
    assert study(study={"roster": {**sites, "site-1": "f" * 64}}).id != study().id
    renamed = {("north" if name == "site-1" else name): print_ for name, print_ in sites.items()}
    assert study(study={"roster": renamed}).id != study().id


def test_the_id_does_not_change_with_the_simulation() -> None:
    sections = {"nodes": 7, "partition": "dirichlet", "alpha": 0.1, "min_samples": 3}
    assert study(simulation=sections).id == study().id
    assert study(simulation=sections) != study()


def test_one_value_written_in_two_ways_is_one_study() -> None:
    assert study(protection={"clip": 1}).id == study(protection={"clip": 1.0}).id
    assert study(strategy={"epochs": 3}).id == study(strategy={"settings": {"epochs": 3}}).id


def test_the_id_is_the_hash_of_the_canonical_form() -> None:
    parsed = study()
    assert parsed.id == hashlib.sha256(b"secure-fl study v1\x00" + parsed.canonical()).hexdigest()
