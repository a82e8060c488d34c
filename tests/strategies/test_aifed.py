"""AiFed: the paper's numbers, what is sent and what is kept back, who may decide it, and what a site counts by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from secure_fl import strategies
from secure_fl.aggregation import Aggregate, BlockMean
from secure_fl.blocks import Blocks, Vector
from secure_fl.encoding.weights import quantise_weight
from secure_fl.errors import DataError, LayoutMismatchError, SettingsError
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.protect import past
from secure_fl.strategies import aifed
from secure_fl.strategies.base import State
from secure_fl.strategies.gating import consistency, dissimilarities, gate, movement, threshold
from secure_fl.strategies.richness import LEAST, by_entropy, by_labels, entropy
from secure_fl.strategies.site import Site
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.tasks.base import LocalData, Split, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks
from tests.privacy.test_taint import planted, require_a_record_outside_all_samples_unseen
from tests.protect.rosters import study
from tests.strategies.test_fedasa import Tower

TOWER = Tower(TaskSettings())
LAYOUT, INITIAL = initial_blocks(TOWER, 0)
SIZES = {shape.name: shape.size for shape in LAYOUT}


def create(**own: Any) -> aifed.AiFed:
    strategy = strategies.create("aifed", {"batch_size": 8, **own})
    assert isinstance(strategy, aifed.AiFed)
    return strategy


def rows(count: int = 40, *, seed: int = 1) -> Split:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return Split(inputs=x, targets=(x[:, 0] > 0).long())


def site(strategy: aifed.AiFed, *, train: Split | None = None, received: Blocks = INITIAL, **own: Any) -> Site:
    data = LocalData(train=train or rows(), test=rows(seed=2))
    return Site(
        task=TOWER, data=data, training=strategy.settings, initial=INITIAL, received=received,
        **{"personal": {}, "combination": {}, "seed": 1, **own},
    )  # fmt: skip


# --- the paper's formulas ---------------------------------------------------------------------------------------


def test_consistency_and_threshold_by_hand() -> None:
    one, other = np.array([0.1, 0.4, 0.3, 0.8]), np.array([0.2, 0.3, 0.5, 0.9])
    assert consistency(one, other) == pytest.approx(0.836120, abs=1e-6)
    assert consistency(one, -3 * other + 1) == pytest.approx(0.836120, abs=1e-6)  # squared: of scale and sign, nothing
    found = threshold(alpha_round=0.01, version=50, alpha_accuracy=1.0, gained=0.05)
    assert found == pytest.approx(0.634136, abs=1e-6)


def test_consistency_and_threshold_at_their_edges() -> None:
    flat = np.ones(4)
    assert consistency(flat, flat) == 1
    assert consistency(flat, np.arange(4.0)) == 0
    assert consistency(np.array([np.nan, 1, 2]), np.arange(3.0)) == 0
    assert threshold(alpha_round=1.0, version=10_000, alpha_accuracy=0.0, gained=0.0) == 1
    assert threshold(alpha_round=0.0, version=0, alpha_accuracy=1e6, gained=-1.0) == 0


def test_an_rda_has_the_distance_of_each_pair() -> None:
    outputs = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]])
    found = dissimilarities(outputs, torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    assert found.tolist() == [5.0, 4.0, 3.0]


def test_richness_by_hand() -> None:
    assert entropy([50, 30, 20]) == pytest.approx(1.485475, abs=1e-6)
    assert by_entropy([50, 30, 20], 8) == pytest.approx(1.485475 / 3, abs=1e-6)
    assert by_entropy([25] * 4, 4) == 1
    assert by_entropy([100], 4) == LEAST > 0  # One class has no entropy, and the site counts all the same.
    assert by_labels([50, 0, 20], 4) == 0.5


# --- the gate ---------------------------------------------------------------------------------------------------

MOVED = {"body": 0.1, "neck": 0.3, "head": 0.2}
PARAMETERS = {"body": 60, "neck": 30, "head": 10}


@pytest.mark.parametrize(
    ("keep", "sent"),
    [
        (1.0, ("body", "neck", "head")),
        (0.7, ("neck", "head")),
        (0.35, ("neck",)),
        (0.2, ("neck",)),  # at least one, though it does not fit
    ],
)
def test_the_blocks_that_moved_most_within_what_may_be_sent(keep: float, sent: tuple[str, ...]) -> None:
    assert gate(MOVED, PARAMETERS, keep=keep, turn=1, full_every=4) == sent


def test_a_large_block_makes_room_for_small_ones() -> None:
    assert gate({**MOVED, "neck": 0.0}, PARAMETERS, keep=0.5, turn=1, full_every=4) == ("neck", "head")


def test_everything_is_sent_every_few_turns_and_while_nothing_is_known() -> None:
    whole = tuple(PARAMETERS)
    sent = [gate(MOVED, PARAMETERS, keep=0.4, turn=turn, full_every=3) == whole for turn in range(7)]
    assert sent == [True, False, False, True, False, False, True]
    assert gate(MOVED, PARAMETERS, keep=0.4, turn=0, full_every=0) != whole
    assert gate({"body": 1.0}, PARAMETERS, keep=0.4, turn=1, full_every=0) == whole


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.floats(0, 1), st.integers(1, 100)), min_size=1),
    st.floats(0.01, 1),
    st.integers(1, 50),
)
def test_no_more_than_may_be_sent_is_sent_but_for_one_block(
    blocks: dict[str, tuple[float, int]], keep: float, turn: int
) -> None:
    sizes = {name: size for name, (_, size) in blocks.items()}
    sent = gate({name: moved for name, (moved, _) in blocks.items()}, sizes, keep=keep, turn=turn, full_every=0)
    assert sent
    assert sum(sizes[name] for name in sent) <= keep * sum(sizes.values()) or len(sent) == 1
    assert list(sent) == [name for name in sizes if name in sent]


def test_the_coordinator_asks_by_what_was_opened() -> None:
    strategy = create(gating="public", keep=0.4, full_every=3)
    assert strategy.asked(LAYOUT.names, SIZES, State(), 1) == LAYOUT.names  # Nothing was opened yet.
    # One cell moved, the others little; per coordinate, so that a large block is not sent for its size.
    means = {name: np.full(size, 0.5 if name == "cell2" else 0.01, np.float32) for name, size in SIZES.items()}
    current, state = strategy.step(INITIAL, opened(means), State(values={"kept": 1}))
    assert state.values["kept"] == 1
    asked = strategy.asked(LAYOUT.names, SIZES, state, 1)
    assert asked is not None
    assert "cell2" in asked
    assert len(asked) < len(LAYOUT.names)
    assert strategy.asked(LAYOUT.names, SIZES, state, 3) == LAYOUT.names
    # What was not opened is remembered as it was.
    _, later = strategy.step(current, opened({"stem": means["stem"]}), state)
    assert strategy.asked(LAYOUT.names, SIZES, later, 1) == asked
    for gating in ("site", "rank", "none"):
        assert create(gating=gating).asked(LAYOUT.names, SIZES, state, 1) is None


def opened(means: Blocks) -> Aggregate:
    return Aggregate({name: BlockMean(mean=mean, contributors=3) for name, mean in means.items()})


# --- at the site ------------------------------------------------------------------------------------------------


def test_what_is_not_asked_for_is_kept_and_averaged_with_the_next_change() -> None:
    strategy, plain = create(), strategies.create("fedavg", {"batch_size": 8})
    whole = plain.fit(site(strategy))
    first = site(strategy, asked=("cell1", "head"))
    assert tuple(strategy.fit(first)) == ("cell1", "head")  # in the model's order
    kept = first.personal
    assert {name.partition(":")[0] for name in kept} == {*LAYOUT.names} - {"cell1", "head"}
    second = site(strategy, personal=kept, asked=LAYOUT.names, seed=1)
    other = plain.fit(site(strategy, seed=1))
    sent = strategy.fit(second)
    for name in LAYOUT.names:
        expected = other[name] if name in {"cell1", "head"} else (whole[name] + other[name]) / 2
        np.testing.assert_allclose(sent[name], expected, rtol=1e-5, atol=1e-8)
    assert second.personal == {}  # Sent, and so not kept: nothing counts twice.


def test_each_change_is_in_one_average_and_no_average_is_sent_twice() -> None:
    strategy, personal, kept = create(), dict[str, Vector](), dict[str, Vector]()
    turns: list[tuple[str, ...] | None] = [("stem",), ("cell1", "cell2"), ("head",), ("stem", "head"), None]
    for number, asked in enumerate(turns):
        here = site(strategy, personal=personal, asked=asked, seed=number)
        for name, vector in strategies.create("fedavg", {"batch_size": 8}).fit(site(strategy, seed=number)).items():
            kept[name] = np.float32(0.5) * (kept[name] + vector) if name in kept else vector
        for name, vector in strategy.fit(here).items():
            np.testing.assert_allclose(vector, kept.pop(name), atol=1e-6)
        personal = dict(here.personal)
    assert not kept
    assert not personal


def test_without_a_question_everything_is_sent_as_fedavg_does() -> None:
    strategy, plain = create(), strategies.create("fedavg", {"batch_size": 8})
    here = site(strategy)
    assert LAYOUT.digest(strategy.fit(here)) == LAYOUT.digest(plain.fit(site(strategy)))
    assert here.personal == {}


def test_a_question_for_blocks_that_do_not_exist_is_refused() -> None:
    strategy = create()
    with pytest.raises(LayoutMismatchError):
        strategy.fit(site(strategy, asked=("tail",)))


def test_what_is_kept_back_is_no_part_of_what_a_site_predicts_with() -> None:
    strategy = create()
    here = site(strategy, asked=("head",))
    strategy.fit(here)
    assert LAYOUT.digest(strategy.inference(here)) == LAYOUT.digest(INITIAL)


def test_rank_sends_what_changed_most_here_and_keeps_the_rest() -> None:
    strategy = create(gating="rank", keep=0.5, full_every=3)
    state: dict[str, Any] = {}
    for turn in range(4):
        here = site(strategy, state=state)
        sent, state = strategy.fit(here), here.state
        whole = {**sent, **{name.partition(":")[0]: vector for name, vector in here.personal.items()}}
        assert set(whole) == set(LAYOUT.names)
        if turn % 3 == 0:
            assert tuple(sent) == LAYOUT.names
            continue
        assert sum(vector.size for vector in sent.values()) <= 0.5 * LAYOUT.size
        assert max(whole, key=lambda name: movement(whole[name])) in sent


# --- the paper's gate -------------------------------------------------------------------------------------------


def test_almu_sends_the_layers_with_rc_of_at_least_at() -> None:
    strategy = create(gating="site", full_every=0)
    here = site(strategy, round=11)
    sent = strategy.fit(here)
    found, least = here.traces["consistency"], here.traces["threshold"]["AT"]
    assert set(sent) == {name for name, rc in found.items() if rc >= least}
    assert 0 < len(sent) < len(LAYOUT.names)  # With the default α layers are gated, and not all of them.
    assert here.personal == {}  # As in the paper, what is not sent is gone.
    # AT as it should be: r̂ = 10, and δ_acc on the rows the site trains on.
    trained = {name: here.blocks((name,))[name] for name in LAYOUT.names}
    score = [TOWER.evaluate(loaded(here, blocks).model, here.data.train).accuracy for blocks in (INITIAL, trained)]
    assert score[0] is not None
    assert score[1] is not None
    assert least == pytest.approx(
        threshold(alpha_round=0.3, version=10, alpha_accuracy=1.0, gained=score[1] - score[0])
    )


def loaded(here: Site, blocks: Blocks) -> Site:
    here.load(blocks)
    return here


def test_almu_never_looks_at_the_test_rows() -> None:
    strategy = create(gating="site", full_every=0)
    poison = Split(inputs=torch.full((5, 4), torch.nan), targets=torch.zeros(5, dtype=torch.int64))
    one, other = site(strategy, round=5), site(strategy, round=5)
    other.data = LocalData(train=other.data.train, test=poison)
    assert set(strategy.fit(one)) == set(strategy.fit(other))
    assert one.traces == other.traces


def test_a_site_always_sends_something() -> None:
    strategy = create(gating="site", alpha_round=100.0, full_every=0, learning_rate=0.3, epochs=5)
    here = site(strategy, round=50)
    (name,) = strategy.fit(here)
    assert here.traces["threshold"]["AT"] == 1
    assert here.traces["consistency"][name] == max(here.traces["consistency"].values())


def test_a_site_with_few_rows_has_fewer_stimuli() -> None:
    strategy = create(gating="site", full_every=0)
    assert strategy.fit(site(strategy, train=rows(3)))


# --- who may decide ---------------------------------------------------------------------------------------------


def test_the_exception_is_the_one_that_sites_know() -> None:
    assert aifed.CHANGING_COHORTS == past.CHANGING_COHORTS


@pytest.mark.parametrize("gating", ["site", "rank"])
def test_a_site_that_decides_for_itself_is_refused_in_circles(gating: str) -> None:
    table = {"name": "aifed", "gating": gating}
    refused = study(strategy=table)
    for check in (refused.check, lambda: ResolvedStudy.of(refused)):
        with pytest.raises(SettingsError, match="whole circles send alike") as caught:
            check()
        assert "protection.recovery = true" in caught.value.hint
    allowed = study(strategy=table, protection={"kind": "masked", "recovery": True})
    allowed.check()
    assert ResolvedStudy.of(allowed).strategy.partial
    assert past.CHANGING_COHORTS in allowed.exceptions
    assert not allowed.declares
    said = create(gating=gating).explain()
    assert any(sentence.startswith(f"EXCEPTION ({past.CHANGING_COHORTS})") for sentence in said)


@pytest.mark.parametrize("gating", ["public", "none"])
def test_whole_circles_need_no_exception(gating: str) -> None:
    plain = study(strategy={"name": "aifed", "gating": gating})
    plain.check()
    assert not ResolvedStudy.of(plain).strategy.partial
    assert plain.exceptions == frozenset()
    assert not any("EXCEPTION" in sentence for sentence in create(gating=gating).explain())


def test_the_papers_gate_is_refused_under_noise() -> None:
    """It looks at single rows without noise, and what it decides is visible."""
    assert create(gating="site").charged_epochs() is None
    assert [create(gating=gating).charged_epochs() for gating in ("public", "rank", "none")] == [2, 2, 2]
    private = {"mode": "dp-sgd", "epsilon": 3.0, "delta": 1e-5}
    kind = {"kind": "masked", "recovery": True}
    study(strategy={"name": "aifed", "gating": "rank"}, protection=kind, privacy=private).check()
    with pytest.raises(SettingsError, match=r'strategy\.gating = "site" .* looks at the data without noise') as refused:
        study(strategy={"name": "aifed", "gating": "site"}, protection=kind, privacy=private).check()
    assert 'gating = "none"' in refused.value.hint


class Unrefused(aifed.AiFed):
    """The paper's gate, as if it cost nothing under noise."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs


