"""What a site holds: a certificate with its two private keys, or a request for one."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Self, final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from secure_fl.errors import CertificateError, StorageError
from secure_fl.files import write_atomically, write_private
from secure_fl.identity.certificates import Certificate, Subject, bind, tls_public_bytes
from secure_fl.identity.signing import SigningKey
from secure_fl.secret import Secret


@final
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Credential:
    """A certificate with both of its private keys; `CertificateError` when they do not belong together."""

    certificate: Certificate
    tls_key: Secret
    signing_key: SigningKey

    def __post_init__(self) -> None:
        public = load_tls_key(self.tls_key.reveal()).public_key()
        if tls_public_bytes(public) != self.certificate.tls_public:
            raise CertificateError(f"{self.certificate.name!r}: the TLS key is not the certificate's")
        if self.signing_key.public != self.certificate.signing_public:
            raise CertificateError(f"{self.certificate.name!r}: the signing key is not the certificate's")

    def save(self, folder: Path, *, stem: str | None = None) -> tuple[Path, Path, Path]:
        """Write `<stem>.pem`, `<stem>.key` and `<stem>.signing.key`; refuse if one of them exists."""
        paths = credential_paths(folder, stem or self.certificate.subject.stem)
        refuse_existing(*paths)
        certificate, tls_key, signing_key = paths
        write_private(tls_key, self.tls_key.reveal())
        write_private(signing_key, self.signing_key.to_pem())
        write_atomically(certificate, self.certificate.pem)
        return paths

    @classmethod
    def load(cls, folder: Path, *, stem: str) -> Self:
        """Read what `save` wrote."""
        certificate, tls_key, signing_key = credential_paths(folder, stem)
        return cls.read(certificate, tls_key=tls_key, signing_key=signing_key)

    @classmethod
    def read(cls, certificate: Path, *, tls_key: Path, signing_key: Path) -> Self:
        """Read three files; `CertificateError` if others can read the keys, or they do not match."""
        return cls(
            certificate=Certificate.from_pem(read_file(certificate)),
            tls_key=Secret(read_private(tls_key)),
            signing_key=SigningKey.from_pem(read_private(signing_key)),
        )

    def __repr__(self) -> str:
        return f"Credential({self.certificate.subject.stem}, {self.certificate.fingerprint})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Credential is never pickled")


def credential_paths(folder: Path, stem: str) -> tuple[Path, Path, Path]:
    """Where the certificate, the TLS key and the signing key of a credential stand."""
    return folder / f"{stem}.pem", folder / f"{stem}.key", folder / f"{stem}.signing.key"


def make_request(role: str, name: str, *, hosts: Sequence[str] = ()) -> tuple[bytes, Secret, SigningKey]:
    """Make both keys and a certificate request (PEM) for them. Only the request has to leave the site."""
    subject = Subject(role=role, name=name, hosts=tuple(hosts))
    tls_key, signing_key = ec.generate_private_key(ec.SECP256R1()), SigningKey.generate()
    return _request(subject, tls_key, signing_key), Secret(key_pem(tls_key)), signing_key


def make_renewal(credential: Credential, *, hosts: Sequence[str] = ()) -> bytes:
    """A request (PEM) for the keys that a party has already: studies know it by its signing key, so they go on.

    `hosts`, if given, replace those of a coordinator's certificate.
    """
    before = credential.certificate.subject
    subject = Subject(role=before.role, name=before.name, hosts=tuple(hosts) or before.hosts)
    return _request(subject, load_tls_key(credential.tls_key.reveal()), credential.signing_key)


def _request(subject: Subject, tls_key: ec.EllipticCurvePrivateKey, signing_key: SigningKey) -> bytes:
    binding = bind(signing_key, tls_public=tls_public_bytes(tls_key.public_key()), subject=subject)
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject.common_name())
        .add_extension(subject.alternative_names(), critical=False)
        .add_extension(binding, critical=False)
        .sign(tls_key, hashes.SHA256())
    )
    return request.public_bytes(Encoding.PEM)


def save_request(
    folder: Path, *, stem: str, request: bytes, tls_key: Secret, signing_key: SigningKey
) -> tuple[Path, Path, Path]:
    """Write the request and the keys where `Credential.load` finds them once the certificate is there too."""
    _, tls_path, signing_path = credential_paths(folder, stem)
    request_path = folder / f"{stem}.csr.pem"
    refuse_existing(request_path, tls_path, signing_path)
    write_private(tls_path, tls_key.reveal())
    write_private(signing_path, signing_key.to_pem())
    write_atomically(request_path, request)
    return request_path, tls_path, signing_path


def refuse_existing(*paths: Path) -> None:
    """Raise `StorageError` if one of the files is there: keys and certificates are never overwritten."""
    for path in paths:
        if path.exists():
            raise StorageError(f"{path}: exists already", advice="choose another folder, or move the file away")


def read_file(path: Path, *, advice: str | None = None) -> bytes:
    """Read a certificate or request; `CertificateError` when that fails."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        advice = "correct the path" if advice is None else advice
        raise CertificateError(f"{path}: cannot be read (No such file or directory)", advice=advice) from None
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})", advice=advice) from error


def read_private(path: Path) -> bytes:
    """Read a private key, unless others could have done so too."""
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise CertificateError(f"{path}: others can read this private key", advice=f"chmod 600 {path}")
            content = file.read()
    except OSError as error:
        raise CertificateError(f"{path}: cannot be read ({error.strerror})") from error
    if not content:
        raise CertificateError(f"{path}: cannot be read (empty file)")
    return content


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The private key as unencrypted PKCS #8."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def load_tls_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """The inverse of `key_pem`; `CertificateError` for anything else."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise CertificateError("the TLS key cannot be read: not an unencrypted PKCS #8 PEM file") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the TLS key is not an ECDSA P-256 key")
    return key
