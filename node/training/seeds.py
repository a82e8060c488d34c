"""From where local training takes its randomness: batch order, dropout, the order of rows.

At a site it is a secret of the node. Were it the study's seed, everybody could repeat a site's draws: two studies with
one seed would train alike in their first round, and the difference of two published models would be one site's update.
"""

from __future__ import annotations

import hashlib
import hmac


def secret_seed(secret: bytes, study_id: str, number: int) -> int:
    """A site's own seed for one round: nobody else can compute it, and a restarted node computes it again."""
    context = f"secure-fl training/{study_id}/{number}".encode()
    return _seed(hmac.digest(secret, context, "sha256"))


def simulated_seed(study_seed: int, me: str, number: int) -> int:
    """In a simulation: different for every site and round, repeatable for all of them by whoever runs it."""
    return _seed(hashlib.sha256(f"secure-fl training {study_seed}/{me}/{number}".encode()).digest())


def _seed(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "little") >> 1
