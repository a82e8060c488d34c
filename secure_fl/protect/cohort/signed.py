"""Who takes part in a protected round, as everybody can verify: signed manifests, and what follows from them.

Everything here is a function of the round's context and the sorted manifests, so each node and the coordinator reach
the same threshold, the same groups and the same transcript hash ρ, or notice that they were told different things.

What a protection says of a node beyond its name and blocks (its keys, say) is an extension that the protection itself
reads: a `ManifestKind`. The signature covers the extension's exact bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, Protocol, Self, TypeVar

from secure_fl.errors import CertificateError, CohortTooSmallError, OverflowInvariantError, ProtectionError
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.ledger_head import LedgerHead, sign_head, verify_head
from secure_fl.identity.signing import transcript, verify
from secure_fl.limits import KEYED_NODES
from secure_fl.protect.cohort.agreements import sign_agreement, verify_agreement
from secure_fl.protect.cohort.minima import require_cohort, require_whole
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.past import CHANGING_COHORTS, Row
from secure_fl.protect.primitives.agreement import usable
from secure_fl.protect.release.guard import releasable
from secure_fl.protect.witness import ShownHead, no_ledger
from secure_fl.rpc.protect_cohort_pb2 import Manifest, SignedHead, Together

_MAX_MANIFEST = 64 * 1024  # Everybody is sent everybody's; rows of earlier sums are what makes one long.
_MAX_GROUPS = 64  # different cohorts in one round; each costs every node a share per peer

E = TypeVar("E")  # what a protection's extension says


class ManifestKind(Protocol[E]):
    """How one protection extends a manifest."""

    @property
    def protocol(self) -> str:
        """A name that no other protection has: a manifest serves one protocol."""
        ...

    def read(self, context: RoundContext, name: str, extension: bytes, /) -> E:
        """What `name` says, checked; `SecureFLError` unless it is all that the round needs, in its one encoding."""
        ...

    def keys(self, said: E, /) -> tuple[bytes, ...]:
        """The keys in it. A key serves one purpose: no two in a round are the same."""
        ...


def threshold(nodes: int, colluders: int) -> int:
    """The least t with t > (n + c)/2.

    Suppose the coordinator tells honest nodes different stories, to get t shares of a node's seed from some and t of
    its key from others. Honest nodes give one kind each, colluders both: at most (n − c) + 2c = n + c shares, fewer
    than the 2t it needs.
    """
    return (nodes + colluders) // 2 + 1


def require_few(nodes: int) -> None:
    """Raise `OverflowInvariantError` if there are more nodes than may share keys with each other."""
    if nodes > KEYED_NODES:
        raise OverflowInvariantError(f"{nodes} nodes, and at most {KEYED_NODES} share keys with each other")


def require_usable(name: str, *keys: bytes) -> None:
    """Raise `ProtectionError` unless everybody can agree on a secret with each of these X25519 keys of `name`."""
    # Also of small order: with such a key nobody could share or mask, and the round would end for all.
    if not all(usable(key) for key in keys):
        raise ProtectionError(f"{name} has no proper keys")


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks declared by the same nodes. They are masked, opened or kept closed together."""

    index: int
    blocks: tuple[str, ...]
    holders: tuple[str, ...]  # sorted

    @property
    def label(self) -> bytes:
        """The group in key derivations and envelopes."""
        return b"group" + self.index.to_bytes(4, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Generic[E]):
    """One verified manifest."""

    name: str
    certificate: Certificate
    blocks: frozenset[str]
    exceptions: frozenset[str]
    opened: tuple[Row, ...]  # sums it was part of before
    said: E  # what its protection's extension says
    shown: ShownHead  # how far its ledger goes
    manifest: Manifest


def make_manifest(
    context: RoundContext, host: Host, *, protocol: str, blocks: Iterable[str], extension: bytes
) -> Manifest:
    """A node's signed statement about itself in this attempt. Raises `StorageError`."""
    me, held = host.me, set(blocks)
    bits = sum(1 << position for position, name in enumerate(context.layout.names) if name in held)
    manifest = Manifest(
        node=me.name,
        certificate=me.certificate.der,
        blocks=bits.to_bytes(_bitmap_bytes(context), "little"),
        extension=extension,
        exceptions=sorted(host.exceptions),
        opened=[Together(nodes=row) for row in host.past.known().rows],
        ledger=_shown(context, host),
        agreement=sign_agreement(me, context.study_id) if _joins_anytime(context, host.exceptions) else b"",
    )
    manifest.signature = me.key.sign(f"{protocol} manifest", *_signed(context, manifest))
    return manifest


