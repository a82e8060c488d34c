"""Sine curves: who has which, how many points, and that a common decoder is worth having."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import LocalData, Share, Source
from secure_fl.tasks.model_blocks import layout_of
from secure_fl.tasks.sine import Encoder, Sine
from tests.tasks.learning import train
from tests.tasks.sources import share_of


def client(index: int, of: int = 500, seed: int = 1, **settings: float) -> LocalData:
    source = share_of(None, index, of, kind="natural")
    assert source.share is not None
    share = Share(index=index, of=of, seed=seed, partition=source.share.partition)
    return create("sine", settings).load(Source(share=share))


def curve(data: LocalData) -> tuple[float, float, float]:
    """Amplitude, phase and residual of the sine through the test points, by least squares."""
    x = data.test.inputs.double().numpy() * 2 * math.pi
    basis = np.concatenate([np.sin(x), np.cos(x)], axis=1)
    (a, b), *_ = np.linalg.lstsq(basis, data.test.targets.double().numpy()[:, 0])
    error = float(np.abs(basis @ np.array([a, b]) - data.test.targets.numpy()[:, 0]).max())
    return math.hypot(a, b), math.atan2(b, a) / (2 * math.pi), error


def test_490_rich_and_10_poor_clients_of_500() -> None:
    sizes = [len(client(index).train) for index in range(500)]
    assert (sizes.count(100), sizes.count(5)) == (490, 10)
    assert len(client(0).test) == len(client(499).test) == 100


@pytest.mark.parametrize(
    ("fraction", "of", "poor"), [(0.02, 5, 1), (0.02, 1, 1), (0.0, 5, 0), (0.5, 4, 2), (1.0, 3, 3)]
)
def test_the_last_clients_are_poor(fraction: float, of: int, poor: int) -> None:
    sizes = [len(client(index, of, poor_fraction=fraction).train) for index in range(of)]
    assert sizes == [100] * (of - poor) + [5] * poor


def test_every_client_has_a_sine_of_its_own() -> None:
    curves = [curve(client(index)) for index in range(100)]
    amplitudes, phases, errors = np.array(curves).T
    assert errors.max() < 1e-5
    assert 0.8 <= amplitudes.min() < 0.85
    assert 1.15 < amplitudes.max() <= 1.2
    assert -0.5 <= phases.min() < -0.4
    assert 0.4 < phases.max() <= 0.5
    assert len(set(phases.round(6))) == 100


def test_training_points_lie_on_the_tested_curve_unless_there_is_noise() -> None:
    amplitude, phase, _ = curve(client(3))
    for data, low, high in ((client(3), 0.0, 1e-5), (client(3, noise=0.1), 0.1, 1.0)):
        truth = amplitude * torch.sin(2 * math.pi * (data.train.inputs + phase))
        assert low <= float((data.train.targets - truth).abs().max()) < high


def test_the_same_seed_gives_the_same_client_and_another_seed_another() -> None:
    assert torch.equal(client(7).train.targets, client(7).train.targets)
    assert not torch.equal(client(7).train.targets, client(7, seed=2).train.targets)


def test_the_encoder_is_personal_and_the_decoder_common() -> None:
    task = create("sine", {})
    assert layout_of(task, task.model()).names == ("encoder", "decoder")
    assert task.head(("encoder", "decoder")) == ("encoder",)
    linear = [module for module in task.model().get_submodule("decoder") if isinstance(module, torch.nn.Linear)]  # type: ignore[attr-defined]
    assert len(linear) == 6


def test_the_encoder_folds_the_period() -> None:
    encoder = Encoder(4)
    for parameter in encoder.parameters():
        torch.nn.init.zeros_(parameter)
    folded = encoder(torch.tensor([[0.7], [-0.6], [1.2]]))
    assert torch.allclose(folded, torch.tensor([[-0.3], [0.4], [0.2]]))


def test_a_rich_client_learns_its_curve_and_a_poor_one_does_not_from_its_own_points() -> None:
    task = create("sine", {"width": 32})
    rich = train(task, client(0), epochs=60, learning_rate=5e-3).mse
    poor = train(task, client(499), epochs=300, learning_rate=5e-3).mse
    assert rich is not None
    assert poor is not None
    assert rich < 0.02 < poor


def test_a_poor_client_gains_from_a_decoder_that_others_learnt() -> None:
    task = Sine(Sine.Settings.parse({"width": 32}))
    torch.manual_seed(0)
    model, poor = task.model(), client(499)
    phi = torch.linspace(-0.5, 0.5, 100)[:, None]
    decoder, encoder = model.get_submodule("decoder"), model.get_submodule("encoder")
    for module, steps, data in ((decoder, 400, None), (encoder, 150, poor.train)):
        optimiser = torch.optim.Adam(module.parameters(), lr=5e-3)
        for _ in range(steps):
            optimiser.zero_grad()
            if data is None:
                loss = task.loss(decoder(phi), torch.sin(2 * math.pi * phi))
            else:
                loss = task.loss(model(data.inputs), data.targets)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    mse = task.evaluate(model, poor.test).mse
    amplitude, _, _ = curve(poor)
    assert mse is not None
    # What remains is the amplitude, which the encoder cannot change.
    assert mse < (amplitude - 1) ** 2 / 2 + 0.005


def test_it_is_for_simulations_by_client(tmp_path: Path) -> None:
    task = create("sine", {})
    for source in (Source(), Source(path=tmp_path), share_of(tmp_path, kind="natural")):
        with pytest.raises(DataError, match="generated and reads no file"):
            task.load(source)
    with pytest.raises(SettingsError, match="every client of task 'sine' has its own curve") as caught:
        task.load(share_of())
    assert "simulation.partition to natural" in caught.value.hint
