"""Secrets from shares of which some are wrong, and whose fault that is.

Whoever deals a secret commits to each share of it by a hash, and a holder takes a share only if it is the one that was
committed to; one that is not, or cannot be opened, it does not hold, and it says so. So when a secret is asked for:

* a share that is not the one committed to is its *holder's* fault: an honest holder gives what it took;
* shares that are the ones committed to, with the dealer's own, and still not the shares of the secret that the dealer
  committed to (or whose public key it showed) are its *dealer's* fault: an honest dealer's lie on one polynomial;
* of a holder that has no share, or says so, and its dealer, one cheats, and nobody else can tell which. It is the
  *dealer's* fault once more than `colluders` holders say so: one of them is honest.

The first two need no bound on how many cheat, only that nobody finds two shares with one hash; the third holds while
at most `colluders` do. So an honest node is never blamed. Right shares are told from wrong ones one by one: a secret
opens whenever `threshold` right ones are there, however many wrong ones come with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from secure_fl.errors import ProtectionError, WrongSharesError
from secure_fl.protect.primitives.shamir import Interpolation

GAVE_WRONG = "gave wrong shares"
DEALT_WRONG = "dealt shares that do not fit together"
DEALT_SEALED = "dealt shares that others could not open"


class Recovery:
    """Opens what was dealt among the same parties, and remembers who is to blame where something is wrong."""

    def __init__(self, places: Mapping[str, int], answered: Iterable[str], *, threshold: int, colluders: int) -> None:
        """`places`: where on the polynomials everybody is. Raises `ProtectionError` if fewer answered than needed."""
        self._places = places
        self._answered = tuple(sorted(answered))
        self._threshold = threshold
        self._colluders = colluders
        self._blamed: dict[str, str] = {}
        self._closed: list[str] = []
        self._interpolations: dict[tuple[str, ...], Interpolation] = {}
        self._interpolation(self._answered)

    @property
    def blamed(self) -> dict[str, str]:
        """Who cheated, in order, and how."""
        return dict(sorted(self._blamed.items()))

    def secret(
        self,
        dealer: str,
        given: Mapping[str, int],
        *,
        is_dealt: Callable[[str, int], bool],
        is_secret: Callable[[bytes], bool],
    ) -> bytes:
        """The secret behind what was given by whoever held a share of it; empty where it stays closed.

        Whether a holder gave the share that it was dealt, and whether a candidate is the secret, is asked only where
        something does not fit: nearly never.
        """
        if len(given) == len(self._answered) and (secret := self._joined(given, is_secret)):
            return secret
        # The dealer's own share needs no commitment: whatever is wrong with it is the fault of one and the same.
        wrong = {holder for holder, share in given.items() if holder != dealer and not is_dealt(holder, share)}
        for holder in wrong:
            self._blame(holder, GAVE_WRONG)
        if sum(name not in given for name in self._answered) > self._colluders:
            self._blame(dealer, DEALT_SEALED)
        right = {holder: share for holder, share in given.items() if holder not in wrong}
        secret = self._joined(right, is_secret)
        if not secret and len(right) >= self._threshold:
            self._blame(dealer, DEALT_WRONG)
            # The secret is what was committed to, whichever of the dealer's shares it comes from: some of them may fit.
            others = sorted(holder for holder in right if holder != dealer)
            for holders in (others[: self._threshold], sorted(right)[: self._threshold]):
                secret = secret or self._joined({holder: right[holder] for holder in holders}, is_secret)
        if not secret:
            self._closed.append(dealer)
        return secret

    def require_everything(self) -> None:
        """Raise `WrongSharesError` if a secret stayed closed, with the names of those whose fault it is."""
        if not self._closed:
            return
        whose = ", ".join(sorted(set(self._closed)))
        if self._blamed:
            who = "; ".join(f"{name} {what}" for name, what in self.blamed.items())
            raise WrongSharesError(f"too few right shares of what {whose} dealt: {who}", blamed=self.blamed)
        raise WrongSharesError(
            f"too few shares of what {whose} dealt: somebody lies about having dealt or held them, and it cannot be "
            "told who",
            blamed={},
        )

    def _blame(self, node: str, what: str) -> None:
        self._blamed.setdefault(node, what)

    def _joined(self, shares: Mapping[str, int], is_secret: Callable[[bytes], bool]) -> bytes:
        """What all these are shares of, if that is the secret; empty otherwise."""
        holders = tuple(sorted(shares))
        if len(holders) < self._threshold:
            return b""
        try:
            secret = self._interpolation(holders).secret({self._places[name]: shares[name] for name in holders})
        except ProtectionError:  # not on one polynomial
            return b""
        return secret if is_secret(secret) else b""

    def _interpolation(self, holders: tuple[str, ...]) -> Interpolation:
        """Liars are few and lie about many: the same holders are left again and again."""
        if holders not in self._interpolations:
            places = [self._places[name] for name in holders]
            self._interpolations[holders] = Interpolation(places, threshold=self._threshold)
        return self._interpolations[holders]
