"""`study check`: what can be known without a site is refused before a site is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from secure_fl import protect, strategies
from secure_fl.aggregation import Combine, RequestKind
from secure_fl.blocks import Layout
from secure_fl.errors import OverflowInvariantError, SettingsError, UnknownNameError
from secure_fl.protect.none import UnsafeNone
from secure_fl.strategies.base import Request, Strategy
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.study.settings import PLAIN_METRICS
from tests.protect.rosters import study


class CombineOnly(UnsafeNone):
    """A protection that serves no sums."""

    name: ClassVar[str] = "combine-only"
    order: ClassVar[Mapping[RequestKind, tuple[str, ...]]] = {RequestKind.COMBINE: ("upload", "row", "open")}


class Attention(FedAvg):
    """A strategy that asks for a combination."""

    name = "attention"
    asks = RequestKind.COMBINE

    def request(self, layout: Layout, head: tuple[str, ...]) -> Request:
        return Combine(blocks=layout.names)


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test registers is gone afterwards."""
    monkeypatch.setattr(protect, "_BUILT_IN", dict(protect._BUILT_IN))
    monkeypatch.setattr(strategies, "_BUILT_IN", dict(strategies._BUILT_IN))


COMBINING = ("fedamp", "fedcca")


def test_the_defaults_pass() -> None:
    study().check()


@pytest.mark.parametrize("name", strategies.known())
def test_every_built_in_strategy_passes(name: str) -> None:
    kind = "none" if name in COMBINING else "masked"
    task = {"name": "bearings", "network": "cells"} if name == "fedasa" else {"name": "digits"}
    study(task=task, strategy={"name": name}, protection={"kind": kind}).check()


@pytest.mark.parametrize("name", strategies.known())
def test_encrypted_serves_every_strategy(name: str) -> None:
    task = {"name": "bearings", "network": "cells"} if name == "fedasa" else {"name": "digits"}
    study(task=task, strategy={"name": name}, protection={"kind": "encrypted"}).check()


@pytest.mark.parametrize("name", COMBINING)
def test_a_strategy_that_combines_is_refused_under_masks_with_the_reason(name: str) -> None:
    with pytest.raises(SettingsError, match="needs 'combine', which protection 'masked' does not serve") as caught:
        study(strategy={"name": name}, protection={"kind": "masked"}).check()
    assert "none" in caught.value.hint


def test_unknown_names_are_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown strategy 'fedvag'; did you mean 'fedavg'\?$"):
        study(strategy={"name": "fedvag"}).check()
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown task 'digit'; did you mean 'digits'\?$"):
        study(task={"name": "digit"}).check()
    with pytest.raises(UnknownNameError, match=r"(?m)^unknown protection 'non'; did you mean 'none'\?$") as caught:
        study(protection={"kind": "non"}).check()
    assert caught.value.kind == "protection"


def test_a_protection_that_does_not_serve_sums_is_refused_for_a_sum() -> None:
    protect.register("combine-only", f"{__name__}:CombineOnly")
    expected = "(?m)^strategy 'fedavg' needs 'sum', which protection 'combine-only' does not serve$"
    with pytest.raises(SettingsError, match=expected) as caught:
        study(protection={"kind": "combine-only"}).check()
    assert caught.value.hint.startswith("protections that do: none, masked, sealed")  # and what other tests registered


def test_a_protection_that_serves_only_sums_is_refused_for_a_combination() -> None:
    protect.register("double", "tests.protect.double:OneTimePad")
    strategies.register("attention", f"{__name__}:Attention")
    expected = "(?m)^strategy 'attention' needs 'combine', which protection 'double' does not serve$"
    with pytest.raises(SettingsError, match=expected):
        study(strategy={"name": "attention"}, protection={"kind": "double"}).check()
    study(strategy={"name": "attention"}, protection={"kind": "none"}).check()
    study(protection={"kind": "double"}).check()


@pytest.mark.parametrize("sites", [1, 2])
def test_too_few_sites_are_refused(sites: int) -> None:
    expected = f"(?m)^{sites} sites, but nothing is opened with fewer than 3 contributors$"
    with pytest.raises(SettingsError, match=expected):
        study(sites).check()


def test_the_minimum_is_enough_and_one_less_is_not() -> None:
    study(5, protection={"colluders": 3}).check()
    with pytest.raises(SettingsError, match="fewer than 5"):
        study(4, protection={"colluders": 3}).check()
    study(0, protection={"colluders": 3}).check(nodes=5)
    with pytest.raises(SettingsError, match="fewer than 5"):
        study(5, protection={"colluders": 3}).check(nodes=4)


