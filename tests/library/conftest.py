"""Two sites of one consortium, made once: certificates cost time, and no test here changes them."""

from __future__ import annotations

import pytest

from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("authority"), consortium="Heart Study")


@pytest.fixture(scope="session")
def north(authority: Authority) -> Credential:
    return authority.issue("node", "north")


@pytest.fixture(scope="session")
def south(authority: Authority) -> Credential:
    return authority.issue("node", "south")
