"""The consortium's certificate authority: a folder that one trusted person keeps offline.

    ca.pem        the consortium's certificate, given to everybody
    ca.key        its private key (mode 0600), given to nobody
    crl.pem       what was revoked, given to everybody
    issued/       every certificate ever issued; nothing is overwritten or deleted

What a site keeps of it is a `Credential`; a site that makes its own keys starts from `make_request`.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn, Self, final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
)

from secure_fl.errors import CertificateError, StorageError, UsageError
from secure_fl.files import write_atomically, write_private
from secure_fl.identity.certificates import (
    BINDING_OID,
    Certificate,
    RevocationList,
    Subject,
    is_authority,
    load_single,
    parse_fingerprint,
    read_identity,
    require_issued_by,
    utc_now,
)
from secure_fl.identity.credential import (
    Credential,
    key_pem,
    load_tls_key,
    make_request,
    read_file,
    read_private,
    refuse_existing,
)
from secure_fl.secret import Secret
from secure_fl.settings import require_known

Clock = Callable[[], datetime]

# The sites' clocks differ a little; a new certificate should work at once everywhere.
_BACKDATE = timedelta(minutes=5)
_CRL_LIFETIME = timedelta(days=30)
_MAX_DAYS = 36_500

# RFC 5280, 5.3.1, without the reasons that suspend or restore: here a revocation is final.
REASONS = (
    x509.ReasonFlags.unspecified,
    x509.ReasonFlags.key_compromise,
    x509.ReasonFlags.affiliation_changed,
    x509.ReasonFlags.superseded,
    x509.ReasonFlags.cessation_of_operation,
    x509.ReasonFlags.privilege_withdrawn,
)


# --- what the consortium holds ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One issued certificate, for the listing."""

    name: str
    role: str
    fingerprint: str
    not_after: datetime
    revoked: bool


