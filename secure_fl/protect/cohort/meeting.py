"""How a cohort comes together: the coordinator gathers manifests, each node checks those it is shown."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Generic

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.errors import ProtectionError, ReleaseRefusedError
from secure_fl.messages import parse
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.cohort.signed import E, ManifestKind, Peer, SignedCohort, read_manifest
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.past import Known, Row
from secure_fl.protect.release.circles import check_growth, check_together, spanning
from secure_fl.rpc.protect_cohort_pb2 import Manifest, Roster


class Gathering(Generic[E]):
    """The manifests of an attempt at the coordinator, each verified once, as it arrives."""

    def __init__(self, context: RoundContext, kind: ManifestKind[E]) -> None:
        self._context = context
        self._kind = kind
        self._peers: dict[str, Peer[E]] = {}
        self._keys: set[bytes] = set()

    def check(self, node: str, body: bytes) -> Peer[E]:
        """The manifest that `node` sent, or an error that costs nobody else anything. Nothing changes."""
        peer = read_manifest(self._context, parse(Manifest, body), self._kind)
        keys = self._kind.keys(peer.said)
        if peer.name != node or node in self._peers or len(set(keys)) < len(keys) or self._keys.intersection(keys):
            raise ProtectionError(f"{node} speaks for another node, twice, or with another's key")
        return peer

    def add(self, peer: Peer[E]) -> None:
        """Take in what was checked."""
        self._peers[peer.name] = peer
        self._keys.update(self._kind.keys(peer.said))

    @property
    def missing(self) -> int:
        """How many of those without whom nothing can be opened have not advertised."""
        return len(self._context.invited) - len(self._peers) if self._context.whole else 0

    @property
    def said(self) -> dict[str, E]:
        """By node, what its protection's extension says."""
        return {name: peer.said for name, peer in self._peers.items()}

    def close(self, *, without: Collection[str] = ()) -> tuple[SignedCohort[E], Roster]:
        """Whoever advertised, and what everybody is told. Raises `CohortTooSmallError`."""
        there = sorted(self._peers.keys() - set(without))
        require_cohort(there, self._context.min_cohort)
        peers = [self._peers[name] for name in there]
        return SignedCohort(self._context, peers, self._kind), Roster(manifests=[peer.manifest for peer in peers])


def meet(
    context: RoundContext, roster: bytes, kind: ManifestKind[E], *, host: Host, mine: Manifest | None
) -> SignedCohort[E]:
    """At a node: everybody who takes part, verified and vouched for now, and this node with what it said itself.

    A circle that may not be opened, after all that any of its members was part of before, is refused before anything is
    made for it. What peers show of their ledgers is noted. Without `mine` after a restart, when the roster comes from
    the node's own memory.
    """
    manifests = parse(Roster, roster).manifests
    if mine is not None and mine not in manifests:
        raise ProtectionError("this node's own manifest is missing or was changed")
    cohort = SignedCohort.read(context, manifests, kind).vouched(host.me.vouch)
    if host.witness is not None and mine is not None:
        # Before anything is judged: what a peer signed is evidence, whether or not the attempt comes to anything.
        shown = [peer.shown for peer in cohort.peers.values() if peer.name != host.me.name]
        host.witness.saw(shown, study=context.study_id, round=context.round, attempt=context.attempt)
    if context.whole and cohort.groups and mine is not None:  # Without a block that all hold, no block is opened.
        _judged(context, cohort, host, [cohort.names])(host.past.known())
    if context.kind is RequestKind.COMBINE and mine is not None:
        # Combinations are judged among themselves (`release.guard`); nobody outside may be shown by them and a sum.
        host.past.decide(_judged_combination(context, cohort))
    return cohort


def note(context: RoundContext, cohort: SignedCohort[E], host: Host, rows: Iterable[Row]) -> None:
    """At a node, before it gives what opens sums over `rows`: judge once more and remember them, or raise.

    In one step, so that two studies cannot each be judged without the other. Without a row nothing is opened: there is
    nothing to judge then, and nothing to remember.
    """
    if opened := sorted(set(rows)):
        host.past.decide(_judged(context, cohort, host, opened))


def _judged(
    context: RoundContext, cohort: SignedCohort[E], host: Host, rows: Sequence[Row]
) -> Callable[[Known], Known]:
    mine = cohort.peers[host.me.name].opened
    after = spanning((*mine, *rows))

    def judge(known: Known) -> Known:
        if known.rows not in (mine, after):  # `after`: decided before, and asked again.
            # Peers judge by what this site told them; since then it was part of something else.
            raise ProtectionError("this site was part of another sum meanwhile; the next attempt tells of it")
        # Of those who are here, what they say now; of others, what they said last.
        agreed = (known.agreed - set(cohort.names)) | cohort.agreed
        if known.weighting not in ("", context.weighting) and host.me.name not in cohort.agreed:
            raise ReleaseRefusedError(
                "sites weighed otherwise in earlier sums, and the difference would show who weighs more now",
                rule="weights",
                node=host.me.name,
                coalition=(),
                advice="keep protection.reference_samples, and the size of circles with it, from study to study",
            )
        shown = agreed | host.agreed  # Who is not here now said so to somebody, for this study.
        for row in rows:
            if set(context.layout.names) - {METRICS_BLOCK}:  # Measurements are in no combination.
                check_growth(row, known.combined, agreed=shown, colluders=context.colluders)
            check_together(row, {*known.rows, *_told(cohort)}, agreed=shown, colluders=context.colluders)
        return replace(known, rows=after, agreed=agreed, weighting=context.weighting)

    return judge


def _judged_combination(context: RoundContext, cohort: SignedCohort[E]) -> Callable[[Known], Known]:
    """Remembered before anything is given: what is opened of a combination and a later sum may differ by one site."""

    def judge(known: Known) -> Known:
        agreed = (known.agreed - set(cohort.names)) | cohort.agreed
        check_growth(cohort.names, {*known.rows, *_told(cohort)}, agreed=agreed, colluders=context.colluders)
        return replace(known, combined=known.combined | {cohort.names})

    return judge


def _told(cohort: SignedCohort[E]) -> set[Row]:
    """What peers tell of themselves: a row without its teller is none of its business."""
    return {row for peer in cohort.peers.values() for row in peer.opened if peer.name in row}