def test_under_noise_the_papers_gate_would_show_a_record() -> None:
    """Nobody has sampled the record, and still it decides which blocks leave. By rank it does not."""
    with pytest.raises(AssertionError, match="which blocks leave depends on the record"):
        require_a_record_outside_all_samples_unseen(planted(Unrefused, gating="site", full_every=0))
    require_a_record_outside_all_samples_unseen(planted(aifed.AiFed, gating="rank", full_every=0))


# --- what a site counts by --------------------------------------------------------------------------------------


def test_labels_count_in_the_weight() -> None:
    half = Split(inputs=rows().inputs, targets=torch.arange(40) % 2)
    one = Split(inputs=rows().inputs, targets=torch.zeros(40, dtype=torch.int64))
    for kind, poor in (("entropy", LEAST), ("labels", 0.5), ("none", 1.0)):
        strategy = create(richness=kind)
        assert strategy.richness(site(strategy, train=half)) == 1
        assert strategy.richness(site(strategy, train=one)) == poor


def test_labels_do_not_count_under_noise() -> None:
    mechanism = Mechanism(unit="record", units=40, sampling=0.5, noise=1.0, clip=1.0, epoch_steps=2)
    one = Split(inputs=rows().inputs, targets=torch.zeros(40, dtype=torch.int64))
    strategy = create()
    assert strategy.richness(site(strategy, train=one, privacy=mechanism, reserved_steps=8)) == 1


