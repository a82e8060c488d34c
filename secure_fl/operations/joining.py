"""How a party comes into a consortium: its file and a request for a certificate, then the authority's reply.

Nothing that is there is overwritten, with one exception: a certificate by its own renewal. Private keys are made here
and never leave the machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from secure_fl.errors import CertificateError, SettingsError, UsageError
from secure_fl.files import write_atomically
from secure_fl.identity.certificates import Certificate, RevocationList, Subject, load_single, parse_fingerprint
from secure_fl.identity.credential import (
    Credential,
    make_renewal,
    make_request,
    read_file,
    read_private,
    refuse_existing,
    save_request,
)
from secure_fl.identity.invitation import Invitation, authority_fingerprint, require_address
from secure_fl.identity.party_file import OwnIdentity
from secure_fl.identity.signing import SigningKey
from secure_fl.identity.x509_parts import request_fingerprint
from secure_fl.operations import party_templates
from secure_fl.operations.party_templates import FILES, Dataset
from secure_fl.secret import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCopy:
    """A task in a file that a site was given: a copy of it will lie beside the site's own file."""

    path: Path
    attribute: str

    def __post_init__(self) -> None:
        if self.path.suffix != ".py" or not (self.path.stem.isidentifier() and self.attribute.isidentifier()):
            raise UsageError(f"{self.path}:{self.attribute} is not FILE.py:Class", advice="for example wards.py:Wards")

    @property
    def listed(self) -> str:
        """As the site's policy names it."""
        return f"{self.path.name}:{self.attribute}"


