"""A limit in the node's file that would limit nothing is refused when the file is read."""

from __future__ import annotations

from typing import Any

import pytest

from node.config import NodeFile
from secure_fl.errors import SettingsError


def node_file(policy: dict[str, Any], datasets: dict[str, Any]) -> NodeFile:
    """A file with these two sections."""
    node = {
        "name": "north", "coordinator": "127.0.0.1:1", "fingerprint": "0" * 64, "certificate": "n.pem", "ca": "ca.pem",
    }  # fmt: skip
    return NodeFile.parse({"node": node, "policy": policy, "datasets": datasets})


LIMIT = {"epsilon": 3.0, "delta": 1e-6}


@pytest.mark.parametrize(
    ("policy", "datasets", "message"),
    [
        ({"epsilon": 3.0}, {}, "write both, or neither"),
        ({"delta": 1e-6}, {}, "write both, or neither"),
        ({"epsilon": 3.0, "delta": 0.01}, {"ward": {"units": 100}}, "as it is"),
        (LIMIT, {"ward": {"path": "a.npz"}, "again": {"path": "a.npz"}}, "two ids"),
        (LIMIT, {"ward": {"path": "a.npz"}, "again": {"path": "./b/../a.npz"}}, "two ids"),
    ],
)
def test_a_limit_that_limits_nothing_is_refused(policy: dict[str, Any], datasets: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        node_file(policy, datasets)


def test_a_sound_limit_is_read() -> None:
    found = node_file(LIMIT, {"ward": {"path": "a.npz", "units": 900}, "other": {"path": "b.npz"}})
    assert (found.policy.epsilon, found.datasets["ward"].units) == (3.0, 900)
    node_file({}, {"ward": {"path": "a.npz"}, "again": {"path": "a.npz"}})  # Without a limit there is none to double.