@final
class Authority:
    """The consortium's authority. Use `create` once and `open` afterwards.

    Several processes may work on one folder: whatever changes it does so under a lock.
    """

    def __init__(self, folder: Path, *, certificate: x509.Certificate, key: Secret, now: Clock) -> None:
        self.folder = folder
        self._certificate = certificate
        self._key = key
        self._now = now

    @classmethod
    def create(cls, folder: Path, *, consortium: str, days: int = 3650, now: Clock = utc_now) -> Self:
        """Make the keys, the certificate and an empty revocation list; refuse where an authority exists."""
        if not consortium.strip() or len(consortium) > 64 or not consortium.isprintable():
            raise CertificateError(f"{consortium!r} is not a name of a consortium", advice="use 1 to 64 characters")
        moment, lifetime = now(), _lifetime(days)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _self_signed(consortium, key, first=moment - _BACKDATE, last=moment + lifetime)
        authority = cls(folder, certificate=certificate, key=Secret(key_pem(key)), now=now)
        with authority._locked():
            refuse_existing(folder / "ca.pem", folder / "ca.key")
            write_private(folder / "ca.key", authority._key.reveal())
            authority._write_crl(number=1, entries=())
            # Last, so that an authority with a certificate is a complete one.
            write_atomically(folder / "ca.pem", authority.ca_pem)
        return authority

    @classmethod
    def open(cls, folder: Path, *, now: Clock = utc_now) -> Self:
        """Open what `create` made; `CertificateError` if it is missing, open to others or inconsistent."""
        missing = "`secure-fl pki init` creates an authority"
        certificate = load_single(read_file(folder / "ca.pem", advice=missing), what=f"{folder / 'ca.pem'}")
        key = Secret(read_private(folder / "ca.key"))
        matches = load_tls_key(key.reveal()).public_key() == certificate.public_key()
        if not matches or not is_authority(certificate):
            raise CertificateError(f"{folder}: ca.key does not belong to ca.pem")
        return cls(folder, certificate=certificate, key=key, now=now)

    @property
    def ca_pem(self) -> bytes:
        """The consortium's certificate."""
        return self._certificate.public_bytes(Encoding.PEM)

    @property
    def crl_path(self) -> Path:
        """Where the revocation list stands."""
        return self.folder / "crl.pem"

    def issue(
        self, role: str, name: str, *, hosts: Sequence[str] = (), days: int = 365, renew: bool = False
    ) -> Credential:
        """Make keys and a certificate for them. The keys are only in the result, never in the folder.

        Raises `CertificateError` if the role already has a valid certificate under this name, unless `renew`.
        """
        request, tls_key, signing_key = make_request(role, name, hosts=hosts)
        certificate = self.issue_from_request(request, days=days, renew=renew)
        return Credential(certificate=certificate, tls_key=tls_key, signing_key=signing_key)

    def issue_from_request(
        self,
        csr_pem: bytes,
        *,
        role: str | None = None,
        name: str | None = None,
        hosts: Sequence[str] = (),
        days: int = 365,
        renew: bool = False,
    ) -> Certificate:
        """Issue a certificate for a request whose signature, name, role and key binding are in order.

        `role` and `name` are what the consortium agreed to: a request for anything else is refused. `hosts`,
        if given, replace the ones in the request. Raises `CertificateError` for every refusal.
        """
        request, subject = _read_request(csr_pem)
        if role not in (None, subject.role) or name not in (None, subject.name):
            raise CertificateError(
                f"the request is for {subject.role} {subject.name!r}, not for {role} {name!r}",
                advice="ask the site for a request under the agreed role and name",
            )
        if hosts:
            subject = replace(subject, hosts=tuple(hosts))
        lifetime = _lifetime(days)
        with self._locked():
            if not renew:
                self._refuse_second(subject)
            certificate = self._sign(request, subject, lifetime)
            self._keep(certificate)
        return certificate

    def revoke(self, name_or_fingerprint: str, *, reason: str = "unspecified") -> list[str]:
        """Revoke one certificate, or all of a name in every role; return the fingerprints newly revoked.

        What was revoked before stays so, and is not in the result. Raises `UnknownNameError` for a name or
        fingerprint that was never issued, and for an unknown reason.
        """
        require_known("reason", reason, (flag.value for flag in REASONS))
        with self._locked():
            issued = self._issued()
            wanted = parse_fingerprint(name_or_fingerprint)
            chosen = [c for c in issued if c.name == name_or_fingerprint or c.fingerprint == wanted]
            if not chosen:
                require_known("certificate", name_or_fingerprint, {c.name for c in issued})
            crl = self._crl()
            fresh = [c for c in chosen if c.serial not in crl.serials()]
            if fresh:
                added = tuple(_revocation(c.serial, reason, self._now()) for c in fresh)
                self._write_crl(number=crl.number + 1, entries=crl.entries + added)
        return [c.fingerprint for c in fresh]

    def renew_crl(self) -> None:
        """Publish the same revocations with a new number and date, before sites call the list stale."""
        with self._locked():
            crl = self._crl()
            self._write_crl(number=crl.number + 1, entries=crl.entries)

    def listing(self) -> tuple[Entry, ...]:
        """Everything ever issued, by role and name, oldest first."""
        revoked = self._crl().serials()
        issued = sorted(self._issued(), key=lambda c: (c.role, c.name, c.not_before, c.fingerprint))
        return tuple(
            Entry(
                name=c.name,
                role=c.role,
                fingerprint=c.fingerprint,
                not_after=c.not_after,
                revoked=c.serial in revoked,
            )
            for c in issued
        )

    def _issued(self) -> list[Certificate]:
        """The index is the folder itself, so it cannot disagree with what was issued."""
        certificates = []
        for path in sorted((self.folder / "issued").glob("*.pem")):
            parsed = load_single(read_file(path), what=str(path))
            require_issued_by(self._certificate, parsed, who=str(path))
            certificates.append(Certificate.from_der(parsed.public_bytes(Encoding.DER)))
        return certificates

    def _refuse_second(self, subject: Subject) -> None:
        for entry in self.listing():
            same = (entry.role, entry.name) == (subject.role, subject.name)
            if same and not entry.revoked and entry.not_after >= self._now():
                raise CertificateError(
                    f"{subject.role} {subject.name!r} has a certificate until {entry.not_after:%Y-%m-%d}",
                    advice="revoke it first, or issue a second one with --renew",
                )

    def _sign(self, request: x509.CertificateSigningRequest, subject: Subject, lifetime: timedelta) -> Certificate:
        """Sign the certificate. Of the request only the key, the subject and the binding are taken over."""
        moment = self._now()
        if moment > self._certificate.not_valid_after_utc:
            raise CertificateError(f"{self.folder}: the consortium's own certificate expired")
        # No certificate outlives the one that vouches for it.
        last = min(moment + lifetime, self._certificate.not_valid_after_utc)
        builder = _builder(subject.common_name(), self._certificate.subject, request.public_key())
        binding = request.extensions.get_extension_for_oid(BINDING_OID).value
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key())
        signed = (
            builder.not_valid_before(moment - _BACKDATE)
            .not_valid_after(last)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([subject.usage]), critical=False)
            .add_extension(subject.alternative_names(), critical=False)
            .add_extension(authority_key, critical=False)
            .add_extension(binding, critical=False)
            .sign(self._private, hashes.SHA256())
        )
        return Certificate.from_der(signed.public_bytes(Encoding.DER))

    def _keep(self, certificate: Certificate) -> None:
        """Add a certificate to `issued/`. "@" is in no name, so a serial number never looks like one."""
        path = self.folder / "issued" / f"{certificate.subject.stem}.pem"
        if path.exists():
            path = path.with_name(f"{certificate.subject.stem}@{certificate.serial:x}.pem")
        refuse_existing(path)
        write_atomically(path, certificate.pem)

    def _crl(self) -> RevocationList:
        return RevocationList.from_pem(read_file(self.crl_path), authority=self._certificate)

    def _write_crl(self, *, number: int, entries: tuple[x509.RevokedCertificate, ...]) -> None:
        moment = self._now()
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._certificate.subject)
            .last_update(moment)
            .next_update(moment + _CRL_LIFETIME)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for entry in entries:
            builder = builder.add_revoked_certificate(entry)
        crl = builder.sign(self._private, hashes.SHA256())
        write_atomically(self.crl_path, crl.public_bytes(Encoding.PEM))

    @property
    def _private(self) -> ec.EllipticCurvePrivateKey:
        return load_tls_key(self._key.reveal())

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the folder, so that two people revoking at once do not lose one of the revocations."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StorageError(f"{self.folder}: cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def __repr__(self) -> str:
        return f"Authority({self._certificate.subject.rfc4514_string()}, {str(self.folder)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("an Authority is never pickled")


