"""What sites declare before the first round, and the one phase in which they do.

Where sites share a model to different depths, a circle shares what all its members hold, so little is lost if sites of
one depth are in one circle. Which circles there are then follows from what sites declare: signed, once, and before
anything is opened. A site takes the first complete list it is shown for the study's, for ever, and every later round
is bound to its digest. So a coordinator that shows different sites different lists opens nothing of them together, and
can put no site into a second circle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from secure_fl.aggregation import RequestKind
from secure_fl.encoding.metrics import METRICS_BLOCK
from secure_fl.errors import CertificateError, ProtectionError
from secure_fl.identity.certificates import Certificate
from secure_fl.identity.member import Member
from secure_fl.identity.signing import transcript, verify
from secure_fl.messages import parse_exactly
from secure_fl.protect.bodies import say
from secure_fl.protect.cohort.minima import require_cohort
from secure_fl.protect.contract import (
    Ask,
    Bulk,
    Contribution,
    CoordinatorHalf,
    Host,
    Message,
    NodeHalf,
    Opened,
    Protection,
    RoundContext,
)
from secure_fl.rpc import protect_cohort_pb2 as pb

_DOMAIN = "declaration"


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A verified list: what each site shares and how fast it is. A site that was absent is not in it."""

    blocks: Mapping[str, frozenset[str]]
    paces: Mapping[str, int]
    raw: bytes  # as it travels

    @property
    def digest(self) -> bytes:
        """What later rounds are bound to."""
        return hashlib.sha256(self.raw).digest()

    @classmethod
    def read(cls, raw: bytes, *, study_id: str, roster: Mapping[str, str]) -> Self:
        """Check a list against a study's roster, or raise `SecureFLError`."""
        listed = parse_exactly(pb.Declarations, raw).declarations
        names = [declaration.node for declaration in listed]
        if names != sorted(set(names)):
            raise ProtectionError("declarations are repeated or out of order")
        blocks = {said.node: read_declaration(said, study_id, roster) for said in listed}
        return cls(blocks=blocks, paces={said.node: said.pace for said in listed}, raw=raw)


def pace_of(seconds: float) -> int:
    """How long something took, as others may know it: in milliseconds, to the next power of two.

    >>> pace_of(0.0), pace_of(1.0), pace_of(5.0)
    (0, 10, 13)
    """
    return max(0, int(1000 * seconds)).bit_length()


def make_declaration(study_id: str, me: Member, blocks: Iterable[str], *, pace: int = 0) -> pb.Declaration:
    """A site's signed word on what it shares in a study and, where circles are formed by speed, how fast it is."""
    said = pb.Declaration(node=me.name, certificate=me.certificate.der, blocks=sorted(blocks), pace=pace)
    said.signature = me.key.sign(_DOMAIN, *_signed(study_id, said))
    return said


def read_declaration(said: pb.Declaration, study_id: str, roster: Mapping[str, str]) -> frozenset[str]:
    """The blocks that a site of the roster declares; raises `SecureFLError` for anything it did not sign."""
    if said.node not in roster:
        raise ProtectionError("a declaration comes from outside the study")
    certificate = Certificate.from_der(said.certificate)
    if certificate.fingerprint != roster[said.node] or certificate.name != said.node:
        raise CertificateError(f"{said.node} shows a key that is not the roster's")
    verify(certificate.signing_public, said.signature, _DOMAIN, *_signed(study_id, said))
    if list(said.blocks) != sorted(set(said.blocks)):
        raise ProtectionError(f"{said.node} declares blocks twice or out of order")
    return frozenset(said.blocks)


def _signed(study_id: str, said: pb.Declaration) -> tuple[bytes, ...]:
    blocks = transcript("blocks", *(block.encode() for block in said.blocks))
    return study_id.encode(), said.node.encode(), said.certificate, blocks, said.pace.to_bytes(4, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedDeclarations(Opened):
    """The end of the phase: the list of those who answered."""

    declarations: bytes


class Declaring(Protection):
    """One phase, in which nothing but signed declarations leaves. The coordinator and every site see all of them."""

    name = "declaring"
    payload_version = 2
    coordinator_sees_updates = False
    order = {RequestKind.SUM: ("declare",)}  # noqa: RUF012 - as every protection has it
    carrier = "declare"

    def node(self, context: RoundContext, contribution: Contribution, host: Host) -> NodeHalf:
        """Declares the blocks it trained."""
        blocks = set(contribution.blocks) - {METRICS_BLOCK}
        return _DeclaringNode(context, host.me, blocks, pace_of(contribution.seconds))

    def coordinator(self, context: RoundContext) -> CoordinatorHalf:
        """Collects them."""
        return _DeclaringCoordinator(context)

    def largest_upload(self, context: RoundContext) -> int:  # noqa: ARG002
        """There is no bulk."""
        return 0

    def explain(self, kind: RequestKind) -> tuple[str, ...]:  # noqa: ARG002
        """For `study show`."""
        return (
            "Before the first round each site says, signed and once, which parts of the model it shares and, where "
            "circles are formed by speed, how long training took.",
        )


class _DeclaringNode:
    def __init__(self, context: RoundContext, me: Member, blocks: set[str], pace: int) -> None:
        self._context, self._me, self._blocks, self._pace = context, me, blocks, pace

    def answer(self, phase: str, message: Message) -> Message:
        """The declaration, whatever it is asked."""
        if phase != "declare" or message.body or message.bulk:
            raise ProtectionError("there is one thing to declare")
        return say(make_declaration(self._context.study_id, self._me, self._blocks, pace=self._pace))


class _DeclaringCoordinator:
    missing = 0

    def __init__(self, context: RoundContext) -> None:
        self._context = context
        self._said: dict[str, pb.Declaration] = {}

    def begin(self) -> Ask:
        """Everybody invited is asked, and told nothing."""
        return Ask(phase="declare", messages={node: Message() for node in self._context.invited})

    def accept(self, node: str, message: Message, bulk: Bulk) -> None:
        """Only a site's own word, about blocks that there are."""
        said = parse_exactly(pb.Declaration, message.body)
        blocks = read_declaration(said, self._context.study_id, self._context.roster)
        if said.node != node or bulk.size or not blocks <= set(self._context.layout.names):
            raise ProtectionError(f"{node} declares for somebody else, or blocks that the model does not have")
        self._said[node] = said

    def close(self) -> Opened:
        """The list, if there are enough for a circle."""
        require_cohort(self._said, self._context.min_cohort)
        listed = pb.Declarations(declarations=[self._said[node] for node in sorted(self._said)])
        raw = listed.SerializeToString(deterministic=True)
        return OpenedDeclarations(cohort=tuple(sorted(self._said)), declarations=raw)
