"""Handwritten digits, 28x28 pixels (LeCun et al., 1998)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from secure_fl.tasks.images import Images, ImageTask, read_idx_folder

FILES = (
    "a folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
    "t10k-labels-idx1-ubyte (each also as .gz), or a .npz file with x_train, y_train, x_test, y_test "
    "or x, y of 28x28 uint8 images and classes 0 to 9"
)


class Mnist(ImageTask):
    """MNIST: ten digits, in the publisher's IDX files or a .npz file."""

    shape = (28, 28)
    files = FILES
    formats = ("idx", "npz")
    public_files: ClassVar[tuple[str, ...]] = ("mnist.npz", "mnist")
    public_source = "LeCun, Cortes and Burges: the MNIST database of handwritten digits"

    def read_folder(self, folder: Path) -> Images:
        """Four IDX files."""
        return read_idx_folder(folder, self.files)
