"""`study show`: a site operator is told what leaves and who learns it."""

from __future__ import annotations

from typing import Any

import pytest

from secure_fl.study.explain import explain
from secure_fl.study.settings import PLAIN_METRICS, Study
from tests.protect.rosters import study


def text(**sections: dict[str, Any]) -> str:
    """All sentences of the study's explanation."""
    return "\n".join(sentence for part in explain(study(4, **sections)) for sentence in (part.heading, *part.sentences))


def test_none_is_called_unsafe() -> None:
    assert "UNSAFE: the coordinator sees every site's update in the clear." in text(protection={"kind": "none"})


def test_masked_is_the_default_and_says_who_learns_what() -> None:
    explained = text()
    assert "UNSAFE" not in explained
    assert "the coordinator learns that total, never one site's part, even if it cheats" in explained
    assert "1 circle, for the whole study: site-1, site-2, site-3, site-4." in explained
    assert "A circle that misses a site waits for it" in explained


@pytest.mark.parametrize(
    ("settings", "readers"),
    [
        ({}, "the coordinator together with any one site, or two sites together. Nobody else:"),
        ({"recompute": False}, "the coordinator alone, by calling one update a sum."),
    ],
)
def test_who_could_read_an_encrypted_update_is_said_first(settings: dict[str, Any], readers: str) -> None:
    (part,) = [
        part
        for part in explain(study(4, protection={"kind": "encrypted", **settings}))
        if part.heading == "Who learns what (protection 'encrypted')"
    ]
    assert part.sentences[0].startswith(f"WHO COULD READ AN UPDATE: {readers}")
    assert ("honest-coordinator" in " ".join(part.sentences)) is bool(settings)


def test_circles_are_listed() -> None:
    parts = explain(study(10))
    sentences = " ".join(sentence for part in parts for sentence in part.sentences)
    assert "2 circles, for the whole study: site-1, site-10, site-2, site-3, site-4; site-5, site-6, " in sentences
    assert "a whole circle of at least 5 sites" in sentences


def test_without_a_roster_nobody_looks_for_circles() -> None:
    def said(**sections: dict[str, Any]) -> str:
        parts = explain(Study.parse({"task": {"name": "digits"}, **sections}).completed())
        return " ".join(sentence for part in parts for sentence in part.sentences)

    sentence = "No site is named yet, so there are no circles to show here"
    assert sentence in said()
    assert sentence not in text()
    for others in (
        {"protection": {"kind": "none"}},
        {"protection": {"recovery": True}},
        {"strategy": {"name": "fedamp"}},
    ):
        assert sentence not in said(**others)


def test_recovery_is_an_exception() -> None:
    explained = text(protection={"recovery": True})
    assert "EXCEPTION (changing-cohorts): if a site joins or leaves between two rounds" in explained
    assert explained.count("the difference of the two results tells something about that site") == 1
    assert "A round survives the loss of 1 of 4 sites." in explained
    assert "circle" not in explained
    assert "changing-cohorts" not in text(protection={"kind": "none", "recovery": True})


@pytest.mark.parametrize(("protection", "minimum"), [({}, 4), ({"colluders": 4}, 6), ({"min_cohort": 9}, 9)])
def test_the_minimum_cohort_is_named(protection: dict[str, Any], minimum: int) -> None:
    assert f"is updated only if at least {minimum} sites sent it" in text(protection=protection)


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (
            "none",
            "No measurement (accuracy, loss) leaves the site, so nobody else learns how well the model does there.",
        ),
        ("aggregate", "in the same total as the model, and this protection hides no site's."),
        ("per-node", "The coordinator sees each site's own measurements (accuracy, loss) and its number of samples."),
    ],
)
def test_metrics_are_explained_per_mode(share: str, sentence: str) -> None:
    explained = text(metrics={"share": share}, protection={"kind": "none"})
    assert sentence in explained
    others = ("No measurement", "in the same total as the model", "each site's own measurements")
    assert sum(other in explained for other in others) == 1


