"""One aggregation of random updates under each protection: what it costs whom, and whether the sum is right.

The halves are the ones that run in production (`attempt`): seconds are CPU seconds of each party's own work, encoding
included; bytes are what would be sent. Dropouts vanish after they were told who takes part and before they upload,
which is when they cost the others most. Memory is the coordinator's alone: its half draws no randomness, so the
recorded answers are replayed to a second one while allocations are traced.

Sums are of circles, as in production: a circle that lost somebody opens nothing. `NAME+recovery` is the same protection
with `protection.recovery`: one sum, of whoever is left.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secure_fl import protect
from secure_fl.aggregation import RequestKind
from secure_fl.bench import baseline
from secure_fl.bench.attempt import BLOCK, CLIP, UPLOAD, Cost, Runs
from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector
from secure_fl.errors import UsageError
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import TrustStore, utc_now
from secure_fl.identity.member import Member
from secure_fl.protect.cohort.minima import smallest_cohort
from secure_fl.protect.contract import Protection, RoundContext
from secure_fl.settings import require_known
from secure_fl.study.circles import divide

_COLLUDERS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFigures:
    """What one phase costs. What the coordinator does to end it is the phase's, too."""

    nodes: int  # how many were asked
    seconds_nodes: float  # of all of them
    seconds_node_max: float
    seconds_coordinator: float
    bytes_up_max: int
    bytes_down_max: int

    @staticmethod
    def of(cost: Cost) -> PhaseFigures:
        """From what was measured."""
        return PhaseFigures(
            nodes=len(cost.nodes),
            seconds_nodes=sum(cost.nodes.values()),
            seconds_node_max=max(cost.nodes.values(), default=0.0),
            seconds_coordinator=cost.coordinator,
            bytes_up_max=max(cost.up.values(), default=0),
            bytes_down_max=max(cost.down.values(), default=0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one protection costs, the best of several runs."""

    seconds_total: float
    seconds_node_max: float
    seconds_until_upload: float  # of the slowest node, from floats to its upload, all phases until then
    seconds_coordinator: float
    seconds_opening: float  # of everybody, once the last upload is in
    bytes_up_per_node: int  # in all phases, of the node that sent most
    bytes_per_parameter: float  # the same
    bytes_upload_per_node: int  # of the upload alone
    bytes_down_per_node: int  # of the node that was sent most, without the model
    max_error: float
    exact: bool
    combinations_opened: int
    peak_memory_bytes: int
    phases: Mapping[str, PhaseFigures]


class Aggregation:
    """The same members and the same updates for every protection."""

    def __init__(self, *, nodes: int, parameters: int, dropouts: int, kind: RequestKind, folder: Path) -> None:
        if dropouts < 0 or nodes - dropouts < smallest_cohort(kind, _COLLUDERS):
            raise UsageError(
                f"{nodes} nodes with {dropouts} dropouts leave too few to open anything",
                advice="more --nodes or fewer --dropouts",
            )
        self._folder = folder
        self._members = _enrol(folder, nodes)
        self._gone = frozenset(list(self._members)[:dropouts])
        rng = np.random.default_rng(0)  # test data, not secrets
        self._updates: dict[str, Vector] = {
            name: rng.uniform(-CLIP, CLIP, parameters).astype(np.float32) for name in self._members
        }
        # For a combine: what each node wants of each other. Between half and all, so that the guard has no objection.
        self._shares = {
            name: dict(zip(self._members, rng.uniform(0.5, 1, nodes).tolist(), strict=True)) for name in self._members
        }
        self._kind = kind
        self._layout = Layout((BlockShape(name=BLOCK, tensors=(TensorShape(name="w", shape=(parameters,)),)),))

    def measure(self, protection: Protection, *, recovery: bool, repeat: int, note: Callable[[], None]) -> Figures:
        """Run `repeat` times and keep the quickest."""
        circles: Sequence[tuple[str, ...]] = [tuple(self._members)]
        if self._kind is RequestKind.SUM and not recovery:
            circles = divide(self._members, colluders=_COLLUDERS)
            if all(self._gone.intersection(circle) for circle in circles):
                raise UsageError(
                    "no circle is complete with these dropouts",
                    advice="more --nodes, fewer --dropouts, or a protection with '+recovery'",
                )
        contexts = [self._context(protection, circle, whole=not recovery) for circle in circles]
        runs = []
        for _ in range(repeat):
            runs.append(Runs(protection, contexts, self._folder, self._gone))
            with _no_collection():
                runs[-1].play(self._members, self._updates, self._shares)
            note()
        best = min(runs, key=lambda run: run.account.total)
        account, up = best.account, best.account.most_up(best.stayed)
        exact, error = best.compare(self._updates)
        return Figures(
            seconds_total=account.total,
            seconds_node_max=account.slowest(),
            seconds_until_upload=account.slowest(until=UPLOAD),
            seconds_coordinator=account.coordinator,
            seconds_opening=account.opening,
            bytes_up_per_node=up,
            bytes_per_parameter=up / self._layout.size,
            bytes_upload_per_node=max(account.phases[UPLOAD].up.values()),
            bytes_down_per_node=account.most_down(best.stayed),
            max_error=error,
            exact=exact,
            combinations_opened=len(best.opened) if self._kind is RequestKind.COMBINE else 0,
            peak_memory_bytes=runs[-1].replay(),  # whose uploads are still on disk
            phases={phase: PhaseFigures.of(cost) for phase, cost in account.phases.items()},
        )

    def _context(self, protection: Protection, members: tuple[str, ...], *, whole: bool) -> RoundContext:
        return RoundContext(
            study_id="0" * 64,
            round=1,
            attempt=1,
            base_model=bytes(32),
            invited=members,
            roster={name: self._members[name].certificate.fingerprint for name in members},
            layout=self._layout,
            kind=self._kind,
            bits=protection.bits,
            colluders=_COLLUDERS,
            min_cohort=smallest_cohort(self._kind, _COLLUDERS),
            protection=protection.name,
            payload_version=protection.payload_version,
            settings=protection.canonical_settings,
            whole=whole and self._kind is RequestKind.SUM,
            partial=False,
        )


def run(
    *,
    nodes: int,
    parameters: int,
    dropouts: int,
    protections: tuple[str, ...],
    repeat: int,
    note: Callable[[], None],
    combine: bool = False,
    baselines: Sequence[str] = (),
) -> dict[str, Any]:
    """The JSON object of `secure-fl bench aggregation`."""
    for name in baselines:
        require_known("baseline", name, baseline.USUAL)
    kind = RequestKind.COMBINE if combine else RequestKind.SUM
    resolved = {name: protect.create(name.partition("+")[0], {}, recovery=_recovers(name)) for name in protections}
    for name, protection in resolved.items():
        if not protection.serves(kind):
            raise UsageError(f"protection {name!r} does not serve {kind.value!r}")
    with tempfile.TemporaryDirectory() as folder:
        made = Aggregation(nodes=nodes, parameters=parameters, dropouts=dropouts, kind=kind, folder=Path(folder))
        figures = {
            name: asdict(made.measure(protection, recovery=_recovers(name), repeat=repeat, note=note))
            for name, protection in resolved.items()
        }
    told: dict[str, Any] = {"nodes": nodes, "parameters": parameters, "dropouts": dropouts, "combine": combine}
    told["protections"] = figures
    for name in baselines:
        told.setdefault("baselines", {})[name] = baseline.measure(name, parameters=parameters, repeat=repeat)
        note()
    return told


def _recovers(name: str) -> bool:
    _, plus, option = name.partition("+")
    if plus and option != "recovery":
        raise UsageError(f"{name!r}: after a protection's name only '+recovery' may stand")
    return bool(plus)


@contextmanager
def _no_collection() -> Iterator[None]:
    """As `timeit` does: looking for garbage of a whole process is no party's work, and would fall on a random one."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _enrol(folder: Path, nodes: int) -> dict[str, Member]:
    authority = Authority.create(folder / "pki", consortium="bench", days=2)
    trust = TrustStore(authority.ca_pem)
    members = {}
    for index in range(nodes):
        credential = authority.issue("node", f"node-{index:03d}", days=1)
        members[credential.certificate.name] = Member(
            certificate=credential.certificate,
            key=credential.signing_key,
            vouch=lambda peer: trust.check(peer, role="node", now=utc_now()),
        )
    return members
