"""What a node says of itself where uploads rest: fresh keys, what stands behind its sketch, what it opened before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse_exactly
from secure_fl.protect.cohort.signed import SignedCohort, require_usable
from secure_fl.protect.contract import RoundContext
from secure_fl.protect.uploads.scores import proof_lengths
from secure_fl.protect.versions import Origin, Version
from secure_fl.rpc.protect_uploads_pb2 import ModelVersion, UploadManifest

_DIGEST_BYTES = 32
_MAX_OPENED = 4096  # different rows in one study


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadAdvert:
    """What one node says, verified."""

    envelope_key: bytes
    reply_key: bytes
    sketch_hashes: bytes
    sketch_proof: bytes
    opened: frozenset[bytes]
    origin: Origin | None = None  # where each site joins at its own pace


class UploadManifests:
    """The extension of a manifest, for one protocol."""

    def __init__(self, protocol: str) -> None:
        self.protocol = protocol

    def write(
        self,
        *,
        envelope_key: X25519PrivateKey,
        reply_key: X25519PrivateKey,
        sketch_hashes: bytes = b"",
        sketch_proof: bytes = b"",
        opened: Iterable[bytes] = (),
        made_from: Version | None = None,
        told: Iterable[Version] = (),
    ) -> bytes:
        """As it is signed and sent."""
        said = UploadManifest(
            envelope_key=envelope_key.public_key().public_bytes_raw(),
            reply_key=reply_key.public_key().public_bytes_raw(),
            sketch_hashes=sketch_hashes,
            sketch_proof=sketch_proof,
            opened=sorted(opened),
            made_from=None if made_from is None else _written(made_from),
            told=[_written(version) for version in sorted(told)],
        )
        return said.SerializeToString(deterministic=True)

    def read(self, context: RoundContext, name: str, extension: bytes, /) -> UploadAdvert:
        """Keys that everybody can use, as much about a sketch as the round asks for, and digests in order."""
        said = parse_exactly(UploadManifest, extension)
        require_usable(name, said.envelope_key, said.reply_key)
        lengths = proof_lengths(len(context.invited), context.colluders) if context.compares else (0, 0)
        if (len(said.sketch_hashes), len(said.sketch_proof)) != lengths:
            raise ProtectionError(f"{name} does not stand by its sketch")
        most = _MAX_OPENED if context.kind is RequestKind.COMBINE else 0
        if list(said.opened) != sorted(set(said.opened)) or len(said.opened) > most:
            raise ProtectionError(f"{name} remembers too much, or in no order")
        if any(len(digest) != _DIGEST_BYTES for digest in said.opened):
            raise ProtectionError(f"{name} remembers what is no digest")
        return UploadAdvert(
            envelope_key=said.envelope_key,
            reply_key=said.reply_key,
            sketch_hashes=said.sketch_hashes,
            sketch_proof=said.sketch_proof,
            opened=frozenset(said.opened),
            origin=_origin(context, name, said),
        )

    def keys(self, said: UploadAdvert, /) -> tuple[bytes, ...]:
        """Both."""
        return said.envelope_key, said.reply_key


UploadCohort: TypeAlias = SignedCohort[UploadAdvert]


def opened_before(cohort: UploadCohort) -> frozenset[bytes]:
    """Hashes of the rows that anybody here has opened in the study before."""
    return frozenset[bytes]().union(*(peer.said.opened for peer in cohort.peers.values()))


def origins(cohort: UploadCohort) -> dict[str, Origin]:
    """By site what it says of its version; nothing where everybody trains from the same one."""
    return {name: peer.said.origin for name, peer in cohort.peers.items() if peer.said.origin is not None}


def _written(version: Version) -> ModelVersion:
    return ModelVersion(number=version.number, digest=version.digest)


def _origin(context: RoundContext, name: str, said: UploadManifest) -> Origin | None:
    if context.staleness is None:
        if said.HasField("made_from") or said.told:
            raise ProtectionError(f"{name} names versions where everybody trains from the same one")
        return None
    made_from = Version(number=said.made_from.number, digest=said.made_from.digest)
    told = [Version(number=one.number, digest=one.digest) for one in said.told]
    numbers = [version.number for version in told]
    oldest = context.version - context.staleness
    if numbers != sorted(set(numbers)) or not all(oldest <= number <= context.version for number in numbers):
        raise ProtectionError(f"{name} was told of versions twice, in no order, or of some that do not count")
    if not oldest <= made_from.number <= context.version:
        raise ProtectionError(f"{name} made its update from a version that is too old, or does not exist yet")
    if not {made_from, Version(number=context.version, digest=context.base_model)} <= set(told):
        raise ProtectionError(f"{name} was not told of the version that it names, or of the newest one")
    return Origin(made_from=made_from, told=frozenset(told))
