"""Speed from vibration: three families of models, printers as sites, one speed for testing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import Source
from secure_fl.tasks.model_blocks import layout_of
from secure_fl.tasks.printers import Gaussians
from tests.tasks.learning import train
from tests.tasks.sources import real, share_of

FAMILIES = ("sigmoid", "gaussian", "network")


def prints(printers: int = 3) -> dict[str, npt.NDArray[Any]]:
    """Four speeds and ten rows for each; vibration grows with speed, from a start of each printer's own."""
    printer, setting, row = (
        a.ravel() for a in np.meshgrid(range(printers), [10, 20, 30, 40], range(10), indexing="ij")
    )
    rng = np.random.default_rng(0)
    vibration = 0.8 + 0.1 * printer + setting / 50 + 0.01 * rng.normal(size=len(row))
    angle = rng.uniform(0.3, 1.2, len(row))
    data = np.stack([setting * 0.9 + 0.1 * row, vibration * np.cos(angle), vibration * np.sin(angle)], axis=1)
    return {"data": data, "printer": printer, "speed_setting": setting}


def write_npz(folder: Path, **changes: Any) -> Path:
    np.savez(folder / "prints.npz", **{**prints(), **changes})
    return folder / "prints.npz"


def write_csv(folder: Path) -> Path:
    found = prints()
    table = np.column_stack([found["printer"], found["speed_setting"], found["data"]])
    header = "printer,speed_setting,speed,acceleration_1,acceleration_2"
    np.savetxt(folder / "prints.csv", table, delimiter=",", header=header, comments="")
    return folder / "prints.csv"


@pytest.mark.parametrize("family", FAMILIES)
def test_it_learns(family: str, tmp_path: Path) -> None:
    task = create("printers", {"family": family, "test_speed": 0})
    data = task.load(share_of(write_npz(tmp_path), 0, 3, kind="natural"))
    metrics = train(task, data, epochs=500, learning_rate=3e-2)
    assert metrics.mse is not None
    assert metrics.mse < 0.1 * float(data.test.targets.var())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_encoder_is_personal_and_the_decoder_common(family: str) -> None:
    task = create("printers", {"family": family, "size": 4})
    layout = layout_of(task, task.model())
    assert layout.names == ("encoder", "decoder")
    assert task.head(layout.names) == ("encoder",)


def test_a_linear_encoder_starts_as_the_identity_and_the_decoders_are_the_papers() -> None:
    x = torch.tensor([[0.5], [1.5]])
    for family in ("sigmoid", "gaussian"):
        model = create("printers", {"family": family}).model()
        assert torch.equal(model.get_submodule("encoder")(x), x)
    decoder = create("printers", {"family": "sigmoid"}).model().get_submodule("decoder")
    for parameter, value in zip(decoder.parameters(), (2.0, -0.5), strict=True):
        torch.nn.init.constant_(parameter, value)
    assert torch.allclose(decoder(x), 2 / (1 + torch.exp(-x)) - 0.5)
    basis = Gaussians(2)
    with torch.no_grad():
        basis.weight.copy_(torch.tensor([2.0, 3.0]))
        basis.mean.copy_(torch.tensor([0.5, 1.0]))
        basis.log_width.copy_(torch.tensor([1.0, 0.5]).log())
    assert basis(torch.tensor([[0.5]])).item() == pytest.approx(2 + 3 * np.exp(-0.5), rel=1e-6)


def test_inputs_and_targets_are_the_papers(tmp_path: Path) -> None:
    data = create("printers", {}).load(share_of(write_npz(tmp_path), 1, 3, kind="natural"))
    assert (len(data.train), len(data.test)) == (30, 10)
    found = prints()
    rows = (found["printer"] == 1) & (found["speed_setting"] == 30)
    speed, first, second = found["data"][rows].T
    assert data.test.inputs[:, 0].tolist() == pytest.approx(np.sqrt(first**2 + second**2).tolist(), rel=1e-6)
    assert data.test.targets[:, 0].tolist() == pytest.approx((speed / 50).tolist(), rel=1e-6)


def test_csv_and_npz_hold_the_same(tmp_path: Path) -> None:
    task = create("printers", {})
    for index in range(3):
        one = task.load(share_of(write_npz(tmp_path), index, 3, kind="natural"))
        other = task.load(share_of(write_csv(tmp_path), index, 3, kind="natural"))
        assert torch.allclose(one.train.inputs, other.train.inputs)
        assert torch.allclose(one.test.targets, other.test.targets)


def test_another_speed_or_rows_at_random_can_be_the_test(tmp_path: Path) -> None:
    path = write_npz(tmp_path)
    fast = create("printers", {"test_speed": 40}).load(Source(path=path))
    assert float(fast.test.targets.min()) > float(fast.train.targets.max()) - 0.02
    mixed = create("printers", {"test_speed": 0}).load(share_of(path, 0, 3, kind="natural"))
    assert (len(mixed.train), len(mixed.test)) == (32, 8)
    assert float(mixed.test.targets.std()) > 0.05
    with pytest.raises(DataError, match="0 of this site's 120 rows were printed at the test speed 35"):
        create("printers", {"test_speed": 35}).load(Source(path=path))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data": np.zeros((120, 2))}, "another shape"),
        ({"data": np.full((120, 3), np.nan)}, "missing or infinite"),
        ({"data": np.array([["a"] * 3] * 120)}, "not numeric"),
        ({"speed_setting": np.zeros(3)}, "another shape"),
        ({"printer": np.zeros(3)}, "another shape"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        create("printers", {}).load(Source(path=write_npz(tmp_path, **change)))


@pytest.mark.parametrize("text", ["", "speed\n1\n", "speed_setting,speed,acceleration_1,acceleration_2\n30,a,1,1\n"])
def test_tables_that_do_not_fit_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(DataError) as caught:
        create("printers", {}).load(Source(path=tmp_path / "own.csv"))
    assert "\n" not in caught.value.message


def test_no_file_says_what_is_expected_where(tmp_path: Path) -> None:
    task = create("printers", {})
    for source in (Source(path=tmp_path / "absent.csv"), share_of()):
        with pytest.raises(DataError, match=r"expected a \.csv file with columns speed_setting, speed"):
            task.load(source)
    with pytest.raises(SettingsError, match="turns images"):
        task.load(share_of(write_npz(tmp_path), kind="rotated"))


def test_the_real_printers() -> None:
    path = real("printer3d_vibration.npz")
    for family in FAMILIES:
        task = create("printers", {"family": family})
        parts = [task.load(share_of(path, index, 6, kind="natural")) for index in range(6)]
        assert [(len(part.train), len(part.test)) for part in parts] == [(165, 15)] * 6
        metrics = train(task, parts[0], epochs=100, learning_rate=3e-2)
        assert metrics.mse is not None
        guess = float(((parts[0].test.targets - parts[0].train.targets.mean()) ** 2).mean())
        assert metrics.mse < 0.5 * guess