def test_the_weight_is_quantised_and_has_its_floor() -> None:
    def weight(richness: float, reference: int | None = 100) -> int:
        return quantise_weight(80, reference_samples=reference, min_cohort=20, colluders=1, richness=richness)

    assert weight(1.0) == quantise_weight(80, reference_samples=100, min_cohort=20, colluders=1) == 51
    assert weight(0.5) == 26
    assert weight(LEAST) == 16  # the floor: nobody stands out in a sum
    assert weight(0.5, None) == 64  # Where all count the same, labels do not matter either.
    for wrong in (0.0, 1.1, float("nan")):
        with pytest.raises(DataError, match="above 0 and at most 1"):
            weight(wrong)


def test_a_study_says_what_its_weights_follow() -> None:
    """What sites sign in every attempt: sums whose weights differ are not judged as if they did not."""
    roster = {f"site-{number:02d}": f"{number:064x}" for number in range(1, 21)}
    protection = {"kind": "masked", "reference_samples": 100, "min_cohort": 20}

    def weighting(**strategy: Any) -> str:
        return study(strategy=strategy, protection=protection, study={"roster": roster}).weighting

    assert weighting(name="fedavg") == weighting(name="aifed", richness="none") == "100 samples, at least 16"
    assert weighting(name="aifed") == "100 samples times label entropy, at least 16"
    assert weighting(name="aifed", richness="labels") == "100 samples times labels, at least 16"