def test_a_study_without_sites_yet_can_be_checked() -> None:
    study(0).check()


def test_bits_that_could_overflow_the_ring_are_refused() -> None:
    study(0, protection={"bits": 24}).check(nodes=256)  # 256·(2²³ − 1) < 2³¹
    with pytest.raises(OverflowInvariantError, match="257 values of 24 bits do not fit a 32-bit ring"):
        study(0, protection={"bits": 24}).check(nodes=257)


@pytest.mark.parametrize(
    ("strategy", "bits", "nodes", "refused"),
    [
        ("fedavg", 24, 255, ""),
        ("fedamp", 22, 200, ""),
        ("fedamp", 24, 60, ""),
        ("fedamp", 23, 200, "(?m)23-bit values of 200 nodes, whose weights add up to 1024, .* at most 22 bits would$"),
    ],
)
def test_what_no_ciphertext_holds_is_refused_with_the_numbers(
    strategy: str, bits: int, nodes: int, refused: str
) -> None:
    among = study(0, strategy={"name": strategy}, protection={"kind": "encrypted", "bits": bits, "recovery": True})
    if not refused:
        among.check(nodes=nodes)
        return
    with pytest.raises(OverflowInvariantError, match=refused) as caught:
        among.check(nodes=nodes)
    assert "protection.bits" in caught.value.hint
    assert caught.value.exit_code == SettingsError.exit_code == 3


@pytest.mark.parametrize(
    ("settings", "exceptions"),
    [
        ({}, set()),
        ({"recompute": True}, set()),
        ({"recompute": False}, {"honest-coordinator"}),
        ({"recovery": True}, {"changing-cohorts"}),
        ({"recovery": True, "recompute": False}, {"changing-cohorts", "honest-coordinator"}),
    ],
)
def test_what_sites_give_up_under_encrypted(settings: dict[str, Any], exceptions: set[str]) -> None:
    among = study(8, protection={"kind": "encrypted", **settings}, metrics={"share": "none"})
    among.check()
    assert among.exceptions == exceptions
    assert len(among.circles()) == (0 if "recovery" in settings else 2)


PRIVATE = {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"privacy": {"mode": "distributed"}}, "privacy.mode 'distributed' is not available"),
        ({"privacy": {"mode": "dp-sgd", "epsilon": 3.0}}, "privacy.epsilon and privacy.delta"),
        ({"privacy": PRIVATE, "protection": {"reference_samples": 100}}, "which no noise covers"),
    ],
)
def test_privacy_that_cannot_be_kept_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        study(**sections).check()


def test_a_strategy_that_does_not_say_what_shapes_its_update_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    study(privacy=PRIVATE).check()
    monkeypatch.setattr(FedAvg, "charged_epochs", Strategy.charged_epochs)
    with pytest.raises(SettingsError, match="does not say what shapes its update"):
        study(privacy=PRIVATE).check()


def test_measurements_without_noise_are_an_exception_of_private_studies() -> None:
    assert PLAIN_METRICS in study(privacy=PRIVATE).exceptions
    assert PLAIN_METRICS not in study(privacy=PRIVATE, metrics={"share": "none"}).exceptions
    assert PLAIN_METRICS not in study().exceptions


@pytest.mark.parametrize("kind", ["masked", "sealed", "encrypted"])
def test_more_sites_than_can_share_keys_are_refused_where_they_must(kind: str) -> None:
    study(0, protection={"kind": "none"}).check(nodes=500)
    among = study(0, protection={"kind": kind, "recovery": True})
    among.check(nodes=256)
    with pytest.raises(OverflowInvariantError, match="500 nodes, and at most 256 share keys"):
        among.check(nodes=500)
    if kind == "masked":
        study(0, protection={"kind": kind}).check(nodes=500)  # keys are shared within a circle


@pytest.mark.parametrize("kind", ["none", "sealed", "encrypted"])
def test_more_comparisons_than_sites_allow_are_refused_unless_the_study_says_so(kind: str) -> None:
    few = {"task": {"name": "breast-cancer"}, "protection": {"kind": kind}}
    with pytest.raises(SettingsError, match=r"by 530 numbers .* fewer than 600") as caught:
        study(strategy={"name": "fedamp"}, **few).check()
    assert "more-comparisons" in caught.value.hint
    agreed = study(strategy={"name": "fedamp", "more_comparisons": True}, **few)
    agreed.check()
    assert agreed.exceptions == {"more-comparisons"}
    many = {"name": "fedamp", "comparisons": 5}
    with pytest.raises(SettingsError, match=r"(?m)^strategy.comparisons = 5: .* 4 times at most$"):
        study(strategy=many, study={"rounds": 9}, protection={"kind": kind}).check()
    study(strategy=many, study={"rounds": 4}, protection={"kind": kind}).check()