def read_manifest(context: RoundContext, manifest: Manifest, kind: ManifestKind[E]) -> Peer[E]:
    """Check a manifest against the round and the study's roster, or raise."""
    name = manifest.node
    # Everybody is sent everybody's manifest: what nobody reads and nobody signed has no place in one.
    bare = Manifest()
    bare.CopyFrom(manifest)
    bare.DiscardUnknownFields()
    if bare != manifest:
        raise ProtectionError("a manifest has more in it than a manifest")
    if name not in context.invited:
        raise ProtectionError("a manifest comes from outside the round")
    certificate = _certificate(manifest.certificate)
    # The roster is part of the hash that this site approved: the coordinator cannot put anybody else here.
    if certificate.fingerprint != context.roster[name] or certificate.name != name:
        raise CertificateError(f"{name} shows a key that is not the roster's")
    verify(certificate.signing_public, manifest.signature, f"{kind.protocol} manifest", *_signed(context, manifest))
    _require_agreement(context, certificate, manifest)
    bits = int.from_bytes(manifest.blocks, "little")
    if len(manifest.blocks) != _bitmap_bytes(context) or bits >> len(context.layout.names):
        raise ProtectionError(f"{name} declares blocks that the round does not have")
    if not context.partial and bits != (1 << len(context.layout.names)) - 1:
        # A block is opened for those who hold it: one site that leaves it out would freeze it for everybody.
        raise ProtectionError(f"{name} leaves out blocks that every site of this study shares")
    return Peer(
        name=name,
        shown=_read_head(context, certificate, manifest.ledger),
        certificate=certificate,
        blocks=frozenset(block for position, block in enumerate(context.layout.names) if bits >> position & 1),
        exceptions=frozenset(manifest.exceptions),
        opened=_rows(name, manifest),
        said=kind.read(context, name, manifest.extension),
        manifest=bare,
    )


class SignedCohort(Generic[E]):
    """The nodes that advertised, in order, and everything that follows from it."""

    def __init__(self, context: RoundContext, peers: Sequence[Peer[E]], kind: ManifestKind[E]) -> None:
        self.names = tuple(peer.name for peer in peers)
        if list(self.names) != sorted(set(self.names)) or len(self.names) > KEYED_NODES:
            raise ProtectionError("manifests are repeated or out of order")
        keys = [key for peer in peers for key in kind.keys(peer.said)]
        if len(set(keys)) != len(keys):
            raise ProtectionError("two manifests share a key")
        require_cohort(self.names, context.min_cohort)
        require_whole(context, self.names)
        self.peers: Mapping[str, Peer[E]] = {peer.name: peer for peer in peers}
        self.protocol = kind.protocol
        self.minimum = context.min_cohort
        self.threshold = threshold(len(peers), context.colluders)
        if self.threshold > len(peers):
            raise CohortTooSmallError(have=len(peers), need=context.colluders + 2)
        signed = [peer.manifest.SerializeToString(deterministic=True) for peer in peers]
        self.rho = hashlib.sha256(transcript(f"{kind.protocol} round", context.binding, *signed)).digest()
        self._context = context
        self._places = {name: place for place, name in enumerate(self.names, 1)}

    @classmethod
    def read(cls, context: RoundContext, manifests: Iterable[Manifest], kind: ManifestKind[E]) -> Self:
        """The cohort of these manifests, each of them verified."""
        return cls(context, [read_manifest(context, manifest, kind) for manifest in manifests], kind)

    def vouched(self, vouch: Callable[[Certificate], None]) -> Self:
        """The same cohort, once the consortium stands behind each of its certificates now."""
        for peer in self.peers.values():
            vouch(peer.certificate)
        return self

    def said(self, name: str) -> E:
        """What a node's extension says."""
        return self.peers[name].said

    def index(self, name: str) -> int:
        """A node's place on the polynomials: 1, 2, …"""
        return self._places[name]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Blocks with enough holders, by cohort. A block with fewer is in none: it is never even uploaded.

        In a circle everybody is enough, and nobody less.
        """
        by_holders: dict[tuple[str, ...], list[str]] = {}
        minimum = len(self.names) if self._context.whole else self.minimum
        for block in self._context.layout.names:
            holders = tuple(name for name in self.names if block in self.peers[name].blocks)
            if len(holders) >= minimum:
                by_holders.setdefault(holders, []).append(block)
        if len(by_holders) > _MAX_GROUPS:
            raise ProtectionError(f"more than {_MAX_GROUPS} different cohorts in one round")
        return tuple(Group(index, tuple(blocks), holders) for index, (holders, blocks) in enumerate(by_holders.items()))

    @property
    def agreed(self) -> frozenset[str]:
        """Who agrees to be shown by the difference of sums over changing sites."""
        return frozenset(name for name, peer in self.peers.items() if CHANGING_COHORTS in peer.exceptions)

    @cached_property
    def common(self) -> tuple[str, ...]:
        """The blocks that everybody holds, in the layout's order: what a circle shares."""
        return tuple(
            block for block in self._context.layout.names if all(block in peer.blocks for peer in self.peers.values())
        )

    @cached_property
    def _groups_of(self) -> Mapping[str, tuple[Group, ...]]:
        return {name: tuple(group for group in self.groups if name in group.holders) for name in self.names}

    def groups_of(self, name: str) -> tuple[Group, ...]:
        """The groups a node holds, in order."""
        return self._groups_of.get(name, ())

    def uploaded(self, sharers: Iterable[str]) -> tuple[Group, ...]:
        """The groups that still have enough holders among those whose shares were delivered."""
        there = set(sharers)
        return tuple(group for group in self.groups if len(there.intersection(group.holders)) >= self.minimum)

    def releasable(self, groups: Sequence[Group], present: Iterable[str]) -> tuple[Group, ...]:
        """Those whose sums may be opened over `present`: large enough, and exposing nobody by their differences."""
        there = set(present)
        cohorts = [tuple(name for name in group.holders if name in there) for group in groups]
        passed = releasable(cohorts, nodes=self.names, colluders=self._context.colluders, minimum=self.minimum)
        return tuple(group for group, passes in zip(groups, passed, strict=True) if passes)

    def require_quorum(self, nodes: Sequence[str], *, what: str) -> None:
        """Raise unless these are distinct members in order, and enough to open anything."""
        if list(nodes) != sorted(set(nodes)) or not set(nodes) <= set(self.names):
            raise ProtectionError(f"{what}: strangers, or repeated or out of order")
        need = max(self.threshold, self.minimum)
        if len(nodes) < need:
            raise CohortTooSmallError(have=len(nodes), need=need, what=what)

    def require_whole(self, nodes: Iterable[str]) -> None:
        """Raise `CohortTooSmallError` unless these are everybody, where only a whole circle may be opened."""
        require_whole(self._context, nodes)

    def public_key(self, name: str) -> bytes:
        """The enrolled key that a node signs with."""
        return self.peers[name].certificate.signing_public


