"""What the image tasks share: files of labelled images, who holds which of them, and a small network.

Images stay bytes until a site knows which rows are its own: 70,000 of them as float32 would be eight times what
one of many simulated sites needs.
"""

from __future__ import annotations

import gzip
import zlib
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings, open_npz, require_path
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.partition import Indices, rotate_images, rotation

Bytes = npt.NDArray[np.uint8]
CLASSES = 10


class ImageSettings(TaskSettings):
    """The network, and how many of the images to use."""

    network: Literal["cnn", "mlp"] = "cnn"
    hidden: int = Field(default=64, ge=1, le=4096)
    # In a simulation: images that take part, drawn once and alike for all sites; 0 is all of them.
    limit: int = Field(default=0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Images:
    """Labelled images (n, height, width[, channels]). Rows from `first_test` on are the publisher's test set."""

    x: Bytes
    y: npt.NDArray[np.int64]
    first_test: int | None = None
    sites: npt.NDArray[Any] | None = None

    def some(self, limit: int) -> Images:
        """`limit` of the images, the same ones each time, in proportion from training and test set."""
        if not 0 < limit < len(self.y):
            return self
        # A fixed seed: every site must mean the same rows by "the first thousand".
        rows = np.sort(np.random.default_rng(0).permutation(len(self.y))[:limit])
        first = None if self.first_test is None else int(np.searchsorted(rows, self.first_test))
        sites = None if self.sites is None else self.sites[rows]
        return Images(x=self.x[rows], y=self.y[rows], first_test=first, sites=sites)


class ImageTask(Task):
    """Images of one size in ten classes. A subclass says the size and what its files are called."""

    kind = "classification"
    preprocessing = "public"
    Settings = ImageSettings
    may_have_groups = False
    settings: ImageSettings

    shape: ClassVar[tuple[int, ...]]
    # What a site should put where, for error messages.
    files: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]

    @abstractmethod
    def read_folder(self, folder: Path) -> Images:
        """The images in a folder of the publisher's own files."""

    def model(self) -> nn.Module:
        """Blocks `conv1`, `conv2`, `hidden` and `head`, or `input`, `hidden` and `head` for the MLP.

        No batch statistics, so that it trains under DP-SGD too.
        """
        size, channels = self.shape[0], self.shape[2] if len(self.shape) == 3 else 1
        width = self.settings.hidden
        hidden: nn.Module
        if self.settings.network == "mlp":
            first = {"input": nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, width), nn.ReLU())}
            hidden = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        else:
            first = {
                "conv1": nn.Sequential(nn.Conv2d(channels, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
                "conv2": nn.Sequential(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            }
            hidden = nn.Sequential(nn.Linear(32 * (size // 4) ** 2, width), nn.ReLU())
        model = nn.Sequential(OrderedDict(**first, hidden=hidden, head=nn.Linear(width, CLASSES)))
        return model.apply(initialise)

    def load(self, source: Source) -> LocalData:
        """Images (n, channels, height, width) in [0, 1] and their classes, turned where the partition says so.

        In a simulation, the publisher's training and test set are one pool: each node cuts its own test rows from
        its share, so that it is tested on what it sees. A site with files of its own keeps the publisher's cut.
        """
        if self.settings.limit and source.share is None:
            # Which ones are drawn depends on how many there are: one image would change the choice of others.
            raise SettingsError("task.limit is for simulations", advice="set it to 0, or give the site a smaller file")
        images = self._read(source).some(self.settings.limit)
        if source.share is None and images.first_test is not None:
            train, test = np.arange(images.first_test), np.arange(images.first_test, len(images.y))
            if not len(train) or not len(test):
                raise DataError(f"{source.path}: {len(train)} training and {len(test)} test images; both are needed")
        else:
            train, test = divide(source, images.x, images.y, classification=True, sites=images.sites)
        angle = 0.0 if source.share is None else rotation(source.share)
        mine: Indices = np.concatenate([train, test])
        x = rotate_images(images.x[mine].astype(np.float32) / np.float32(255), angle)
        x = x[:, None] if x.ndim == 3 else np.ascontiguousarray(np.moveaxis(x, 3, 1))
        first, second = np.arange(len(train)), np.arange(len(train), len(mine))
        return LocalData.cut(x, images.y[mine], first, second)

    def _read(self, source: Source) -> Images:
        path = require_path(source, self.files, formats=self.formats)
        images = self.read_folder(path) if path.is_dir() else self._read_npz(path)
        problem = self._problem(images)
        if problem:
            raise DataError(f"{path}: {problem}; expected {self.files}")
        return images

    def _read_npz(self, path: Path) -> Images:
        found = open_npz(path, self.files)
        parts = ("_train", "_test") if "x_train" in found else ("",)
        try:
            x = [found[f"x{part}"] for part in parts]
            y = [found[f"y{part}"].astype(np.int64, casting="safe") for part in parts]
            if any(part.dtype != np.uint8 for part in x):
                raise DataError(f"{path}: pixels are not bytes (uint8); expected {self.files}")
            if any(len(a) != len(b) for a, b in zip(x, y, strict=True)):
                raise DataError(f"{path}: images and classes differ in number; expected {self.files}")
            first = len(y[0]) if len(parts) == 2 else None
            sites = None if len(parts) == 2 else found.get("sites")
            return Images(x=np.concatenate(x), y=np.concatenate(y), first_test=first, sites=sites)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{path}: an array is missing or has another shape; expected {self.files}") from None

    def _problem(self, images: Images) -> str | None:
        """What is wrong with the images, in words; None when nothing is."""
        if images.x.shape[1:] != self.shape or images.y.ndim != 1:
            return f"images are {list(images.x.shape[1:])} and classes {list(images.y.shape[1:])}"
        if len(images.x) != len(images.y) or (images.sites is not None and images.sites.shape != images.y.shape):
            return "images, classes and sites differ in number"
        if len(images.y) < 2:
            return "fewer than 2 images"
        if images.y.min() < 0 or images.y.max() >= CLASSES:
            return "there are classes outside 0 to 9"
        return None


def initialise(module: nn.Module) -> None:
    """He initialisation (arXiv:1502.01852): torch's smaller default makes a slow start under averaging."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


# --- IDX, the format of MNIST and its relatives -----------------------------------------------------------


def read_idx_folder(folder: Path, expected: str) -> Images:
    """The four IDX files of `folder`, compressed or not."""
    x = [_read_idx(_find(folder, f"{part}-images", "idx3-ubyte", expected), 3, expected) for part in ("train", "t10k")]
    y = [_read_idx(_find(folder, f"{part}-labels", "idx1-ubyte", expected), 1, expected) for part in ("train", "t10k")]
    if any(len(a) != len(b) for a, b in zip(x, y, strict=True)) or x[0].shape[1:] != x[1].shape[1:]:
        raise DataError(f"{folder}: images and classes differ in number or size; expected {expected}")
    return Images(x=np.concatenate(x), y=np.concatenate(y).astype(np.int64), first_test=len(y[0]))


def _find(folder: Path, name: str, ending: str, expected: str) -> Path:
    # Published with a hyphen, often unpacked with a dot.
    names = [f"{name}{sep}{ending}{packed}" for packed in ("", ".gz") for sep in "-."]
    for candidate in names:
        if (folder / candidate).is_file():
            return folder / candidate
    raise DataError(f"{folder}: no {names[0]} or {names[2]}; expected {expected}")


def _read_idx(path: Path, dimensions: int, expected: str) -> Bytes:
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
    except (OSError, EOFError, zlib.error):
        raise DataError(f"{path}: cannot be read; expected {expected}") from None
    # Two zero bytes, 8 for "unsigned byte", the number of dimensions, then each size as a big-endian integer.
    header = 4 + 4 * dimensions
    if len(raw) < header or raw[:4] != bytes([0, 0, 8, dimensions]):
        raise DataError(f"{path}: not an IDX file of bytes in {dimensions} dimensions; expected {expected}")
    sizes = tuple(int(size) for size in np.frombuffer(raw[4:header], ">u4"))
    body = np.frombuffer(raw, np.uint8, offset=header)
    count = 1
    for size in sizes:  # In Python's integers: a forged header must not overflow into a size that fits.
        count *= size
    if count != len(body):
        raise DataError(f"{path}: {len(body)} bytes after the header, which says {count}; expected {expected}")
    return body.reshape(sizes)