def test_a_study_in_which_nobody_is_ever_compared_is_refused() -> None:
    late = {"name": "fedamp", "combine_from": 4}
    study(strategy=late, study={"rounds": 4}, protection={"kind": "none"}).check()
    with pytest.raises(SettingsError, match="no combination can open"):
        study(strategy=late, study={"rounds": 3}, protection={"kind": "none"}).check()


def test_a_row_that_can_never_be_wide_enough_is_refused() -> None:
    few = {"name": "fedcca", "max_selected": 2}
    study(strategy=few, protection={"kind": "none"}).check()  # The nearest others fill it up.
    with pytest.raises(SettingsError, match="no combination can open: at most 3 sites would be in one, and at least 4"):
        study(strategy={**few, "fill": False}, protection={"kind": "none"}).check()
    study(strategy={**few, "fill": False, "max_selected": 3}, protection={"kind": "none"}).check()


def test_a_combine_survives_as_many_dropouts_fewer_as_may_collude() -> None:
    ten = study(10, strategy={"name": "fedamp"}, protection={"kind": "sealed", "recovery": True})
    assert (ten.spare(RequestKind.SUM, 10), ten.spare(RequestKind.COMBINE, 10)) == (4, 3)
    assert ten.spare(RequestKind.COMBINE, 4) == 0
    plain = study(10, strategy={"name": "fedamp"}, protection={"kind": "none"})
    assert plain.spare(RequestKind.COMBINE, 10) == 6


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"strategy": {"name": "fedamp"}}, "combines sites, which have to be there together"),
        ({"protection": {"recovery": True}}, "one whole circle at a time"),
        ({"protection": {"robust": "median"}}, "one whole circle at a time"),
    ],
)
def test_what_needs_everybody_at_once_does_not_go_with_buffered_rounds(sections: dict[str, Any], message: str) -> None:
    study(12, rounds={"mode": "buffered"}).check()
    with pytest.raises(SettingsError, match=message):
        study(12, rounds={"mode": "buffered"}, **sections).check()


def test_where_there_are_no_circles_none_can_be_asked_for_some_blocks() -> None:
    strategy, rounds = {"name": "aifed", "gating": "public"}, {"mode": "sync"}
    study(12, strategy=strategy, rounds=rounds).check()
    with pytest.raises(SettingsError, match="asks whole circles for some of the blocks") as caught:
        study(12, strategy=strategy, rounds=rounds, protection={"recovery": True}).check()
    assert '"rank"' in caught.value.hint


SITES: dict[str, Any] = {
    "rounds": {"mode": "buffered", "unit": "site", "merge": "delta"},
    "protection": {"kind": "sealed", "recovery": True},
}


@pytest.mark.parametrize(
    ("rounds", "sections", "message"),
    [
        ({"mode": "sync"}, {}, 'rounds.unit = "site" is for buffered rounds'),
        ({}, {"protection": {"kind": "masked", "recovery": True}}, "from versions that the sites check"),
        ({}, {"protection": {"kind": "none", "recovery": True}}, "from versions that the sites check"),
        ({}, {"protection": {"kind": "sealed"}}, "from versions that the sites check"),
        ({}, {"strategy": {"name": "fedamp"}}, "combines sites"),
        ({}, {"strategy": {"name": "fedasync"}}, "merges otherwise"),
        ({}, {"strategy": {"name": "aifed", "gating": "public"}}, "asks whole circles for some of the blocks"),
        ({"merge": "cache"}, {"strategy": {"name": "aifed"}}, "merges otherwise"),
        ({"merge": "cache"}, {}, "merges otherwise"),
        ({"flushes": 3}, {}, "another number than study.rounds"),
        ({"staleness": 257}, {}, "at most 256"),
    ],
)
def test_single_sites_go_at_their_own_pace_under_few_settings(
    rounds: dict[str, Any], sections: dict[str, Any], message: str
) -> None:
    for kind in ("sealed", "encrypted"):
        fine = study(6, rounds=SITES["rounds"], protection={"kind": kind, "recovery": True})
        fine.check()
        assert "changing-cohorts" in fine.exceptions
        for gating in ("none", "rank", "site"):
            fine.model_copy(update={"strategy": study(strategy={"name": "aifed", "gating": gating}).strategy}).check()
    with pytest.raises(SettingsError, match=message):
        study(6, **{**SITES, **sections, "rounds": {**SITES["rounds"], **rounds}}).check()
