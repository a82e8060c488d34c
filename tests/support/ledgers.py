"""Ledgers as a node writes them, round by round, under a clock that goes on by an hour with each entry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead, sign_head
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.ledger import Ledger
from secure_fl.privacy.witness import WitnessNote

HEART, LUNG = "5a" * 32, "7c" * 32


def noisy(
    *, steps: int = 36, noise: float = 3.08, sampling: float = 1 / 9, delta: float = 1e-5, **changes: Any
) -> dict[str, Any]:
    """The privacy facts of one round of a digits site."""
    facts: dict[str, Any] = {
        "mode": "dp-sgd",
        "unit": "record",
        "group_rows": 1,
        "units": 150,
        "clip": 1.0,
        "delta": delta,
        "relation": "add-or-remove-one",
        "events": [NoisySteps(sampling=sampling, noise=noise, steps=steps).facts()] if steps else [],
        "order": 8,
        "policy": {"epsilon": 3.0, "delta": delta},
        "randomness": "system",
        "preprocessing": "public",
        "split": "hmac by record",
        "fingerprint": "ab" * 32,
        "code": "cd" * 32,
        "libraries": {"opacus": "1.6.0", "dp-accounting": "0.6.0"},
        "not_covered": ["the label of a record's ward"],
    }
    return facts | changes


class Story:
    """One site's ledger, told round by round."""

    def __init__(self, path: Path, authority: Authority, site: Credential) -> None:
        self.path = path
        self.authority = authority
        self.site = site
        self._hours = 0
        self.ledger = self._open(site)

    def _open(self, site: Credential) -> Ledger:
        return Ledger(
            self.path,
            certificate=site.certificate,
            key=site.signing_key,
            authority=self.authority.ca_pem,
            now=self._now,
        )

    def _now(self) -> Any:
        self._hours += 1
        return self.site.certificate.not_before + timedelta(hours=self._hours)

    def renew(self, site: Credential) -> None:
        """Go on under the site's next certificate."""
        self.ledger = self._open(site)
        self.site = site

    def plan(
        self,
        study: str,
        number: int,
        *,
        attempt: int = 1,
        dataset: str = "ward-7",
        privacy: Mapping[str, Any] | None = None,
        repeats: bool = False,
        **more: Any,
    ) -> dict[str, Any]:
        """Plan a round; returns the facts that close it."""
        facts = {
            "study": study, "round": number, "attempt": attempt, "dataset": dataset, "repeats": repeats,
            "privacy": None if privacy is None else dict(privacy), **more,
        }  # fmt: skip
        self.ledger.append("planned", facts)
        return facts

    def send(self, facts: Mapping[str, Any], *, size: int = 2048) -> None:
        """Something leaves."""
        release = {"upload": "ee" * 32, "bytes": size, "protection": "masked", "metrics": "none"}
        self.ledger.append("sent", {**facts, "release": release})

    def cancel(self, facts: Mapping[str, Any]) -> None:
        """Nothing leaves."""
        self.ledger.append("cancelled", {**facts, "reason": "Training"})

    def rounds(self, study: str, numbers: Sequence[int], **terms: Any) -> None:
        """Rounds in which everything went well."""
        for number in numbers:
            self.send(self.plan(study, number, **terms))

    def note(self, *, study: str = HEART, round: int = 1) -> WitnessNote:  # noqa: A002
        """What a peer notes of the ledger now."""
        return note_of(self.site, self.ledger.head, study=study, round=round)


def note_of(site: Credential, head: LedgerHead, *, study: str = HEART, round: int = 1) -> WitnessNote:  # noqa: A002
    """A head as a peer notes it."""
    return WitnessNote(
        head=head,
        study=study,
        round=round,
        attempt=1,
        time=site.certificate.not_before + timedelta(hours=1),
        certificate=site.certificate,
        signature=sign_head(site.signing_key, head, study=study, round=round, attempt=1),
    )


def signed_again(bodies: Sequence[Mapping[str, Any]], site: Credential) -> bytes:
    """A whole chain over these bodies, written by somebody who has the site's key."""
    content, previous = b"", "0" * 64
    for sequence, given in enumerate(bodies):
        body = {**given, "sequence": sequence, "previous": previous}
        body.pop("signature", None)
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
        signature = site.signing_key.sign("ledger", canonical).hex()
        line = json.dumps({**body, "signature": signature}, sort_keys=True).encode()
        content += line + b"\n"
        previous = hashlib.sha256(line).hexdigest()
    return content
