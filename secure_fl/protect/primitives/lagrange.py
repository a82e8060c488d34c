"""Interpolation modulo a prime: the values of a polynomial at some places from its values at others."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod


def lagrange(base: Sequence[int], others: Sequence[int], *, prime: int) -> list[list[int]]:
    """λ_k(x) = Π_{m≠k} (x − m)/(k − m), a row for each x: the value at x is Σ λ_k(x)·value_k. No x is in the base."""
    below = [pow(prod(k - m for m in base if m != k), -1, prime) for k in base]
    rows = []
    for x in others:
        above = prod(x - m for m in base) % prime
        rows.append([above * inverse * pow(x - k, -1, prime) % prime for k, inverse in zip(base, below, strict=True)])
    return rows
