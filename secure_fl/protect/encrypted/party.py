"""One node in one encrypted attempt: its fresh keys, and the key that all sites of the attempt share."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.encrypted.groups import DIGESTS, EncryptedGroup, encrypted_groups, key_id
from secure_fl.protect.encrypted.scheme import Cipher, Key, Scheme
from secure_fl.protect.encrypted.sides import Side, Sides
from secure_fl.protect.encrypted.terms import Terms
from secure_fl.protect.uploads.manifest import UploadManifests
from secure_fl.protect.uploads.party import Party
from secure_fl.protect.uploads.statements import Uploads
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit

MANIFESTS = UploadManifests("encrypted")
KEY_PURPOSE = b"encrypted key"


class EncryptedParty(Party):
    """In memory only: after a restart there is another attempt, with the same integers under another key."""

    def __init__(self, context: RoundContext, host: Host) -> None:
        super().__init__(
            context,
            host,
            MANIFESTS,
            envelope_key=X25519PrivateKey.from_private_bytes(host.randomness.bytes(32)),
            reply_key=X25519PrivateKey.from_private_bytes(host.randomness.bytes(32)),
            digests=DIGESTS,
        )
        self.terms = Terms.of(context)
        self.scheme = Scheme(self.terms)
        self.key: Key | None = None
        self.upload_digest = b""

    @property
    def uploaded(self) -> bytes:
        """In this process."""
        return self.upload_digest

    def decide(self, phase: str, digest: bytes) -> None:
        """A process answers each phase once, and a restarted one has no key to answer with: that is enough."""

    @cached_property
    def sides(self) -> Sides:
        """Of those it met."""
        return Sides(self.cohort)

    @property
    def side(self) -> Side:
        """Its own."""
        return self.sides.of(self.name)

    @cached_property
    def cipher(self) -> Cipher:
        """Under the attempt's key."""
        return Cipher(self.scheme, self.known_key)

    @property
    def known_key(self) -> Key:
        """The attempt's, once it has it."""
        if self.key is None:
            raise ProtectionError("this node was never given the attempt's key")
        return self.key

    def groups_of(self, node: str) -> tuple[EncryptedGroup, ...]:
        """The groups of a node's upload."""
        return encrypted_groups(self.context, self.terms, self.cohort, node)

    def uploads(self, commits: Sequence[UploadCommit]) -> Uploads:
        """Who uploaded, verified: everybody under the one key that this node has, too."""
        uploads = super().uploads(commits)
        for name, commit in uploads.commits.items():
            # SEAL adds up what belongs to different keys without a word.
            if key_id(commit) != self.known_key.id:
                raise ProtectionError(f"{name} encrypted its upload under another key")
        return uploads

    def halves(
        self, bulk: bytes | memoryview, uploads: Uploads, needed: Sequence[tuple[Group, Sequence[str]]]
    ) -> Iterator[tuple[Group, dict[str, memoryview]]]:
        """The halves of this node's side that came as bulk, each checked against what its node signed."""
        view, position = memoryview(bulk), 0
        for group, names in needed:
            found: dict[str, memoryview] = {}
            for name in names:
                part = next(g for g in self.groups_of(name) if g.group == group).halves[self.side]
                raw = view[position : position + part.size]
                position += part.size
                if len(raw) != part.size or hashlib.sha256(raw).digest() != uploads.commits[name].digests[part.digest]:
                    raise ProtectionError(f"what is said to be {name}'s upload is not what it signed")
                found[name] = raw
            yield group, found
        if position != len(view):
            raise ProtectionError("more of the uploads arrived than is needed")

    def add(self, parts: Sequence[tuple[int, memoryview]], *, values: int) -> bytes:
        """Σ w·half, of this node's side."""
        if self.side is Side.BODIES:
            return self.scheme.add_bodies(parts, values=values)
        return self.scheme.add_seeds([(weight, bytes(seeds)) for weight, seeds in parts], values=values)
