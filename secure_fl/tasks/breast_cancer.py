"""Breast cancer, benign or malignant, from 30 measurements: the small clinical task to try things with."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from secure_fl.errors import SettingsError
from secure_fl.tasks.base import Arrays, LocalData, Source, Task, TaskSettings, read_npz
from secure_fl.tasks.packaged import read_table
from secure_fl.tasks.partition import Indices, divide


class BreastCancerSettings(TaskSettings):
    """Size of the network."""

    hidden: int = Field(default=16, ge=1, le=4096)


class BreastCancer(Task):
    """A small network on scikit-learn's Wisconsin data, or on a site's own rows of the same 30 columns."""

    kind = "classification"
    Settings = BreastCancerSettings
    settings: BreastCancerSettings

    def model(self) -> nn.Module:
        """Blocks `features` and `head`."""
        hidden = self.settings.hidden
        return nn.Sequential(
            OrderedDict(
                features=nn.Sequential(nn.Linear(30, hidden), nn.ReLU()),
                head=nn.Linear(hidden, 2),
            )
        )

    def load(self, source: Source) -> LocalData:
        """Standardised rows and their class: 0 malignant, 1 benign."""
        if source.share is not None and source.share.partition.rotated:
            raise SettingsError(
                f"partition {source.share.partition.kind!r} turns images and this task has none",
                advice="use iid, dirichlet or pathological",
            )
        if source.path is None and source.share is not None:
            arrays = _common()
        else:
            arrays = read_npz(source, shape=(30,), classes=2)
        train, test = divide(arrays.y, source.share, classification=True, sites=arrays.sites)
        return LocalData.cut(_standardise(arrays.x, train), arrays.y, train, test)


def _common() -> Arrays:
    table = read_table("breast_cancer.csv", header_rows=1)
    return Arrays(x=table[:, :-1].astype(np.float32), y=table[:, -1].astype(np.int64))


def _standardise(x: npt.NDArray[np.float32], train: Indices) -> npt.NDArray[np.float32]:
    """`x` in units of the training rows' mean and deviation.

    Of this site's training rows alone: common statistics would be one more release about patients, and the
    test rows' would flatter the test.
    """
    mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
    # A column that is constant at this site carries no information; zero is what it should become.
    scaled: npt.NDArray[np.float32] = (x - mean) / np.where(deviation > 0, deviation, np.float32(1))
    return scaled
