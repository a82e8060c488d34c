"""Squared distances of sketches, computed on shares: each opens at one node, and nobody sees a sketch.

Every node shares its sketch coordinate by coordinate with polynomials of degree d over F_p, p = 2⁶¹ − 1. On its shares
a_i, a_j holder k computes Σ (a_i − a_j)², which is the value at k of a polynomial of degree 2d whose value at zero is
the squared distance (BGW, one multiplication and no degree reduction). To that it adds a share of zero that node j
dealt for recipient i, with degree 2d, so that the values recipient i gets are those of a uniform polynomial with the
right value at zero: it learns the distance to j and nothing else of j. Up to d holders learn nothing. 2d + 1 answers
determine a distance; a recipient wants c more, so that no c holders can bend it.

That needs i's own shares to be of degree d: whoever dealt itself other ones would read more than n − 2d linear
functions of a peer's sketch off the answers. So every node proves it, in its manifest and hence before anybody else's
shares exist. It hashes each holder's shares, derives random χ from all the hashes, and publishes
v = ρ + Σ_c χ_c·a_c, a polynomial of degree d, ρ being one more that is shared with the rest and hides the sum. A
holder checks its hash and v at its own place. Values off every polynomial of degree d pass with probability 1/p for
each of two χ, and cannot be chosen after χ is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from flint import nmod_mat

from secure_fl.encoding.integers import Integers
from secure_fl.errors import ProtectionError
from secure_fl.identity.signing import transcript
from secure_fl.protect.primitives.lagrange import lagrange
from secure_fl.protect.release.sketch import LIMIT, SIZE
from secure_fl.randomness import KeyStream, Randomness, derive_key

PRIME = 2**61 - 1  # above any squared distance of sketches

_WORD = np.dtype("<u8")
_TESTS = 2
_HASH_BYTES = 32
_FARTHEST = SIZE * (2 * LIMIT) ** 2


def degree(nodes: int, colluders: int) -> int:
    """d: a third of the nodes may collude and a third may be missing, or more may collude if the study says so."""
    return max(colluders, (nodes - 1) // 3)


def answers_needed(nodes: int, colluders: int) -> int:
    """2d + 1 + c, where there are so many: colluders that bend their answers are then noticed."""
    return min(2 * degree(nodes, colluders) + 1 + colluders, nodes)


def share_bytes(nodes: int) -> int:
    """The length of what one holder gets from one node."""
    return _WORD.itemsize * (SIZE + _TESTS + nodes)


def proof_lengths(nodes: int, colluders: int) -> tuple[int, int]:
    """Of the hashes and of the proof."""
    return _HASH_BYTES * nodes, _WORD.itemsize * _TESTS * (degree(nodes, colluders) + 1)


@dataclass(frozen=True, slots=True)
class Dealing:
    """What a node says of its sketch: to each holder its share, to everybody that they belong together."""

    shares: list[bytes]
    hashes: bytes
    proof: bytes


def deal(sketch: Integers, *, nodes: int, colluders: int, label: bytes, randomness: Randomness) -> Dealing:
    """For each holder 1 … `nodes` shares of the sketch, of the test's ρ, and of a zero for every recipient, in order.

    `label` names the round and the node.
    """
    d, known = degree(nodes, colluders), SIZE + _TESTS
    coefficients = np.zeros((2 * d + 1, known + nodes), np.uint64)
    coefficients[0, :SIZE] = sketch.astype(np.int64) % PRIME
    coefficients[0, SIZE:known] = _uniform(randomness, _TESTS)
    coefficients[1 : d + 1, :known] = _uniform(randomness, d * known).reshape(d, known)
    coefficients[1:, known:] = _uniform(randomness, 2 * d * nodes).reshape(2 * d, nodes)
    points = [[pow(holder, power, PRIME) for power in range(2 * d + 1)] for holder in range(1, nodes + 1)]
    values = _matrix(points) * _matrix(coefficients.tolist())
    shares = [row.tobytes() for row in _words(values)]
    hashes = b"".join(_hash(share) for share in shares)
    tested = _matrix(_challenge(label, hashes)) * _matrix(coefficients[: d + 1, :known].T.tolist())
    return Dealing(shares, hashes, _words(tested).tobytes())


def check_share(share: bytes, place: int, *, hashes: bytes, proof: bytes, label: bytes, nodes: int) -> None:
    """At holder `place`: raise `ProtectionError` unless this is its share of polynomials of the proof's degree."""
    if _hash(share) != hashes[_HASH_BYTES * (place - 1) : _HASH_BYTES * place]:
        raise ProtectionError("a share of a sketch is not the one its node stands by")
    values = _read(share, nodes)[: SIZE + _TESTS]
    coefficients = np.frombuffer(proof, _WORD).reshape(_TESTS, -1).tolist()
    if any(coefficient >= PRIME for test in coefficients for coefficient in test):
        raise ProtectionError("the proof about a sketch is outside the field")
    here = [sum(c * pow(place, power, PRIME) for power, c in enumerate(test)) % PRIME for test in coefficients]
    tested = _matrix(_challenge(label, hashes)) * _matrix([[value] for value in values])
    if [int(row[0]) for row in tested.tolist()] != here:
        raise ProtectionError("the shares of a sketch do not lie on polynomials of the round's degree")


