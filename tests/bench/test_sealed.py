"""What `sealed` may cost: bytes, error, dropouts, and a node's seconds beside those of the ring product alone."""

from __future__ import annotations

import time

import numpy as np
import pytest

from secure_fl.bench import aggregation
from secure_fl.protect.primitives.field import uniform
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.randomness import KeyStream

NODES, PARAMETERS, RUNS = 10, 1_000_000, 5


def ring_product() -> float:
    """Processor seconds of a·s for as many coefficients, the mean of ten."""
    secret, seconds = uniform(KeyStream(bytes(32)), DEGREE), 0.0
    for _ in range(NODES):
        values = np.zeros(PARAMETERS, np.int32)
        begun = time.process_time()
        Product(secret).seal(values, seed=bytes(32))
        seconds += time.process_time() - begun
    return seconds / NODES


def node_seconds() -> float:
    """Of one sum, the mean of its ten nodes: from floats to an upload, and as a holder."""
    figures = sealed(repeat=1)
    return (figures.seconds_total - figures.seconds_coordinator) / NODES


def sealed(*, dropouts: int = 0, combine: bool = False, repeat: int = RUNS) -> aggregation.Figures:
    told = aggregation.run(
        nodes=NODES, parameters=PARAMETERS, dropouts=dropouts, protections=("sealed",), repeat=repeat,
        note=lambda: None, combine=combine,
    )  # fmt: skip
    return aggregation.Figures(**told["protections"]["sealed"])


@pytest.mark.slow
def test_ten_nodes_with_a_million_parameters() -> None:
    whole, fewer, combined = sealed(), sealed(dropouts=3), sealed(combine=True)
    for what, figures in {"sum": whole, "sum, three gone": fewer, "combine": combined}.items():
        print(
            f"{what}: all {figures.seconds_total:.3f}, node {figures.seconds_node_max:.4f}, "
            f"hub {figures.seconds_coordinator:.4f}, opening {figures.seconds_opening:.4f} s, "
            f"{figures.bytes_per_parameter:.3f} bytes, error {figures.max_error:.1e}"
        )
    for figures in (whole, fewer, combined):
        assert figures.exact
        assert figures.bytes_per_parameter <= 4.15
        assert figures.max_error <= 1e-5
    assert combined.combinations_opened == 10
    assert fewer.seconds_total <= 1.1 * whole.seconds_total
    assert fewer.seconds_coordinator <= 1.1 * whole.seconds_coordinator


@pytest.mark.slow
def test_a_node_takes_no_more_than_twice_the_ring_product() -> None:
    # In turns, because this machine is not equally quick all the time; of each the quickest.
    pairs = [(ring_product(), node_seconds()) for _ in range(2 * RUNS)]
    product, node = (min(seconds) for seconds in zip(*pairs, strict=True))
    print(
        f"ring product alone: {product:.4f} s; a node's part of the sum: {node:.4f} s, {node / product:.2f} times that"
    )
    assert node <= 2 * product
