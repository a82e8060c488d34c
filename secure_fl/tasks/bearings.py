"""Which fault a rolling bearing has, from its vibration: generated, or the recordings of CWRU's bearing data center.

Twelve devices, three sensor locations at four loads, each with windows of 1,024 samples and ten classes: a healthy
bearing, and faults of three sizes on the inner race, a ball and the outer race. Load changes the shaft's speed and
with it every fault frequency; the location changes what resonates. Inputs are |FFT| of a window on a fixed scale.
Windows never overlap, so none shares a sample with another, be it in training or in test, and none has a part in how
another is prepared.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import LocalData, Source, Split, Task, TaskSettings, open_npz, read_npz, require_path
from secure_fl.tasks.cutting import cut, divide, held
from secure_fl.tasks.units import record_names, row_digests

WINDOW = 1024
BINS = WINDOW // 2
Location: TypeAlias = Literal["DE", "FE", "BA"]  # drive end, fan end, base plate
LOCATIONS: tuple[Location, ...] = ("DE", "FE", "BA")
CLASSES = ("normal", "IR007", "B007", "OR007", "IR014", "B014", "OR014", "IR021", "B021", "OR021")
LOADS = 4  # 0 to 3 hp

_RATE = 12_000.0  # samples per second
# |FFT| of a window is divided by this, which brings it to about unit size for vibrations of some tenths of g. Fixed: in
# units of the site's own spectra, one window would change the inputs of all others.
SCALE = np.float32(10)
_RPM = (1797.0, 1772.0, 1750.0, 1730.0)  # by load: a loaded induction motor slips

_Signal = npt.NDArray[np.float64]

_EXPECTED = (
    "a folder with CWRU's 12k drive end .mat files (97.mat to 100.mat, 105.mat, ...), or a .npz file with codes "
    "(4, 9, 3, time), step and offset (4, 9, 3) of CWRU recordings, or with x (n, 1024) of windows and y (n,) of "
    "classes 0 to 9"
)


# A sensor location, a load and a class: what one recording is of.
Key: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Recording:
    """So many samples at 12 kHz, had when they are needed; the signal may have been sampled `ratio` times as often."""

    length: int
    signal: Callable[[], _Signal]
    ratio: int = 1

    def windows(self) -> _Signal:
        """What was recorded, window by window: (n, ratio * 1024)."""
        return _windows(self.signal(), self.ratio)


class BearingsSettings(TaskSettings):
    """How much data each device has of each class, and the size of the network."""

    # At most: a recording may be shorter.
    windows: int = Field(default=40, ge=2, le=100_000)
    locations: tuple[Location, ...] = Field(default=LOCATIONS, min_length=1)
    # Not every device has a recording of a healthy bearing; without any, all have the same nine classes.
    healthy: bool = True
    # Generated data only: deviation of the noise, where the healthy bearing's own vibration is about 0.1.
    noise: float = Field(default=0.05, ge=0)
    network: Literal["mlp", "cells"] = "mlp"
    hidden: int = Field(default=64, ge=1, le=4096)  # of the mlp
    cells: int = Field(default=4, ge=1, le=32)  # M


class Bearings(Task):
    """A network on spectra; `natural` makes each pair of location and load a site."""

    kind = "classification"
    preprocessing = "public"
    Settings = BearingsSettings
    defaults: ClassVar[Mapping[str, Any]] = {
        "simulation.partition": "natural",
        "simulation.nodes": len(LOCATIONS) * LOADS,
        "strategy.epochs": 5,
        "strategy.batch_size": 32,
        "strategy.optimizer": "adam",
        "strategy.learning_rate": 0.0005,
    }
    # The paper's network, of which a site shares the first cells.
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedasa": {"task.network": "cells"},
        "ditto": {"strategy.personal_epochs": 5},
        "tp": {"strategy.personal_epochs": 5},
    }
    settings: BearingsSettings

    def model(self) -> nn.Module:
        """Blocks `features`, `hidden` and `head`; or `stem`, `cell1` …, `hidden` and `head`."""
        if self.settings.network == "cells":
            return _cell_network(self.settings.cells)
        width = self.settings.hidden
        return nn.Sequential(
            OrderedDict(
                features=nn.Sequential(nn.Linear(BINS, 2 * width), nn.ReLU()),
                hidden=nn.Sequential(nn.Linear(2 * width, width), nn.ReLU()),
                head=nn.Linear(width, len(CLASSES)),
            )
        )

    def cells(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The stem and the cells."""
        return tuple(name for name in names if name == "stem" or name.startswith("cell"))

    def auxiliary(self, seed: int) -> Split:
        """Generated windows of every class at the drive end: five at each load, none of them any site's."""
        keys = [("DE", load, label) for load in range(LOADS) for label in range(len(CLASSES))]
        # No study has a seed as large: these are other recordings than the sites'.
        signals = [vibration(key, 5 * WINDOW, noise=self.settings.noise, seed=2**64 + seed) for key in keys]
        x = spectra(np.concatenate(signals))
        y = np.repeat([label for _, _, label in keys], 5)
        return Split(inputs=torch.from_numpy(x / SCALE), targets=torch.from_numpy(y))

    def load(self, source: Source) -> LocalData:
        """Spectra (n, 512) in units of `SCALE`, and classes as in `CLASSES`."""
        share = source.share
        if share is not None and share.partition.rotated:
            raise SettingsError(
                f"partition {share.partition.kind!r} turns images and this task has none",
                advice="use natural, iid, dirichlet or pathological",
            )
        if source.path is None and share is not None:
            return self._cut(self._generated(share.seed), source)
        path = require_path(source, _EXPECTED, formats=("mat", "npz"))
        if path.is_dir():
            return self._cut(_from_mat(path), source)
        found = open_npz(path, _EXPECTED)
        if "x" in found:
            return self._own_windows(source)
        return self._cut(_from_npz(path, found), source)

    def _generated(self, seed: int) -> Mapping[Key, Recording]:
        length = self.settings.windows * WINDOW
        # CWRU has no healthy recording from the base plate. Neither have we: devices differ in classes, too.
        keys = [
            (location, load, label)
            for location in LOCATIONS
            for load in range(LOADS)
            for label in range(len(CLASSES))
            if (location, label) != ("BA", 0)
        ]
        noise = self.settings.noise
        return {key: Recording(length, partial(vibration, key, length, noise=noise, seed=seed)) for key in keys}

    def _cut(self, recordings: Mapping[Key, Recording], source: Source) -> LocalData:
        """The windows of a site's share. Recordings of which it holds no window are never made or decoded."""
        wanted = self.settings.locations
        recordings = {
            key: recording
            for key, recording in recordings.items()
            if key[0] in wanted and (key[2] or self.settings.healthy)
        }
        if not recordings:
            raise DataError("the data have no recording of the locations and classes that the study is about")
        counts = [min(recording.length // WINDOW, self.settings.windows) for recording in recordings.values()]
        which = np.repeat(np.arange(len(counts)), counts)
        number = np.concatenate([np.arange(count) for count in counts])
        labels = np.array([label for _, _, label in recordings], np.int64)[which]
        devices = np.array([LOADS * LOCATIONS.index(place) + load for place, load, _ in recordings])[which]
        mine = held(source, labels, classification=True, sites=devices)
        x = np.empty((len(mine), BINS), np.float32)
        digests = [b""] * len(mine)
        for index, recording in enumerate(recordings.values()):
            rows = np.flatnonzero(which[mine] == index)
            if len(rows):
                raw = recording.windows()[number[mine[rows]]]
                x[rows] = spectra(raw.reshape(-1), recording.ratio)
                for row, digest in zip(rows, row_digests(raw, labels[mine[rows]]), strict=True):
                    digests[row] = digest
        return LocalData.cut(x / SCALE, labels[mine], *cut(source, record_names(digests)))

    def _own_windows(self, source: Source) -> LocalData:
        arrays = read_npz(source, shape=(WINDOW,), classes=len(CLASSES))
        train, test = divide(source, arrays.x, arrays.y, classification=True, sites=arrays.sites, groups=arrays.groups)
        x = spectra(arrays.x.reshape(-1)) / SCALE
        return LocalData.cut(x, arrays.y, train, test, groups=arrays.groups)


def spectra(signal: npt.NDArray[Any], ratio: int = 1) -> npt.NDArray[np.float32]:
    """|FFT| of consecutive windows of `signal`, which has `ratio` samples for one at 12 kHz.

    Without the constant part, which is the sensor's offset and no vibration. An incomplete last window is left out.
    """
    windows = _windows(signal, ratio)
    if ratio > 1:
        from scipy.signal import decimate

        # Window by window: filtered as a whole, the end of one would reach into the next. What is cut off at both
        # ends of a window would sound like a blow, had it an offset.
        windows = decimate(windows - windows.mean(axis=1, keepdims=True), ratio, ftype="fir", axis=1)
    return np.abs(np.fft.rfft(windows, axis=1)[:, 1:]).astype(np.float32)


def _windows(signal: npt.NDArray[Any], ratio: int) -> npt.NDArray[Any]:
    size = ratio * WINDOW
    return signal[: len(signal) // size * size].reshape(-1, size)


# --- a network of cells -----------------------------------------------------------------------------------


class Cell(nn.Module):
    """x + pool(relu(conv(x))): what comes out has the shape of what goes in (FedASA, figure 7)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool1d(3, stride=1, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """One cell."""
        return x + cast(Tensor, self.pool(torch.relu(self.conv(x))))


def _cell_network(cells: int) -> nn.Module:
    """Two convolutions, `cells` cells, two linear layers: 323,434 parameters with four cells, as in the paper."""
    stem = nn.Sequential(
        nn.Unflatten(1, (1, BINS)),
        *(nn.Conv1d(1, 32, 4, stride=2, padding=1), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(32, 64, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool1d(2)),
    )
    inner = {f"cell{number}": Cell(64) for number in range(1, cells + 1)}
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(64 * BINS // 16, 128), nn.ReLU())
    return nn.Sequential(OrderedDict(stem=stem, **inner, hidden=hidden, head=nn.Linear(128, len(CLASSES))))


# --- a bearing, generated ---------------------------------------------------------------------------------

# The geometry of CWRU's drive-end bearing (SKF 6205): balls, and diameters of ball and pitch circle in inches.
_BALLS, _BALL, _PITCH = 9, 0.3126, 1.537
_RATIO = _BALL / _PITCH
# Multiples of the shaft's speed, for a contact angle of 0 and an outer race that stands still.
CAGE = (1 - _RATIO) / 2
FAULT = {
    "IR": _BALLS * (1 + _RATIO) / 2,  # BPFI
    "OR": _BALLS * (1 - _RATIO) / 2,  # BPFO
    "B": (1 / _RATIO - _RATIO),  # 2 BSF: a spot on a ball hits both races in one turn
}
# What a location hears: resonances in Hz, each with its strength, and how loud a fault at the drive end is there.
_RESONANCES = {
    "DE": ((3300.0, 1.0), (1450.0, 0.3)),
    "FE": ((2600.0, 1.0), (4200.0, 0.5)),
    "BA": ((850.0, 1.0), (3600.0, 0.6)),
}
_HEARD = {"DE": 1.0, "FE": 0.5, "BA": 0.35}
_DAMPING = 0.04


def vibration(key: Key, length: int, *, noise: float, seed: int) -> _Signal:
    """`length` samples of one class at one device; the same for the same seed."""
    location, load, label = key
    path = (LOCATIONS.index(location), load, label)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=path))
    shaft = _RPM[load] / 60 * (1 + 0.001 * rng.standard_normal())
    time = np.arange(length) / _RATE
    # A healthy machine: unbalance and misalignment at the shaft's harmonics, the motor's hum at twice the mains.
    signal = 0.01 * rng.standard_normal(length)
    for harmonic, strength in ((shaft, 0.05), (2 * shaft, 0.08), (3 * shaft, 0.03), (120.0, 0.04)):
        signal += strength * np.sin(2 * math.pi * (harmonic * time + rng.random()))
    ringing = _ringing(location, load)
    excited = 0.05 * rng.standard_normal(length)  # The rough surface of any bearing.
    if label:
        excited += _HEARD[location] * _impacts(CLASSES[label], shaft, length, rng)
    from scipy.signal import fftconvolve  # half a second, and not for those who have recordings

    return signal + cast(_Signal, fftconvolve(excited, ringing)[:length]) + noise * rng.standard_normal(length)


def _impacts(fault: str, shaft: float, length: int, rng: np.random.Generator) -> _Signal:
    """Blows to the structure: where each lies, and how hard it is."""
    part, size = fault[:-3], int(fault[-3:]) / 1000  # the spot's width in inches
    rate = FAULT[part] * shaft
    # Balls slide a little as they roll: the intervals differ by about one percent, and the error adds up.
    count = int(1.1 * length / _RATE * rate) + 8
    times = (rng.random() + np.cumsum(1 + 0.01 * rng.standard_normal(count))) / rate
    strength = 20 * size**0.5 * (1 + 0.1 * rng.standard_normal(count))
    # A spot that turns passes through the loaded side once per turn of the shaft, or of the cage.
    if part != "OR":
        turning, depth = (shaft, 0.7) if part == "IR" else (CAGE * shaft, 0.5)
        strength = strength * (1 + depth * np.cos(2 * math.pi * (turning * times + rng.random())))
    # A ball falls into the spot and hits its far edge: two blows whose distance tells the size.
    crossing = {
        "IR": math.pi * _PITCH * (1 - CAGE),
        "OR": math.pi * _PITCH * CAGE,
        "B": math.pi * _BALL * FAULT["B"] / 2,
    }
    gap = size / (crossing[part] * shaft)
    train = np.zeros(length + 2)
    for when, hard in ((times, 0.5 * strength), (times + gap, strength)):
        place = when * _RATE
        before = place.astype(np.int64)
        inside = before < length
        # Between two samples, as the blow itself is.
        np.add.at(train, before[inside], (hard * (1 - place % 1))[inside])
        np.add.at(train, before[inside] + 1, (hard * (place % 1))[inside])
    return train[:length]


def _ringing(location: str, load: int) -> _Signal:
    """What one blow sounds like at this location. Load stiffens the bearing and raises its resonances a little."""
    time = np.arange(256) / _RATE
    ringing = np.zeros(256)
    for frequency, strength in _RESONANCES[location]:
        omega = 2 * math.pi * frequency * (1 + 0.01 * load)
        ringing += strength * np.exp(-_DAMPING * omega * time) * np.sin(omega * math.sqrt(1 - _DAMPING**2) * time)
    return ringing


# --- CWRU -------------------------------------------------------------------------------------------------

# The first of four consecutive file numbers, for loads 0 to 3: 12k drive end, outer race faults at 6 o'clock.
FIRST_FILE = dict(zip(CLASSES, (97, 105, 118, 130, 169, 185, 197, 209, 222, 234), strict=True))
_NORMAL_RATIO = 4  # The healthy recordings were sampled at 48 kHz, the others at 12 kHz.


def _from_mat(folder: Path) -> Mapping[Key, Recording]:
    from scipy.io import loadmat

    recordings: dict[Key, Recording] = {}
    for label, name in enumerate(CLASSES):
        for load in range(LOADS):
            number = FIRST_FILE[name] + load
            path = folder / f"{number}.mat"
            if not path.is_file():
                continue  # A site may have the files of its own device only.
            try:
                found = loadmat(path)
            except Exception:  # SciPy raises whatever the damage happens to cause.
                raise DataError(f"{path}: cannot be read; expected {_EXPECTED}") from None
            for location in LOCATIONS:
                # Named in full: 99.mat also holds a copy of another recording.
                signal = found.get(f"X{number:03d}_{location}_time")
                if signal is None or (location, label) == ("BA", 0):
                    continue
                signal = np.asarray(signal, np.float64).reshape(-1)
                ratio = 1 if label else _NORMAL_RATIO
                recordings[location, load, label] = Recording(len(signal) // ratio, partial(_kept, signal), ratio)
    return _require_some(recordings, folder)


def _from_npz(path: Path, found: Mapping[str, npt.NDArray[Any]]) -> Mapping[Key, Recording]:
    faults = len(CLASSES) - 1
    try:
        codes, step, offset = found["codes"], found["step"], found["offset"]
        names = tuple(found["classes"].tolist()), tuple(found["channels"].tolist())
    except KeyError:
        raise DataError(f"{path}: an array is missing; expected {_EXPECTED}") from None
    shape = (LOADS, faults, len(LOCATIONS))
    if codes.shape[:-1] != shape or step.shape != shape or offset.shape != shape or names != (CLASSES[1:], LOCATIONS):
        raise DataError(f"{path}: codes are {list(codes.shape)} or in another order; expected {_EXPECTED}")
    recordings: dict[Key, Recording] = {}
    for load, fault, channel in np.ndindex(shape):
        at = (load, fault, channel)
        decoded = partial(_decoded, codes[at], float(step[at]), float(offset[at]))
        recordings[LOCATIONS[channel], load, fault + 1] = Recording(codes.shape[-1], decoded)
    # The healthy bearing: both ends at load 0, the drive end at the others.
    for name, keys in (
        ("normal_load0_12k", [("DE", 0, 0), ("FE", 0, 0)]),
        ("normal_de_load123_12k", [("DE", load, 0) for load in (1, 2, 3)]),
    ):
        for key, signal in zip(keys, found.get(name, ()), strict=False):
            recordings[key] = Recording(len(signal), partial(_kept, signal))
    return _require_some(recordings, path)


def _require_some(recordings: Mapping[Key, Recording], path: Path) -> Mapping[Key, Recording]:
    if not any(recording.length >= WINDOW for recording in recordings.values()):
        raise DataError(f"{path}: no recording of at least {WINDOW} samples; expected {_EXPECTED}")
    return recordings


def _decoded(codes: npt.NDArray[Any], step: float, offset: float) -> _Signal:
    return codes * step + offset


def _kept(signal: npt.NDArray[Any]) -> _Signal:
    return signal
