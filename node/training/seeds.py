"""From where local training takes its randomness: batch order, dropout, the order of rows.

At a site it is a secret of the node. Were it the study's seed, everybody could repeat a site's draws: two studies with
one seed would train alike in their first round, and the difference of two published models would be one site's update.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSecrets:
    """What a site's training process needs and nobody else may know."""

    split_key: bytes = field(repr=False)  # which units are trained on, and which are only tested on
    salt: bytes = field(repr=False)  # of the data's fingerprint
    noise_seed: bytes = field(default=b"", repr=False)  # empty at a site: its noise is fresh from the system each time


def secret_seed(secret: bytes, study_id: str, number: int) -> int:
    """A site's own seed for one round: nobody else can compute it, and a restarted node computes it again."""
    context = f"secure-fl training/{study_id}/{number}".encode()
    return _seed(hmac.digest(secret, context, "sha256"))


def simulated_seed(study_seed: int, me: str, number: int) -> int:
    """In a simulation: different for every site and round, repeatable for all of them by whoever runs it."""
    return _seed(hashlib.sha256(f"secure-fl training {study_seed}/{me}/{number}".encode()).digest())


def data_secrets(secret: bytes) -> DataSecrets:
    """A site's own: the same for every study, so that a record stays on its side of the cut."""
    split_key, salt = (hmac.digest(secret, f"secure-fl data/{use}".encode(), "sha256") for use in ("cut", "salt"))
    return DataSecrets(split_key=split_key, salt=salt)


def simulated_secrets(study_seed: int, me: str, number: int, attempt: int) -> DataSecrets:
    """In a simulation: repeatable, which protects nobody. The cut follows from the simulation's own seed."""
    noise = hashlib.sha256(f"secure-fl noise {study_seed}/{me}/{number}/{attempt}".encode()).digest()
    return DataSecrets(split_key=b"", salt=hashlib.sha256(me.encode()).digest(), noise_seed=noise)


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 1
