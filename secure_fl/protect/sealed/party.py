"""One node in one sealed attempt: what it must not forget is in its memory before it is said."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from secure_fl.errors import RestartedError
from secure_fl.protect.contract import Host, RoundContext
from secure_fl.protect.sealed.manifest import MANIFESTS
from secure_fl.protect.sealed.memory import SealedMemories
from secure_fl.protect.sealed.terms import Terms
from secure_fl.protect.uploads.party import Party
from secure_fl.protect.uploads.statements import NO_DIGESTS, Digests

# Where recipients recompute combinations, uploads are signed with a digest for each group.
DIGESTED = Digests(per_group=1)


class SealedParty(Party):
    """Goes on after a restart: keys and decisions are in its memory."""

    def __init__(self, context: RoundContext, host: Host, *, digests: Digests = NO_DIGESTS) -> None:
        self.memory = SealedMemories(host.memory, host.me, context, host.randomness)
        super().__init__(
            context,
            host,
            MANIFESTS,
            envelope_key=X25519PrivateKey.from_private_bytes(self.memory.now.envelope_key),
            reply_key=X25519PrivateKey.from_private_bytes(self.memory.now.reply_key),
            digests=digests,
        )
        self.terms = Terms.of(context)
        if self.memory.restored:
            self.meet(self.memory.now.roster)

    @property
    def uploaded(self) -> bytes:
        """Also in an earlier process."""
        return self.memory.now.upload

    def decide(self, phase: str, digest: bytes) -> None:
        """For ever: also after a restart."""
        self.memory.decide(phase, digest)

    def require_trained(self) -> None:
        """Raise `RestartedError` in a process that began after training: it has nothing to upload."""
        if self.memory.restored:
            raise RestartedError("this node has no memory of what it trained for this attempt")
