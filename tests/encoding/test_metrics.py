"""Measurements survive the way into the protected sum and out of it."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl import limits
from secure_fl.aggregation import RequestKind
from secure_fl.blocks import Layout
from secure_fl.encoding import metrics
from secure_fl.encoding.integers import BlockSum, Integers
from secure_fl.encoding.metrics import (
    METRICS_BLOCK,
    SiteMetrics,
    from_digits,
    metrics_codec,
    metrics_shape,
    to_digits,
)
from secure_fl.errors import OverflowInvariantError
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


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_whatever_a_tasks_own_code_measures_can_be_sent(wrong: float) -> None:
    """A site that could not send it would say that its rows did this."""
    metrics = SiteMetrics(samples=9, accuracy=wrong, loss=wrong, mse=wrong, global_accuracy=wrong)
    values, _ = metrics_codec(16).encode(to_vector(metrics), weight=64, stream=KeyStream(bytes(32)))
    assert values[0] == values[3] == 0
    assert (values[4:6] == metrics_codec(16).limit).all()  # Neither loss nor error fits.


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


# --- sums of the metrics that a task declares ---------------------------------------------------------------------

SIZES = {"auc": 4, "mae": 2}
counts = st.integers(0, 2**limits.METRIC_SUM_BITS - 1)
sites = st.lists(
    st.tuples(st.lists(counts, min_size=4, max_size=4), st.lists(counts, min_size=2, max_size=2)), min_size=1
)


@law
@given(sites, st.integers(4, 24))
def test_sums_of_all_sites_come_out_of_the_protected_sum_exactly(
    found: list[tuple[list[int], list[int]]], bits: int
) -> None:
    digits = [to_digits({"auc": auc, "mae": mae}, sizes=SIZES, bits=bits) for auc, mae in found]
    for each in digits:
        assert each.min() >= 0
        assert each.max() <= metrics_codec(bits).limit
        assert each.size == metrics_shape(SIZES, bits=bits).size - 6
    pooled = from_digits(np.sum(digits, axis=0, dtype=np.int64), sizes=SIZES, bits=bits)
    assert pooled == {
        "auc": tuple(sum(auc[at] for auc, _ in found) for at in range(4)),
        "mae": tuple(sum(mae[at] for _, mae in found) for at in range(2)),
    }


@pytest.mark.parametrize(
    "wrong", [(), (1,), (1, 2, 3, 4, 5), (1, 2, 3, -1), (1, 2, 3, 2**limits.METRIC_SUM_BITS)], ids=str
)
def test_what_a_site_does_not_know_makes_the_metric_unknown_and_no_other(wrong: tuple[int, ...]) -> None:
    fine = to_digits({"auc": (1, 2, 3, 4), "mae": (5, 6)}, sizes=SIZES, bits=16)
    off = to_digits({"auc": wrong, "mae": (1, 1)}, sizes=SIZES, bits=16)
    assert off.size == fine.size  # whatever the task's code returned
    assert 0 <= off.min() <= off.max() <= metrics_codec(16).limit
    assert from_digits(fine + off, sizes=SIZES, bits=16) == {"mae": (6, 7)}


def test_sums_below_zero_are_no_sums() -> None:
    lie = to_digits({"auc": (1, 2, 3, 4), "mae": (5, 6)}, sizes=SIZES, bits=16)
    lie[1] = -5
    assert from_digits(lie, sizes=SIZES, bits=16) == {"mae": (5, 6)}


def encoded(accuracy: float, sums: tuple[int, ...], key: int) -> Integers:
    measured = SiteMetrics(accuracy=accuracy, loss=1.0, sums={"mae": sums})
    return metrics.encode_metrics(
        measured, ceiling=16.0, sizes={"mae": 2}, bits=16, stream=KeyStream(bytes([key] * 32))
    )


def opened(block: BlockSum, sizes: dict[str, int]) -> SiteMetrics:
    return metrics.decode_metrics(
        block, ceiling=16.0, sizes=sizes, bits=16, classification=True, has_global_model=False
    )


@pytest.mark.parametrize("weight", [64 * 3, 40 * 3, 8 * 3])
def test_every_site_counts_the_same_in_a_mean_of_measurements_whatever_its_weight_in_the_model(weight: int) -> None:
    largest = 2**limits.METRIC_SUM_BITS - 1
    parts = (encoded(1.0, (largest, 1), 1), encoded(1.0, (largest, 2), 2), encoded(0.25, (largest, 3), 3))
    block = BlockSum(total=np.sum(parts, axis=0, dtype=np.int64), weight=weight, contributors=3)
    metrics.require_range(METRICS_BLOCK, block, metrics_codec(16))
    found = opened(block, {"mae": 2})
    assert found.accuracy == pytest.approx(0.75, abs=1e-4)
    assert found.sums == {"mae": (3 * largest, 6)}


def test_a_block_of_another_length_than_the_studys_is_refused() -> None:
    block = BlockSum(total=encoded(1.0, (1, 2), 1).astype(np.int64), weight=64, contributors=1)
    with pytest.raises(OverflowInvariantError, match="measurements were opened"):
        opened(block, {"mae": 3})


def test_more_than_the_sites_can_have_counted_is_refused() -> None:
    total = encoded(1.0, (1, 2), 1).astype(np.int64)
    total[-1] = 2 * metrics_codec(16).limit + 1
    with pytest.raises(OverflowInvariantError, match="larger than its contributors"):
        metrics.require_range(METRICS_BLOCK, BlockSum(total=total, weight=128, contributors=2), metrics_codec(16))
    # A block of the model is still measured by its weight.
    with pytest.raises(OverflowInvariantError):
        metrics.require_range("head", BlockSum(total=np.array([30_000]), weight=32, contributors=1), metrics_codec(16))


def test_a_task_without_metrics_has_the_block_it_always_had() -> None:
    assert metrics_shape({}, bits=16).size == 6
    assert [tensor.name for tensor in metrics_shape({}, bits=16).tensors] == ["values"]
