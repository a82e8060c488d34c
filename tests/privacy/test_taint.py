"""Whatever leaves a site is under noise, clipped unit by unit: for every strategy, over two rounds, with planted leaks.

Two runs with the same secret keys differ in one record. What leaves may then differ by what the clip allows and no
more, however extreme the record: in this round, and in the next by what the site kept.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from node.training.finite import settled_fit
from secure_fl import strategies
from secure_fl.blocks import Blocks
from secure_fl.errors import UnaccountedTrainingError
from secure_fl.privacy import noise
from secure_fl.privacy.mechanism import Mechanism
from secure_fl.randomness import KeyStream
from secure_fl.strategies.base import Strategy
from secure_fl.strategies.ditto import Ditto
from secure_fl.strategies.fedavg import FedAvg
from secure_fl.strategies.fedper import FedPer
from secure_fl.strategies.fedrep import FedRep
from secure_fl.strategies.pfedme import PFedMe
from secure_fl.strategies.pflsensing import PFLSensing
from secure_fl.strategies.site import Loss, Site
from secure_fl.tasks.base import LocalData, Split, Task, TaskSettings
from secure_fl.tasks.model_blocks import initial_blocks
from tests.privacy.test_dp_sgd import Grouped
from tests.strategies.test_fedasa import Tower

Make = Callable[..., Strategy]
TOWER = Tower(TaskSettings())
LAYOUT, INITIAL = initial_blocks(TOWER, 0)
RATE, UNITS, STEPS = 0.1, 12, 3
# Noise of a tenth on the sum and a clip of next to nothing: what is noised is alike in both runs, what is not shows.
TINY = Mechanism(unit="record", units=UNITS, sampling=0.5, noise=1e5, clip=1e-6, epoch_steps=STEPS)
SETTINGS: dict[str, dict[str, Any]] = {
    "fedasa": {"auxiliary_epochs": 2},
    "fedcca": {"comparisons": 2},
    "fedprox": {"mu": 0.5},
    "fedrep": {"head_epochs": 3},
    "pfedme": {"inner_steps": 2, "lam": 2.0, "outer_rate": 0.25},
    "pflsensing": {"period": 1},
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models of this size take far longer with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def maker(name: str) -> Make:
    def make(**settings: Any) -> Strategy:
        plain = {"epochs": 2, "learning_rate": RATE, "momentum": 0.0, "batch_size": 6}
        return strategies.create(name, {**plain, **SETTINGS.get(name, {}), **settings})

    return make


def planted(cls: type[Strategy], **own: Any) -> Make:
    def make(**settings: Any) -> Strategy:
        plain = {"epochs": 2, "learning_rate": RATE, "momentum": 0.0, "batch_size": 6}
        return cls(cls.Settings.parse({**plain, **own, **settings}, where="strategy"))

    return make


def others() -> Split:
    """Twelve ordinary records, all of one class."""
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(5))
    return Split(inputs=x, targets=torch.zeros(12, dtype=torch.int64))


def with_record(scale: float, target: int) -> Split:
    """The same and one more. It is the last: so the others are sampled alike with and without it."""
    rows = others()
    record = torch.full((1, 4), scale)
    return Split(inputs=torch.cat([rows.inputs, record]), targets=torch.cat([rows.targets, torch.tensor([target])]))


EXTREME = with_record(80.0, 1)
NEIGHBOURS = {"removed": others(), "changed": with_record(-80.0, 0), "infinite": with_record(math.inf, 1)}


@cache
def shipped(strategy: str) -> Mapping[str, Any]:
    return maker(strategy)().ship(TOWER, 0) if strategy == "fedasa" else {}


Leaving = list[dict[str, npt.NDArray[np.float64]]]


def leaving(
    strategy: Strategy,
    train: Split,
    mechanism: Mechanism,
    *,
    keys: str = "keys",
    rounds: int = 2,
    task: Task = TOWER,
    kept: Blocks | None = None,
) -> Leaving:
    """What leaves a site with these rows, round by round, as the training process runs it."""
    names = strategy.request_for(TOWER, LAYOUT).blocks
    personal = kept or {}
    state: dict[str, Any] = {}
    found: Leaving = []
    for number in range(1, rounds + 1):
        charged = strategy.charged_epochs(number)
        assert charged is not None
        site = Site(
            task=task,
            data=LocalData(train=train, test=others()),
            training=strategy.settings,
            initial=INITIAL,
            # What others made of the round before is no news of this site: the same in both runs.
            received={name: INITIAL[name] + np.float32(0.01 * number) for name in names},
            personal=personal,
            combination={},
            seed=number,
            shipped=shipped(strategy.name),
            state=state,
            round=number,
            privacy=mechanism,
            privacy_seed=f"{keys} {number}".encode(),
            reserved_steps=charged * mechanism.epoch_steps,
        )
        strategy.inference(site)  # The model is measured first.
        update = {name: vector.astype(float) for name, vector in settled_fit(strategy, site).items()}
        assert site.noised_steps == site._noisy.reserved_steps  # type: ignore[union-attr]
        if strategy.attention:
            update["features"] = strategy.features(site).astype(float)
        found.append(update)
        personal, state = site.personal, json.loads(json.dumps(site.state))
    return found


def influence(one: Leaving, other: Leaving) -> float:
    """How far apart two sites' messages are at most, in a round."""
    apart = []
    for mine, theirs in zip(one, other, strict=True):
        assert set(mine) == set(theirs), "which blocks leave depends on the record"
        apart += [float(np.linalg.norm(mine[name] - theirs[name])) for name in mine]
    return max(apart, default=0.0)


