"""Distances between sketches, attacked: by a coordinator, by holders, by recipients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from secure_fl.errors import CohortTooSmallError, ProtectionError
from secure_fl.messages import parse
from secure_fl.protect.combining import CombinationsSent
from secure_fl.protect.contract import Message
from secure_fl.protect.primitives.lagrange import lagrange
from secure_fl.protect.release.sketch import LIMIT, SIZE
from secure_fl.protect.uploads import scores
from secure_fl.protect.uploads.scores import PRIME, Dealing, _read, answers_needed, degree, share_bytes
from secure_fl.protect.uploads.statements import Uploads
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_uploads_pb2 import UploadAnswer, UploadEnvelopes, UploadReplies, UploadRow, UploadScores
from tests.protect.cohorts import InMemory
from tests.protect.sealed.table import NAMES, Table, combine_round, edited, flip, said, values

WORD = 8


def attentive() -> Table:
    """Six sites with sketches that are three apart in every place."""
    return Table(combine_round(compares=True))


# --- holders ------------------------------------------------------------------------------------------------------


def _swap(said: UploadEnvelopes) -> None:
    first, second = said.envelopes[1], said.envelopes[2]
    first.sketch_share, second.sketch_share = second.sketch_share, first.sketch_share


SHARES: dict[str, Callable[[UploadEnvelopes], object]] = {
    "a bit flipped": lambda s: setattr(s.envelopes[1], "sketch_share", flip(s.envelopes[1].sketch_share)),
    "empty": lambda s: setattr(s.envelopes[1], "sketch_share", b""),
    "swapped between senders": _swap,
    "one missing": lambda s: s.envelopes.__delitem__(1),
    "one twice": lambda s: s.envelopes.append(s.envelopes[1]),
    "of a stranger": lambda s: setattr(s.envelopes[5], "peer", "zz"),
}


@pytest.mark.parametrize("attack", SHARES)
def test_shares_of_sketches_that_were_touched_get_no_answer(attack: str) -> None:
    table = attentive().until("score")
    table.refuses("n0", edited(UploadEnvelopes, table.asked["n0"], SHARES[attack]), ProtectionError)
    assert not table.remembers("n0").decided


@pytest.mark.parametrize(
    "share", [b"", bytes(WORD), b"\xff" * share_bytes(6), bytes(share_bytes(6)), bytes(share_bytes(6) + 1)]
)
def test_a_share_that_is_none_but_properly_sealed_gets_no_answer(share: bytes) -> None:
    table = attentive().until("score")
    evil: Any = table.nodes["n1"]
    sealed = evil.party.seal(share, "n0", purpose=b"sketch")
    forged = edited(UploadEnvelopes, table.asked["n0"], lambda s: setattr(s.envelopes[1], "sketch_share", sealed))
    table.refuses("n0", forged, ProtectionError)


def test_a_share_for_another_holder_or_of_another_attempt_gets_no_answer() -> None:
    table = attentive().until("score")
    theirs = parse(UploadEnvelopes, table.asked["n2"].body).envelopes[1]
    earlier = Table(replace(table.about, attempt=2)).until("score")
    old = parse(UploadEnvelopes, earlier.asked["n0"].body).envelopes[1]
    for forged in (theirs, old):
        half = table.restart("n0")
        shown = parse(UploadEnvelopes, table.asked["n0"].body)
        shown.envelopes[1].CopyFrom(forged)
        with pytest.raises(ProtectionError, match="does not open"):
            half.answer("score", said(shown))


def test_a_holder_answers_about_one_set_of_shares_only() -> None:
    """n1 shows n0 other shares of its sketch: with the zeros of the first answer, the second would show n2's shares."""
    table = attentive().until("score")
    first = table.tell("n0", table.asked["n0"])

    def fewer(said: UploadEnvelopes) -> None:
        del said.commits[5]
        del said.envelopes[5]

    table.restart("n0")
    with pytest.raises(ProtectionError, match="another question"):
        table.tell("n0", edited(UploadEnvelopes, table.asked["n0"], fewer))
    # Other shares of a sketch are not even looked at: n1 stands by the first ones in its manifest.
    evil: Any = table.nodes["n1"]
    sealed = evil.party.seal(bytes(share_bytes(6)), "n0", purpose=b"sketch")
    table.restart("n0")
    with pytest.raises(ProtectionError, match="stands by"):
        table.tell(
            "n0",
            edited(UploadEnvelopes, table.asked["n0"], lambda s: setattr(s.envelopes[1], "sketch_share", sealed)),
        )
    table.restart("n0")
    assert table.tell("n0", table.asked["n0"]) == first


