"""Invitations and replies: what the authority wrote is what is read, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from secure_fl.errors import CertificateError, SecureFLError, SettingsError
from secure_fl.identity import invitation as module
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import make_request
from secure_fl.identity.invitation import Invitation, authority_fingerprint
from secure_fl.settings import read_toml
from tests.identity.conftest import Clock

ADDRESS, FINGERPRINT = "fl.example.org:8443", "ab" * 32


@pytest.fixture
def path(authority: Authority, tmp_path: Path) -> Path:
    """An invitation as it arrives."""
    file = tmp_path / "invitation.toml"
    file.write_text(authority.invitation(coordinator=ADDRESS, fingerprint=FINGERPRINT))
    return file


def changed(path: Path, **changes: object) -> Path:
    """The same file, rewritten by somebody on its way."""
    table = read_toml(path)["invitation"] | changes
    path.write_text(tomli_w.dumps({"invitation": table}, multiline_strings=True))
    return path


def test_what_was_written_is_read(authority: Authority, path: Path, clock: Clock) -> None:
    found = Invitation.read(path, now=clock())
    assert (found.coordinator, found.fingerprint, found.certificate) == (ADDRESS, FINGERPRINT, None)
    assert (found.ca, found.crl) == (authority.ca_pem, authority.crl_path.read_bytes())
    assert found.consortium == "Heart Study"
    assert found.authority_fingerprint == authority_fingerprint(authority.ca_pem)


def test_no_secret_is_in_it(authority: Authority, path: Path) -> None:
    assert "PRIVATE" not in path.read_text()
    assert (authority.folder / "ca.key").read_text().splitlines()[1] not in path.read_text()


def test_line_ends_of_another_system_change_nothing(path: Path, clock: Clock) -> None:
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert Invitation.read(path, now=clock()).coordinator == ADDRESS


@pytest.mark.parametrize(
    "change",
    [
        {"coordinator": "evil.example.org:8443"},
        {"fingerprint": "cd" * 32},
        {"signature": "00"},
        {"signature": ""},
    ],
)
def test_a_changed_invitation_is_noticed(path: Path, clock: Clock, change: dict[str, str]) -> None:
    with pytest.raises(CertificateError, match="was changed after the authority 'Heart Study' signed it"):
        Invitation.read(changed(path, **change), now=clock())


def test_the_attack_that_the_signature_stops(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that one check a site would be sent to another coordinator, and believe in it."""
    changed(path, coordinator="evil.example.org:8443", fingerprint="cd" * 32)
    monkeypatch.setattr(module, "_require_signature", lambda *_: None)
    found = Invitation.read(path, now=clock())
    assert (found.coordinator, found.fingerprint) == ("evil.example.org:8443", "cd" * 32)


def test_another_authority_can_sign_but_shows_another_fingerprint(
    authority: Authority, stranger: Authority, path: Path, clock: Clock
) -> None:
    """Why there is a telephone: a whole invitation can be made by anybody, also under the same name."""
    path.write_text(stranger.invitation(coordinator=ADDRESS, fingerprint=FINGERPRINT))
    found = Invitation.read(path, now=clock())
    assert found.consortium == "Heart Study"
    assert found.authority_fingerprint != authority_fingerprint(authority.ca_pem)


def test_parts_of_two_authorities_do_not_go_together(
    authority: Authority, stranger: Authority, path: Path, clock: Clock
) -> None:
    with pytest.raises(CertificateError):
        Invitation.read(changed(path, ca=stranger.ca_pem.decode()), now=clock())
    path.write_text(authority.invitation(coordinator=ADDRESS, fingerprint=FINGERPRINT))
    with pytest.raises(CertificateError):
        Invitation.read(changed(path, crl=stranger.crl_path.read_text()), now=clock())


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"extra": "x"},
        {"coordinator": 5},
        {"signature": "no hex"},
        {"coordinator": "", "fingerprint": ""},
        {"ca": "nothing"},
    ],
)
def test_what_is_no_invitation_is_refused(path: Path, clock: Clock, change: dict[str, object]) -> None:
    with pytest.raises(SecureFLError):
        Invitation.read(changed(path, **change), now=clock())


def test_another_toml_file_is_no_invitation(tmp_path: Path, clock: Clock) -> None:
    other = tmp_path / "node.toml"
    other.write_text("[node]\n")
    with pytest.raises(SettingsError, match="is no invitation"):
        Invitation.read(other, now=clock())


def test_a_reply_holds_a_certificate_that_the_consortium_stands_behind(
    authority: Authority, tmp_path: Path, clock: Clock
) -> None:
    certificate = authority.issue_from_request(make_request("node", "north")[0], days=10)
    path = tmp_path / "reply.toml"
    path.write_text(authority.reply(certificate))
    assert Invitation.read(path, now=clock()).certificate == certificate
    with pytest.raises(CertificateError, match="expired"):
        Invitation.read(path, now=clock.forward(days=11))


def test_the_reply_to_a_revoked_party_is_refused(authority: Authority, tmp_path: Path, clock: Clock) -> None:
    certificate = authority.issue_from_request(make_request("node", "north")[0])
    authority.revoke("north")
    path = tmp_path / "reply.toml"
    path.write_text(authority.reply(certificate))
    with pytest.raises(CertificateError, match="revoked"):
        Invitation.read(path, now=clock())