def allowed(strategy: Strategy, mechanism: Mechanism, rounds: int = 2) -> float:
    """How far all records together can move a model in so many rounds, twice; and the grid that noise is rounded to."""
    steps = rounds * (strategy.charged_epochs() or 0) * mechanism.epoch_steps
    expected = mechanism.sampling * mechanism.units
    grid = 2.0**-16 * mechanism.noise * mechanism.clip * math.sqrt(LAYOUT.size)
    return steps * RATE * (2 * (UNITS + 1) * mechanism.clip + grid) / expected + 1e-6


def require_private(make: Make) -> None:
    """Everything that a strategy has to satisfy. Raises `AssertionError`."""
    require_a_record_outside_all_samples_unseen(make)
    require_one_record_bounded(make)
    require_one_clip_a_step(make)
    require_noise_on_everything(make)
    require_secret_samples(make)


def require_a_record_outside_all_samples_unseen(make: Make) -> None:
    """Where no step under noise has sampled the record, everything that leaves is the same to the last bit.

    Whatever else the record could have influenced (a free part, a weight, kept state, a scale) would show.
    """
    strategy, usual = make(), replace(TINY, noise=0.5, clip=1.0)
    honest = noise.StepRandomness.sample

    def without_the_last(self: noise.StepRandomness, units: int, rate: float) -> npt.NDArray[np.int64]:
        sampled = honest(self, units, rate)
        return sampled[sampled < UNITS]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise.StepRandomness, "sample", without_the_last)
        mine = leaving(strategy, EXTREME, usual)
        for kind, neighbour in NEIGHBOURS.items():
            assert influence(mine, leaving(strategy, neighbour, usual)) == 0, kind


def require_one_record_bounded(make: Make) -> None:
    strategy = make()
    mine = leaving(strategy, EXTREME, TINY)
    for kind, neighbour in NEIGHBOURS.items():
        assert influence(mine, leaving(strategy, neighbour, TINY)) <= allowed(strategy, TINY), kind


def require_one_clip_a_step(make: Make) -> None:
    """One step over everybody: one record more moves it by one clip, also where nothing is clipped."""
    strategy = make(epochs=1)
    if isinstance(strategy, FedRep):
        return  # Two phases, the second of which begins where the first one ended.
    if isinstance(strategy, PFedMe):
        strategy = make(epochs=1, inner_steps=1)
    whole = replace(TINY, sampling=1.0, noise=1e-9, clip=1.0, epoch_steps=1)
    apart = influence(leaving(strategy, EXTREME, whole, rounds=1), leaving(strategy, others(), whole, rounds=1))
    assert apart <= RATE * whole.clip / UNITS + 1e-6


def require_noise_on_everything(make: Make) -> None:
    strategy, loud = make(), replace(TINY, sampling=1.0, noise=1.0, clip=1.0)
    one, other = (leaving(strategy, EXTREME, loud, keys=keys) for keys in ("one", "other"))
    for mine, theirs in zip(one, other, strict=True):
        for name in mine:
            assert (mine[name] != theirs[name]).all(), f"{name} bears no secret noise"


def require_secret_samples(make: Make) -> None:
    strategy, quiet = make(), replace(TINY, noise=1e-12, clip=1.0)
    one, other = (leaving(strategy, others(), quiet, keys=keys) for keys in ("one", "other"))
    for mine, theirs in zip(one, other, strict=True):
        assert all((mine[name] != theirs[name]).any() for name in mine), "others know who is sampled"


EVERY = strategies.known()


@pytest.mark.parametrize("name", EVERY)
def test_one_record_moves_what_leaves_by_no_more_than_the_clip_allows(name: str) -> None:
    require_private(maker(name))


