"""Certificates of the consortium: what one says, and whether to believe it.

`Certificate` reads and checks everything a certificate proves by itself; `TrustStore` decides whether the
consortium stands behind it now. Nothing here issues or stores anything.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, get_args

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID

from secure_fl.errors import CertificateError, SignatureError
from secure_fl.identity.signing import SigningKey, verify

logger = logging.getLogger(__name__)

Role = Literal["node", "coordinator", "operator"]
ROLES: tuple[str, ...] = get_args(Role)

# The arc 2.25 holds one OID for every UUID (ITU-T X.667), so nobody has to register this one. The UUID was
# drawn at random for this extension: 0587743a-8657-40b9-9aa5-bc52b60cf2bb.
BINDING_OID = x509.ObjectIdentifier("2.25.7349457451150704033084199769851359931")
_BINDING_VERSION = 1
_BINDING_LENGTH = 1 + 32 + 64

_URN = "urn:secure-fl:"
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.ExtensionNotFound,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


def utc_now() -> datetime:
    """The clock of production; everything that needs a time takes one as a parameter."""
    return datetime.now(UTC)


def parse_host(host: str) -> x509.GeneralName:
    """A DNS name or IP address as it stands in a certificate; `CertificateError` for anything else."""
    try:
        address = ipaddress.ip_address(host)
        if "%" not in host:  # Python takes anything at all for an interface's name, line breaks included.
            return x509.IPAddress(address)
    except ValueError:
        pass
    labels = host.lower().split(".")
    if len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
        # Wildcards fall in here too: a certificate names the machines it is for.
        raise CertificateError(f"{host!r} is not a host", advice="give a DNS name or an IP address, without a port")
    return x509.DNSName(host.lower())


def parse_fingerprint(text: str) -> str | None:
    """`text` as 64 lower-case hex digits (colons are dropped), or None when it is no SHA-256 fingerprint."""
    digits = text.replace(":", "").lower()
    return digits if re.fullmatch(r"[0-9a-f]{64}", digits) else None


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn whatever a parser raises into one `CertificateError`."""
    try:
        yield
    except _UNREADABLE as error:
        raise CertificateError(f"{what} cannot be read ({type(error).__name__})") from error


