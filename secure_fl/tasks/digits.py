"""Handwritten digits, 8x8 pixels: the small image task to try things with."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from pydantic import Field
from torch import nn

from secure_fl.errors import DataError
from secure_fl.tasks.base import Arrays, LocalData, Source, Task, TaskSettings, read_npz
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.packaged import read_table
from secure_fl.tasks.partition import rotate_images, rotation


class DigitsSettings(TaskSettings):
    """Size of the network."""

    hidden: int = Field(default=64, ge=1, le=4096)


class Digits(Task):
    """A convolution and two linear layers on scikit-learn's digits, or on a site's own 8x8 images."""

    kind = "classification"
    preprocessing = "public"
    Settings = DigitsSettings
    settings: DigitsSettings

    def model(self) -> nn.Module:
        """Blocks `features`, `hidden` and `head`. No batch statistics, so that it trains under DP-SGD too."""
        hidden = self.settings.hidden
        model = nn.Sequential(
            OrderedDict(
                features=nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
                hidden=nn.Sequential(nn.Linear(16 * 4 * 4, hidden), nn.ReLU()),
                head=nn.Linear(hidden, 10),
            )
        )
        return model.apply(_initialise)

    def load(self, source: Source) -> LocalData:
        """Images (n, 1, 8, 8) in [0, 1] and their digits, turned where the partition says so."""
        arrays = _common() if source.path is None and source.share is not None else _own(source)
        train, test = divide(source, arrays.x, arrays.y, classification=True, sites=arrays.sites, groups=arrays.groups)
        angle = 0.0 if source.share is None else rotation(source.share)
        images = rotate_images(arrays.x, angle)[:, None]
        return LocalData.cut(images, arrays.y, train, test, groups=arrays.groups)


def _initialise(module: nn.Module) -> None:
    """He initialisation (arXiv:1502.01852): torch's smaller default makes a slow start under averaging."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _common() -> Arrays:
    table = read_table("digits.csv.gz", header_rows=0)
    images = table[:, :-1].reshape(-1, 8, 8)
    return Arrays(x=(images / 16).astype(np.float32), y=table[:, -1].astype(np.int64))


def _own(source: Source) -> Arrays:
    arrays = read_npz(source, shape=(8, 8), classes=10)
    # Refused rather than rescaled: sites that scale by their own largest pixel would not agree on a model.
    if arrays.x.min() < 0 or arrays.x.max() > 1:
        raise DataError(f"{source.path}: x has pixels outside [0, 1]", advice="divide x by the scale's maximum")
    return arrays