@pytest.mark.parametrize("name", sorted({*EVERY} - {"local"}))
def test_the_record_would_be_felt(name: str) -> None:
    """With a clip that lets it through the same comparison finds the record: it is in the samples."""
    strategy, loose = maker(name)(), replace(TINY, noise=1e-9, clip=10.0)
    assert influence(leaving(strategy, EXTREME, loose), leaving(strategy, others(), loose)) > 100 * allowed(
        strategy, TINY
    )


def test_of_local_training_nothing_leaves() -> None:
    assert leaving(maker("local")(), EXTREME, TINY) == [{}, {}]


@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_says_what_it_charges_and_why(name: str) -> None:
    strategy = maker(name)()
    charged = strategy.charged_epochs()
    assert charged is not None
    assert all(
        noted.startswith(("Noise is added to ", "Without noise:", "Off:", "Cost:")) for noted in strategy.private_notes
    )
    assert strategy.private_notes
    assert (charged == 0) == (name == "local")
    expected = {"fedrep": 5, "pfedme": 4, "fedcca": 4, "local": 0}
    assert charged == expected.get(name, 2)


def test_fedccas_second_model_stops_after_the_last_comparison() -> None:
    strategy = maker("fedcca")(comparisons=1)
    assert [strategy.charged_epochs(number) for number in (1, 2)] == [4, 2]
    first, second = leaving(strategy, EXTREME, TINY)
    assert (first["features"] == second["features"]).all()


def test_fedala_does_not_read_a_model_that_was_kept_without_noise() -> None:
    strategy, kept = maker("fedala")(), {name: vector + np.float32(2) for name, vector in INITIAL.items()}
    with_it, without = (leaving(strategy, others(), TINY, kept=personal) for personal in (kept, None))
    assert influence(with_it, without) == 0


# --- leaks that are planted, and found ----------------------------------------------------------------------------


class FreeHead(FedPer):
    """Fits the head without noise first: it shapes the body that leaves."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        site.load(self.inference(site))
        with site.aside():
            site.train(only=site.head, free=True)
            head = site.blocks(site.head)
        site.load(head)
        site.train()
        return {name: site.blocks((name,))[name] - site.received[name] for name in site.received}


class KeptHead(FedPer):
    """Refines the head without noise afterwards, and begins with it in the next round."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        site.load(self.inference(site))
        site.train()
        change = site.change(site.received)
        site.train(only=site.head, free=True)
        # `head` alone is kept, and `fit` looks harmless: what leaves was taken before.
        site.personal = site.blocks(site.head)
        return change


class Scaled(FedAvg):
    """Weighs its change by how many records there are."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        return {name: vector * np.float32(site.samples / UNITS) for name, vector in super().fit(site).items()}


class KeptModel(Ditto):
    """Starts the common model from the personal one."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        site.load(self.inference(site))
        site.train()
        change = site.change(site.layout.names)
        with site.free():
            site.train()
            site.personal = site.blocks()
        return change


class KeptState(FedAvg):
    """Remembers a number of the data and uses it in the next round."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        change = super().fit(site)
        scale = site.state.get("scale", 1.0)
        site.state = {"scale": float(site.data.train.inputs.nan_to_num(posinf=1e3).abs().max())}
        return {name: vector * np.float32(scale) for name, vector in change.items()}


class DataPenalty(FedAvg):
    """A penalty that looks at the data: it is neither clipped nor noised."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        site.load(site.received)
        inputs = site.data.train.inputs.nan_to_num(posinf=1e3)
        site.train(penalty=lambda model: model(inputs).square().mean())
        return site.change(site.layout.names)


class Balanced(PFLSensing):
    """Weighs classes by how often they occur: one record more and every other weighs something else."""

    def _balanced(self, site: Site) -> Loss | None:
        weights = torch.bincount(site.data.train.targets, minlength=2).clamp(min=1)
        share = len(site.data.train) / weights / (torch.bincount(site.data.train.targets) > 0).sum()

        def loss(outputs: Tensor, targets: Tensor) -> Tensor:
            return (share[targets] * functional.cross_entropy(outputs, targets, reduction="none")).mean()

        return loss


@pytest.mark.parametrize("leak", [FreeHead, KeptHead, Scaled, KeptModel, KeptState, DataPenalty, Balanced])
def test_a_planted_leak_is_found(leak: type[Strategy]) -> None:
    with pytest.raises(AssertionError):
        require_a_record_outside_all_samples_unseen(planted(leak))


@pytest.mark.parametrize("leak", [Scaled, KeptModel, KeptState, DataPenalty])
def test_a_planted_leak_exceeds_the_clip(leak: type[Strategy]) -> None:
    with pytest.raises(AssertionError):
        require_one_record_bounded(planted(leak))


def test_weights_by_class_are_found() -> None:
    with pytest.raises(AssertionError):
        require_one_clip_a_step(planted(Balanced))