def _challenge(label: bytes, hashes: bytes) -> list[list[int]]:
    """Per test: χ for the sketch, and 1 for its own ρ."""
    stream = KeyStream(derive_key(hashlib.sha256(transcript("sketch test", label, hashes)).digest(), b"sketch test"))
    drawn = _uniform(stream, _TESTS * SIZE).reshape(_TESTS, SIZE).tolist()
    return [[*row, *(int(test == other) for other in range(_TESTS))] for test, row in enumerate(drawn)]


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
        place = SIZE + _TESTS + order.index(recipient)
        values = [
            (products[i][i] + products[j][j] - 2 * products[i][j] + rows[peer][place]) % PRIME
            for j, peer in enumerate(names)
            if j != i
        ]
        answers[recipient] = np.array(values, _WORD).tobytes()
    return answers


def interpolate_scores(
    answers: Mapping[int, bytes], peers: Sequence[str], *, nodes: int, colluders: int
) -> dict[str, int]:
    """At a recipient: the squared distance to each of `peers`, from the answers of holders by their place."""
    need = answers_needed(nodes, colluders)
    if len(answers) < need or any(not 1 <= holder <= nodes for holder in answers):
        raise ProtectionError(f"{len(answers)} answers about distances, {need} are needed")
    holders = sorted(answers)
    values = [_read(answers[holder], len(peers), exactly=True) for holder in holders]
    count = 2 * degree(nodes, colluders) + 1
    base, rest = holders[:count], holders[count:]
    at_zero, *at_rest = lagrange(base, (0, *rest), prime=PRIME)
    for weights, given in zip(at_rest, values[count:], strict=True):
        if _at(weights, values) != given:
            raise ProtectionError("the answers about distances do not lie on one polynomial")
    squared = _at(at_zero, values)
    if any(distance > _FARTHEST for distance in squared):
        raise ProtectionError("a distance is larger than sketches can be apart")
    return dict(zip(peers, squared, strict=True))


def _at(weights: Sequence[int], values: Sequence[Sequence[int]]) -> list[int]:
    """The polynomials' values at a place, from those of the first holders and their weights there."""
    columns = zip(*values[: len(weights)], strict=True)
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


def _hash(share: bytes) -> bytes:
    # The shares have a thousand random numbers in them: a hash hides them.
    return hashlib.sha256(transcript("sketch share", share)).digest()


def _words(matrix: nmod_mat) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    rows = [[int(entry) for entry in row] for row in matrix.tolist()]
    return np.array(rows, np.uint64).astype(_WORD)


def _matrix(rows: Sequence[Sequence[int]]) -> nmod_mat:
    return nmod_mat(len(rows), len(rows[0]), [entry for row in rows for entry in row], PRIME)
