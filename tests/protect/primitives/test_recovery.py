"""Secrets from shares of which some are wrong: whoever can be blamed is, and an honest party never."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import ProtectionError, WrongSharesError
from secure_fl.protect.cohort.signed import threshold
from secure_fl.protect.primitives.recovery import DEALT_SEALED, DEALT_WRONG, GAVE_WRONG, Recovery
from secure_fl.protect.primitives.shamir import PRIME, read_share, split
from secure_fl.randomness import UnsafeSeededRandomness
from tests.protect.laws import law


def commit(dealer: str, holder: str, share: int) -> bytes:
    return hashlib.sha256(f"{dealer} {holder} {share}".encode()).digest()


@dataclass
class Dealt:
    """One secret on its way: what was dealt, committed to, and taken."""

    dealer: str
    secret: bytes
    commitments: dict[str, bytes] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)

    def is_dealt(self, holder: str, share: int) -> bool:
        return self.commitments[holder] == commit(self.dealer, holder, share)


class Party:
    """Names with places, and secrets dealt among them by the rules of a node: what does not fit is not taken."""

    def __init__(self, count: int, colluders: int = 1) -> None:
        self.names = tuple(f"n{index:03d}" for index in range(count))
        self.places = {name: place for place, name in enumerate(self.names, 1)}
        self.threshold, self.colluders = threshold(count, colluders), colluders
        self._randomness = UnsafeSeededRandomness(5, "dealing")

    def deal(
        self,
        dealer: str,
        *,
        off: frozenset[str] = frozenset(),
        unsaid: frozenset[str] = frozenset(),
        untaken: frozenset[str] = frozenset(),
    ) -> Dealt:
        """Off the polynomial but committed to; not the one that was committed to; sealed so that it does not open."""
        secret = self._randomness.bytes(32)
        raw = split(secret, threshold=self.threshold, parties=len(self.names), randomness=self._randomness)
        dealt = Dealt(dealer, secret)
        for name, share in zip(self.names, map(read_share, raw), strict=True):
            value = (share + 1) % PRIME if name in off else share
            dealt.commitments[name] = commit(dealer, name, value + (name in unsaid))
            if name == dealer or (name not in untaken and name not in unsaid):
                dealt.held[name] = value
        return dealt

    def recovery(self, answered: tuple[str, ...] | None = None) -> Recovery:
        answered = self.names if answered is None else answered
        return Recovery(self.places, answered, threshold=self.threshold, colluders=self.colluders)


def opened(recovery: Recovery, dealt: Dealt, given: Mapping[str, int]) -> bytes:
    return recovery.secret(
        dealt.dealer, given, is_dealt=dealt.is_dealt, is_secret=lambda secret: secret == dealt.secret
    )


def wrong(dealt: Dealt, *liars: str) -> dict[str, int]:
    return {name: (share + (name in liars)) % PRIME for name, share in dealt.held.items()}


def test_where_everybody_is_honest_nothing_is_looked_up() -> None:
    party = Party(5)
    dealt, recovery = party.deal("n000"), party.recovery()
    dealt.commitments.clear()  # any look would fail
    assert opened(recovery, dealt, dealt.held) == dealt.secret
    assert recovery.blamed == {}
    recovery.require_everything()


def test_a_secret_opens_from_the_right_shares_and_the_liar_is_named() -> None:
    party = Party(5)
    dealt, recovery = party.deal("n000"), party.recovery()
    assert opened(recovery, dealt, wrong(dealt, "n002")) == dealt.secret
    assert recovery.blamed == {"n002": GAVE_WRONG}
    recovery.require_everything()


def test_as_many_lies_are_survived_as_there_are_spare_shares() -> None:
    # No decoding of errors does that: with 7 answers and a threshold of 5 it finds one.
    party = Party(7, colluders=2)
    assert party.threshold == 5
    dealt, recovery = party.deal("n000"), party.recovery()
    assert opened(recovery, dealt, wrong(dealt, "n002", "n005")) == dealt.secret
    assert set(recovery.blamed) == {"n002", "n005"}


def test_without_a_spare_share_the_secret_stays_closed_and_the_liar_is_named_all_the_same() -> None:
    party = Party(3)
    assert party.threshold == 3
    dealt, recovery = party.deal("n000"), party.recovery()
    assert opened(recovery, dealt, wrong(dealt, "n001")) == b""
    with pytest.raises(WrongSharesError, match="n001 gave wrong shares") as found:
        recovery.require_everything()
    assert found.value.blamed == {"n001": GAVE_WRONG}


@pytest.mark.parametrize("off", ["n001", "n004"])  # also one among those that are enough
def test_a_dealer_whose_own_shares_do_not_fit_is_named_and_its_holders_are_not(off: str) -> None:
    party = Party(5)
    dealt, recovery = party.deal("n000", off=frozenset({off})), party.recovery()
    secret = opened(recovery, dealt, dealt.held)
    assert secret in (b"", dealt.secret)
    assert recovery.blamed == {"n000": DEALT_WRONG}


def test_a_dealer_that_gives_its_own_share_wrong_is_named_and_its_secret_opens() -> None:
    party = Party(5)
    dealt, recovery = party.deal("n000"), party.recovery()
    assert opened(recovery, dealt, wrong(dealt, "n000")) == dealt.secret
    assert recovery.blamed == {"n000": DEALT_WRONG}


def test_one_complaint_blames_nobody_and_costs_nothing_where_there_is_a_spare_share() -> None:
    party = Party(5)
    dealt, recovery = party.deal("n000", untaken=frozenset({"n003"})), party.recovery()
    assert opened(recovery, dealt, dealt.held) == dealt.secret
    assert recovery.blamed == {}


def test_more_complaints_than_colluders_are_the_dealers_fault() -> None:
    party = Party(6)
    dealt, recovery = party.deal("n000", unsaid=frozenset({"n003", "n005"})), party.recovery()
    assert opened(recovery, dealt, dealt.held) == dealt.secret
    assert recovery.blamed == {"n000": DEALT_SEALED}


def test_where_nobody_can_be_named_that_is_said() -> None:
    party = Party(3)
    dealt, recovery = party.deal("n000", untaken=frozenset({"n001"})), party.recovery()
    assert opened(recovery, dealt, dealt.held) == b""
    with pytest.raises(WrongSharesError, match="it cannot be told who") as found:
        recovery.require_everything()
    assert found.value.blamed == {}


def test_fewer_answers_than_the_threshold_are_no_recovery() -> None:
    with pytest.raises(ProtectionError, match="threshold"):
        Party(5).recovery(("n000", "n001"))


def test_two_hundred_and_fifty_six_parties_with_liars_take_a_moment() -> None:
    party = Party(256, colluders=20)
    liars = party.names[::13]
    recovery = party.recovery()
    for dealer in party.names[:12]:
        dealt = party.deal(dealer)
        assert opened(recovery, dealt, wrong(dealt, *liars)) == dealt.secret
    assert len(liars) == 20
    # n000 is a liar and a dealer: about its own secret its wrong share is the dealer's fault, which came first.
    assert recovery.blamed == dict.fromkeys(liars, GAVE_WRONG) | {"n000": DEALT_WRONG}


@law
@given(st.data())
def test_an_honest_party_is_never_blamed_and_enough_right_shares_always_open(data: st.DataObject) -> None:
    """Up to `colluders` parties do whatever comes to mind, as dealers and as holders; some honest ones are away."""
    count = data.draw(st.integers(3, 9), "parties")
    colluders = data.draw(st.integers(0, count - 2), "colluders")
    party = Party(count, colluders)
    liars = frozenset(data.draw(st.sets(st.sampled_from(party.names), max_size=colluders), "liars"))
    least = st.sets(st.sampled_from(party.names), min_size=party.threshold)
    answered = tuple(sorted(data.draw(least, "answered")))
    recovery = party.recovery(answered)
    some = st.frozensets(st.sampled_from(party.names))
    gave_wrong: set[str] = set()
    for dealer in party.names:
        false = dealer in liars
        how = {kind: data.draw(some, kind) for kind in ("off", "unsaid", "untaken")} if false else {}
        dealt = party.deal(dealer, **how)
        given_shares = {name: share for name, share in dealt.held.items() if name in answered}
        for liar in liars & given_shares.keys():
            what = data.draw(st.sampled_from(["honest", "wrong", "silent"] if liar != dealer else ["honest", "wrong"]))
            if what == "wrong":
                given_shares[liar] = (given_shares[liar] + data.draw(st.integers(1, PRIME - 1))) % PRIME
                gave_wrong |= {liar} - {dealer}  # its own is compared only where enough others are there
            elif what == "silent":
                del given_shares[liar]
        secret = opened(recovery, dealt, given_shares)
        assert secret in (b"", dealt.secret)
        right = [name for name, share in given_shares.items() if share == dealt.held[name]]
        if not false and len(right) >= party.threshold:
            assert secret == dealt.secret
    assert recovery.blamed.keys() <= liars
    assert gave_wrong <= recovery.blamed.keys()
