"""How far one site can move a model, measured through the real halves: the numbers of docs/limits.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from coordinator.machine import RoundMachine
from secure_fl.encoding.fixed_point import FixedPoint
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.robust import Kind, robust_mean
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.errors import OverflowInvariantError, ProtectionError
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Contribution, OpenedSums
from secure_fl.protect.primitives.packing import Packing, Words
from secure_fl.protect.recovery.node import RecoveryNode
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from secure_fl.randomness import KeyStream, UnsafeSeededRandomness
from tests.protect.cohorts import InMemory, context, halves, host, layout

MASKED = Masked()
CLIP, GROUP, CIRCLES = 0.5, 5, 3
SITES = GROUP * CIRCLES
CODEC = FixedPoint(bits=16, clip=CLIP)
BLOCKS = layout(body=4)
STEP = 1 / CODEC.scale


class Loud(RecoveryNode):
    """Writes words that no packing of values on the grid has: what is masked can hold anything modulo 2⁶⁴."""

    beyond = 0  # integers added to every value, however far off the grid that is
    weight = WEIGHT_UNITS

    def _pack(self, packing: Packing, group: Group, out: Words) -> None:
        super()._pack(packing, group, out)
        for lane in range(packing.lanes):
            size = len(range(lane * (out.size - 1), min((lane + 1) * (out.size - 1), BLOCKS.size)))
            out[:size] += np.uint64((self.beyond << (lane * packing.lane_bits)) % 2**64)
        out[-1] = np.uint64(self.weight % 2**64)


def encoded(value: float, name: str) -> Contribution:
    """What a site that follows the rules sends for an update of `value` everywhere."""
    stream = KeyStream(name.encode().ljust(32, b"\x00"))
    integers, _ = CODEC.encode(np.full(BLOCKS.size, value, np.float32), weight=WEIGHT_UNITS, stream=stream)
    return Contribution(blocks={"body": integers}, weight=WEIGHT_UNITS)


def circle(values: Sequence[float], *, beyond: int = 0, weight: int = WEIGHT_UNITS, min_cohort: int = 3) -> BlockSum:
    """The sum that opens where the last site of `values` is loud."""
    names = tuple(f"n{index}" for index in range(len(values)))
    about = context(*names, blocks=BLOCKS, min_cohort=min_cohort)
    everybody = {name: encoded(value, name) for name, value in zip(names, values, strict=True)}
    nodes = halves(MASKED, about, everybody)
    loud = Loud(about, everybody[names[-1]], host(names[-1], UnsafeSeededRandomness(7, names[-1])))
    loud.beyond, loud.weight = beyond, weight
    nodes[names[-1]] = loud
    machine = RoundMachine(MASKED, about)
    machine.begin()
    opened: object = None
    for phase in MASKED.phases(about.kind):
        for name in names:
            answer = nodes[name].answer(phase, machine.asked[name])
            machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
        opened = machine.close()
    assert isinstance(opened, OpenedSums)
    return opened.blocks["body"]


def added(circles: Sequence[BlockSum]) -> BlockSum:
    """One sum of all circles, as for a plain mean."""
    return BlockSum(
        total=np.sum([one.total.astype(np.int64) for one in circles], axis=0),
        weight=sum(one.weight for one in circles),
        contributors=sum(one.contributors for one in circles),
    )


def test_a_site_on_the_grid_moves_the_mean_of_n_by_two_clips_over_n() -> None:
    ends = [CODEC.decode(circle([0.0] * (GROUP - 1) + [value])) for value in (1000.0, -1000.0)]  # clipped by its node
    assert np.abs(ends[0] - ends[1] - 2 * CLIP / GROUP).max() < STEP


def test_a_site_off_the_grid_moves_its_circle_by_the_whole_clip_and_no_further() -> None:
    for sign in (1, -1):
        reach = sign * GROUP * CODEC.limit  # what no single site can have, and all five together can
        assert CODEC.decode(circle([0.0] * GROUP, beyond=reach)).tolist() == [sign * CLIP] * 4
        with pytest.raises(OverflowInvariantError, match="larger than its contributors"):
            circle([0.0] * GROUP, beyond=reach + sign)


def test_a_weight_off_the_scale_stretches_a_circles_mean_within_the_clip() -> None:
    floor = weight_floor(GROUP, 1)
    least = GROUP * floor - (GROUP - 1) * WEIGHT_UNITS
    assert least < 0  # below any weight there is
    stretched = circle([CLIP / 2] * GROUP, weight=least, min_cohort=GROUP)
    assert CODEC.decode(stretched) == pytest.approx(CLIP / 2 * WEIGHT_UNITS / floor, rel=1e-3)
    with pytest.raises(ProtectionError, match="weight is out of range"):
        circle([CLIP / 2] * GROUP, weight=least - 1, min_cohort=GROUP)
    # Where that would lead beyond the clip, nothing is decoded.
    with pytest.raises(OverflowInvariantError, match="larger than its contributors"):
        CODEC.decode(circle([CLIP] * GROUP, weight=least, min_cohort=GROUP))


# --- the model of fifteen sites in three circles ----------------------------------------------------------------

HONEST = (0.08, 0.10, 0.13)  # of clip: the circles' means without anybody loud


def model(*, beyond: int) -> list[BlockSum]:
    """The circles, the last one with a loud site in it."""
    quiet = [circle([CLIP * value] * GROUP) for value in HONEST[:-1]]
    return [*quiet, circle([CLIP * HONEST[-1]] * GROUP, beyond=beyond)]


def loudest(end: int = 1) -> int:
    """As much as its circle's sum has room for, up or down."""
    total = circle([CLIP * HONEST[-1]] * GROUP).total
    return GROUP * CODEC.limit - int(total.max()) if end > 0 else -GROUP * CODEC.limit - int(total.min())


