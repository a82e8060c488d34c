"""The randomness that privacy rests on: Gaussian noise and secret samples, from AES in counter mode.

Whoever can compute the noise can subtract it, and whoever knows who was sampled has no amplification to reckon with. So
both come from a CSPRNG whose key is drawn from the operating system in every execution and never stored. NumPy's and
torch's generators are not used: their state follows from a few outputs.

Floating point. A Gaussian that is computed in floating point has gaps: which numbers can come out at all tells
something about the number the noise was added to (Mironov, 2012, doi:10.1145/2382196.2382264). Therefore `noised` adds
in float64 and rounds the result to a grid that does not depend on the data, 2⁻¹⁶ of the noise or less: every grid point
collects billions of float64 values, and what can come out is the same for all data. Two gaps remain. The noise never
exceeds 9.5 standard deviations, which a true Gaussian does with probability 3·10⁻²¹ a number; and the probability of a
grid point is that of a Gaussian only up to float64's rounding, about 10⁻¹⁰ of it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from secure_fl.randomness import KeyStream, derive_key

if TYPE_CHECKING:
    from torch import Tensor

_GRID_BITS = 16  # the grid is at most 2^−16 of the noise's standard deviation
_CHUNK = 1 << 20  # Gaussians made at once, so that a large model's noise takes a few megabytes beside itself


class PrivateRandomness:
    """The randomness of one execution of training: a stream of its own for every step."""

    def __init__(self, seed: bytes | None = None) -> None:
        """Fresh from the operating system, or from `seed`: for simulations, where it must differ in each execution.

        Whoever knows a seed can take the noise away again: with one there is no guarantee.
        """
        self.kind: Literal["system", "seeded"] = "system" if seed is None else "seeded"
        self._key = os.urandom(32) if seed is None else derive_key(seed, b"secure-fl seeded noise")

    def step(self, number: int) -> StepRandomness:
        """The randomness of one step. Each number is to be used once."""
        return StepRandomness(lambda purpose: self._stream(purpose, number))

    def torch_seed(self) -> int:
        """A seed for torch's generator, from which dropout draws.

        It has to be secret too. Masks are dealt out row by row, so that one row more gives all that follow another
        mask; that is no loss only while nobody can tell which masks were drawn.
        """
        return int.from_bytes(self._stream("torch", 0).bytes(8), "little") >> 1

    def _stream(self, purpose: str, number: int) -> KeyStream:
        return KeyStream(derive_key(self._key, f"secure-fl {purpose} {number}".encode()))


class StepRandomness:
    """Who is in one step's sample, which of their rows count, and the noise that is added."""

    def __init__(self, stream: Callable[[str], KeyStream]) -> None:
        self._stream = stream  # by purpose

    def sample(self, units: int, rate: float) -> npt.NDArray[np.int64]:
        """A Poisson sample: each of `units` is in it with probability `rate`, whoever else is. It may be empty."""
        if rate >= 1:
            return np.arange(units)
        # An integer below ⌊rate·2^64⌋ has at most that probability: rounding never samples more often than was charged.
        return np.flatnonzero(_words(self._stream("sampling"), units) < np.uint64(math.floor(rate * 2**64)))

    def order(self, count: int) -> npt.NDArray[np.uint64]:
        """A random number for each of `count` rows, to choose among them by."""
        return _words(self._stream("choice of rows"), count)

    def noised(self, total: Tensor, deviation: float) -> Tensor:
        """`total` plus Gaussian noise, in float64 and on the grid that the module's text speaks of."""
        import torch

        flat = total.detach().to(device="cpu", dtype=torch.float64).flatten().clone()
        grid = 2.0 ** math.floor(math.log2(deviation) - _GRID_BITS)
        stream = self._stream("noise")
        for part in torch.split(flat, _CHUNK):  # views: what is added to them is added to `flat`
            part.add_(gaussians(stream, len(part)), alpha=deviation)
        return flat.div_(grid).round_().mul_(grid).view(total.shape)


def gaussians(stream: KeyStream, count: int) -> Tensor:
    """`count` independent standard normal numbers in float64, by Box and Muller's method."""
    import torch

    pairs = (count + 1) // 2
    radii, angles = np.split(_words(stream, 2 * pairs), 2)
    # (k + ½)·2^−64 is never 0, and small enough for a tail up to 9.5 standard deviations.
    uniform = torch.from_numpy(radii.astype(np.float64)).add_(0.5).mul_(2.0**-64)
    radius = uniform.log_().mul_(-2).sqrt_()
    # 52 random bits behind the exponent of 1 make a number in [1, 2): faster than a conversion.
    turns = ((angles >> np.uint64(12)) | np.uint64(0x3FF << 52)).view(np.float64)
    angle = torch.from_numpy(turns).sub_(1).mul_(2 * math.pi)
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def _words(stream: KeyStream, count: int) -> npt.NDArray[np.uint64]:
    return np.frombuffer(stream.bytes(8 * count), np.dtype("<u8"))
