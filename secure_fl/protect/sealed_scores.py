"""Squared distances of sketches, computed on shares: each opens at one node, and nobody sees a sketch.

Every node shares its sketch coordinate by coordinate with polynomials of degree d over F_p, p = 2⁶¹ − 1. On its shares
a_i, a_j holder k computes Σ (a_i − a_j)², which is the value at k of a polynomial of degree 2d whose value at zero is
the squared distance (BGW, one multiplication and no degree reduction). To that it adds a share of zero that node j
dealt for recipient i, with degree 2d, so that the values recipient i gets are those of a uniform polynomial with the
right value at zero: it learns the distance to j and nothing else of j. Up to d holders learn nothing. 2d + 1 must
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from flint import nmod_mat

from secure_fl.errors import ProtectionError
from secure_fl.protect.base import Integers
from secure_fl.protect.sketch import LIMIT, SIZE
from secure_fl.randomness import Randomness

PRIME = 2**61 - 1  # above any squared distance of sketches

_WORD = np.dtype("<u8")
_FARTHEST = SIZE * (2 * LIMIT) ** 2


def degree(nodes: int, colluders: int) -> int:
    """d: a third of the nodes may collude and a third may be missing, or more may collude if the study says so."""
    return max(colluders, (nodes - 1) // 3)


def answers_needed(nodes: int, colluders: int) -> int:
    """2d + 1."""
    return 2 * degree(nodes, colluders) + 1


def share_bytes(nodes: int) -> int:
    """The length of what one holder gets from one node."""
    return _WORD.itemsize * (SIZE + nodes)


def deal(sketch: Integers, *, nodes: int, colluders: int, randomness: Randomness) -> list[bytes]:
    """For each holder 1 … `nodes`: its shares of the sketch, and its share of a zero for every recipient, in order."""
    d = degree(nodes, colluders)
    secrets = np.concatenate([(sketch.astype(np.int64) % PRIME).astype(np.uint64), np.zeros(nodes, np.uint64)])
    coefficients = np.zeros((2 * d + 1, SIZE + nodes), np.uint64)
    coefficients[0] = secrets
    coefficients[1 : d + 1, :SIZE] = _uniform(randomness, d * SIZE).reshape(d, SIZE)
    coefficients[1:, SIZE:] = _uniform(randomness, 2 * d * nodes).reshape(2 * d, nodes)
    points = [[pow(holder, power, PRIME) for power in range(2 * d + 1)] for holder in range(1, nodes + 1)]
    values = _matrix(points) * _matrix(coefficients.tolist())
    table = np.array(values.tolist(), dtype=np.object_).astype(np.uint64).astype(_WORD)
    return [row.tobytes() for row in table]


def score(shares: Mapping[str, bytes], *, order: Sequence[str]) -> dict[str, bytes]:
    """One holder's part: for each node that shared, its share of the distance to each other one, sorted by name.

    `order` are the round's nodes, in whose order zeros were dealt.
    """
    names = sorted(shares)
    rows = {name: _read(shares[name], len(order)) for name in names}
    sketches = _matrix([rows[name][:SIZE] for name in names])
    gram = (sketches * sketches.transpose()).tolist()
    products = [[int(entry) for entry in row] for row in gram]
    answers: dict[str, bytes] = {}
    for i, recipient in enumerate(names):
        place = SIZE + order.index(recipient)
        values = [
            (products[i][i] + products[j][j] - 2 * products[i][j] + rows[peer][place]) % PRIME
            for j, peer in enumerate(names)
            if j != i
        ]
        answers[recipient] = np.array(values, _WORD).tobytes()
    return answers


def open_scores(answers: Mapping[int, bytes], peers: Sequence[str], *, nodes: int, colluders: int) -> dict[str, int]:
    """At a recipient: the squared distance to each of `peers`, from the answers of holders by their place."""
    need = answers_needed(nodes, colluders)
    if len(answers) < need or any(not 1 <= holder <= nodes for holder in answers):
        raise ProtectionError(f"{len(answers)} answers about distances, {need} are needed")
    holders = sorted(answers)
    values = [_read(answers[holder], len(peers), exactly=True) for holder in holders]
    base, rest = holders[:need], holders[need:]
    for holder, given in zip(rest, values[need:], strict=True):
        if _at(holder, base, values) != given:
            raise ProtectionError("the answers about distances do not lie on one polynomial")
    squared = _at(0, base, values)
    if any(distance > _FARTHEST for distance in squared):
        raise ProtectionError("a distance is larger than sketches can be apart")
    return dict(zip(peers, squared, strict=True))


def _at(point: int, base: Sequence[int], values: Sequence[Sequence[int]]) -> list[int]:
    """The polynomials' values at `point`, from those at `base`."""
    weights = []
    for holder in base:
        above = below = 1
        for other in base:
            if other != holder:
                above, below = above * (point - other) % PRIME, below * (holder - other) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    columns = zip(*values[: len(base)], strict=True)
    return [sum(weight * value for weight, value in zip(weights, column, strict=True)) % PRIME for column in columns]


def _read(raw: bytes, count: int, *, exactly: bool = False) -> list[int]:
    """Field elements: of a dealt share, or of an answer with exactly `count` values."""
    expected = _WORD.itemsize * count if exactly else share_bytes(count)
    values = np.frombuffer(raw, _WORD) if len(raw) == expected else None
    if values is None or values.max(initial=0) >= PRIME:
        raise ProtectionError("a share of a sketch is malformed or outside the field")
    elements: list[int] = values.tolist()
    return elements


def _uniform(randomness: Randomness, count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """Uniform elements: 61 bits each, those that are all ones drawn again."""
    words = np.frombuffer(bytearray(randomness.bytes(_WORD.itemsize * count)), _WORD)
    words &= np.uint64(PRIME)
    refused = np.flatnonzero(words == PRIME)
    if refused.size:
        words[refused] = _uniform(randomness, refused.size)
    return words


def _matrix(rows: Sequence[Sequence[int]]) -> nmod_mat:
    return nmod_mat(len(rows), len(rows[0]), [entry for row in rows for entry in row], PRIME)
