"""Pieces of clothing, 28x28 pixels (Xiao et al., 2017, arXiv:1708.07747): the files of MNIST, a harder task."""

from __future__ import annotations

from secure_fl.tasks.mnist import Mnist


class Fashion(Mnist):
    """Fashion-MNIST: ten kinds of clothing. The publisher uses MNIST's file names, so only the folder differs."""

    public_files = ("fashion_mnist.npz", "fashion.npz", "fashion")
    public_source = "Zalando Research: Fashion-MNIST"
