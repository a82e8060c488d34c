"""One site that gives or deals wrong shares: the sum opens without it, and it is named. Nobody else ever is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.machine import RoundMachine
from secure_fl.errors import ProtectionError, WrongSharesError
from secure_fl.messages import parse
from secure_fl.protect.cohort.signed import threshold
from secure_fl.protect.contract import Message, NodeHalf, RoundContext
from secure_fl.protect.primitives.recovery import DEALT_SEALED, DEALT_WRONG, GAVE_WRONG, Recovery
from secure_fl.protect.recovery.node import RecoveryNode
from secure_fl.protect.recovery.protection import MaskedWithRecovery as Masked
from secure_fl.randomness import UnsafeSeededRandomness
from secure_fl.rpc.protect_recovery_pb2 import RecoveryEnvelopes, RecoveryShare, RecoveryShares
from tests.protect.cohorts import InMemory, context, contribution, halves, host, plain
from tests.protect.laws import few

MASKED = Masked()
PHASES = MASKED.phases(context("n0", "n1", "n2").kind)


def flipped(raw: bytes) -> bytes:
    """One bit, and none of the lowest: X25519 ignores three of them, and another number may be the same key."""
    return raw[:16] + bytes([raw[16] ^ 1]) + raw[17:]


class Liar(RecoveryNode):
    """Gives wrong shares about some, has none of others, deals some nonsense; otherwise does as it should."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.false: frozenset[str] = frozenset()  # about whom it gives a wrong share
        self.silent: frozenset[str] = frozenset()  # about whom it says that it has none
        self.sealed: frozenset[str] = frozenset()  # for whom it deals what does not open
        self.unsaid: frozenset[str] = frozenset()  # to whom it deals other shares than it commits to
        self.misdealt: frozenset[int] = frozenset()  # places on its polynomials where it deals something else

    def answer(self, phase: str, message: Message) -> Message:
        answer = super().answer(phase, message)
        if phase == "share":
            dealt = parse(RecoveryEnvelopes, answer.body)
            for envelope in dealt.envelopes:
                if envelope.peer in self.unsaid:
                    envelope.commitments[:] = [flipped(one) for one in envelope.commitments]
            return replace(answer, body=dealt.SerializeToString(deterministic=True))
        if phase != "unmask":
            return answer
        said = parse(RecoveryShares, answer.body)
        for share in said.shares:
            if share.node in self.false:
                _falsify(share)
            if share.node in self.silent and share.node != self._me.name:
                share.ClearField("kind")
        return replace(answer, body=said.SerializeToString(deterministic=True))

    def _split(self, secret: bytes) -> list[bytes]:
        shares = super()._split(secret)
        return [flipped(share) if place in self.misdealt else share for place, share in enumerate(shares, 1)]

    def _seal(self, share: bytes, peer: str, *, purpose: bytes) -> bytes:
        sealed = super()._seal(share, peer, purpose=purpose)
        return flipped(sealed) if peer in self.sealed else sealed


def _falsify(share: RecoveryShare) -> None:
    if share.WhichOneof("kind") == "key":
        share.key = flipped(share.key)
    elif share.WhichOneof("kind") == "seeds":
        share.seeds.shares[:] = [flipped(one) for one in share.seeds.shares]


class Round:
    """A round with liars in it."""

    def __init__(self, names: tuple[str, ...], *, colluders: int = 1) -> None:
        self.about: RoundContext = replace(context(*names), colluders=colluders)
        values = {name: contribution(64, {}, body=[1, 2, 3], head=[4, 5]) for name in names}
        self._values = values
        self.nodes: dict[str, NodeHalf] = halves(MASKED, self.about, values)

    def liar(self, name: str) -> Liar:
        liar = Liar(self.about, self._values[name], host(name, UnsafeSeededRandomness(7, name)))
        self.nodes[name] = liar
        return liar

    def play(self, gone: Mapping[str, str] | None = None) -> Any:
        machine = RoundMachine(MASKED, self.about)
        machine.begin()
        opened: Any = None
        for phase in PHASES:
            for name in sorted(machine.waiting):
                if (gone or {}).get(name) == phase:
                    machine.leave(name, "NotConnected")
                    continue
                answer = self.nodes[name].answer(phase, machine.asked[name])
                machine.accept(name, phase, replace(answer, bulk=b""), InMemory(answer.bulk))
            opened = machine.close()
        return opened


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{index}" for index in range(count))


def test_a_flipped_bit_in_a_seeds_share_names_its_holder_and_the_sum_opens() -> None:
    attempt = Round(names(5))
    attempt.liar("n2").false = frozenset({"n1"})
    opened = attempt.play()
    assert plain(opened)[0]["body"] == ([5, 10, 15], 5 * 64, 5)
    assert opened.blamed == {"n2": GAVE_WRONG}


def test_a_flipped_bit_in_a_mask_keys_share_names_its_holder_and_the_sum_opens() -> None:
    attempt = Round(names(6))
    attempt.liar("n2").false = frozenset({"n4"})
    opened = attempt.play({"n4": "upload"})
    assert plain(opened)[0]["body"] == ([5, 10, 15], 5 * 64, 5)
    assert opened.blamed == {"n2": GAVE_WRONG}


