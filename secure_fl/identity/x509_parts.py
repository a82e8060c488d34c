"""The X.509 parts of what the authority signs: requests as they come, and certificates and revocations as they go."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from secure_fl.errors import CertificateError, UsageError
from secure_fl.identity.certificates import Subject, read_identity, tls_public_bytes

_MAX_DAYS = 36_500


def read_request(pem: bytes) -> tuple[x509.CertificateSigningRequest, Subject, frozenset[bytes]]:
    """A request, its subject and its two public keys, once the TLS key signed it and the signing key the subject."""
    try:
        request = x509.load_pem_x509_csr(pem)
        if not request.is_signature_valid:
            raise CertificateError("the request is not signed by its own key")
        subject, signing_public = read_identity(request)
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise CertificateError(
            f"the request cannot be read ({type(error).__name__})",
            advice="the site makes one with `secure-fl node join`, `node new` or `pki renew`",
        ) from error
    return request, subject, frozenset((signing_public, tls_public_bytes(request.public_key())))


def request_fingerprint(pem: bytes) -> str:
    """The fingerprint that a certificate for this request will have. Raises `CertificateError`."""
    request, _, _ = read_request(pem)
    return hashlib.sha256(read_identity(request)[1]).hexdigest()


def self_signed(
    consortium: str, key: ec.EllipticCurvePrivateKey, *, first: datetime, last: datetime
) -> x509.Certificate:
    """The authority's own certificate."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, consortium)])
    return (
        certificate_builder(name, name, key.public_key())
        .not_valid_before(first)
        .not_valid_after(last)
        # Path length 0: this authority issues leaves, never another authority.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def certificate_builder(subject: x509.Name, issuer: x509.Name, public: object) -> x509.CertificateBuilder:
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


def key_usage(*, authority: bool) -> x509.KeyUsage:
    """An authority signs certificates and lists, everybody else handshakes."""
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


def revocation(serial: int, reason: str, moment: datetime) -> x509.RevokedCertificate:
    """One line of a revocation list."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment)
    flag = x509.ReasonFlags(reason)
    if flag is not x509.ReasonFlags.unspecified:  # RFC 5280, 5.3.1: absent rather than unspecified.
        builder = builder.add_extension(x509.CRLReason(flag), critical=False)
    return builder.build()


def lifetime(days: int) -> timedelta:
    """That many days; `UsageError` for what is no lifetime."""
    if not 1 <= days <= _MAX_DAYS:
        raise UsageError(f"{days} days is no lifetime", advice=f"give 1 to {_MAX_DAYS} days")
    return timedelta(days=days)
