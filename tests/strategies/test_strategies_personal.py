"""The strategies with a model per site, on tasks whose gradients can be written down."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from secure_fl import strategies
from secure_fl.blocks import Blocks, Vector
from secure_fl.errors import DataError, LayoutMismatchError, SettingsError
from secure_fl.strategies.base import Aggregate, BlockMean, State, Strategy, Sum
from secure_fl.strategies.fedamp import FedAMP
from secure_fl.strategies.pflsensing import class_weights, top
from secure_fl.strategies.site import Site
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks
from tests.strategies import regression
from tests.strategies.regression import INITIAL, LAYOUT, Weights

PERSONAL = ("ditto", "fedala", "fedrep", "pfedme", "pflda", "pflsensing", "tp")


class Given(Task):
    """A task that is given its data."""

    kind: ClassVar[Literal["classification", "regression"]] = "regression"

    def load(self, source: Source) -> LocalData:
        raise DataError("this task is given its data")


class Slope(Given):
    """A loss that is linear in the weights of `low` and `high`: its gradient is the mean of the inputs, everywhere."""

    def model(self) -> nn.Module:
        return _TwoRows()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.mean()


class _TwoRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(1, 1, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.low(x[:, :1]) + self.high(x[:, 1:])  # type: ignore[no-any-return]


class _Shift(nn.Module):
    """Φ(x) = x + β."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.beta