def test_without_attention_nobody_answers_about_sketches_and_with_it_everybody_has_one() -> None:
    table = Table(combine_round()).until("row")
    half = table.restart("n0")
    with pytest.raises(ProtectionError, match="weighs nobody"):
        half.answer("score", Message())
    about = combine_round(compares=True)
    bare = {name: replace(mine, sketch=None) for name, mine in values(about).items()}
    table = Table(about, bare)
    table.refuses("n0", table.asked["n0"], ProtectionError)
    assert table.memories["n0"].load() is None


def _at(point: int, base: Sequence[int], values: Sequence[Sequence[int]]) -> list[int]:
    """The polynomials' values at `point`, from those at `base`."""
    [weights] = lagrange(base, (point,), prime=PRIME)
    columns = zip(*values, strict=True)
    return [sum(weight * value for weight, value in zip(weights, column, strict=True)) % PRIME for column in columns]


def test_as_many_holders_as_may_collude_find_every_sketch_possible() -> None:
    """Any d shares of a coordinate, and whatever value: one polynomial fits, so that the shares say nothing."""
    nodes, colluders = 9, 1
    d = degree(nodes, colluders)
    assert d == 2
    sketch = np.arange(SIZE, dtype=np.int32)
    randomness = UnsafeSeededRandomness(1)
    dealt = scores.deal(sketch, nodes=nodes, colluders=colluders, label=b"", randomness=randomness)
    rows = [_read(raw, nodes) for raw in dealt.shares]
    for holders in combinations(range(1, nodes + 1), d):
        for guess in (0, 5, PRIME - 7):
            base = [0, *holders]
            known = [[guess], *([rows[holder - 1][5]] for holder in holders)]
            [value] = _at(99, base, known)
            assert _at(0, [*holders, 99], [*known[1:], [value]]) == [guess]
    # One more and it is known; and no share is the coordinate itself, nor zero.
    assert _at(0, [1, 2, 3], [row[5:6] for row in rows[:3]]) == [5]
    assert all(row[place] not in (0, place) for row in rows for place in range(1, 20))


# --- recipients ---------------------------------------------------------------------------------------------------


def replies_of(table: Table, recipient: str) -> dict[int, list[int]]:
    """What a recipient reads: the holders' values for each of its peers."""
    shown = parse(UploadScores, table.asked[recipient].body)
    purpose = b"score" + Uploads(table.cohort, shown.commits).digest
    half: Any = table.nodes[recipient]
    plain = half.party.unseal_replies(shown.replies, purpose=purpose)
    return {NAMES.index(holder) + 1: _read(raw, len(shown.commits) - 1, exactly=True) for holder, raw in plain.items()}


