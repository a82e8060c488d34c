"""Certificates, requests and revocation lists that a sound authority would not make."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate, Subject, bind, tls_public_bytes
from secure_fl.identity.signing import SigningKey

Extension = tuple[x509.ExtensionType, bool]


def ca_key(authority: Authority) -> ec.EllipticCurvePrivateKey:
    key = load_pem_private_key((authority.folder / "ca.key").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def extensions_of(certificate: Certificate) -> dict[str, Extension]:
    parsed = x509.load_der_x509_certificate(certificate.der)
    return {e.oid.dotted_string: (e.value, e.critical) for e in parsed.extensions}


def resign(
    authority: Authority,
    certificate: Certificate,
    *,
    without: Sequence[x509.ObjectIdentifier] = (),
    put: Sequence[Extension] = (),
    common_name: str | None = None,
    public_key: ec.EllipticCurvePublicKey | None = None,
) -> bytes:
    """`certificate` with some of it changed, properly signed by the authority (DER)."""
    parsed = x509.load_der_x509_certificate(certificate.der)
    kept = extensions_of(certificate)
    for oid in without:
        del kept[oid.dotted_string]
    for value, critical in put:
        kept[value.oid.dotted_string] = (value, critical)
    name = certificate.subject.common_name()
    if common_name is not None:
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name)])
    own = parsed.public_key()
    assert isinstance(own, ec.EllipticCurvePublicKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(parsed.issuer)
        .public_key(public_key or own)
        .serial_number(parsed.serial_number)
        .not_valid_before(parsed.not_valid_before_utc)
        .not_valid_after(parsed.not_valid_after_utc)
    )
    for value, critical in kept.values():
        builder = builder.add_extension(value, critical=critical)
    return builder.sign(ca_key(authority), hashes.SHA256()).public_bytes(Encoding.DER)


def request(
    *,
    claimed: Subject,
    bound: Subject | None = None,
    binding: x509.UnrecognizedExtension | None = None,
    extra: Sequence[Extension] = (),
) -> bytes:
    """A request for `claimed` whose binding is for `bound`, or is somebody else's altogether."""
    key, signing_key = ec.generate_private_key(ec.SECP256R1()), SigningKey.generate()
    if binding is None:
        public = tls_public_bytes(key.public_key())
        binding = bind(signing_key, tls_public=public, subject=bound or claimed)
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(claimed.common_name())
        .add_extension(claimed.alternative_names(), critical=False)
        .add_extension(binding, critical=False)
    )
    for value, critical in extra:
        builder = builder.add_extension(value, critical=critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def revocation_list(
    authority: Authority,
    moment: datetime,
    *,
    serials: Sequence[int] = (),
    extensions: Sequence[Extension] = ((x509.CRLNumber(1), False),),
    issuer: str = "Heart Study",
) -> bytes:
    """A list signed by the authority's key, with whatever in it."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, issuer)]))
        .last_update(moment)
        .next_update(moment + timedelta(days=1))
    )
    for serial in serials:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(moment).build()
        builder = builder.add_revoked_certificate(entry)
    for value, critical in extensions:
        builder = builder.add_extension(value, critical=critical)
    return builder.sign(ca_key(authority), hashes.SHA256()).public_bytes(Encoding.PEM)
