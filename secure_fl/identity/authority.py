"""The consortium's certificate authority: a folder that one trusted person keeps offline.

    ca.pem        the consortium's certificate, given to everybody
    ca.key        its private key (mode 0600), given to nobody
    crl.pem       what was revoked, given to everybody
    issued/       every certificate ever issued; nothing is overwritten or deleted

What a site keeps of it is a `Credential`; a site that makes its own keys starts from `make_request`. What is handed out
is an `Invitation`, signed.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn, Self, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
)

from secure_fl.errors import CertificateError, StorageError
from secure_fl.files import make_folder, write_atomically, write_private
from secure_fl.identity.certificates import (
    BINDING_OID,
    Certificate,
    RevocationList,
    Subject,
    is_authority,
    load_single,
    parse_fingerprint,
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
from secure_fl.identity.invitation import DOMAIN as INVITATION
from secure_fl.identity.invitation import Invitation
from secure_fl.identity.signing import transcript
from secure_fl.identity.x509_parts import (
    certificate_builder,
    key_usage,
    lifetime,
    read_request,
    revocation,
    self_signed,
)
from secure_fl.secret import Secret
from secure_fl.settings import require_known

Clock = Callable[[], datetime]

# The sites' clocks differ a little; a new certificate should work at once everywhere.
_BACKDATE = timedelta(minutes=5)
_CRL_LIFETIME = timedelta(days=30)

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
        moment, span = now(), lifetime(days)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self_signed(consortium, key, first=moment - _BACKDATE, last=moment + span)
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
        # Nobody can have exchanged these keys on the way: they were made here.
        certificate = self.issue_from_request(request, days=days, renew=renew, any_keys=True)
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
        any_keys: bool = False,
    ) -> Certificate:
        """Issue a certificate for a request whose signature, name, role and key binding are in order.

        `role` and `name` are what the consortium agreed to: a request for anything else is refused. `hosts`,
        if given, replace the ones in the request. A name that is known keeps its signing key, unless `any_keys`.
        Raises `CertificateError` for every refusal.
        """
        request, subject, keys = self._agreed(csr_pem, role, name)
        if hosts:
            subject = replace(subject, hosts=tuple(hosts))
        span = lifetime(days)
        with self._locked():
            known = self._issued()
            self._refuse_keys(subject, keys, known)
            self._refuse_second(subject, keys, known, renew=renew, any_keys=any_keys)
            certificate = self._sign(request, subject, span)
            self._keep(certificate)
        return certificate

    def revoke(self, name_or_fingerprint: str, *, reason: str = "unspecified") -> list[str]:
        """Revoke a key's certificates, or all of a name in every role; return the fingerprints newly revoked.

        A fingerprint is a key's: whoever has the key could go on with any of its certificates, so all of them go.
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
                added = tuple(revocation(c.serial, reason, self._now()) for c in fresh)
                self._write_crl(number=crl.number + 1, entries=crl.entries + added)
        return sorted({c.fingerprint for c in fresh})

    def check_request(self, csr_pem: bytes, *, role: str, name: str, renew: bool = False) -> Subject:
        """Raise what `issue_from_request` would, and change nothing: of several requests all are signed, or none."""
        subject, keys = self._agreed(csr_pem, role, name)[1:]
        known = self._issued()
        self._refuse_keys(subject, keys, known)
        self._refuse_second(subject, keys, known, renew=renew)
        return subject

    def certificates(self, role: str) -> tuple[Certificate, ...]:
        """Those of a role that are valid now, the last to expire last."""
        revoked, now = self._crl().serials(), self._now()
        valid = [c for c in self._issued() if c.role == role and c.serial not in revoked and c.not_after >= now]
        return tuple(sorted(valid, key=lambda c: c.not_after))

    def invitation(self, *, coordinator: str, fingerprint: str) -> str:
        """The file for those who are to join: which coordinator, and everything needed to know it."""
        return self._written(self._handed_out(coordinator=coordinator, fingerprint=fingerprint))

    def reply(self, certificate: Certificate) -> str:
        """The file for the party whose request was signed."""
        return self._written(self._handed_out(certificate=certificate))

    def _handed_out(self, **facts: Any) -> Invitation:
        return Invitation(ca=self.ca_pem, crl=read_file(self.crl_path), **facts)

    def _written(self, handed_out: Invitation) -> str:
        message = transcript(INVITATION, *handed_out.signed_fields())
        return handed_out.to_toml(self._private.sign(message, ec.ECDSA(hashes.SHA256())))

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

    @staticmethod
    def _agreed(
        csr_pem: bytes, role: str | None, name: str | None
    ) -> tuple[x509.CertificateSigningRequest, Subject, frozenset[bytes]]:
        """A request that is for whom the consortium agreed to."""
        request, subject, keys = read_request(csr_pem)
        if role not in (None, subject.role) or name not in (None, subject.name):
            raise CertificateError(
                f"the request is for {subject.role} {subject.name!r}, not for {role} {name!r}",
                advice="ask the site for a request under the agreed role and name",
            )
        return request, subject, keys

    def _refuse_keys(self, subject: Subject, keys: frozenset[bytes], known: Sequence[Certificate]) -> None:
        """Keys are one party's, and what was taken back does not come again.

        Studies know a site by its signing key. A certificate for a revoked key would put whoever has it back into them.
        """
        revoked = self._crl().serials()
        for one in known:
            if keys.isdisjoint((one.signing_public, one.tls_public)):
                continue
            if one.serial in revoked:
                raise CertificateError(
                    f"a key in the request of {subject.role} {subject.name!r} was revoked",
                    advice="ask for a request with new keys; studies that are under way do not know them",
                )
            if (one.role, one.name) != (subject.role, subject.name):
                raise CertificateError(
                    f"a key in the request of {subject.role} {subject.name!r} is that of {one.role} {one.name!r}",
                    advice="ask for a request with keys of its own",
                )

    def _refuse_second(
        self,
        subject: Subject,
        keys: frozenset[bytes],
        known: Sequence[Certificate],
        *,
        renew: bool,
        any_keys: bool = False,
    ) -> None:
        """A name has one certificate unless it is renewed, and one signing key until that is revoked.

        A request comes by mail, and whoever exchanges it on the way is that party in every later study. A renewal
        shows by its own key that it is no such request.
        """
        revoked, who = self._crl().serials(), f"{subject.role} {subject.name!r}"
        same = [c for c in known if (c.role, c.name) == (subject.role, subject.name) and c.serial not in revoked]
        for one in same if not renew else ():
            if one.not_after >= self._now():
                raise CertificateError(
                    f"{who} has a certificate until {one.not_after:%Y-%m-%d}",
                    advice="to renew it, sign with --renew. Revoke it only if its keys are lost or stolen: no study "
                    "knows it any more then",
                )
        if same and not any_keys and keys.isdisjoint(one.signing_public for one in same):
            raise CertificateError(
                f"the request of {who} is for another key than the one it is known by",
                advice="ask the party by telephone; a renewal (`secure-fl pki renew`) has the same keys, and if it "
                "needs new ones, revoke its name first",
            )

    def _sign(self, request: x509.CertificateSigningRequest, subject: Subject, span: timedelta) -> Certificate:
        """Sign the certificate. Of the request only the key, the subject and the binding are taken over."""
        moment = self._now()
        if moment > self._certificate.not_valid_after_utc:
            raise CertificateError(f"{self.folder}: the consortium's own certificate expired")
        # No certificate outlives the one that vouches for it.
        last = min(moment + span, self._certificate.not_valid_after_utc)
        builder = certificate_builder(subject.common_name(), self._certificate.subject, request.public_key())
        binding = request.extensions.get_extension_for_oid(BINDING_OID).value
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._private.public_key())
        signed = (
            builder.not_valid_before(moment - _BACKDATE)
            .not_valid_after(last)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(authority=False), critical=True)
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
        make_folder(self.folder)
        try:
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
