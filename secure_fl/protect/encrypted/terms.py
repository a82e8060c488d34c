"""The numbers of an encrypted round: modulus, lanes, bytes. Every party derives the same from the round's context.

A ciphertext is a pair (c₀, a) of polynomials of degree below N = 4096 modulo a prime q, with

    c₀ = Δ·m − a·s − e

where s is the key, a is uniformly random, every coefficient of the error is |e| ≤ 21 (SEAL draws e as the difference
of two numbers of ones among 21 random bits), m holds the values in lanes, 0 ≤ m < t = 2^(lanes·lane bits), and
q = Δ·t + 1. Pairs are added with positive integer weights w. Opening computes Σw·c₀ + Σw·a·s = Δ·M − E modulo q, with
M = Σw·m and E = Σw·e, and returns the integer nearest to (t/q)·(Δ·M − E) = M − (M + t·E)/q, since t·Δ = q − 1.

That is exactly M if |M + t·E| < q/2. With W the most that weights add up to, |E| ≤ 21·W. Lanes are as wide as a sum of
weight W can become, so M ≤ t − 1. Hence the invariant, which holds for whatever honest sites send, not just usually:

    2·t·(21·W + 1) ≤ q

q is not just any prime, for the sake of privacy. Whoever opens can compute Δ·M − E, and so learns M, which is the sum,
and E, in which nothing depends on anybody's values. Textbook BFV sends the nearest integer to (q/t)·m instead of Δ·m,
whose rounding errors depend on each site's own m and would show up, added, beside E. With q = Δ·t + 1 there is nothing
to round.

Security is that of ring-LWE with N = 4096 and a key of −1, 0 and 1: the Homomorphic Encryption Standard (2018, table 1)
allows q 109 bits for 128-bit security, 75 for 192 and 58 for 256. Here q has at most 56.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from secure_fl.aggregation import RequestKind
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.primitives.packing import Packing
from secure_fl.protect.release.combinations import row_total

DEGREE = 4096  # N
SEED_BYTES = 64  # from which SEAL expands a
LARGEST_ERROR = 21  # of one coefficient of a fresh ciphertext
SECURITY_BITS = 256
LARGEST_MODULUS_BITS = {128: 109, 192: 75, 256: 58}  # for N = 4096, by security

# Coefficients of every ciphertext that hold 1 instead of values. Opened they hold the sum of the weights, and anything
# else shows that what was opened does not belong together: another key, a body without its seed, a wrong weight.
# A ciphertext that opens to something random passes with probability t⁻⁸, which is 2⁻¹²⁸ or less: t is at least 2¹⁶.
CHECKS = 8

_COEFFICIENT_BYTES = (4, 5, 6, 7)
_LEAST_STEP_BITS = 13  # SEAL's fast products need q = 1 modulo 2·N
_WITNESSES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)  # Miller-Rabin with these is exact below 2⁶⁴


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What every party knows about the numbers of a round: the choice with the fewest bytes per value."""

    kind: RequestKind
    nodes: int
    bits: int  # of a value
    weight_sum: int = field(init=False)  # W: the most that weights of one opened value add up to
    coefficient_bytes: int = field(init=False)
    lanes: int = field(init=False)  # values in one coefficient
    lane_bits: int = field(init=False)
    modulus: int = field(init=False)  # q

    def __post_init__(self) -> None:
        weight_sum = row_total(self.nodes) if self.kind is RequestKind.COMBINE else self.nodes
        choice = _choose(weight_sum, self.bits)
        if choice is None:
            raise OverflowInvariantError(
                f"{self.bits}-bit values of {self.nodes} nodes, whose weights add up to {weight_sum}, "
                f"do not fit a ciphertext: {_what_would_fit(weight_sum)}"
            )
        width, lanes, modulus = choice
        object.__setattr__(self, "weight_sum", weight_sum)
        object.__setattr__(self, "coefficient_bytes", width)
        object.__setattr__(self, "lanes", lanes)
        object.__setattr__(self, "lane_bits", _lane_bits(weight_sum, self.bits))
        object.__setattr__(self, "modulus", modulus)

    @staticmethod
    def of(context: RoundContext) -> Terms:
        """Those of a round."""
        return Terms.among(context.kind, nodes=len(context.invited), bits=context.bits)

    @staticmethod
    def among(kind: RequestKind, *, nodes: int, bits: int) -> Terms:
        """Those of a round among so many; raises `OverflowInvariantError` where no ciphertext has room for it."""
        return Terms(kind=kind, nodes=nodes, bits=bits)

    @property
    def plain_bits(self) -> int:
        """Bits of m: t = 2^plain_bits."""
        return self.lanes * self.lane_bits

    @property
    def scale(self) -> int:
        """Δ."""
        return self.modulus >> self.plain_bits

    @property
    def packing(self) -> Packing:
        """How values lie in coefficients."""
        return Packing(bits=self.bits, contributors=self.weight_sum, word_bits=self.plain_bits)

    @property
    def chunk_values(self) -> int:
        """Values in one ciphertext."""
        return (DEGREE - CHECKS) * self.lanes

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one ciphertext's body."""
        return DEGREE * self.coefficient_bytes

    def chunks(self, values: int) -> int:
        """How many ciphertexts so many values take."""
        if values < 0:
            raise ProtectionError(f"there cannot be {values} values")
        return -(-values // self.chunk_values)

    def body_bytes(self, values: int) -> int:
        """Bytes of the bodies that so many values take."""
        return self.chunks(values) * self.chunk_bytes

    def seeds_bytes(self, values: int) -> int:
        """Bytes of their seeds."""
        return self.chunks(values) * SEED_BYTES

    @property
    def encoded(self) -> bytes:
        """All of it in one line: what depends on the terms is bound to it."""
        return (
            f"{self.kind.value} nodes={self.nodes} bits={self.bits} weights={self.weight_sum} degree={DEGREE} "
            f"modulus={self.modulus} lanes={self.lanes}x{self.lane_bits} checks={CHECKS}"
        ).encode()


def _lane_bits(weight_sum: int, bits: int) -> int:
    return Packing(bits=bits, contributors=weight_sum).lane_bits


@lru_cache(maxsize=256)
def _choose(weight_sum: int, bits: int) -> tuple[int, int, int] | None:
    """Bytes of a coefficient, lanes and modulus with the fewest bytes per value; None if there is no room."""
    lane_bits = _lane_bits(weight_sum, bits)
    if weight_sum * (2 ** (bits - 1) - 1) >= 2**31:  # Totals are numbers of 32 bits.
        return None
    fitting = []
    for width in _COEFFICIENT_BYTES:
        for lanes in range(1, 8 * width // lane_bits + 1):
            plain_bits = lanes * lane_bits
            modulus = largest_modulus(8 * width, plain_bits)
            if (2 * LARGEST_ERROR * weight_sum + 2) << plain_bits <= modulus:
                fitting.append((width, lanes, modulus))
    # Where bytes are the same, more lanes are less work.
    return min(fitting, key=lambda choice: (choice[0] / choice[1], -choice[1]), default=None)


def _what_would_fit(weight_sum: int) -> str:
    fitting = (bits for bits in range(32, 1, -1) if _choose(weight_sum, bits))
    largest = next(fitting, None)
    return f"at most {largest} bits would" if largest else "values of no size would"


def largest_modulus(bits: int, plain_bits: int) -> int:
    """The largest prime below 2^bits that is 1 modulo 2^plain_bits and 1 modulo 2·N; 0 if there is none."""
    step = 1 << max(plain_bits, _LEAST_STEP_BITS)
    candidates = range(((1 << bits) - 2) // step * step + 1, step, -step)
    return next((number for number in candidates if _is_prime(number)), 0)


def _is_prime(number: int) -> bool:
    """Whether an odd number above 37 and below 2⁶⁴ is prime."""
    twos = ((number - 1) & (1 - number)).bit_length() - 1
    for witness in _WITNESSES:
        power = pow(witness, (number - 1) >> twos, number)
        if power in (1, number - 1):
            continue
        if not any((power := power * power % number) == number - 1 for _ in range(twos - 1)):
            return False
    return True