def names_digest(names: Sequence[str]) -> bytes:
    """A list of names as one field of a transcript."""
    return hashlib.sha256(transcript("names", *(name.encode() for name in names))).digest()


@lru_cache(maxsize=KEYED_NODES)
def _certificate(der: bytes) -> Certificate:
    """Parsed once: a peer shows the same certificate in every round. Whether it is still valid is asked every time."""
    return Certificate.from_der(der)


def _bitmap_bytes(context: RoundContext) -> int:
    return -(-len(context.layout.names) // 8)


def _joins_anytime(context: RoundContext, exceptions: Collection[str]) -> bool:
    return context.staleness is not None and CHANGING_COHORTS in exceptions


def _require_agreement(context: RoundContext, certificate: Certificate, manifest: Manifest) -> None:
    """Where sites join at their own pace, all of them agreed to sums of changing sites, and can be shown to have."""
    if context.staleness is None:
        if manifest.agreement:
            raise ProtectionError(f"{certificate.name} agrees to something that the round does not ask for")
        return
    verify_agreement(certificate, manifest.agreement, context.study_id)


def _rows(name: str, manifest: Manifest) -> tuple[Row, ...]:
    rows = tuple(tuple(row.nodes) for row in manifest.opened)
    if manifest.ByteSize() > _MAX_MANIFEST or any(list(row) != sorted(set(row)) for row in rows):
        raise ProtectionError(f"{name} was part of too many sums before, or of none that can be")
    return rows


def _shown(context: RoundContext, host: Host) -> SignedHead:
    head = no_ledger(host.me.name) if host.witness is None else host.witness.head()
    signature = sign_head(host.me.key, head, study=context.study_id, round=context.round, attempt=context.attempt)
    return SignedHead(length=head.length, head=bytes.fromhex(head.head), signature=signature)


def _read_head(context: RoundContext, certificate: Certificate, said: SignedHead) -> ShownHead:
    """How far a site's ledger goes. Nobody takes part without saying so, in words that it cannot take back later."""
    try:
        head = LedgerHead(site=certificate.name, length=said.length, head=said.head.hex())
    except ValueError:
        raise ProtectionError(f"{certificate.name} does not say how far its ledger goes") from None
    # The manifest's signature covers this one; it does not make it right. A note of a wrong one would convince nobody.
    verify_head(
        certificate.signing_public,
        said.signature,
        head,
        study=context.study_id,
        round=context.round,
        attempt=context.attempt,
    )
    return ShownHead(head=head, certificate=certificate, signature=said.signature)


def _signed(context: RoundContext, manifest: Manifest) -> tuple[bytes, ...]:
    ledger = manifest.ledger
    return (
        context.binding,
        manifest.node.encode(),
        manifest.certificate,
        manifest.blocks,
        manifest.extension,
        transcript("exceptions", *(exception.encode() for exception in manifest.exceptions)),
        *(transcript("opened", *(node.encode() for node in row.nodes)) for row in manifest.opened),
        transcript("ledger", ledger.length.to_bytes(8, "little"), ledger.head, ledger.signature),
        *((manifest.agreement,) if manifest.agreement else ()),
    )