def require_fingerprint(fingerprint: str) -> None:
    """Raise `UsageError` for what cannot be one."""
    if parse_fingerprint(fingerprint) is None:
        raise UsageError(
            "the coordinator's fingerprint is not a SHA-256 in hex",
            advice="64 hexadecimal digits, as `secure-fl pki fingerprint` prints them: ask the authority",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """Who joins, in which role, and what its file is to say."""

    role: str
    name: str
    folder: Path
    hosts: tuple[str, ...] = ()  # a coordinator's: where it is reached
    port: int = 8443  # and the port it listens on
    coordinator: str = ""  # of everybody else: host:port of the coordinator
    fingerprint: str = ""
    datasets: Sequence[Dataset] = ()
    tasks: Sequence[TaskCopy] = ()

    def __post_init__(self) -> None:
        Subject(role=self.role, name=self.name, hosts=self.hosts)  # raises `CertificateError`
        if self.role == "coordinator":
            require_address(self.address)
            return
        require_address(self.coordinator)
        require_fingerprint(self.fingerprint)
        ids = [one.id for one in self.datasets]
        if len(set(ids)) < len(ids):
            raise UsageError("a data set is named twice", advice="give every --data an id of its own")

    @property
    def file(self) -> Path:
        """Where its file goes."""
        return self.folder / FILES[self.role]

    @property
    def address(self) -> str:
        """Of a coordinator: host:port at which sites reach it."""
        first = self.hosts[0]
        return f"{f'[{first}]' if ':' in first else first}:{self.port}"

    @property
    def request(self) -> Path:
        """Where its request goes."""
        return self.folder / f"{self.role}-{self.name}.csr.pem"

    @property
    def key(self) -> str:
        """The fingerprint of the key in its request: what to compare with the authority. Raises `CertificateError`."""
        return request_fingerprint(read_file(self.request))

    def text(self) -> str:
        """What its file says."""
        if self.role == "coordinator":
            return party_templates.coordinator_file(self.name, port=self.port)
        digits = parse_fingerprint(self.fingerprint) or ""
        if self.role == "operator":
            return party_templates.operator_file(self.name, coordinator=self.coordinator, fingerprint=digits)
        return party_templates.node_file(
            self.name,
            coordinator=self.coordinator,
            fingerprint=digits,
            datasets=self.datasets,
            tasks=[one.listed for one in self.tasks],
        )


def begin(newcomer: Newcomer) -> tuple[Path, ...]:
    """Write a party's file, its keys and the request for a certificate. Raises `StorageError` where one is there."""
    copies = {newcomer.folder / one.path.name: _code(one.path) for one in newcomer.tasks}
    refuse_existing(newcomer.file, *copies)
    csr, tls_key, signing_key = make_request(newcomer.role, newcomer.name, hosts=newcomer.hosts)
    stem = newcomer.request.name.removesuffix(".csr.pem")
    written = save_request(newcomer.folder, stem=stem, request=csr, tls_key=tls_key, signing_key=signing_key)
    for path, code in copies.items():
        write_atomically(path, code)
    write_atomically(newcomer.file, newcomer.text().encode())
    return newcomer.file, *written


def accept_invitation(
    invitation: Invitation,
    *,
    role: str,
    name: str,
    folder: Path,
    datasets: Sequence[Dataset] = (),
    tasks: Sequence[TaskCopy] = (),
) -> Newcomer:
    """The same for whoever was invited: coordinator and authority are those of the invitation."""
    if not invitation.coordinator:
        raise UsageError("this is a reply, not an invitation", advice="it finishes what an invitation began")
    newcomer = Newcomer(
        role=role,
        name=name,
        folder=folder,
        coordinator=invitation.coordinator,
        fingerprint=invitation.fingerprint,
        datasets=datasets,
        tasks=tasks,
    )
    ca = folder / "ca.pem"
    if ca.exists():
        _require_same_authority(ca, invitation)
    begin(newcomer)
    write_atomically(ca, invitation.ca)
    _keep_newer_list(folder / "crl.pem", invitation)
    return newcomer


def accept_reply(reply: Invitation, *, role: str, file: Path) -> Certificate:
    """Put the certificate of a reply in its place, next to the keys it was requested with.

    Raises `CertificateError` for one of another authority, for somebody else, or for other keys, and for one that ends
    before the one that is there.
    """
    certificate = reply.certificate
    if certificate is None:
        raise UsageError("this is an invitation, not a reply", advice="give the reply to this party's own request")
    party = OwnIdentity.read(file, role)
    # 1. It is from the authority that this party knows already.
    ca = party.path(party.identity.ca)
    if ca.exists():
        _require_same_authority(ca, reply)
    # 2. It is this party's: role, name, and both keys.
    if certificate.role != role or (party.name and certificate.name != party.name):
        raise CertificateError(
            f"the reply is for {certificate.role} {certificate.name!r}, not for "
            + (f"{role} {party.name!r}" if party.name else f"this {role}"),
            advice="take the reply that bears this party's name",
        )
    _require_own_keys(party, certificate)
    # 3. It is no step back.
    before = Certificate.from_pem(read_file(party.certificate_path)) if party.certificate_path.exists() else None
    if before is not None and before.not_after > certificate.not_after:
        raise CertificateError(
            f"the certificate that is here lasts longer, until {before.not_after:%Y-%m-%d}",
            advice="this is an older reply; nothing was changed",
        )
    write_atomically(ca, reply.ca)
    _keep_newer_list(party.path(party.identity.crl), reply)
    write_atomically(party.certificate_path, certificate.pem)
    party.request_path.unlink(missing_ok=True)  # It is answered.
    return certificate


def request_renewal(file: Path, *, role: str, hosts: Sequence[str] = ()) -> Path:
    """Write a request for the same keys next to a party's certificate. Raises `StorageError` if one waits there."""
    party = OwnIdentity.read(file, role)
    refuse_existing(party.request_path)
    write_atomically(party.request_path, make_renewal(party.credential(), hosts=hosts))
    return party.request_path


def party_in(table: object, *, path: Path) -> str:
    """The role of a party whose file holds `table`; `SettingsError` if there is none."""
    found = [role for role in FILES if isinstance(table, dict) and role in table]
    if len(found) != 1:
        raise SettingsError(f"{path}: has no [node], [coordinator] or [operator]")
    return found[0]


def _code(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the task's code cannot be read ({error.strerror})") from None


def _require_own_keys(party: OwnIdentity, certificate: Certificate) -> None:
    Credential(  # raises `CertificateError`
        certificate=certificate,
        tls_key=Secret(read_private(party.key_path)),
        signing_key=SigningKey.from_pem(read_private(party.signing_key_path)),
    )


def _require_same_authority(ca: Path, handed_out: Invitation) -> None:
    mine = authority_fingerprint(read_file(ca))
    if mine != handed_out.authority_fingerprint:
        raise CertificateError(
            f"this is from another authority than {ca}: {handed_out.authority_fingerprint}, not {mine}",
            advice="do not use it; ask the authority by telephone",
        )


def _keep_newer_list(path: Path, handed_out: Invitation) -> None:
    """Write the revocation list, unless the one that is there is as new: a newer one is not taken back."""
    authority = load_single(handed_out.ca, what="the authority's certificate")
    if path.exists():
        here = RevocationList.from_pem(read_file(path), authority=authority)
        if here.number >= RevocationList.from_pem(handed_out.crl, authority=authority).number:
            return
    write_atomically(path, handed_out.crl)
