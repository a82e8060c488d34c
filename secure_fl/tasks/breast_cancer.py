"""Breast cancer, benign or malignant, from 30 measurements: the small clinical task to try things with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import Field
from torch import nn

from secure_fl.errors import SettingsError
from secure_fl.tasks.base import Arrays, LocalData, Source, Task, TaskSettings, read_npz
from secure_fl.tasks.cutting import divide
from secure_fl.tasks.metrics import Auc, Metric, Sensitivity
from secure_fl.tasks.packaged import read_table

# Mean and standard deviation of each measurement in the published data (Wolberg, Street and Mangasarian, 1995; 569
# tumours), to three places: of the ten measurements' mean, standard error and worst value. They are written down here,
# so that no site's rows are looked at to scale them.
_PUBLISHED: dict[str, tuple[tuple[float, float], ...]] = {
    "radius": ((14.1, 3.52), (0.405, 0.277), (16.3, 4.83)),
    "texture": ((19.3, 4.3), (1.22, 0.551), (25.7, 6.14)),
    "perimeter": ((92, 24.3), (2.87, 2.02), (107, 33.6)),
    "area": ((655, 352), (40.3, 45.5), (881, 569)),
    "smoothness": ((0.0964, 0.0141), (0.00704, 0.003), (0.132, 0.0228)),
    "compactness": ((0.104, 0.0528), (0.0255, 0.0179), (0.254, 0.157)),
    "concavity": ((0.0888, 0.0796), (0.0319, 0.0302), (0.272, 0.208)),
    "concave points": ((0.0489, 0.0388), (0.0118, 0.00616), (0.115, 0.0657)),
    "symmetry": ((0.181, 0.0274), (0.0205, 0.00826), (0.29, 0.0618)),
    "fractal dimension": ((0.0628, 0.00705), (0.00379, 0.00264), (0.0839, 0.018)),
}
_CENTRE, _SPREAD = (
    np.array([columns[kind][part] for kind in range(3) for columns in _PUBLISHED.values()], np.float32)
    for part in range(2)
)


class BreastCancerSettings(TaskSettings):
    """Size of the network."""

    hidden: int = Field(default=16, ge=1, le=4096)


class BreastCancer(Task):
    """A small network on scikit-learn's Wisconsin data, or on a site's own rows of the same 30 columns."""

    kind = "classification"
    preprocessing = "public"
    # Malignant is class 0 in the published data.
    metrics: ClassVar[tuple[Metric, ...]] = (
        Auc(),
        Sensitivity(at_specificity=0.9, positive=0, called="sensitivity_at_90"),
    )
    Settings = BreastCancerSettings
    # Sites are not compared by models of fewer numbers (docs/guard.md).
    defaults_with: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "fedamp": {"task.hidden": 32},
        "fedcca": {"task.hidden": 32},
    }
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
        """Rows on a common scale and their class: 0 malignant, 1 benign."""
        if source.share is not None and source.share.partition.rotated:
            raise SettingsError(
                f"partition {source.share.partition.kind!r} turns images and this task has none",
                advice="use iid, dirichlet or pathological",
            )
        if source.path is None and source.share is not None:
            arrays = _common()
        else:
            arrays = read_npz(source, shape=(30,), classes=2)
        train, test = divide(source, arrays.x, arrays.y, classification=True, sites=arrays.sites, groups=arrays.groups)
        return LocalData.cut(_scaled(arrays.x), arrays.y, train, test, groups=arrays.groups)


def _common() -> Arrays:
    table = read_table("breast_cancer.csv", header_rows=1)
    return Arrays(x=table[:, :-1].astype(np.float32), y=table[:, -1].astype(np.int64))


def _scaled(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """`x` around 0 and about 1 wide, by the published numbers: no row has a part in how another is scaled."""
    return ((x - _CENTRE) / _SPREAD).astype(np.float32)
