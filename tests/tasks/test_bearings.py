"""Bearings: the physics of the generator, twelve devices, and recordings as CWRU publishes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.io import savemat
from scipy.signal import decimate, hilbert

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.base import LocalData, Source, Task
from secure_fl.tasks.bearings import CAGE, CLASSES, FAULT, FIRST_FILE, LOCATIONS, SCALE, WINDOW, spectra, vibration
from secure_fl.tasks.model_blocks import layout_of
from tests.tasks.learning import fit, train
from tests.tasks.sources import real, share_of

RATE = 12_000
RPM = (1797, 1772, 1750, 1730)


@pytest.fixture
def task() -> Task:
    return create("bearings", {"windows": 20})


def device(task: Task, index: int, path: Path | None = None) -> LocalData:
    return task.load(share_of(path, index, 12, kind="natural"))


def classes_of(data: LocalData) -> set[int]:
    return {*data.train.targets.tolist(), *data.test.targets.tolist()}


def test_fault_frequencies_are_those_that_cwru_publishes() -> None:
    assert FAULT["IR"] == pytest.approx(5.4152, abs=1e-4)
    assert FAULT["OR"] == pytest.approx(3.5848, abs=1e-4)
    assert FAULT["B"] == pytest.approx(4.7135, abs=1e-4)
    assert pytest.approx(0.39828, abs=1e-4) == CAGE


@pytest.mark.parametrize("part", ["IR", "OR", "B"])
@pytest.mark.parametrize("load", [0, 3])
def test_the_envelope_beats_at_the_fault_frequency(part: str, load: int) -> None:
    signal = vibration(("DE", load, CLASSES.index(f"{part}014")), 10 * RATE, noise=0.01, seed=0)
    spectrum = np.fft.rfft(signal)
    spectrum[: 10 * 1000] = 0  # Only what rings, not the shaft.
    envelope = np.abs(hilbert(np.fft.irfft(spectrum)))
    lines = np.abs(np.fft.rfft(envelope - envelope.mean()))
    expected = FAULT[part] * RPM[load] / 60
    # In a band that holds neither the shaft's harmonics nor another fault's frequency.
    low, high = int(10 * (expected - 9)), int(10 * (expected + 9))
    found = (low + int(lines[low:high].argmax())) / 10
    assert found == pytest.approx(expected, rel=0.01)


def test_it_learns(task: Task) -> None:
    metrics = train(task, device(task, 0), epochs=15, learning_rate=3e-3)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9


def test_another_location_is_another_domain(task: Task) -> None:
    home = device(task, 0)
    torch.manual_seed(0)
    model = task.model()
    fit(task, model, home.train, torch.optim.Adam(model.parameters(), lr=3e-3), epochs=15, batch_size=32)
    away = task.evaluate(model, device(task, 4).test).accuracy
    assert away is not None
    assert away < 0.6


def test_blocks(task: Task) -> None:
    assert layout_of(task, task.model()).names == ("features", "hidden", "head")


def test_twelve_devices_and_no_healthy_one_on_the_base_plate(task: Task) -> None:
    for index in range(12):
        data = device(task, index)
        classes = set(range(10)) if index < 8 else set(range(1, 10))
        assert set(data.train.targets.tolist()) == classes
        assert torch.bincount(torch.cat([data.train.targets, data.test.targets])).tolist()[-9:] == [20] * 9
        assert 20 < len(data.test) < 60
        assert data.train.inputs.shape[1] == WINDOW // 2
        assert 0.3 < float((data.train.inputs**2).mean()) < 3  # about unit size, though scaled alike everywhere
    with pytest.raises(SettingsError, match="come from 12 sites and the study has 13 nodes"):
        task.load(share_of(None, 0, 13, kind="natural"))


def test_some_locations_or_none_of_the_healthy() -> None:
    ends = create("bearings", {"windows": 4, "locations": ["FE", "BA"]})
    parts = [ends.load(share_of(None, index, 8, kind="natural")) for index in range(8)]
    assert [len(classes_of(part)) for part in parts] == [10] * 4 + [9] * 4
    with pytest.raises(SettingsError, match="come from 8 sites"):
        ends.load(share_of(None, 0, 9, kind="natural"))
    faults = create("bearings", {"windows": 4, "healthy": False})
    for index in (0, 11):
        assert classes_of(device(faults, index)) == set(range(1, 10))
    with pytest.raises(SettingsError, match=r"task\.locations"):
        create("bearings", {"locations": ["top"]})


def test_few_windows_to_train_on_and_the_others_to_test() -> None:
    few = create("bearings", {"windows": 20}).load(share_of(None, 0, 12, kind="natural", test_fraction=0.9))
    assert len(few.train) + len(few.test) == 200
    assert 10 < len(few.train) < 30


def test_a_folder_without_what_the_study_is_about(tmp_path: Path) -> None:
    write_mat(tmp_path, "normal", 2, ("DE",))
    with pytest.raises(DataError, match="no recording of the locations"):
        create("bearings", {"healthy": False}).load(Source(path=tmp_path))


def test_the_network_of_cells_learns_and_its_auxiliary_rows_are_nobodys() -> None:
    cells = create("bearings", {"windows": 20, "network": "cells"})
    metrics = train(cells, device(cells, 0), epochs=6, learning_rate=2e-3)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.6
    rows = cells.auxiliary(1)
    assert rows is not None
    assert torch.bincount(rows.targets).tolist() == [20] * 10
    assert 0.3 < float((rows.inputs**2).mean()) < 3
    here = device(cells, 0)  # the drive end at load 0, with the same seed
    near = torch.nn.functional.normalize(here.train.inputs, dim=1) @ torch.nn.functional.normalize(rows.inputs, dim=1).T
    assert float(near.max()) < 0.999


def test_other_partitions_divide_all_windows(task: Task) -> None:
    parts = [task.load(share_of(None, index, 4, kind="dirichlet", alpha=1.0)) for index in range(4)]
    assert sum(len(part.train) + len(part.test) for part in parts) == 20 * (8 * 10 + 4 * 9)
    with pytest.raises(SettingsError, match="turns images"):
        task.load(share_of(None, 0, 4, kind="rotated"))


def test_no_window_is_in_training_and_test(task: Task) -> None:
    data = device(task, 5)
    rows = torch.cat([data.train.inputs, data.test.inputs])
    assert len(torch.unique(rows, dim=0)) == len(rows)


def test_windows_do_not_overlap() -> None:
    signal = np.zeros(3 * WINDOW + 5)
    signal[WINDOW + 3] = 2.0  # One blow sounds in one window only, equally loud at every frequency.
    found = spectra(signal)
    assert found.shape == (3, WINDOW // 2)
    assert np.allclose(found[1], 2)
    assert not found[[0, 2]].any()


def test_the_sensors_offset_is_left_out() -> None:
    signal = np.random.default_rng(0).normal(size=WINDOW)
    assert np.allclose(spectra(signal), spectra(signal + 5), atol=1e-3)


def test_the_same_seed_gives_the_same_vibration() -> None:
    one = vibration(("FE", 1, 4), 4096, noise=0.1, seed=3)
    assert np.array_equal(one, vibration(("FE", 1, 4), 4096, noise=0.1, seed=3))
    assert not np.array_equal(one, vibration(("FE", 1, 4), 4096, noise=0.1, seed=4))


# --- recordings -------------------------------------------------------------------------------------------


def recordings(windows: int = 4) -> dict[str, npt.NDArray[Any]]:
    rng = np.random.default_rng(0)
    shape = (4, 9, 3)
    return {
        "codes": rng.integers(-2000, 2000, (*shape, windows * WINDOW), np.int16),
        "step": rng.uniform(1e-4, 2e-4, shape),
        "offset": rng.uniform(-1, 1, shape),
        "classes": np.array(CLASSES[1:]),
        "channels": np.array(LOCATIONS),
        "normal_load0_12k": rng.normal(size=(2, windows * WINDOW)).astype(np.float32),
        "normal_de_load123_12k": rng.normal(size=(3, windows * WINDOW)).astype(np.float32),
    }


def write_npz(folder: Path, **changes: Any) -> Path:
    arrays = {**recordings(), **changes}
    np.savez(folder / "cwru.npz", **{name: array for name, array in arrays.items() if array is not None})
    return folder / "cwru.npz"


def test_npz_recordings_are_divided_by_device(task: Task, tmp_path: Path) -> None:
    path, found = write_npz(tmp_path), recordings()
    for index in range(12):
        data = device(task, index, path)
        healthy = index < 5  # The drive end at every load, the fan end at load 0.
        assert classes_of(data) == set(range(0 if healthy else 1, 10))
        assert len(data.train) + len(data.test) == 4 * (10 if healthy else 9)
    # Fan end, load 2, the third fault: its four windows, whatever their order.
    data = device(task, 6, path)
    at = (2, 2, 1)
    expected = spectra(found["codes"][at] * found["step"][at] + found["offset"][at])
    mine = torch.cat([data.train.inputs, data.test.inputs])[torch.cat([data.train.targets, data.test.targets]) == 3]
    assert sorted(mine[:, 0].tolist()) == pytest.approx(sorted((expected[:, 0] / SCALE).tolist()))


def write_mat(folder: Path, name: str, load: int, locations: tuple[str, ...], windows: int = 4, **others: Any) -> None:
    number = FIRST_FILE[name] + load
    rng = np.random.default_rng(number)
    length = windows * WINDOW * (4 if name == "normal" else 1)
    signals = {f"X{number:03d}_{place}_time": rng.normal(size=(length, 1)) for place in locations}
    savemat(folder / f"{number}.mat", {**signals, **others})


def test_mat_files_are_divided_by_device(task: Task, tmp_path: Path) -> None:
    for name in CLASSES:
        for load in range(4):
            write_mat(tmp_path, name, load, ("DE", "FE") if name == "normal" else LOCATIONS)
    for index in range(12):
        data = device(task, index, tmp_path)
        classes = 10 if index < 8 else 9
        assert len(classes_of(data)) == classes
        assert len(data.train) + len(data.test) == 4 * classes


def test_a_site_may_have_the_mat_files_of_one_device(task: Task, tmp_path: Path) -> None:
    other = {"X098_DE_time": np.full((5000, 1), 7.0)}
    write_mat(tmp_path, "normal", 2, ("DE",), 12, **other)
    write_mat(tmp_path, "OR021", 2, ("DE",), 12)
    data = task.load(Source(path=tmp_path))
    assert torch.bincount(torch.cat([data.train.targets, data.test.targets])).tolist() == [12] + [0] * 8 + [12]


def test_healthy_mat_files_are_brought_to_the_others_rate(task: Task, tmp_path: Path) -> None:
    time = np.arange(4 * 20 * WINDOW) / 48_000
    savemat(tmp_path / "97.mat", {"X097_DE_time": np.sin(2 * np.pi * 1500 * time)[:, None]})
    data = task.load(Source(path=tmp_path))
    # Bin k of 12 kHz is k * 12000 / 1024 Hz, and the constant part is left out.
    assert set(data.train.inputs.argmax(dim=1).tolist()) == {1500 * WINDOW // RATE - 1}


def test_no_healthy_window_of_a_mat_file_sounds_in_another(task: Task, tmp_path: Path) -> None:
    """They are brought to another rate, and a filter over the whole recording would reach across the windows."""
    signal = np.random.default_rng(0).normal(size=4 * 20 * WINDOW)
    loud = signal.copy()
    loud[4 * WINDOW * 3 : 4 * WINDOW * 4] *= 10  # the fourth window
    assert np.flatnonzero((spectra(signal, 4) != spectra(loud, 4)).any(axis=1)).tolist() == [3]
    whole = decimate(signal, 4, ftype="fir"), decimate(loud, 4, ftype="fir")  # as it should not be done
    assert np.flatnonzero((spectra(whole[0]) != spectra(whole[1])).any(axis=1)).tolist() == [2, 3, 4]


def test_a_site_may_have_windows_of_its_own(task: Task, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, WINDOW)), np.arange(20) % 2
    np.savez(tmp_path / "own.npz", x=x, y=y)
    data = task.load(Source(path=tmp_path / "own.npz"))
    assert len(data.train) + len(data.test) == 20
    rows = {tuple(row) for row in (spectra(x.astype(np.float32).reshape(-1)) / SCALE)[:, :3].tolist()}
    assert {tuple(row) for row in torch.cat([data.train.inputs, data.test.inputs])[:, :3].tolist()} == rows


@pytest.mark.parametrize(
    "change",
    [
        {"codes": None},
        {"codes": np.zeros((4, 9, 2, 2048), np.int16)},
        {"step": np.zeros(3)},
        {"classes": np.array(CLASSES[:9])},
        {"channels": np.array(["FE", "DE", "BA"])},
        {
            "codes": np.zeros((4, 9, 3, 100), np.int16),
            "normal_load0_12k": None,
            "normal_de_load123_12k": None,
        },
    ],
)
def test_recordings_that_do_not_fit_are_refused(task: Task, tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="expected a folder with CWRU's") as caught:
        task.load(Source(path=write_npz(tmp_path, **change)))
    assert "\n" not in caught.value.message


def test_no_files_say_what_is_expected_where(task: Task, tmp_path: Path) -> None:
    for source in (Source(), Source(path=tmp_path / "absent"), Source(path=tmp_path)):
        with pytest.raises(DataError, match="expected a folder with CWRU's"):
            task.load(source)
    (tmp_path / "105.mat").write_bytes(b"nonsense" * 100)
    with pytest.raises(DataError, match=r"105\.mat: cannot be read"):
        task.load(Source(path=tmp_path))


def test_the_real_recordings(task: Task) -> None:
    path = real("cwru_12k_drive_end_faults.npz")
    for index, classes in ((0, 10), (3, 10), (4, 10), (5, 9), (8, 9)):
        data = device(task, index, path)
        assert len(classes_of(data)) == classes
        assert len(data.train) + len(data.test) == 20 * classes
    metrics = train(task, device(task, 0, path), epochs=15, learning_rate=3e-3)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9