# --- who --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Whom a certificate is for. Raises `CertificateError` for a role, name or host that cannot be.

    Names become file names and log entries, hence the narrow alphabet: no separator, no "..", no case.
    """

    role: str
    name: str
    hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise CertificateError(f"{self.role!r} is not a role", advice=f"roles: {', '.join(ROLES)}")
        if not _NAME.fullmatch(self.name) or ".." in self.name:
            raise CertificateError(
                f"{self.name!r} is not a name",
                advice="use 1 to 64 of a-z 0-9 . _ - with a letter or digit at both ends and no '..'",
            )
        if bool(self.hosts) != (self.role == "coordinator"):
            raise CertificateError(
                f"a {self.role} certificate {'has no' if self.hosts else 'needs at least one'} host",
                advice="hosts are the names and addresses under which nodes reach the coordinator",
            )
        for host in self.hosts:
            parse_host(host)

    @property
    def stem(self) -> str:
        """The start of every file name about this subject. No role contains a dash, so none collide."""
        return f"{self.role}-{self.name}"

    @property
    def usage(self) -> x509.ObjectIdentifier:
        """Which end of a TLS connection this role may be."""
        server = self.role == "coordinator"
        return ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH

    def common_name(self) -> x509.Name:
        """The distinguished name: for people only, every decision reads the alternative name."""
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, self.name)])

    def alternative_names(self) -> x509.SubjectAlternativeName:
        """Role and name as a URN, followed by the hosts."""
        uri = x509.UniformResourceIdentifier(f"{_URN}{self.role}:{self.name}")
        return x509.SubjectAlternativeName([uri, *map(parse_host, self.hosts)])

    @classmethod
    def from_alternative_names(cls, names: x509.SubjectAlternativeName) -> Self:
        """Read what `alternative_names` wrote; exactly one of the names must be ours."""
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        ours = [uri for uri in uris if uri.startswith(_URN)]
        if len(ours) != 1:
            raise CertificateError(f"{len(ours)} names of the form {_URN}<role>:<name>, exactly one is needed")
        role, _, name = ours[0].removeprefix(_URN).partition(":")
        addresses = map(str, names.get_values_for_type(x509.IPAddress))
        return cls(role=role, name=name, hosts=(*names.get_values_for_type(x509.DNSName), *addresses))


# --- the signing key in the certificate -------------------------------------------------------------------


def tls_public_bytes(key: object) -> bytes:
    """The DER SubjectPublicKeyInfo of a P-256 key; `CertificateError` for any other kind."""
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError("the TLS key is not an ECDSA P-256 key")
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def bind(signing_key: SigningKey, *, tls_public: bytes, subject: Subject) -> x509.UnrecognizedExtension:
    """The extension that ties a signing key to a TLS key, role and name.

    The signature shows that the applicant holds the signing key, so nobody can enrol another site's key as
    their own. The reverse direction is the certificate request, which the TLS key signs.
    """
    signature = signing_key.sign("key binding", tls_public, subject.role.encode(), subject.name.encode())
    return x509.UnrecognizedExtension(BINDING_OID, bytes([_BINDING_VERSION]) + signing_key.public + signature)


def read_identity(source: x509.Certificate | x509.CertificateSigningRequest) -> tuple[Subject, bytes]:
    """The subject and the signing key that `source` speaks for, both checked.

    Raises `CertificateError` when there is not exactly one subject, when the binding signature is not over
    this TLS key, role and name, and when the common name says something else.
    """
    extensions = source.extensions
    subject = Subject.from_alternative_names(extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    if source.subject != subject.common_name():
        raise CertificateError(f"the common name is not {subject.name!r}")
    extension = extensions.get_extension_for_oid(BINDING_OID).value
    value = extension.value if isinstance(extension, x509.UnrecognizedExtension) else b""
    if len(value) != _BINDING_LENGTH or value[0] != _BINDING_VERSION:
        raise CertificateError("the key binding is malformed or of an unknown version")
    signing_public, signature = value[1:33], value[33:]
    fields = (tls_public_bytes(source.public_key()), subject.role.encode(), subject.name.encode())
    try:
        verify(signing_public, signature, "key binding", *fields)
    except SignatureError as error:
        raise CertificateError("the signing key is not bound to this TLS key, role and name") from error
    return subject, signing_public


# --- one certificate --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate of this product, read from DER. Raises `CertificateError` when it is not one.

    Having a `Certificate` means that it is well formed and that its signing key is bound to it. It does not
    mean that anybody vouches for it: that is `TrustStore.check`.

    `fingerprint` is the signing key's, so that a renewed certificate for the same key has the same one: it says who
    somebody is. `digest` is that of these very bytes.
    """

    der: bytes = field(repr=False)
    subject: Subject = field(init=False, compare=False)
    fingerprint: str = field(init=False, compare=False)
    digest: str = field(init=False, compare=False, repr=False)
    serial: int = field(init=False, compare=False)
    not_before: datetime = field(init=False, compare=False)
    not_after: datetime = field(init=False, compare=False)
    tls_public: bytes = field(init=False, compare=False, repr=False)
    signing_public: bytes = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        with _reading("the certificate"):
            parsed = x509.load_der_x509_certificate(self.der)
            subject, signing_public = read_identity(parsed)
            usages = parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        if list(usages) != [subject.usage]:
            raise CertificateError(f"the extended key usage is not that of a {subject.role}")
        for name, value in (
            ("subject", subject),
            ("fingerprint", hashlib.sha256(signing_public).hexdigest()),
            ("digest", hashlib.sha256(self.der).hexdigest()),
            ("serial", parsed.serial_number),
            ("not_before", parsed.not_valid_before_utc),
            ("not_after", parsed.not_valid_after_utc),
            ("tls_public", tls_public_bytes(parsed.public_key())),
            ("signing_public", signing_public),
        ):
            object.__setattr__(self, name, value)

    @classmethod
    def from_der(cls, der: bytes) -> Self:
        """Read and check one DER certificate."""
        return cls(der=der)

    @classmethod
    def from_pem(cls, pem: bytes) -> Self:
        """Read and check a PEM file that holds one certificate."""
        return cls(der=load_single(pem, what="the certificate").public_bytes(Encoding.DER))

    @property
    def name(self) -> str:
        """The name the consortium gave."""
        return self.subject.name

    @property
    def role(self) -> str:
        """One of `ROLES`."""
        return self.subject.role

    @property
    def pem(self) -> bytes:
        """The certificate as PEM, without anything around it."""
        return ssl.DER_cert_to_PEM_cert(self.der).encode()


def load_single(pem: bytes, *, what: str) -> x509.Certificate:
    """The certificate in `pem`; `CertificateError` for none or several, as only one of them would be used."""
    with _reading(what):
        found = x509.load_pem_x509_certificates(pem)
    if len(found) != 1:
        raise CertificateError(f"{what}: {len(found)} certificates in one file, exactly one is expected")
    return found[0]


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether the certificate may issue others. Ours always say so one way or the other."""
    with _reading("the basic constraints"):
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def require_issued_by(authority: x509.Certificate, certificate: x509.Certificate, *, who: str) -> None:
    """Raise `CertificateError` unless `authority` is named in, and signed, the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        raise CertificateError(f"{who}: not issued by this consortium") from None


# --- trust ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationList:
    """A CRL whose signature was checked."""

    number: int
    entries: tuple[x509.RevokedCertificate, ...]
    next_update: datetime | None

    @classmethod
    def from_pem(cls, pem: bytes, *, authority: x509.Certificate) -> Self:
        """Read a full CRL of `authority`; `CertificateError` when it is not one.

        A number is required, since without it an old list cannot be told from a new one. Critical extensions
        make a list partial (RFC 5280, 5.2.4 and 5.2.5); taking a part for the whole would hide revocations.
        """
        with _reading("the revocation list"):
            parsed = x509.load_pem_x509_crl(pem)
            key = authority.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey) or not parsed.is_signature_valid(key):
                raise CertificateError("the revocation list is not signed by the consortium")
            number = parsed.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
            partial = any(extension.critical for extension in parsed.extensions)
        if parsed.issuer != authority.subject or partial:
            raise CertificateError("the revocation list is not a full list of the consortium")
        return cls(number=number, entries=tuple(parsed), next_update=parsed.next_update_utc)

    def serials(self) -> frozenset[int]:
        """What is revoked. Serial numbers, not fingerprints: they are inside what the authority signed,
        whereas a valid ECDSA signature can be turned into a second one, and with it the fingerprint."""
        return frozenset(entry.serial_number for entry in self.entries)


