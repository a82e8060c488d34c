"""A party's file: its paths are relative to where it stands, and what is missing is named."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from node.config import NodeFile
from secure_fl.errors import CertificateError, SettingsError, UnknownNameError
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.party_file import IdentitySection, PartyFile


class File(PartyFile):
    """The least that a party's file has."""

    pki: IdentitySection

    @property
    def identity(self) -> IdentitySection:
        return self.pki


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "party.toml"
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path, consortium: Authority, north: Credential) -> Path:
    """A folder with a site's identity in it."""
    north.save(tmp_path / "pki", stem="north")
    (tmp_path / "pki" / "ca.pem").write_bytes(consortium.ca_pem)
    (tmp_path / "pki" / "crl.pem").write_bytes(consortium.crl_path.read_bytes())
    return tmp_path


TEXT = """
[pki]
certificate = "pki/north.pem"
ca = "pki/ca.pem"
crl = "pki/crl.pem"
"""


def test_paths_are_relative_to_the_file(folder: Path, north: Credential, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, TEXT)
    monkeypatch.chdir("/")
    file = File.read(path)
    assert file.credential().certificate == north.certificate
    file.trust().check(north.certificate, role="node", now=datetime.now(UTC))
    assert file.state_folder == folder / "state"
    assert file.path("data/x.npz") == folder / "data" / "x.npz"
    assert file.path("/srv/x.npz") == Path("/srv/x.npz")


def test_keys_may_stand_elsewhere(folder: Path, north: Credential) -> None:
    (folder / "keys").mkdir()
    (folder / "pki" / "north.key").rename(folder / "keys" / "tls")
    (folder / "pki" / "north.signing.key").rename(folder / "keys" / "sign")
    file = File.read(write(folder, TEXT + 'key = "keys/tls"\nsigning_key = "keys/sign"\n'))
    assert file.credential().certificate == north.certificate


@pytest.mark.parametrize("missing", ["north.pem", "north.key", "north.signing.key"])
def test_a_missing_identity_is_named(folder: Path, missing: str) -> None:
    (folder / "pki" / missing).unlink()
    with pytest.raises(CertificateError, match=f"{missing}: cannot be read"):
        File.read(write(folder, TEXT)).credential()


def test_a_missing_authority_is_named(folder: Path) -> None:
    (folder / "pki" / "ca.pem").unlink()
    with pytest.raises(CertificateError, match=r"ca\.pem: cannot be read"):
        File.read(write(folder, TEXT)).trust()


def test_mistakes_in_the_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"^unknown key 'pki\.certifcate'; did you mean 'certificate'\?$"):
        File.read(write(tmp_path, '[pki]\ncertificate = "x"\ncertifcate = "x"\n'))
    with pytest.raises(SettingsError, match=r"^log\.level: "):
        File.read(write(tmp_path, '[pki]\ncertificate = "x"\n[log]\nlevel = "loud"\n'))
    with pytest.raises(SettingsError, match=r"party\.toml: has no \[pki\]$"):
        File.read(write(tmp_path, ""))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "hub.example.org", "10.0.0.7", "127.0.0.1.nip.io"])
def test_predictable_randomness_goes_with_a_coordinator_on_this_machine_only(host: str) -> None:
    """A simulation's file that was copied and pointed at a real coordinator: the study's seed gives its masks away."""
    section = {"name": "north", "coordinator": f"{host}:443", "fingerprint": "0" * 64, "certificate": "north.pem"}
    assert NodeFile.parse({"node": section}).simulation is None
    if host in ("127.0.0.1", "localhost", "[::1]"):
        assert NodeFile.parse({"node": section, "simulation": {"seed": 1}}).simulation is not None
        return
    with pytest.raises(SettingsError, match="predictable"):
        NodeFile.parse({"node": section, "simulation": {"seed": 1}})
