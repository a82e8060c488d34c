"""One node in one attempt, as its roles have it in common: its keys, whom it met, and what is sealed to whom."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import cached_property

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import ProtectionError
from secure_fl.identity.signing import transcript
from secure_fl.protect.cohort.meeting import meet, note
from secure_fl.protect.cohort.signed import Group
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.primitives.envelopes import Envelopes
from secure_fl.protect.uploads.manifest import UploadCohort, UploadManifests, origins
from secure_fl.protect.uploads.scores import Dealing
from secure_fl.protect.uploads.statements import Digests, Uploads
from secure_fl.protect.versions import Version, require_one_history
from secure_fl.rpc.protect_cohort_pb2 import Manifest
from secure_fl.rpc.protect_uploads_pb2 import UploadCommit, UploadEnvelope, UploadReply

SKETCH = b"sketch"  # purpose of an envelope with a share of a sketch


class Party(ABC):
    """What a protection's own party adds is what it remembers, and of what it uploaded."""

    def __init__(
        self,
        context: RoundContext,
        host: Host,
        manifests: UploadManifests,
        *,
        envelope_key: X25519PrivateKey,
        reply_key: X25519PrivateKey,
        digests: Digests,
    ) -> None:
        self.context = context
        self.host = host
        self.me = host.me
        self.randomness = host.randomness
        self.manifests = manifests
        self.digests = digests
        self._envelope_key = envelope_key
        self._reply_key = reply_key
        self._met: UploadCohort | None = None

    @property
    def name(self) -> str:
        """This node's."""
        return self.me.name

    @property
    @abstractmethod
    def uploaded(self) -> bytes:
        """The digest of what it uploaded; empty before it did."""

    @abstractmethod
    def decide(self, phase: str, digest: bytes) -> None:
        """Answer this question in this phase and never another one, or raise `ProtectionError`."""

    # --- who is there -----------------------------------------------------------------------------------------

    def extension(self, dealt: Dealing | None, opened: Iterable[bytes], made_from: Version | None) -> bytes:
        """What it adds to its manifest."""
        return self.manifests.write(
            envelope_key=self._envelope_key,
            reply_key=self._reply_key,
            sketch_hashes=dealt.hashes if dealt else b"",
            sketch_proof=dealt.proof if dealt else b"",
            opened=opened,
            made_from=made_from,
            told=self.host.told if made_from is not None else (),
        )

    def meet(self, roster: bytes, mine: Manifest | None = None) -> UploadCohort:
        """Everybody who takes part, verified and vouched for now."""
        cohort = meet(self.context, roster, self.manifests, host=self.host, mine=mine)
        if self.context.staleness is not None and mine is not None:
            require_one_history(origins(cohort), mine=self.host.told, colluders=self.context.colluders)
        self._met = cohort
        return cohort

    @property
    def cohort(self) -> UploadCohort:
        """Those it met."""
        if self._met is None:
            raise ProtectionError("this node was never told who takes part")
        return self._met

    def place(self, node: str) -> int:
        """Where a node stands on the polynomials of sketches: among everybody invited."""
        return self.context.invited.index(node) + 1

    def sketch_label(self, node: str) -> bytes:
        """What a node's proof about its sketch is bound to."""
        return transcript("sketch", self.context.binding, node.encode())

    def uploads(self, commits: Sequence[UploadCommit]) -> Uploads:
        """Who uploaded, verified; of this node, nothing but its own upload is believed."""
        uploads = Uploads(self.cohort, commits, digests=self.digests)
        mine = uploads.commits.get(self.name)
        if mine is not None and mine.upload != self.uploaded:
            raise ProtectionError("this node is said to have uploaded something else than it did")
        return uploads

    # --- what is opened ---------------------------------------------------------------------------------------

    def note_circle(self) -> None:
        """Before it uploads to a circle: judge and remember the sum that may be opened of it.

        Not only when it is opened: that needs some sites only, and each member has to know of it. Where no block is
        everybody's there is none, as when measurements stay at the sites in a closing round.
        """
        if self.context.whole:
            note(self.context, self.cohort, self.host, [group.holders for group in self.cohort.groups])

    def note_opened(self, uploads: Uploads, opened: Iterable[Group]) -> None:
        """Before it gives what opens the sums of these groups: judge and remember them."""
        rows = [tuple(name for name in uploads.names if name in group.holders) for group in opened]
        note(self.context, self.cohort, self.host, rows)

    # --- envelopes --------------------------------------------------------------------------------------------

    @cached_property
    def _envelopes(self) -> Envelopes:
        """Under the envelope key: to and from holders, and as a holder to recipients."""
        return Envelopes(self._envelope_key, rho=self.cohort.rho)

    @cached_property
    def _answers(self) -> Envelopes:
        """Under the reply key: what holders answer this node as a recipient."""
        return Envelopes(self._reply_key, rho=self.cohort.rho)

    def seal(self, plain: bytes, holder: str, *, purpose: bytes) -> bytes:
        """From the uploader to a holder."""
        theirs = self.cohort.said(holder).envelope_key
        return self._envelopes.seal(plain, theirs=theirs, sender=self.name, recipient=holder, purpose=purpose)

    def unseal(self, sealed: bytes, uploader: str, *, purpose: bytes) -> bytes:
        """As a holder."""
        theirs = self.cohort.said(uploader).envelope_key
        return self._envelopes.unseal(sealed, theirs=theirs, sender=uploader, recipient=self.name, purpose=purpose)

    def seal_reply(self, plain: bytes, recipient: str, *, purpose: bytes) -> bytes:
        """From a holder to a recipient, under its reply key."""
        theirs = self.cohort.said(recipient).reply_key
        return self._envelopes.seal(plain, theirs=theirs, sender=self.name, recipient=recipient, purpose=purpose)

    def unseal_replies(self, replies: Sequence[UploadReply], *, purpose: bytes) -> dict[str, bytes]:
        """As a recipient: what holders answered, by holder."""
        holders = [reply.peer for reply in replies]
        if holders != sorted(set(holders)) or not set(holders) <= set(self.cohort.names):
            raise ProtectionError("answers are repeated, out of order, or from outside the round")
        return {
            reply.peer: self._answers.unseal(
                reply.sealed,
                theirs=self.cohort.said(reply.peer).envelope_key,
                sender=reply.peer,
                recipient=self.name,
                purpose=purpose,
            )
            for reply in replies
        }


def question(digest: bytes, parts: Iterable[UploadEnvelope | UploadReply]) -> bytes:
    """All that an answer depends on: what was signed, and what nobody signed, the envelopes or replies.

    Those too: what is sealed under one key must be one message, and other replies would have other distances weighed.
    """
    fields = (part.SerializeToString(deterministic=True) for part in parts)
    return hashlib.sha256(transcript("sealed question", digest, *fields)).digest()


def from_everybody(uploads: Uploads, envelopes: Sequence[UploadEnvelope]) -> Sequence[UploadEnvelope]:
    """An envelope from everybody who uploaded, or `ProtectionError`."""
    if tuple(envelope.peer for envelope in envelopes) != uploads.names:
        raise ProtectionError("envelopes are not from everybody who uploaded, once and in order")
    return envelopes
