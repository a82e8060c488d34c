"""What the authority hands out, as one signed text file: an invitation for everybody, or the reply to one request.

It holds no secret and gives nobody a right: who joins still needs a certificate, and the authority signs requests of
people it knows. The signature shows that nothing in the file was changed after the authority wrote it. It does not show
whose authority that is, since the authority's certificate is in the same file: whoever receives an invitation compares
`authority_fingerprint` with the authority by another way, for example by telephone.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import tomli_w
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from secure_fl.errors import CertificateError, SettingsError
from secure_fl.identity.certificates import (
    Certificate,
    RevocationList,
    TrustStore,
    is_authority,
    load_single,
    parse_fingerprint,
    parse_host,
)
from secure_fl.identity.signing import transcript
from secure_fl.settings import read_toml

DOMAIN = "invitation"
_VERSION = 1
_TEXTS = ("coordinator", "fingerprint", "certificate", "ca", "crl")
_CHANGED = "ask the authority for it again, and compare its fingerprint by telephone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The consortium's certificate and revocations with, in an invitation, the coordinator; in a reply, a certificate.

    Raises `CertificateError` or `SettingsError` for what does not fit together. `read` checks the signature.
    """

    ca: bytes = field(repr=False)
    crl: bytes = field(repr=False)
    coordinator: str = ""  # host:port
    fingerprint: str = ""  # the coordinator's
    certificate: Certificate | None = None  # of the one party that a reply is for

    def __post_init__(self) -> None:
        authority = load_single(self.ca, what="the authority's certificate")
        if not is_authority(authority):
            raise CertificateError("the authority's certificate is not that of an authority")
        RevocationList.from_pem(self.crl, authority=authority)
        if bool(self.coordinator) == (self.certificate is not None):
            raise SettingsError("an invitation names a coordinator, and a reply holds a certificate")
        if self.coordinator:
            require_address(self.coordinator)
            if parse_fingerprint(self.fingerprint) != self.fingerprint:
                raise SettingsError("the coordinator's fingerprint is not a SHA-256 in hex", advice="64 hex digits")

    @property
    def authority_fingerprint(self) -> str:
        """What to compare by telephone: the SHA-256 of the authority's certificate."""
        return authority_fingerprint(self.ca)

    @property
    def consortium(self) -> str:
        """The name that the authority gave itself."""
        names = _authority(self.ca).subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        return str(names[0].value) if names else ""

    def signed_fields(self) -> tuple[bytes, ...]:
        """Everything in the file, for the signature."""
        return tuple(self._texts()[name].encode() for name in _TEXTS)

    def to_toml(self, signature: bytes) -> str:
        """As a file."""
        facts = {"version": _VERSION, **self._texts(), "signature": signature.hex()}
        return self._head() + tomli_w.dumps({"invitation": facts}, multiline_strings=True)

    def _head(self) -> str:
        """Two lines of comment for whoever opens the file."""
        one = self.certificate
        if one is None:
            what, do = "An invitation", "secure-fl node join THIS-FILE --name NAME --data ID=PATH"
        else:
            what, do = f"The reply to {one.role} {one.name}", f"secure-fl {one.role} join THIS-FILE"
        return f"# {what} of a consortium, signed by its authority. There is no secret in it.\n# Use it with: {do}\n\n"

    @classmethod
    def read(cls, path: Path, *, now: datetime) -> Self:
        """Read a file and verify it. Raises `CertificateError` if the authority in it did not write all of it."""
        table = read_toml(path, missing="check the path; the authority writes one with `secure-fl pki invite`")
        texts, signature = _parts(path, table.get("invitation"))
        certificate = Certificate.from_pem(texts["certificate"].encode()) if texts["certificate"] else None
        found = cls(
            ca=texts["ca"].encode(),
            crl=texts["crl"].encode(),
            coordinator=texts["coordinator"],
            fingerprint=texts["fingerprint"],
            certificate=certificate,
        )
        # 1. The authority that is named in the file wrote all of it.
        _require_signature(path, found, texts, signature)
        # 2. A reply's certificate is from this authority, valid now, and not revoked.
        if certificate is not None:
            TrustStore(found.ca, crl_pem=found.crl).check(certificate, role=None, now=now)
        return found

    def _texts(self) -> dict[str, str]:
        return {
            "coordinator": self.coordinator,
            "fingerprint": self.fingerprint,
            "certificate": "" if self.certificate is None else self.certificate.pem.decode(),
            "ca": self.ca.decode(),
            "crl": self.crl.decode(),
        }


def authority_fingerprint(ca_pem: bytes) -> str:
    """The SHA-256 of an authority's certificate."""
    return hashlib.sha256(_authority(ca_pem).public_bytes(Encoding.DER)).hexdigest()


def require_address(address: str) -> None:
    """Raise `SettingsError` or `CertificateError` unless `address` is host:port."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or not 0 < int(port) < 65536:
        raise SettingsError(f"{address!r} is not host:port", advice="for example fl.example.org:8443")
    parse_host(host.removeprefix("[").removesuffix("]"))


def _parts(path: Path, section: Any) -> tuple[dict[str, str], bytes]:
    """The texts and the signature of a file of ours."""
    if not isinstance(section, dict):
        raise SettingsError(f"{path}: is no invitation, and no reply of an authority", advice=_CHANGED)
    if section.get("version") != _VERSION:
        raise SettingsError(
            f"{path}: an invitation of another version", advice="install the authority's version of secure-fl"
        )
    wanted = {"version", "signature", *_TEXTS}
    if section.keys() != wanted or not all(isinstance(section[name], str) for name in (*_TEXTS, "signature")):
        raise SettingsError(f"{path}: something in this invitation is missing or too much", advice=_CHANGED)
    try:
        return {name: section[name] for name in _TEXTS}, bytes.fromhex(section["signature"])
    except ValueError:
        raise SettingsError(f"{path}: its signature is not hexadecimal", advice=_CHANGED) from None


def _require_signature(path: Path, found: Invitation, texts: dict[str, str], signature: bytes) -> None:
    key = _authority(found.ca).public_key()
    fields = tuple(texts[name].encode() for name in _TEXTS)
    try:
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise InvalidSignature
        key.verify(signature, transcript(DOMAIN, *fields), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise CertificateError(
            f"{path}: was changed after the authority {found.consortium!r} signed it", advice=_CHANGED
        ) from None


def _authority(ca_pem: bytes) -> x509.Certificate:
    return load_single(ca_pem, what="the authority's certificate")
