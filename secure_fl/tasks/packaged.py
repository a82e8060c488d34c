"""The small tables that scikit-learn's package carries, read without importing scikit-learn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from secure_fl.errors import DataError


def read_table(file: str, *, header_rows: int) -> npt.NDArray[np.float64]:
    """The rows of `sklearn/datasets/data/<file>`, features first and the class last, as scikit-learn reads them.

    Its own loaders bring all of scikit-learn and SciPy along: a second and 60 MB for every process that trains.
    Finding a package by its name imports nothing.
    """
    spec = find_spec("sklearn")
    if spec is None or spec.submodule_search_locations is None:
        raise DataError("scikit-learn, whose package has these data, is not installed", advice="pip install .")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / file
    try:
        return np.loadtxt(path, delimiter=",", skiprows=header_rows)
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read ({error})", advice="install scikit-learn again") from error