def test_a_recipient_sees_a_distance_and_nothing_else() -> None:
    """Whatever sketch n1 could have at the same distance: there are zeros with which n0 would have seen just this."""
    table = attentive().until("row")
    d = degree(6, 1)
    seen = {holder: column[0] for holder, column in replies_of(table, "n0").items()}  # about n1
    distance = SIZE * 9
    assert _at(0, [1, 2, 3], [[seen[k]] for k in (1, 2, 3)]) == [distance]
    halves: dict[str, Any] = dict(table.nodes)
    upload = parse(UploadAnswer, table.answers["upload", "n0"].body)
    mine = {
        place: _read(halves[envelope.peer].party.unseal(envelope.sketch_share, "n0", purpose=b"sketch"), 6)[:SIZE]
        for place, envelope in enumerate(upload.envelopes, 1)
    }
    rng = np.random.default_rng(2)
    for trial in range(3):
        possible = np.zeros(SIZE, np.int64)
        possible[rng.permutation(SIZE)[: SIZE // 4]] = 6 * (-1) ** trial  # as far from n0's zeros as n1's threes are
        assert int((possible**2).sum()) == distance
        slopes = [int(value) for value in rng.integers(0, PRIME, SIZE)]
        zeros = {}
        for k, value in seen.items():
            theirs = [(int(x) + slope * k) % PRIME for x, slope in zip(possible, slopes, strict=True)]
            square = sum((a - b) ** 2 for a, b in zip(mine[k], theirs, strict=True))
            zeros[k] = (value - square) % PRIME
        base = list(range(1, 2 * d + 2))
        assert _at(0, base, [[zeros[k]] for k in base]) == [0]
        for k in range(2 * d + 2, 7):
            assert _at(k, base, [[zeros[k]] for k in base]) == [zeros[k]]


def bent(table: Table, holder: str, recipient: str, change: Callable[[bytes], bytes]) -> bytes:
    """Other values of a colluding holder, properly sealed."""
    halves: dict[str, Any] = dict(table.nodes)
    cohort = table.cohort
    shown = parse(UploadScores, table.asked[recipient].body)
    common: dict[str, Any] = {
        "sender": holder,
        "recipient": recipient,
        "purpose": b"score" + Uploads(cohort, shown.commits).digest,
    }
    sealed = next(reply.sealed for reply in shown.replies if reply.peer == holder)
    plain = halves[recipient].party._answers.unseal(sealed, theirs=cohort.said(holder).envelope_key, **common)
    return bytes(halves[holder].party._envelopes.seal(change(plain), theirs=cohort.said(recipient).reply_key, **common))


def _bend(table: Table, said: UploadScores, change: Callable[[bytes], bytes]) -> None:
    said.replies[3].sealed = bent(table, "n3", "n0", change)


def _far(table: Table, said: UploadScores) -> None:
    """With just as many answers as are needed no check is left but that of the range."""
    del said.replies[answers_needed(6, 1) :]
    shift = -(10**6) * pow(3, -1, PRIME)  # the first of three counts three times at zero

    def nearer_than_can_be(plain: bytes) -> bytes:
        value = (int.from_bytes(plain[:WORD], "little") + shift) % PRIME
        return value.to_bytes(WORD, "little") + plain[WORD:]

    said.replies[0].sealed = bent(table, "n0", "n0", nearer_than_can_be)


def _exchange(table: Table, said: UploadScores) -> None:
    del said.replies[:]
    said.replies.extend(parse(UploadScores, table.asked["n1"].body).replies)


SCORES: dict[str, Callable[[Table, UploadScores], object]] = {
    "too few": lambda _t, s: s.replies.__delitem__(slice(answers_needed(6, 1) - 1, None)),
    "none": lambda _t, s: s.replies.__delitem__(slice(None)),
    "a bit flipped": lambda _t, s: setattr(s.replies[2], "sealed", flip(s.replies[2].sealed)),
    "one twice": lambda _t, s: s.replies.append(s.replies[0]),
    "of a stranger": lambda _t, s: setattr(s.replies[5], "peer", "zz"),
    "another recipient's": _exchange,
    "off the polynomial": lambda t, s: _bend(t, s, lambda plain: bytes([plain[0] ^ 1]) + plain[1:]),
    "outside the field": lambda t, s: _bend(t, s, lambda plain: b"\xff" * len(plain)),
    "short": lambda t, s: _bend(t, s, lambda plain: plain[:-WORD]),
    "beyond any distance": _far,
}


@pytest.mark.parametrize("attack", SCORES)
def test_a_recipient_that_cannot_open_its_distances_asks_for_nothing_and_goes_on_as_a_holder(attack: str) -> None:
    table = attentive().until("row")
    forged = edited(UploadScores, table.asked["n0"], lambda s: SCORES[attack](table, s))
    answer = table.tell("n0", forged)
    assert dict(parse(UploadRow, answer.body).row) == {}
    table.machine.accept("n0", "row", answer, InMemory(b""))
    sent: Any = None
    while table.machine.phase:
        sent = table.play()
    assert isinstance(sent, CombinationsSent)
    assert sent.recipients == NAMES[1:]
    assert table.nodes["n0"].combination() == {}


@pytest.mark.parametrize("few", [True, False])
def test_a_holder_cannot_bend_a_distance_unless_recipients_are_content_with_few_answers(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n3 works with the coordinator, which hands on n0, n1 and n3's answers: n1 is to look 500 steps² nearer to n0."""
    if few:
        monkeypatch.setattr(scores, "answers_needed", lambda nodes, colluders: 2 * degree(nodes, colluders) + 1)
    seen: dict[str, float] = {}
    about = combine_round(compares=True)
    everybody = values(about)

    def attend(squared: Mapping[str, float]) -> Mapping[str, int]:
        seen.update(squared)
        return {}

    everybody["n0"] = replace(everybody["n0"], attend=attend)
    table = Table(about, everybody).until("row")
    [weights] = lagrange([1, 2, 4], (0,), prime=PRIME)
    shift = -500 * pow(weights[2], -1, PRIME)

    def nearer(plain: bytes) -> bytes:
        value = (int.from_bytes(plain[:WORD], "little") + shift) % PRIME
        return value.to_bytes(WORD, "little") + plain[WORD:]

    def hand_on(said: UploadScores) -> None:
        said.replies[3].sealed = bent(table, "n3", "n0", nearer)
        for place in (5, 4, 2):
            del said.replies[place]

    table.tell("n0", edited(UploadScores, table.asked["n0"], hand_on))
    assert (round(seen["n1"] * 2**28) == 9 * SIZE - 500) if few else not seen


def test_too_few_answers_end_the_attempt() -> None:
    table = attentive().until("score")
    with pytest.raises(CohortTooSmallError):
        table.play(absent=NAMES[: 6 - answers_needed(6, 1) + 1])


def test_what_holders_say_to_one_recipient_is_of_no_use_to_another() -> None:
    table = attentive().until("score")
    answers = {name: parse(UploadReplies, table.tell(name, table.asked[name]).body) for name in NAMES}
    halves: dict[str, Any] = dict(table.nodes)
    purpose = b"score" + Uploads(table.cohort, table.commits(*NAMES)).digest
    for holder in NAMES[2:]:
        reply = next(reply for reply in answers[holder].replies if reply.peer == "n0")
        with pytest.raises(ProtectionError):
            halves["n1"].party.unseal_replies([type(reply)(peer=holder, sealed=reply.sealed)], purpose=purpose)
    # The zeros differ: what n0 and n1 read about n2 are values of polynomials that only share their degree.
    table = attentive().until("row")
    first, second = replies_of(table, "n0"), replies_of(table, "n1")
    about_n2 = {k: (first[k][1], second[k][1]) for k in first}
    assert all(mine != theirs for mine, theirs in about_n2.values())


def _functional(row: int, points: range) -> list[int]:
    """λ_k·k^row with λ_k = Π 1/(k − m): what it gives of a polynomial of degree below n − 1 − row is zero."""
    weights = []
    for k in points:
        below = 1
        for m in points:
            below = below * (k - m) % PRIME if m != k else below
        weights.append(pow(below, -1, PRIME) * pow(k, row, PRIME) % PRIME)
    return weights


@pytest.mark.parametrize("trusting", [False, True])
def test_a_recipient_that_shares_its_sketch_wrongly_is_found_out(trusting: bool) -> None:
    """n0 chooses the six values that holders get of its sketch freely, and so which sums of n1's features it reads.

    v(k) = ‖a₀(k)‖² + ‖a₁(k)‖² − 2·a₀(k)·a₁(k) + z(k). Functionals that vanish on degree 2d leave the mixed term, in
    which a₁(k) = x + r·k and, as n0 is a holder itself, x + r is known. Where holders do not check the
    proof (`trusting`), that reads six of n1's features.
    """
    points = range(1, 7)
    wanted = 3  # functionals: n − 2d − 1
    rng = np.random.default_rng(4)
    features = rng.integers(-LIMIT, LIMIT + 1, SIZE).astype(np.int32)
    about = combine_round(compares=True)
    everybody = values(about)
    everybody["n1"] = replace(everybody["n1"], sketch=features)
    table = Table(about, everybody)

    # Coordinate c is to enter functional c // 2 with weight 2^(26·(c mod 2)), and no other.
    functionals = [_functional(row, points) for row in range(6)]
    system = scores._matrix(functionals)
    moments = [[0] * SIZE for _ in range(6)]
    for coordinate in range(2 * wanted):
        running = 0
        for row in reversed(range(wanted)):
            running += 1 << (26 * (coordinate % 2)) if row == coordinate // 2 else 0
            moments[row][coordinate] = running
    forged = [[int(value) for value in row] for row in (system.inv() * scores._matrix(moments)).tolist()]

    def deal(_sketch: Any, *, label: bytes, **_: Any) -> Dealing:
        # Everything as it should be, but for the degree: a proof is made up that fits the first d + 1 holders.
        shares = [np.array([*row, *[0] * (2 + 6)], "<u8").tobytes() for row in forged]
        hashes = b"".join(scores._hash(share) for share in shares)
        challenge = scores._matrix(scores._challenge(label, hashes))
        first = [(challenge * scores._matrix([[v] for v in [*forged[k], 0, 0]])).tolist() for k in (0, 1)]
        lines = [[(2 * int(a) - int(b)) % PRIME, (int(b) - int(a)) % PRIME] for [a], [b] in zip(*first, strict=True)]
        return Dealing(shares, hashes, np.array(lines, "<u8").tobytes())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "deal", deal)
        evil = table.nodes["n0"].answer("advertise", table.asked["n0"])
    table.play(forged={"n0": evil})
    table.until("score")
    if not trusting:
        for holder in NAMES[2:]:
            table.refuses(holder, table.asked[holder], ProtectionError)
            assert not table.remembers(holder).decided
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scores, "check_share", lambda *_, **__: None)
        table.play()
    seen = {holder: column[0] for holder, column in replies_of(table, "n0").items()}
    mine: Any = table.nodes["n0"]
    envelope = next(e for e in parse(UploadAnswer, table.answers["upload", "n1"].body).envelopes if e.peer == "n0")
    own = _read(mine.party.unseal(envelope.sketch_share, "n1", purpose=b"sketch"), 6)[:SIZE]  # x + r
    read: list[int] = []
    for row in range(wanted):
        left = sum(
            weight * (seen[k] - sum(value * value for value in forged[k - 1]))
            for k, weight in zip(points, functionals[row], strict=True)
        )
        mixed = left * pow(-2, -1, PRIME) - sum(m * share for m, share in zip(moments[row + 1], own, strict=True))
        mixed = (mixed + PRIME // 2) % PRIME - PRIME // 2
        low = (mixed + (1 << 25)) % (1 << 26) - (1 << 25)
        read += [low, (mixed - low) >> 26]
    assert read == features[: 2 * wanted].tolist()
