"""What `sealed` may cost in bytes, error and dropouts; a node's seconds are printed beside the ring product alone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from secure_fl.bench import aggregation
from secure_fl.protect.sealed_field import ELEMENT, uniform
from secure_fl.protect.sealed_ring import DEGREE, Product
from secure_fl.randomness import KeyStream

PARAMETERS = 1_000_000


def ring_product() -> float:
    """Processor seconds of a·s for as many coefficients, at its quickest."""
    secret, out = uniform(KeyStream(bytes(32)), DEGREE), np.zeros(PARAMETERS, ELEMENT)
    seconds = []
    for _ in range(7):
        begun = time.process_time()
        Product(secret).add_to(out, seed=bytes(32))
        seconds.append(time.process_time() - begun)
    return min(seconds)


def sealed(*, dropouts: int = 0, combine: bool = False) -> aggregation.Figures:
    told = aggregation.run(
        nodes=10, parameters=PARAMETERS, dropouts=dropouts, protections=("sealed",), repeat=5, note=lambda: None,
        combine=combine,
    )  # fmt: skip
    return aggregation.Figures(**told["protections"]["sealed"])


@pytest.mark.slow
def test_ten_nodes_with_a_million_parameters() -> None:
    before = ring_product()
    whole, fewer, combined = sealed(), sealed(dropouts=3), sealed(combine=True)
    product = min(before, ring_product())  # as the figures are: the quickest of several
    for what, figures in {"sum": whole, "sum, three gone": fewer, "combine": combined}.items():
        print(
            f"{what}: all {figures.seconds_total:.3f}, node {figures.seconds_node_max:.4f}, "
            f"hub {figures.seconds_coordinator:.4f}, opening {figures.seconds_opening:.4f} s, "
            f"{figures.bytes_per_parameter:.3f} bytes, error {figures.max_error:.1e}"
        )
    times = whole.seconds_node_max / product
    print(f"ring product alone: {product:.4f} s; a node's part of the sum is {times:.2f} times that")
    for figures in (whole, fewer, combined):
        assert figures.exact
        assert figures.bytes_per_parameter <= 4.15
        assert figures.max_error <= 1e-5
    assert combined.combinations_opened == 10
    assert fewer.seconds_total <= 1.1 * whole.seconds_total
    assert fewer.seconds_coordinator <= 1.1 * whole.seconds_coordinator
