"""What a protection is compared with: homomorphic encryption as it is usually set up with TenSEAL.

CKKS with N = 8192, every ciphertext whole. What is measured is what a node does to an update, what the coordinator does
with each upload, and what whoever has the secret key does with the sum: nothing is signed, checked or hidden beyond
that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from secure_fl.blocks import Vector

_DEGREE = 8192
_SCALE = 2.0**40
_SLOTS = _DEGREE // 2
MOST_PARAMETERS = 64 * _SLOTS  # 64 ciphertexts; beyond that every parameter costs the same


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to set CKKS up."""

    modulus_bits: tuple[int, ...]  # of the primes in the modulus
    symmetric: bool  # encryption with the secret key


# TenSEAL's own tutorials, and what NVIDIA FLARE's provisioning (`HEBuilder`) does unless it is told otherwise.
USUAL: Mapping[str, Setting] = {
    "tenseal": Setting(modulus_bits=(60, 40, 40, 60), symmetric=False),
    "flare": Setting(modulus_bits=(60, 40, 40), symmetric=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFigures:
    """CPU seconds and bytes of one node's update; seconds are for all parameters, in proportion to those measured."""

    measured_parameters: int
    seconds_encrypt: float  # at a node, from floats to bytes
    seconds_add: float  # at the coordinator, for one upload: read and added
    seconds_decrypt: float  # wherever the key is, from bytes to floats
    bytes_per_parameter: float
    max_error: float


def measure(name: str, *, parameters: int, repeat: int) -> dict[str, Any]:
    """One of the usual settings: the quickest of `repeat` runs, each of its three parts by itself."""
    import tenseal

    setting = USUAL[name]
    context = tenseal.context(
        tenseal.SCHEME_TYPE.CKKS,
        _DEGREE,
        coeff_mod_bit_sizes=list(setting.modulus_bits),
        encryption_type=getattr(tenseal.ENCRYPTION_TYPE, "SYMMETRIC" if setting.symmetric else "ASYMMETRIC"),
    )
    context.global_scale = _SCALE
    count = min(parameters, MOST_PARAMETERS)
    values: Vector = np.random.default_rng(0).uniform(-1, 1, count).astype(np.float32)  # test data, not secrets
    runs = [_run(tenseal, context, values) for _ in range(repeat)]
    scale = parameters / count
    figures = BaselineFigures(
        measured_parameters=count,
        seconds_encrypt=scale * min(run[0] for run in runs),
        seconds_add=scale * min(run[1] for run in runs),
        seconds_decrypt=scale * min(run[2] for run in runs),
        bytes_per_parameter=runs[-1][3] / count,
        max_error=max(run[4] for run in runs),
    )
    return asdict(figures)


def _run(tenseal: Any, context: Any, values: Vector) -> tuple[float, float, float, int, float]:
    # One vector for each ciphertext: of a longer one TenSEAL makes the same ciphertexts, and a warning.
    vectors = [values[start : start + _SLOTS] for start in range(0, values.size, _SLOTS)]
    begun = time.process_time()
    upload = [tenseal.ckks_vector(context, vector).serialize() for vector in vectors]
    encrypted = time.process_time()
    totals = [tenseal.ckks_vector_from(context, raw) for raw in upload]  # the first upload; adding another is timed
    first = time.process_time()
    for total, raw in zip(totals, upload, strict=True):
        total += tenseal.ckks_vector_from(context, raw)  # noqa: PLW2901 - added in place
    added = time.process_time()
    result = [total.serialize() for total in totals]
    ready = time.process_time()
    opened = np.concatenate([tenseal.ckks_vector_from(context, raw).decrypt() for raw in result])
    done = time.process_time()
    error = float(np.abs(opened / 2 - values).max())
    return encrypted - begun, added - first, done - ready, sum(map(len, upload)), error