@pytest.mark.parametrize(
    ("strategy", "sentence"),
    [
        ("fedavg", "in the blocks features, hidden, head."),
        ("fedprox", "in the blocks features, hidden, head."),
        ("fedper", "in the blocks features, hidden."),
        ("ditto", "in the blocks features, hidden, head."),
        ("fedala", "in the blocks features, hidden, head."),
        ("fedrep", "in the blocks features, hidden."),
        ("pfedme", "in the blocks features, hidden, head."),
        ("pflda", "in the blocks head."),
        ("pflsensing", "in the blocks features, hidden, head."),
        ("tp", "in the blocks features, hidden, head."),
        ("local", "Per round: 0 of "),
    ],
)
def test_the_blocks_that_leave_are_named(strategy: str, sentence: str) -> None:
    assert sentence in text(strategy={"name": strategy})


def test_the_agreement_and_its_limits_are_named() -> None:
    parsed = study(protection={"clip": 0.25, "bits": 12})
    explained = text(protection={"clip": 0.25, "bits": 12})
    assert parsed.id in explained
    assert "cut off at ±0.25" in explained
    assert "rounded to 12 bits" in explained
    assert "nothing limits how much the results can reveal" in explained


def test_weights_are_explained() -> None:
    assert "Every site counts the same" in text()
    few = {"reference_samples": 500, "recovery": True}
    assert "protection.reference_samples has no effect" in text(protection=few)
    assert "by its samples, up to 500" in text(protection={"reference_samples": 500})


def test_a_combination_is_explained_as_one() -> None:
    explained = text(strategy={"name": "fedamp"}, protection={"kind": "sealed"})
    assert "Each site opens its own combination, and nobody else's." in explained
    assert "Each site decides how much every other counts for it." in explained
    assert "measurements (accuracy, loss) are added up once, when the study ends, over all sites" in explained
    assert "rounded to 20 bits" in explained


def test_circles_by_speed_say_what_sites_tell_for_them() -> None:
    parts = explain(study(8, protection={"circles": "speed"}))
    explained = "\n".join(sentence for part in parts for sentence in part.sentences)
    assert "how long that took, to the next power of two" in explained
    assert "which blocks it shares" not in explained


def test_circles_that_do_not_wait_are_explained() -> None:
    explained = text(study={"rounds": 7}, rounds={"mode": "buffered", "flushes": 9})
    assert "takes at most 7 turns" in explained
    assert "after 9 versions of the model" in explained
    assert "do not wait" not in text()


def test_sites_that_do_not_wait_are_explained() -> None:
    explained = text(
        study={"rounds": 7},
        rounds={"mode": "buffered", "unit": "site", "merge": "delta", "buffer": 5, "staleness": 3},
        protection={"kind": "sealed", "recovery": True, "min_cohort": 4},
    )
    assert "Sites do not wait for each other" in explained
    assert "5 of them" in explained
    assert "more than 3 versions old" in explained
    assert "which version each site trained from" in explained
    assert "EXCEPTION (changing-cohorts)" in explained
    assert "the work of those who trained from another version nearly alone" in explained
    assert "at least 0.7" in explained  # how little old work may weigh


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        ("aggregate", "The coordinator sees the sums of the sites that are opened together, not only the value"),
        ("per-node", "The coordinator sees each site's sums, not only the value"),
    ],
)
def test_the_sums_behind_a_metric_are_said_to_be_opened(share: str, sentence: str) -> None:
    parsed = study(task={"name": "breast-cancer"}, metrics={"share": share}).completed()
    explained = "\n".join(line for part in explain(parsed) for line in part.sentences)
    assert "auc (128), sensitivity_at_90 (128)" in explained
    assert sentence in explained
    plain = study(task={"name": "breast-cancer"}, metrics={"share": share}, protection={"kind": "none"}).completed()
    hidden = "of each site, since this protection hides nothing" in str(explain(plain))
    assert hidden == (share == "aggregate")


def test_metrics_that_are_not_shared_are_not_explained() -> None:
    parsed = study(task={"name": "breast-cancer"}, metrics={"share": "none"}).completed()
    assert "auc" not in str(explain(parsed))


def test_metrics_are_among_what_no_noise_covers() -> None:
    private = {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}
    parsed = study(task={"name": "breast-cancer"}, privacy=private).completed()
    assert PLAIN_METRICS in parsed.exceptions
    assert "measurements (accuracy, loss, auc, sensitivity_at_90) leave without noise" in str(explain(parsed))
