"""Local training draws from a secret of the node: nobody can repeat it, and two studies never draw alike."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from node.store import NodeStore
from node.training.seeds import secret_seed, simulated_seed
from secure_fl.errors import StorageError

STUDIES = ("5a" * 32, "5b" * 32)


def test_a_seed_is_one_rounds_and_one_nodes() -> None:
    secrets = (bytes(32), bytes(31) + b"\x01")
    seeds = [secret_seed(secret, study, number) for secret in secrets for study in STUDIES for number in (1, 2, 11)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert secret_seed(secrets[0], STUDIES[0], 1) == seeds[0]


def test_the_studys_seed_says_nothing_about_a_sites_draws(tmp_path: Path) -> None:
    # What everybody could compute, from the study and the site's name, when training was seeded by the study.
    guessed = simulated_seed(7, "hospital-a", 1)
    assert secret_seed(NodeStore(tmp_path / "a").secret(), STUDIES[0], 1) != guessed


def test_a_nodes_secret_stays_its_own(tmp_path: Path) -> None:
    first, second = NodeStore(tmp_path / "a"), NodeStore(tmp_path / "b")
    assert first.secret() == NodeStore(tmp_path / "a").secret() != second.secret()
    path = tmp_path / "a" / "secret.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(StorageError, match="secret"):
        first.secret()
