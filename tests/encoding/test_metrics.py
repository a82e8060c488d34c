"""Measurements survive the way into the protected sum and out of it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding import metrics
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.metrics import METRICS_BLOCK, SiteMetrics, metrics_codec
from secure_fl.randomness import KeyStream
from secure_fl.transport.wire import is_name
from tests.protect.cohorts import layout
from tests.protect.laws import law

to_vector = partial(metrics.to_vector, ceiling=16.0)
from_vector = partial(metrics.from_vector, ceiling=16.0)
with_metrics = partial(metrics.with_metrics, sizes={}, bits=16)

# On a grid that float32 holds exactly, also after division by the ceiling.
shares = st.integers(0, 2**16).map(lambda step: step * 2.0**-16)
losses = st.integers(0, 2**20).map(lambda step: step * 2.0**-16)


@law
@given(shares, losses, shares)
def test_classification_survives(accuracy: float, loss: float, common: float) -> None:
    measured = SiteMetrics(samples=7, accuracy=accuracy, loss=loss, global_accuracy=common)
    vector = to_vector(measured)
    assert vector.dtype == np.float32
    assert vector.min() >= 0
    assert vector.max() <= 1
    again = from_vector(vector, classification=True, has_global_model=True)
    # All but the number of samples, which is no part of the sum.
    assert again == SiteMetrics(accuracy=accuracy, loss=loss, global_accuracy=common)


@law
@given(losses, losses)
def test_regression_survives(loss: float, mse: float) -> None:
    vector = to_vector(SiteMetrics(loss=loss, mse=mse))
    assert from_vector(vector, classification=False, has_global_model=True) == SiteMetrics(loss=loss, mse=mse)


def test_what_a_strategy_does_not_have_is_not_made_up() -> None:
    vector = to_vector(SiteMetrics(accuracy=0.5, loss=1.0))
    assert from_vector(vector, classification=True, has_global_model=False).global_accuracy is None
    assert from_vector(vector, classification=True, has_global_model=True).mse is None
    assert from_vector(vector, classification=False, has_global_model=True).accuracy is None


@pytest.mark.parametrize("loss", [17.0, 1e30, math.inf, math.nan])
def test_a_loss_that_does_not_fit_makes_the_mean_unknown_rather_than_wrong(loss: float) -> None:
    fine, far = to_vector(SiteMetrics(loss=1.0, mse=1.0)), to_vector(SiteMetrics(loss=loss, mse=loss))
    mean = (255 * fine + far) / np.float32(256)
    assert from_vector(fine, classification=False, has_global_model=True) == SiteMetrics(loss=1.0, mse=1.0)
    assert from_vector(mean, classification=False, has_global_model=True) == SiteMetrics(loss=None, mse=None)


def test_a_cohorts_mean_comes_out_of_the_protected_sum() -> None:
    codec = metrics_codec(16)
    cohort = [
        SiteMetrics(accuracy=0.5, loss=2.0),
        SiteMetrics(accuracy=0.75, loss=4.0),
        SiteMetrics(accuracy=1.0, loss=0.0),
    ]
    total = np.zeros(6, np.int64)
    for key, site in enumerate(cohort):
        total += codec.encode(to_vector(site), weight=64, stream=KeyStream(bytes([key] * 32)))[0]
    mean = from_vector(
        codec.decode(BlockSum(total=total, weight=3 * 64, contributors=3)), classification=True, has_global_model=False
    )
    assert mean.accuracy == pytest.approx(0.75, abs=1 / codec.scale)
    assert mean.loss == pytest.approx(2.0, abs=16 / codec.scale)


def test_metrics_join_a_sum_only_where_they_are_shared_in_aggregate() -> None:
    shared = layout(body=3)
    assert with_metrics(shared, RequestKind.SUM, share="aggregate").names == ("body", METRICS_BLOCK)
    assert with_metrics(Layout(()), RequestKind.SUM, share="aggregate").names == (METRICS_BLOCK,)
    for kind, share in ((RequestKind.SUM, "none"), (RequestKind.SUM, "per-node"), (RequestKind.COMBINE, "aggregate")):
        assert with_metrics(shared, kind, share=share) == shared


def test_the_reserved_block_can_travel_but_no_module_can_be_called_that() -> None:
    assert is_name(METRICS_BLOCK)
    assert not METRICS_BLOCK.isidentifier()