class _Sine(nn.Module):
    """g(φ) = γ·sin(2πφ)."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1))

    def forward(self, phi: Tensor) -> Tensor:
        return self.gamma * torch.sin(2 * math.pi * phi)


class Shifted(Given):
    """y = w·(x + β), squared error."""

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(encoder=_Shift(), decoder=nn.Linear(1, 1, bias=False)))


class ShiftedSine(Given):
    """y = γ·sin(2π(x + β)), squared error: the example of section 3.2 of the PFL-DA paper."""

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(encoder=_Shift(), decoder=_Sine()))


class Votes(Given):
    """Three classes; the loss of a row is the weight of its class, so the gradient counts rows."""

    kind = "classification"

    def model(self) -> nn.Module:
        return nn.Sequential(OrderedDict(head=nn.Linear(1, 3, bias=False)))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.gather(1, targets[:, None]).mean()


def blocks(**values: list[float]) -> dict[str, Vector]:
    return {name: np.array(value, np.float32) for name, value in values.items()}


def create(name: str, **settings: Any) -> Strategy:
    """A strategy that takes one plain gradient step per epoch, over all rows."""
    plain = {"epochs": 1, "batch_size": 100, "learning_rate": 0.1, "momentum": 0.0}
    return strategies.create(name, {**plain, **settings})


def site(
    task: Given,
    strategy: Strategy,
    x: list[list[float]],
    *,
    received: Blocks,
    y: Any = None,
    personal: Any = None,
    state: Any = None,
) -> Site:
    targets = torch.zeros(len(x), 1) if y is None else torch.tensor(y)
    split = Split(inputs=torch.tensor(x), targets=targets)
    return Site(
        task=task,
        data=LocalData(train=split, test=split),
        training=strategy.settings,
        initial=initial_blocks(task, 0)[1],
        received=received,
        personal=personal or {},
        combination={},
        seed=0,
        state=state,
    )


def near(*values: float) -> Any:
    return pytest.approx(list(values), abs=1e-6)


SLOPE, SHIFTED = Slope(TaskSettings()), Shifted(TaskSettings())
STILL = [0.0, 0.0]  # a gradient of zero


# --- Ditto ------------------------------------------------------------------------------------------------------


def test_ditto_pulls_the_personal_model_towards_the_received_one() -> None:
    # v ← v − η(∇F + λ(v − w)): v = 1, ∇F = .5, λ = .01, w = .2, η = .1.
    strategy = create("ditto", lam=0.01, personal_epochs=1)
    here = site(
        SLOPE, strategy, [[0.5, *STILL]],
        received=blocks(low=[0.2], high=STILL), personal=blocks(low=[1.0], high=STILL),
    )  # fmt: skip
    change = strategy.fit(here)
    assert here.personal["low"].tolist() == near(0.949200)
    assert change["low"].tolist() == near(-0.05)


def test_dittos_personal_model_starts_from_the_received_one_and_then_predicts() -> None:
    strategy = create("ditto", personal_epochs=3)
    received = {name: vector + np.float32(0.5) for name, vector in INITIAL.items()}
    here = regression.site(strategy, received=received)
    assert LAYOUT.digest(strategy.inference(here)) == LAYOUT.digest(received)
    strategy.fit(here)
    assert strategy.inference(here)["head"].tolist() == here.personal["head"].tolist()
    assert here.personal["head"].tolist() != received["head"].tolist()


@pytest.mark.parametrize("name", ["ditto", "pflsensing"])
def test_what_leaves_beside_a_personal_model_is_what_fedavg_sends(name: str) -> None:
    mine = {block: vector + np.float32(1.5) for block, vector in INITIAL.items()}
    plain = create("fedavg", epochs=2)
    expected = LAYOUT.digest(plain.fit(regression.site(plain, received=INITIAL)))
    for personal in ({}, mine):
        strategy = create(name, epochs=2)
        change = strategy.fit(regression.site(strategy, received=INITIAL, personal=personal))
        assert LAYOUT.digest(change) == expected


# --- FedRep -----------------------------------------------------------------------------------------------------


def test_fedrep_fits_the_head_to_the_body_and_then_the_body_to_the_head() -> None:
    strategy = create("fedrep", head_epochs=2)
    mine = blocks(head=[2.5])
    here = regression.site(strategy, received={"body": INITIAL["body"]}, personal=mine)
    change = strategy.fit(here)
    now = Weights.of({**INITIAL, **mine})
    for _ in range(2):
        now = Weights(now.body, now.head - 0.1 * now.gradient().head)
    body = now.body - 0.1 * now.gradient().body
    assert here.personal["head"].tolist() == near(now.head)
    assert (INITIAL["body"] + change["body"]).tolist() == near(*body)
    assert set(change) == {"body"}
    assert set(here.personal) == {"head"}


def test_fedrep_asks_for_the_body() -> None:
    strategy = create("fedrep")
    assert strategy.request(LAYOUT, ("head",)) == Sum(blocks=("body",))
    assert not strategy.has_global_model


class Normalised(Given):
    """With a running mean in the body."""

    def model(self) -> nn.Module:
        body = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
        return nn.Sequential(OrderedDict(body=body, head=nn.Linear(2, 1)))


def normalised(name: str) -> Site:
    strategy = create(name)
    task = Normalised(TaskSettings())
    x = [[1.0, 2.0], [-1.0, 0.5], [0.0, 1.5], [2.0, -1.0]]
    return site(task, strategy, x, y=[[1.0], [2.0], [-1.0], [0.5]], received=initial_blocks(task, 0)[1])


def test_a_block_that_is_not_trained_keeps_its_running_statistics_too() -> None:
    here = normalised("fedavg")
    here.load(here.received)
    here.train(only=("head",), epochs=3)
    assert here.blocks()["body"].tobytes() == here.received["body"].tobytes()
    assert here.blocks()["head"].tobytes() != here.received["head"].tobytes()
    assert all(parameter.requires_grad for parameter in here.model.parameters())


def test_what_a_task_has_frozen_itself_stays_frozen() -> None:
    here = normalised("fedavg")
    here.load(here.received)
    here.model.get_submodule("head").requires_grad_(False)
    here.train(only=("body",))
    here.train()
    assert here.blocks()["head"].tobytes() == here.received["head"].tobytes()
    assert here.blocks()["body"].tobytes() != here.received["body"].tobytes()


# --- train, then personalise ------------------------------------------------------------------------------------


def test_tp_predicts_with_the_received_model_after_some_steps() -> None:
    strategy = create("tp", personal_epochs=2)
    here = regression.site(strategy, received=INITIAL)
    tuned = strategy.inference(here)
    now = Weights.of(INITIAL)
    for _ in range(2):
        now = now.plus(now.gradient(), -0.1)
    assert [*tuned["body"].tolist(), *tuned["head"].tolist()] == near(*now.flat())
    assert LAYOUT.digest(strategy.inference(here)) == LAYOUT.digest(tuned)


@pytest.mark.parametrize("name", ["tp", "fedavg"])
def test_tp_sends_what_fedavg_sends_whether_or_not_it_was_measured_before(name: str) -> None:
    plain = normalised("fedavg")
    expected = create("fedavg").fit(plain)
    measured, strategy = normalised(name), create(name)
    strategy.inference(measured)
    change = strategy.fit(measured)
    assert plain.layout.digest(change) == plain.layout.digest(expected)
    assert measured.personal == {}


def test_what_is_tried_aside_leaves_no_trace() -> None:
    here = normalised("fedavg")
    before = {name: value.clone() for name, value in here.model.state_dict().items()}
    with here.aside():
        here.train()
        assert not torch.equal(here.model.state_dict()["body.1.running_mean"], before["body.1.running_mean"])
    for name, value in here.model.state_dict().items():
        assert torch.equal(value, before[name]), name


# --- pFedMe -----------------------------------------------------------------------------------------------------


def test_pfedme_steps_towards_the_envelope_by_hand() -> None:
    # ∇f = .5, λ = 2, K = 2, ηλ = .5. First batch: θ = 1, .95, .91 and w = .955; second: θ = .869, .8362, w = .8956.
    strategy = create("pfedme", epochs=2, lam=2.0, inner_steps=2, outer_rate=0.25)
    here = site(SLOPE, strategy, [[0.5, *STILL]], received=blocks(low=[1.0], high=STILL))
    change = strategy.fit(here)
    assert here.personal["low"].tolist() == near(0.8362)
    assert change["low"].tolist() == near(0.8956 - 1.0)
    assert strategy.inference(here)["low"].tolist() == near(0.8362)


def test_pfedme_solved_exactly_moves_by_the_gradient_of_the_envelope() -> None:
    # A linear f has θ̂(w) = w − ∇f/λ, so λ(w − θ̂) = ∇f.
    strategy = create("pfedme", lam=4.0, inner_steps=100, outer_rate=0.25)
    here = site(SLOPE, strategy, [[0.5, 1.0, -2.0]], received=blocks(low=[1.0], high=[0.0, 3.0]))
    change = strategy.fit(here)
    assert [*change["low"], *change["high"]] == near(-0.125, -0.25, 0.5)


def test_pfedmes_coordinator_goes_a_part_of_the_way() -> None:
    aggregate = Aggregate({"low": BlockMean(mean=np.array([0.4], np.float32), contributors=3)})
    stepped, _ = create("pfedme", beta=0.5).step(blocks(low=[1.0], high=STILL), aggregate, State())
    assert stepped["low"].tolist() == near(1.2)
    assert stepped["high"].tolist() == STILL


# --- PFL-DA -----------------------------------------------------------------------------------------------------


def test_pflda_trains_encoder_and_decoder_and_then_its_own_decoder() -> None:
    # w: 1 → 1.3 and β: 0 → .2 on F; then γ: .5 → 1.096 at the new β, pulled towards w as it was received.
    strategy = create("pflda", lam=0.1)
    here = site(
        SHIFTED, strategy, [[1.0], [2.0]], y=[[2.0], [3.0]],
        received=blocks(decoder=[1.0]), personal=blocks(encoder=[0.0], decoder=[0.5]),
    )  # fmt: skip
    change = strategy.fit(here)
    assert set(change) == {"decoder"}
    assert change["decoder"].tolist() == near(0.3)
    assert here.personal["encoder"].tolist() == near(0.2)
    assert here.personal["decoder"].tolist() == near(1.096)
    assert strategy.inference(here)["decoder"].tolist() == near(1.096)


def test_pfldas_decoder_settles_between_its_own_data_and_the_global_decoder() -> None:
    # γ = (α + 2λμ)/(1 + 2λ) for amplitude α = 1.2, λ = .9 and a global amplitude μ = 1.
    strategy = create("pflda", lam=0.9, epochs=300, learning_rate=0.02)
    x = np.arange(64) / 64
    here = site(
        ShiftedSine(TaskSettings()), strategy, x[:, None].astype(np.float32).tolist(),
        y=(1.2 * np.sin(2 * np.pi * x))[:, None].astype(np.float32).tolist(),
        received=blocks(decoder=[1.0]),
    )  # fmt: skip
    strategy.fit(here)
    assert here.personal["encoder"].tolist() == near(0.0)
    # In float32, steps end about 2e-6 before the fixed point.
    assert here.personal["decoder"][0] == pytest.approx(1.071429, abs=5e-6)


def test_a_site_that_missed_rounds_goes_on_from_its_own_encoder_and_the_decoder_of_now() -> None:
    # β = .2 and γ = 1.096 as above; meanwhile the others took w to 1.5. By hand: w → 1.458, β → .185, γ → 1.319422.
    strategy = create("pflda", lam=0.1)
    here = site(
        SHIFTED, strategy, [[1.0], [2.0]], y=[[2.0], [3.0]],
        received=blocks(decoder=[1.5]), personal=blocks(encoder=[0.2], decoder=[1.096]),
    )  # fmt: skip
    assert strategy.fit(here)["decoder"].tolist() == near(-0.042)
    assert here.personal["encoder"].tolist() == near(0.185)
    assert here.personal["decoder"].tolist() == near(1.319422)


def test_simple_da_has_no_decoder_of_its_own() -> None:
    # The first level of the vector above, and nothing else.
    strategy = create("pflda", simple=True)
    here = site(
        SHIFTED, strategy, [[1.0], [2.0]], y=[[2.0], [3.0]],
        received=blocks(decoder=[1.0]), personal=blocks(encoder=[0.0]),
    )  # fmt: skip
    assert strategy.fit(here)["decoder"].tolist() == near(0.3)
    assert set(here.personal) == {"encoder"}
    assert here.personal["encoder"].tolist() == near(0.2)
    assert strategy.inference(here)["decoder"].tolist() == [1.0]
    assert "predicts with the global decoder" in strategy.explain()[1]


def test_simple_da_sends_what_pflda_sends() -> None:
    # The personal decoder is a matter of the second level: what is learnt together is the same.
    sent = []
    for simple in (True, False):
        strategy = create("pflda", simple=simple, epochs=2)
        here = regression.site(strategy, received={"head": INITIAL["head"]})
        sent.append((strategy.fit(here)["head"].tobytes(), here.personal["body"].tobytes()))
    assert sent[0] == sent[1]


def test_simple_da_with_the_parts_exchanged_is_fedper() -> None:
    fedper, simple = create("fedper", epochs=2), create("pflda", simple=True, decoder=["body"], epochs=2)
    received, personal = {"body": INITIAL["body"]}, dict[str, Vector]()
    for _ in range(3):
        ours, theirs = (regression.site(s, received=received, personal=personal) for s in (simple, fedper))
        change, expected = simple.fit(ours), fedper.fit(theirs)
        assert change["body"].tobytes() == expected["body"].tobytes()
        assert ours.personal["head"].tobytes() == theirs.personal["head"].tobytes()
        received, personal = {"body": received["body"] + change["body"]}, dict(ours.personal)


def test_pfldas_personal_decoder_has_no_part_in_what_leaves() -> None:
    changes = []
    for gamma in (0.5, -7.0):
        strategy = create("pflda")
        personal = blocks(encoder=[0.1], decoder=[gamma])
        here = site(
            SHIFTED, strategy, [[1.0], [2.0]], y=[[2.0], [3.0]], received=blocks(decoder=[1.0]), personal=personal
        )
        changes.append(strategy.fit(here)["decoder"].tobytes())
    assert changes[0] == changes[1]


def test_pflda_shares_the_head_or_the_blocks_it_is_told() -> None:
    assert create("pflda").request(LAYOUT, ("head",)) == Sum(blocks=("head",))
    assert create("pflda", decoder=["body"]).request(LAYOUT, ("head",)) == Sum(blocks=("body",))
    # Where the personal blocks of a task are at the input, the decoder is what follows them.
    assert create("pflda").request(LAYOUT, ("body",)) == Sum(blocks=("head",))
    assert not create("pflda").has_global_model
    with pytest.raises(LayoutMismatchError, match="no block 'tail'"):
        create("pflda", decoder=["tail"]).request(LAYOUT, ("head",))


# --- pFL-Sensing ------------------------------------------------------------------------------------------------

# Training with η = .1 takes v and w from here to v = (1, 2), w = (0, 4), for a gradient of (.3, −.2).
GRADIENT = [0.0, 0.3, -0.2]
FROM_W, FROM_V = blocks(low=[1.0], high=[0.03, 3.98]), blocks(low=[2.0], high=[1.03, 1.98])


def sensing(x: list[float], personal: Blocks, state: Any = None, **settings: Any) -> tuple[Site, Blocks]:
    strategy = create("pflsensing", **settings)
    here = site(SLOPE, strategy, [x], received=FROM_W, personal=personal, state=state)
    return here, strategy.fit(here)


@pytest.mark.parametrize(("rate", "alpha", "mixed"), [(0.1, 0.43, (0.43, 3.14)), (1.0, 0.0, (0.0, 4.0))])
def test_pflsensings_weight_follows_the_chain_rule_and_is_clipped(
    rate: float, alpha: float, mixed: tuple[float, float]
) -> None:
    here, change = sensing(GRADIENT, FROM_V, alpha_rate=rate)
    assert here.state["alpha"] == pytest.approx({"low": 0.5, "high": alpha}, abs=1e-6)
    assert here.personal["high"].tolist() == near(*mixed)
    assert here.personal["low"].tolist() == near(1.5)
    assert change["high"].tolist() == near(-0.03, 0.02)


def test_pflsensing_keeps_the_top_blocks_of_v_between_full_rounds() -> None:
    # `high` has the larger α: it is kept as v has it, and its α stays; `low` is mixed with its new α.
    kept = {"alpha": {"low": 0.25, "high": 0.75}, "rounds taken": 1}
    x = [0.4, 0.3, -0.2]
    here, _ = sensing(x, FROM_V, kept, alpha_rate=0.1, top_k=1, period=2)
    v, w = 2.0 - 0.04, 1.0 - 0.04
    alpha = 0.25 - 0.1 * (v - w) * 0.4
    assert here.state["alpha"] == pytest.approx({"low": alpha, "high": 0.75}, abs=1e-6)
    assert here.personal["high"].tolist() == near(1.0, 2.0)
    assert here.personal["low"].tolist() == near(alpha * v + (1 - alpha) * w)
    assert here.state["rounds taken"] == 2
    # The next round is a full one again: both move.
    again, _ = sensing(x, here.personal, here.state, top_k=1, period=2)
    assert again.state["alpha"]["high"] < 0.75


@pytest.mark.parametrize("order", [("low", "high"), ("high", "low")])
def test_which_of_equal_blocks_pflsensing_keeps_is_not_up_to_the_file(order: tuple[str, str]) -> None:
    kept = {"alpha": dict.fromkeys(order, 0.75), "rounds taken": 1}
    here, _ = sensing([0.4, 0.3, -0.2], FROM_V, kept, top_k=1, period=2)
    now = here.state["alpha"]
    assert now["low"] == 0.75
    assert now["high"] != 0.75
    assert here.traces == {"alpha": pytest.approx(now)}
    assert set(here.traces) == set(create("pflsensing").notes)


def test_pflsensing_predicts_with_blocks_only() -> None:
    here, _ = sensing(GRADIENT, {})
    assert set(create("pflsensing").inference(here)) == {"low", "high"}
    assert LAYOUT.digest(create("pflsensing").inference(regression.site(create("pflsensing"), received=INITIAL)))


def test_of_equal_weights_the_earlier_block_is_kept() -> None:
    assert top({"a": 0.2, "b": 0.5, "c": 0.5}, 1) == ("b",)
    assert top({"a": 0.2, "b": 0.5, "c": 0.5}, 2) == ("b", "c")
    assert top({"a": 0.2}, 0) == ()
    assert top({"a": 0.2}, 5) == ("a",)


COUNTS = (6, 3, 1)
LABELS = [label for label, count in enumerate(COUNTS) for _ in range(count)]


def test_class_weights_are_inverse_frequencies_with_mean_one() -> None:
    weights = class_weights(torch.tensor(LABELS))
    assert list(weights.values()) == near(0.555556, 1.111111, 3.333333)
    assert sum(weights[label] for label in LABELS) / len(LABELS) == pytest.approx(1.0)
    assert class_weights(torch.tensor([4, 4])) == {4: 1.0}


def test_pflsensing_trains_the_common_model_balanced_and_its_own_plainly() -> None:
    # The plain gradient of class j is its share m_j/m; with weights μ_j it is 1/C for all of them.
    strategy = create("pflsensing", alpha_rate=1e-9)
    received = blocks(head=[0.0, 0.0, 0.0])
    here = site(Votes(TaskSettings()), strategy, [[1.0]] * 10, y=LABELS, received=received)
    change = strategy.fit(here)
    w, v = np.full(3, -0.1 / 3), np.array([-0.06, -0.03, -0.01])
    assert change["head"].tolist() == near(*w)
    assert here.personal["head"].tolist() == near(*(w + v) / 2)


# --- FedALA -----------------------------------------------------------------------------------------------------

OWN, COMMON = blocks(low=[5.0], high=[1.0, 2.0]), blocks(low=[3.0], high=[2.0, 1.0])
LEARNT = blocks(**{"weights of parameter 0": [0.5, 0.75]})


def ala(personal: Blocks, **settings: Any) -> tuple[Strategy, Site]:
    strategy = create("fedala", fraction=1.0, **settings)
    return strategy, site(SLOPE, strategy, [[0.0, 0.1, 0.2]], received=COMMON, personal=personal)


def test_fedala_mixes_the_highest_block_element_by_element() -> None:
    # W ← W − η·∇ ⊙ (Θ − Θ_i) = (.5, .75) − (.1, −.2); Θ̂ = Θ_i + (Θ − Θ_i) ⊙ W = (1 + .4, 2 − .95).
    strategy, here = ala({**OWN, **LEARNT})
    assert strategy.inference(here)["high"].tolist() == near(1.4, 1.05)
    assert strategy.inference(here)["low"].tolist() == [3.0]
    change = strategy.fit(here)
    assert here.personal["weights of parameter 0"].tolist() == near(0.4, 0.95)
    assert here.personal["high"].tolist() == near(1.4 - 0.01, 1.05 - 0.02)
    assert change["high"].tolist() == near(1.39 - 2.0, 1.03 - 1.0)
    assert change["low"].tolist() == [0.0]


def test_fedalas_weights_stay_between_nothing_and_all() -> None:
    strategy, here = ala({**OWN, **LEARNT}, weight_rate=10.0)
    strategy.fit(here)
    assert here.personal["weights of parameter 0"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    "stop", [{"start_epochs": 3, "threshold": 1e-9}, {"start_epochs": 50, "threshold": 10.0, "window": 2}]
)
def test_fedala_learns_its_first_weights_until_the_loss_is_steady_or_it_is_enough(stop: dict[str, Any]) -> None:
    strategy, here = ala(OWN, **stop)
    strategy.fit(here)
    assert here.personal["weights of parameter 0"].tolist() == near(1 - 3 * 0.1, 1.0)


def test_fedala_mixes_as_many_blocks_as_it_is_told() -> None:
    strategy, here = ala(OWN, layers=2, start_epochs=1)
    strategy.fit(here)
    assert {"weights of parameter 0", "weights of parameter 1"} < set(here.personal)


def test_fedala_begins_as_fedavg() -> None:
    strategy, plain = create("fedala"), create("fedavg")
    ours, theirs = (s.fit(regression.site(s, received=INITIAL)) for s in (strategy, plain))
    assert LAYOUT.digest(ours) == LAYOUT.digest(theirs)


# --- FedAMP -----------------------------------------------------------------------------------------------------


def _squared(values: dict[str, float], me: str) -> dict[str, float]:
    return {peer: (values[me] - value) ** 2 for peer, value in values.items()}


def test_fedamp_mixes_as_the_paper_says() -> None:
    models = {"a": 1.0, "b": 0.0, "c": 3.0}
    strategy = create("fedamp", alpha=0.1, sigma=1.0)
    assert isinstance(strategy, FedAMP)
    mixtures = []
    for me, own in models.items():
        shares = strategy.attention_weights(me, _squared(models, me))
        mixtures.append((1 - sum(shares.values())) * own + sum(share * models[j] for j, share in shares.items()))
    assert mixtures == pytest.approx([0.966875, 0.036825, 2.996300], abs=5e-7)


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.6, 1.0, 50.0])
@pytest.mark.parametrize("sigma", [None, 1.0, 40.0])
def test_a_fedamp_site_is_between_an_eighth_and_half_of_its_own_mixture(alpha: float, sigma: float | None) -> None:
    models = {f"n{i}": float(i * i) for i in range(6)}
    strategy = create("fedamp", alpha=alpha, sigma=sigma)
    for me, own in models.items():
        wanted = strategy.attend(me, _squared(models, me))
        assert 1 / 8 - 1e-9 <= wanted[me] / sum(wanted.values()) <= 1 / 2 + 1e-9
        # Nearer peers count more.
        others = sorted((abs(own - models[peer]), -wanted[peer]) for peer in models if peer != me)
        assert [weight for _, weight in others] == sorted(weight for _, weight in others)


def test_without_sigma_fedamp_does_not_care_about_the_unit() -> None:
    models = {f"n{i}": float(i) for i in range(5)}
    larger = {name: 100 * value for name, value in models.items()}
    strategy = create("fedamp")
    assert strategy.attend("n0", _squared(models, "n0")) == pytest.approx(strategy.attend("n0", _squared(larger, "n0")))


def test_fedamp_trains_near_what_was_opened_and_without_it_near_itself() -> None:
    strategy = create("fedamp", epochs=1, lam=1e4, learning_rate=1e-5, momentum=0.0)
    start = {name: vector + np.float32(1) for name, vector in INITIAL.items()}
    opened = {name: np.full_like(vector, 0.5) for name, vector in INITIAL.items()}
    here = regression.site(strategy, received=INITIAL, personal=start, combination=opened)
    change = strategy.fit(here)
    for name in INITIAL:
        assert change[name] == pytest.approx(opened[name], abs=1e-2)
        assert here.personal[name] == pytest.approx(INITIAL[name] + change[name], abs=1e-6)
    alone = regression.site(strategy, received=INITIAL, personal=start)
    for vector in strategy.fit(alone).values():
        assert vector == pytest.approx(np.ones_like(vector), abs=1e-2)
    assert strategy.features(alone) == pytest.approx(np.concatenate([alone.personal[n] for n in LAYOUT.names]))


# --- what all of them do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PERSONAL)
def test_what_leaves_is_what_was_asked_for_in_three_rounds(name: str) -> None:
    strategy = create(name)
    shared = strategy.request(LAYOUT, ("head",)).blocks
    received, personal = {block: INITIAL[block] for block in shared}, dict[str, Vector]()
    for _ in range(3):
        here = regression.site(strategy, received=received, personal=personal)
        before = LAYOUT.digest(strategy.inference(here))
        assert LAYOUT.digest(strategy.inference(here)) == before
        change = strategy.fit(here)
        assert tuple(change) == shared
        personal = dict(here.personal)
        means = Aggregate({b: BlockMean(mean=change[b], contributors=3) for b in change})
        received = dict(strategy.step(received, means, State())[0])
        LAYOUT.select(shared).check(received)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("ditto", {"lam": -0.1}),
        ("ditto", {"personal_epochs": 0}),
        ("fedala", {"layers": 0}),
        ("fedala", {"fraction": 0.0}),
        ("fedala", {"fraction": 1.5}),
        ("fedrep", {"head_epochs": 0}),
        ("pfedme", {"lam": 0.0}),
        ("pfedme", {"inner_steps": 0}),
        ("pfedme", {"beta": 0.0}),
        ("pflda", {"lam": -1.0}),
        ("pflda", {"decoder": "head"}),
        ("pflda", {"simple": "perhaps"}),
        ("pflsensing", {"period": 0}),
        ("pflsensing", {"top_k": -1}),
        ("pflsensing", {"alpha_rate": 0.0}),
        ("tp", {"personal_epochs": 0}),
    ],
)
def test_settings_are_checked(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=rf"^strategy\.{next(iter(setting))}: "):
        create(name, **setting)