@pytest.mark.parametrize(
    ("purpose", "check"), [("sampling", require_secret_samples), ("noise", require_noise_on_everything)]
)
def test_a_public_seed_is_found(purpose: str, check: Callable[[Make], None], monkeypatch: pytest.MonkeyPatch) -> None:
    honest = noise.PrivateRandomness._stream

    def public(self: noise.PrivateRandomness, what: str, number: int) -> KeyStream:
        return KeyStream(number.to_bytes(32, "little")) if what == purpose else honest(self, what, number)

    monkeypatch.setattr(noise.PrivateRandomness, "_stream", public)
    with pytest.raises(AssertionError, match="others know" if purpose == "sampling" else "no secret noise"):
        check(maker("fedavg"))


def test_clipping_that_is_left_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from secure_fl.privacy.per_unit import PerUnitGradients

    honest = PerUnitGradients.clipped_sum
    monkeypatch.setattr(
        PerUnitGradients, "clipped_sum", lambda self, rows, losses, clip: honest(self, rows, losses, 1e9)
    )
    with pytest.raises(AssertionError):
        require_one_record_bounded(maker("fedavg"))
    with pytest.raises(AssertionError):
        require_one_clip_a_step(maker("fedavg"))


class FreeFirst(FedPer):
    """The same leak as `FreeHead`, without the detour: the site itself refuses it."""

    def charged_epochs(self, number: int | None = None) -> int | None:
        return self.settings.epochs

    def fit(self, site: Site) -> Blocks:
        site.load(self.inference(site))
        site.train(only=site.head, free=True)
        site.train()
        return site.change(site.received)


def test_a_free_part_that_comes_first_is_refused_by_the_site() -> None:
    with pytest.raises(UnaccountedTrainingError):
        require_private(planted(FreeFirst))


# --- records on which code fails --------------------------------------------------------------------------------


class Fussy(Tower):
    """A loss whose code fails on one class, which only the one record has."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if bool((targets == 1).any()):
            raise ArithmeticError("no such class")
        return functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize("name", EVERY)
def test_a_record_on_which_the_tasks_code_fails_neither_ends_nor_moves_a_round(name: str) -> None:
    task, strategy = Fussy(TaskSettings()), maker(name)()
    mine, theirs = (leaving(strategy, rows, TINY, task=task) for rows in (EXTREME, others()))
    assert influence(mine, theirs) <= allowed(strategy, TINY)
    assert all(vector.any() for update in mine for vector in update.values())


def test_without_the_guard_of_free_parts_a_failing_record_ends_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    def unguarded(self: Site) -> Any:
        @dataclass
        class Free:
            def __enter__(self_) -> None:  # noqa: N805
                self._free += 1

            def __exit__(self_, *_: object) -> None:  # noqa: N805
                self._free -= 1

        return Free()

    monkeypatch.setattr(Site, "free", unguarded)
    with pytest.raises(AssertionError):
        test_a_record_on_which_the_tasks_code_fails_neither_ends_nor_moves_a_round("ditto")


# --- groups -----------------------------------------------------------------------------------------------------


def patients(visits: int) -> Grouped:
    """Twelve patients with a visit each and one with several, all alike and extreme."""
    rows = others()
    record = torch.full((visits, 4), 80.0)
    return Grouped(
        inputs=torch.cat([rows.inputs, record]),
        targets=torch.cat([rows.targets, torch.ones(visits, dtype=torch.int64)]),
        groups=torch.tensor([*range(12), *[12] * visits]),
    )


@pytest.mark.parametrize("unit", ["group", "record"])
@pytest.mark.parametrize("group_rows", [1, 4, 100])
def test_a_whole_patient_moves_a_step_by_one_clip(unit: Any, group_rows: int) -> None:
    whole = replace(TINY, unit=unit, group_rows=group_rows, sampling=1.0, noise=1e-9, clip=0.5, epoch_steps=1)
    strategy = maker("fedavg")(epochs=1)
    found = [leaving(strategy, patients(visits), whole, rounds=1) for visits in (8, 0)]
    apart = math.sqrt(sum(float(np.square(found[0][0][name] - found[1][0][name]).sum()) for name in found[0][0]))
    one = RATE * whole.clip / UNITS
    if unit == "group":
        assert apart <= one + 1e-7
        assert apart > 0.9 * one  # It does count.
    else:
        assert apart > 7 * one  # Record by record, a patient with eight visits has eight clips.


@pytest.mark.parametrize("name", EVERY)
def test_a_whole_patient_is_bounded_in_every_strategy(name: str) -> None:
    strategy, mechanism = maker(name)(), replace(TINY, unit="group", group_rows=4)
    mine, theirs = (leaving(strategy, patients(visits), mechanism) for visits in (8, 0))
    assert influence(mine, theirs) <= allowed(strategy, mechanism)
