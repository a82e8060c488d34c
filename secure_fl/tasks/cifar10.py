"""Colour photographs of ten kinds of things, 32x32 pixels (Krizhevsky, 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from secure_fl.errors import DataError
from secure_fl.tasks.images import Images, ImageTask

_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_PIXELS = 3 * 32 * 32


class Cifar10(ImageTask):
    """CIFAR-10, in the publisher's binary version or a .npz file."""

    shape = (32, 32, 3)
    # Not the "python version": it is pickled, and opening a pickle runs whatever it says.
    files = (
        "a folder with the binary version's data_batch_1.bin to data_batch_5.bin and test_batch.bin, or a .npz file "
        "with x_train, y_train, x_test, y_test or x, y of 32x32x3 uint8 images and classes 0 to 9"
    )
    formats = ("bin", "npz")
    public_files = ("cifar10.npz", "cifar-10-batches-bin", "cifar10_subset.npz")
    public_source = "Krizhevsky, 2009: CIFAR-10, the binary version"

    def read_folder(self, folder: Path) -> Images:
        """Six batches: in each record a class, then 1024 bytes each of red, green and blue."""
        batches = []
        for name in _BATCHES:
            path = folder / name
            if not path.is_file():
                raise DataError(f"{folder}: no {name}; expected {self.files}")
            raw = np.fromfile(path, np.uint8)
            if not len(raw) or len(raw) % (1 + _PIXELS):
                raise DataError(f"{path}: {len(raw)} bytes are not records of {1 + _PIXELS}; expected {self.files}")
            batches.append(raw.reshape(-1, 1 + _PIXELS))
        records = np.concatenate(batches)
        x = np.moveaxis(records[:, 1:].reshape(-1, 3, 32, 32), 1, 3)
        return Images(x=x, y=records[:, 0].astype(np.int64), first_test=len(records) - len(batches[-1]))