def _as_before(self: Recovery, dealer: str, given: Mapping[str, int], **checks: Any) -> bytes:
    """Every share has to fit, and one that does not ends the attempt without a name."""
    if not (secret := self._joined(given, checks["is_secret"])):
        raise ProtectionError(f"the shares of what {dealer} dealt do not fit")
    return secret


def test_without_the_search_one_flipped_bit_ends_the_attempt_and_nobody_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = Round(names(5))
    attempt.liar("n2").false = frozenset({"n1"})
    monkeypatch.setattr(Recovery, "secret", _as_before)
    with pytest.raises(ProtectionError) as ended:
        attempt.play()
    assert not isinstance(ended.value, WrongSharesError)


def test_three_sites_cannot_open_without_a_liar_but_name_it() -> None:
    attempt = Round(names(3))
    attempt.liar("n2").false = frozenset({"n0"})
    with pytest.raises(WrongSharesError, match="n2 gave wrong shares") as ended:
        attempt.play()
    assert ended.value.blamed == {"n2": GAVE_WRONG}


def test_a_dealer_that_frames_a_holder_is_named_itself_or_nobody_is() -> None:
    # The one bad share is committed to, so its holder takes it and gives it, and it fits no polynomial.
    attempt = Round(names(5))
    attempt.liar("n0").misdealt = frozenset({5})
    opened = attempt.play()
    assert opened.blamed == {"n0": DEALT_WRONG}
    assert plain(opened)[0]["body"] == ([5, 10, 15], 5 * 64, 5)
    # The one bad share does not open, or is not the one committed to: its holder has nothing to be blamed for later.
    for way in ("sealed", "unsaid"):
        attempt = Round(names(5))
        setattr(attempt.liar("n0"), way, frozenset({"n4"}))
        assert attempt.play().blamed == {}


def test_a_holder_that_took_what_was_not_committed_to_would_be_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the node's one check taken out, which is what keeps it from being framed."""
    monkeypatch.setattr(
        RecoveryNode,
        "_dealt",
        lambda self, sealed, sender, commitment, *, purpose: self._unseal(sealed, sender, purpose=purpose),
    )
    attempt = Round(names(5))
    attempt.liar("n0").unsaid = frozenset({"n4"})
    attempt.liar("n1").false = frozenset({"n0"})  # so that the shares are looked at
    with pytest.raises(WrongSharesError) as ended:
        attempt.play()
    assert "n4" in ended.value.blamed


def _by_leaving_out(self: Recovery, dealer: str, given: Mapping[str, int], **checks: Any) -> bytes:
    """What spare shares tell without commitments: whose share is the one that does not fit, but not whose fault."""
    for holders in (set(given), *(given.keys() - {one} for one in given)):
        if secret := self._joined({name: given[name] for name in holders}, checks["is_secret"]):
            for holder in given.keys() - holders:
                self._blame(holder, GAVE_WRONG)
            return secret
    raise ProtectionError(f"the shares of what {dealer} dealt do not fit")


def test_without_commitments_to_shares_a_dealer_would_frame_a_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recovery, "secret", _by_leaving_out)
    attempt = Round(names(5))
    attempt.liar("n0").misdealt = frozenset({5})
    assert attempt.play().blamed == {"n4": GAVE_WRONG}  # which is honest


def test_a_dealer_whose_envelopes_open_nowhere_is_named() -> None:
    # Every recipient used to sit out: the attempt ended with everybody missing but the one who caused it.
    attempt = Round(names(5))
    attempt.liar("n1").sealed = frozenset(names(5))
    with pytest.raises(WrongSharesError, match="n1 dealt shares that others could not open") as ended:
        attempt.play()
    assert ended.value.blamed == {"n1": DEALT_SEALED}


def test_where_one_says_it_was_dealt_nothing_and_there_is_no_spare_share_nobody_is_named() -> None:
    attempt = Round(names(3))
    attempt.liar("n2").silent = frozenset({"n0"})
    with pytest.raises(WrongSharesError, match="it cannot be told who") as ended:
        attempt.play()
    assert ended.value.blamed == {}


@few
@given(st.data())
def test_liars_up_to_the_bound_never_get_an_honest_site_blamed(data: st.DataObject) -> None:
    count = data.draw(st.integers(3, 7), "sites")
    everybody = names(count)
    colluders = data.draw(st.integers(1, count - 2), "colluders")
    liars = data.draw(st.sets(st.sampled_from(everybody), min_size=1, max_size=colluders), "liars")
    attempt = Round(everybody, colluders=colluders)
    some = st.frozensets(st.sampled_from(everybody))
    alive = count
    false: set[str] = set()
    for name in sorted(liars):
        liar = attempt.liar(name)
        liar.false, liar.silent, liar.sealed = (data.draw(some, kind) for kind in ("false", "silent", "sealed"))
        liar.unsaid = data.draw(some, "unsaid")
        liar.misdealt = data.draw(st.frozensets(st.integers(1, count)), "misdealt")
        false |= {name} if liar.false - liar.silent - liars else set()
    leaves = threshold(count, colluders) < alive
    gone = {data.draw(st.sampled_from(everybody), "gone"): data.draw(st.sampled_from(PHASES[2:]))} if leaves else {}
    try:
        blamed = attempt.play(gone).blamed
    except WrongSharesError as error:
        blamed = error.blamed
    assert set(blamed) <= liars
    assert false - gone.keys() <= set(blamed)  # about honest dealers, whose shares they took
