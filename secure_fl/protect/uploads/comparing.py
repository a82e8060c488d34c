"""How a combine gets its rows: sketches are dealt, holders answer with shares of distances, recipients weigh peers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from secure_fl.encoding.integers import Integers
from secure_fl.errors import ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.bodies import read_bulky, say, say_bulky
from secure_fl.protect.combining import Attention
from secure_fl.protect.contract import Message
from secure_fl.protect.release.sketch import in_units
from secure_fl.protect.uploads import scores
from secure_fl.protect.uploads.party import SKETCH, Party, from_everybody, question
from secure_fl.protect.uploads.phases import ROW, SCORE
from secure_fl.protect.uploads.statements import Uploads, score_purpose, sign_row
from secure_fl.randomness import KeyStream
from secure_fl.rpc.protect_uploads_pb2 import UploadEnvelopes, UploadReplies, UploadReply, UploadScores

log = logging.getLogger(__name__)


def deal_sketch(party: Party, sketch: Integers | None) -> scores.Dealing | None:
    """Before the cohort is known: a share for everybody invited. Nothing where features do not count."""
    if not party.context.compares:
        return None
    if sketch is None:
        raise ProtectionError("this round weighs peers by their features, and there are none")
    return scores.deal(
        sketch,
        nodes=len(party.context.invited),
        colluders=party.context.colluders,
        label=party.sketch_label(party.name),
        randomness=KeyStream(party.randomness.bytes(32)),
    )


def score(party: Party, message: Message) -> Message:
    """As a holder: shares of the distances between sketches, each sealed to its recipient."""
    if not party.context.compares:
        raise ProtectionError("this round weighs nobody by features")
    said = parse(UploadEnvelopes, read_bulky(message))
    uploads = party.uploads(said.commits)
    shares = {
        envelope.peer: party.unseal(envelope.sketch_share, envelope.peer, purpose=SKETCH)
        for envelope in from_everybody(uploads, said.envelopes)
    }
    for name, share in shares.items():
        peer = party.cohort.said(name)
        scores.check_share(
            share,
            party.place(party.name),
            hashes=peer.sketch_hashes,
            proof=peer.sketch_proof,
            label=party.sketch_label(name),
            nodes=len(party.context.invited),
        )
    answers = scores.score(shares, order=party.context.invited)
    party.decide(SCORE, question(uploads.digest, said.envelopes))
    return say_bulky(sealed_replies(party, answers, purpose=score_purpose(uploads)))


def sealed_replies(party: Party, plain: Mapping[str, bytes], *, purpose: bytes) -> UploadReplies:
    """From a holder to each recipient."""
    replies = [
        UploadReply(peer=recipient, sealed=party.seal_reply(plain[recipient], recipient, purpose=purpose))
        for recipient in sorted(plain)
    ]
    return UploadReplies(replies=replies)


def ask_for_row(party: Party, attend: Attention, message: Message) -> Message:
    """As a recipient: its distances opened, its peers weighed, the row signed."""
    said = parse(UploadScores, read_bulky(message))
    uploads = party.uploads(said.commits)
    if party.name not in uploads.commits:
        raise ProtectionError("a row is asked of a node that did not upload")
    party.decide(ROW, question(uploads.digest, said.replies))
    row: Mapping[str, int] = {}
    try:
        row = attend(_distances(party, uploads, said.replies))
    except ProtectionError as error:
        # It goes on for the others, who need it. Without a row nothing is opened here.
        log.warning("no combination is asked for: %s", error.message)
    return say(sign_row(party.me, party.cohort, uploads, row))


def _distances(party: Party, uploads: Uploads, replies: Sequence[UploadReply]) -> dict[str, float]:
    """The squared distances to everybody who uploaded; zeros where features do not count."""
    if not party.context.compares:
        return dict.fromkeys(uploads.names, 0.0)
    answers = party.unseal_replies(replies, purpose=score_purpose(uploads))
    squared = scores.interpolate_scores(
        {party.place(holder): answer for holder, answer in answers.items()},
        [name for name in uploads.names if name != party.name],
        nodes=len(party.context.invited),
        colluders=party.context.colluders,
    )
    return {name: in_units(squared.get(name, 0)) for name in uploads.names}