# --- X.509 ------------------------------------------------------------------------------------------------


def _read_request(pem: bytes) -> tuple[x509.CertificateSigningRequest, Subject]:
    """A request and its subject, once the TLS key signed the one and the signing key the other."""
    try:
        request = x509.load_pem_x509_csr(pem)
        if not request.is_signature_valid:
            raise CertificateError("the request is not signed by its own key")
        subject, _ = read_identity(request)
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise CertificateError(
            f"the request cannot be read ({type(error).__name__})",
            advice="make one with `secure-fl pki request`",
        ) from error
    return request, subject


def _self_signed(
    consortium: str, key: ec.EllipticCurvePrivateKey, *, first: datetime, last: datetime
) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, consortium)])
    return (
        _builder(name, name, key.public_key())
        .not_valid_before(first)
        .not_valid_after(last)
        # Path length 0: this authority issues leaves, never another authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _builder(subject: x509.Name, issuer: x509.Name, public: object) -> x509.CertificateBuilder:
    """What every certificate has: names, key, key identifier and a serial number from the CSPRNG."""
    if not isinstance(public, ec.EllipticCurvePublicKey):
        raise CertificateError("the TLS key is not an ECDSA P-256 key")
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _revocation(serial: int, reason: str, moment: datetime) -> x509.RevokedCertificate:
    builder = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment)
    flag = x509.ReasonFlags(reason)
    if flag is not x509.ReasonFlags.unspecified:  # RFC 5280, 5.3.1: absent rather than unspecified.
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def _lifetime(days: int) -> timedelta:
    if not 1 <= days <= _MAX_DAYS:
        raise UsageError(f"{days} days is no lifetime", advice=f"give 1 to {_MAX_DAYS} days")
    return timedelta(days=days)


# --- files ------------------------------------------------------------------------------------------------