def test_a_plain_mean_over_circles_follows_one_site_by_clip_g_over_n() -> None:
    quiet, loud = (CODEC.decode(added(model(beyond=beyond))) for beyond in (0, loudest()))
    share = CLIP * GROUP / SITES
    assert quiet == pytest.approx(CLIP * float(np.mean(HONEST)), abs=STEP)
    assert (loud - quiet).max() == pytest.approx(share * (1 - HONEST[-1]), abs=STEP)  # all that is left up to the clip
    # A site that keeps to the grid has a fifth of it.
    assert share / GROUP == pytest.approx(CLIP / SITES)


def test_added_up_before_it_is_looked_at_one_circle_would_reach_as_far_as_all() -> None:
    """Each circle is checked by itself: the sum of all has room for what a site must not add to its own."""
    share = CLIP * GROUP / SITES
    beyond = GROUP * CODEC.limit  # once more than its circle holds
    with pytest.raises(OverflowInvariantError):
        model(beyond=loudest() + beyond)
    forged = model(beyond=loudest())
    forged[-1] = replace(forged[-1], total=forged[-1].total + beyond)
    assert CODEC.decode(added(forged)).max() > CLIP * float(np.mean(HONEST)) + share


@pytest.mark.parametrize("kind", ["trimmed", "median"])
@pytest.mark.parametrize("end", [1, -1])
def test_robust_means_stay_between_the_honest_circles(kind: Kind, end: int) -> None:
    circles = model(beyond=loudest(end))
    mean = robust_mean(circles, codec=CODEC, kind=kind, colluders=1)
    honest = [CODEC.decode(one) for one in circles[:-1]]
    assert (np.min(honest, axis=0) <= mean).all()
    assert (mean <= np.max(honest, axis=0)).all()
    # The plain mean does not.
    plain = CODEC.decode(added(circles))
    assert not ((np.min(honest, axis=0) <= plain) & (plain <= np.max(honest, axis=0))).any()
