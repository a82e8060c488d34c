"""How a cohort comes together: the coordinator gathers manifests, each node checks those it is shown."""

from __future__ import annotations

from typing import Generic

from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.cohort.signed import E, ManifestKind, Peer, SignedCohort, read_manifest
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.past import Past
from secure_fl.protect.release.circles import check_together
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

    def close(self) -> tuple[SignedCohort[E], Roster]:
        """Whoever advertised, and what everybody is told. Raises `CohortTooSmallError`."""
        require_cohort(self._peers, self._context.min_cohort)
        peers = [self._peers[name] for name in sorted(self._peers)]
        return SignedCohort(self._context, peers, self._kind), Roster(manifests=[peer.manifest for peer in peers])


def meet(
    context: RoundContext, roster: bytes, kind: ManifestKind[E], *, host: Host, mine: Manifest | None
) -> SignedCohort[E]:
    """At a node: everybody who takes part, verified and vouched for now, and this node with what it said itself.

    A circle is judged beside every sum that any of its members was part of before, and noted, before anything of it
    leaves. Without `mine` after a restart, when the roster comes from the node's own memory.
    """
    manifests = parse(Roster, roster).manifests
    if mine is not None and mine not in manifests:
        raise ProtectionError("this node's own manifest is missing or was changed")
    cohort = SignedCohort.read(context, manifests, kind).vouched(host.me.vouch)
    if context.whole:
        _judge(context, cohort, host.past)
    return cohort


def _judge(context: RoundContext, cohort: SignedCohort[E], past: Past) -> None:
    known, circle = past.known(), cohort.names
    if circle not in known.rows:  # The same sites again say nothing new.
        told = {row for peer in cohort.peers.values() for row in peer.opened}
        agreed = known.agreed | cohort.agreed
        check_together({*known.rows, *told, circle}, agreed=agreed, colluders=context.colluders)
    if circle not in known.rows or not cohort.agreed <= known.agreed:
        past.add(circle, cohort.agreed)