_REMEMBERED = 4096  # certificates of one consortium; beyond that each is verified every time


class TrustStore:
    """The consortium's certificate and its revocations, which together decide whom to believe.

    `crl_path` is read again whenever the file changes; `crl_pem` is a list already at hand. With both, the
    file may not be older than the bytes: a process that keeps them is safe from an old file at its next
    start. With a path, a missing or unsound file raises `CertificateError`, here and in every `check` until
    it is mended: revocations that cannot be read might concern anybody.
    """

    def __init__(self, ca_pem: bytes, crl_path: Path | None = None, *, crl_pem: bytes | None = None) -> None:
        self._ca = load_single(ca_pem, what="the consortium's certificate")
        if not is_authority(self._ca):
            raise CertificateError("the consortium's certificate is not that of an authority")
        self._issued: set[str] = set()  # digests of certificates whose chain was verified
        self._crl_path = crl_path
        self._crl: RevocationList | None = None
        self._revoked: frozenset[int] = frozenset()
        self._stamp: tuple[int, int, int] | None = None
        self._lock = threading.Lock()
        if crl_pem is not None:
            self._take(crl_pem)
        self._refresh()

    def check(self, certificate: Certificate, *, role: str | None, now: datetime) -> None:
        """Raise `CertificateError` unless the consortium vouches for `certificate` at `now`.

        A chain is always the authority and one leaf, so there is no path to build. `role` None accepts any.
        """
        who = f"{certificate.role} {certificate.name!r}"
        # A signature does not change: what was found about these very bytes is remembered. Dates and revocations do.
        if certificate.digest not in self._issued:
            parsed = x509.load_der_x509_certificate(certificate.der)

            # 1. The consortium signed it.
            require_issued_by(self._ca, parsed, who=who)

            # 2. It is an end of the chain, not a second authority.
            if is_authority(parsed):
                raise CertificateError(f"{who}: an authority cannot be a participant")
            if len(self._issued) < _REMEMBERED:
                self._issued.add(certificate.digest)

        # 3. Both it and the consortium's own certificate are valid now.
        _check_dates(who, certificate.not_before, certificate.not_after, now)
        _check_dates("the consortium", self._ca.not_valid_before_utc, self._ca.not_valid_after_utc, now)

        # 4. It was not taken back.
        if self.revoked(certificate):
            raise CertificateError(f"{who}: revoked by the consortium")

        # 5. It is for this purpose.
        if role is not None and certificate.role != role:
            raise CertificateError(f"{who}: a {role} is expected here")

    def revoked(self, certificate: Certificate) -> bool:
        """Whether the consortium took it back. Raises `CertificateError` where that cannot be known."""
        self._refresh()
        return certificate.serial in self._revoked

    def crl_stale(self, now: datetime) -> bool:
        """Whether a newer revocation list should be out by now. The old one stays in force until then."""
        return self._crl is not None and self._crl.next_update is not None and now > self._crl.next_update

    def _refresh(self) -> None:
        if self._crl_path is None:
            return
        with self._lock:
            try:
                if _stamp(self._crl_path.stat()) == self._stamp:
                    return
                with self._crl_path.open("rb") as file:
                    # Of the open file: the path may lead to another one by now, to be read next time.
                    stamp = _stamp(os.fstat(file.fileno()))
                    content = file.read()
            except OSError as error:
                raise CertificateError(
                    f"{self._crl_path}: the revocation list cannot be read ({error.strerror})",
                    advice="fetch crl.pem from the consortium; without it nobody is trusted",
                ) from error
            self._take(content)
            # Only now: a list that was refused is read, and refused, again.
            self._stamp = stamp

    def _take(self, pem: bytes) -> None:
        """Put a list in force, unless a newer one is."""
        crl = RevocationList.from_pem(pem, authority=self._ca)
        if self._crl is not None and crl.number < self._crl.number:
            logger.warning("revocation list %d is older than %d and was ignored", crl.number, self._crl.number)
            return
        self._crl = crl
        # Revocation is final, so nothing once seen is dropped, even if two lists carry the same number.
        self._revoked |= crl.serials()


_EXPIRED = "check the clock; if it is right, renew the certificate: `secure-fl pki renew FILE`, on the party's machine"


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _check_dates(who: str, first: datetime, last: datetime, now: datetime) -> None:
    if now < first:
        raise CertificateError(f"{who}: not valid before {first:%Y-%m-%d %H:%M} UTC", advice="check the clock")
    if now > last:
        raise CertificateError(f"{who}: expired on {last:%Y-%m-%d %H:%M} UTC", advice=_EXPIRED)
