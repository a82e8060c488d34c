"""What the files of both processes have in common: identity, log, folders relative to the file."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import BinaryIO, Literal, Self

from cryptography import x509
from pydantic import Field, PrivateAttr

from secure_fl.addresses import Address
from secure_fl.errors import CertificateError, SettingsError
from secure_fl.identity.certificates import Certificate, TrustStore, load_single, require_issued_by
from secure_fl.identity.credential import Credential
from secure_fl.settings import PathText, Settings, read_toml


class LogSection(Settings):
    """How to log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class StateSection(Settings):
    """Where to keep state."""

    folder: PathText = "state"


class IdentitySection(Settings):
    """A party's certificate with its two keys, and the consortium's CA."""

    certificate: PathText
    key: PathText = ""  # default: the certificate's name with .key
    signing_key: PathText = ""  # default: the certificate's name with .signing.key
    ca: PathText = "ca.pem"
    crl: PathText = "crl.pem"


class DialingSection(IdentitySection):
    """The one coordinator a party talks to."""

    coordinator: Address  # host:port
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$", description="64 hexadecimal digits in lower case")
    proxy: str = ""  # http://[user:password@]host:port; empty: the environment's HTTPS_PROXY / NO_PROXY


class PartyFile(Settings):
    """A TOML file whose paths are relative to its own folder."""

    log: LogSection = LogSection()
    state: StateSection = StateSection()
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse and remember where the file is."""
        section = cls._own_section()
        table = read_toml(path, missing=f"check the path; `secure-fl {section} join` or `new` writes one")
        if section not in table:
            raise SettingsError(f"{path}: has no [{section}]", advice=f"is this the {section}'s file?")
        file = cls.parse(table)
        file._folder = path.resolve().parent
        return file

    def path(self, relative: str) -> Path:
        """A path of the file, resolved against its folder."""
        return self._folder / relative

    @property
    def state_folder(self) -> Path:
        """Where this party keeps its state."""
        return self.path(self.state.folder)

    @property
    def identity(self) -> IdentitySection:
        """The section with the certificate."""
        raise AttributeError("a party file defines its identity section")

    @property
    def certificate_path(self) -> Path:
        """The certificate's file."""
        return self.path(self.identity.certificate)

    @property
    def key_path(self) -> Path:
        """The TLS key's file."""
        return self.path(self.identity.key) if self.identity.key else self.certificate_path.with_suffix(".key")

    @property
    def signing_key_path(self) -> Path:
        """The signing key's file."""
        named = self.identity.signing_key
        return self.path(named) if named else self.certificate_path.with_suffix(".signing.key")

    @property
    def request_path(self) -> Path:
        """Where a request for the certificate waits until it is answered."""
        return self.certificate_path.with_suffix(".csr.pem")

    def certificate(self) -> Certificate:
        """The party's certificate, without its keys; `CertificateError` when it is missing or not one."""
        return Certificate.from_pem(self._read(self.certificate_path, "certificate"))

    def credential(self) -> Credential:
        """The party's certificate and keys; `CertificateError` when they are missing or do not match."""
        self._open(self.certificate_path, "certificate").close()
        self._open(self.key_path, "key").close()  # Only whether it is there: a key is read into a `Secret`.
        self._open(self.signing_key_path, "signing_key").close()
        return Credential.read(self.certificate_path, tls_key=self.key_path, signing_key=self.signing_key_path)

    def ca_pem(self) -> bytes:
        """The consortium's CA certificate."""
        return self._read(self.path(self.identity.ca), "ca")

    def trust(self) -> TrustStore:
        """The CA with its revocation list."""
        try:
            return TrustStore(self.ca_pem(), self.path(self.identity.crl))
        except CertificateError:
            # With another consortium's ca.pem the list looks forged, and it is the list that would be blamed.
            self.require_own_authority()
            raise

    def check_identity(self, role: str, *, now: datetime) -> Credential:
        """The party's credential, if the consortium vouches for it now, in this role. Raises `CertificateError`."""
        credential = self.credential()
        self.check_certificate(role, now=now)
        return credential

    def check_certificate(self, role: str, *, now: datetime) -> Certificate:
        """The same of the certificate alone, whatever its keys are."""
        certificate, trust = self.certificate(), self.trust()
        self.require_own_authority()
        trust.check(certificate, role=role, now=now)
        return certificate

    def require_own_authority(self) -> None:
        """Raise `CertificateError` unless the CA of this file signed the party's certificate. Nobody is asked."""
        path, mine = self.path(self.identity.ca), self.certificate()
        authority = load_single(self.ca_pem(), what=str(path))
        try:
            require_issued_by(authority, x509.load_der_x509_certificate(mine.der), who=mine.name)
        except CertificateError:
            raise CertificateError(
                f"{path} is not the authority that signed this certificate, {self.certificate_path}",
                advice=f"fetch ca.pem and crl.pem of your consortium, or correct [{self._section}] ca or certificate",
            ) from None

    def _read(self, path: Path, setting: str) -> bytes:
        with self._open(path, setting) as file:
            return file.read()

    def _open(self, path: Path, setting: str) -> BinaryIO:
        """A file that a setting names; `CertificateError` says which one."""
        try:
            return path.open("rb")
        except OSError as error:
            advice = f"correct [{self._section}] {setting} in this party's file, or put the file there"
            if setting == "certificate" and self.request_path.exists():
                advice = (
                    f"the authority signs {self.request_path.name} (`secure-fl pki sign`); then, with its reply: "
                    f"secure-fl {self._section} join REPLY"
                )
            raise CertificateError(f"{path}: cannot be read ({error.strerror})", advice=advice) from None

    @classmethod
    def _own_section(cls) -> str:
        """What the section with the certificate is called in the file."""
        kinds = {name: field.annotation for name, field in cls.model_fields.items()}
        return next(
            name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, IdentitySection)
        )

    @property
    def _section(self) -> str:
        return self._own_section()


class OwnIdentity(PartyFile):
    """Of any party's file the section with its certificate, whatever else the file says."""

    role: str
    name: str = ""
    party: IdentitySection

    @classmethod
    def read(cls, path: Path, role: str = "") -> Self:
        """Parse that one section; `SettingsError` if the file has none for this role."""
        section = read_toml(path, missing=f"`secure-fl {role} new` writes one").get(role)
        if not isinstance(section, dict):
            raise SettingsError(f"{path}: has no [{role}]", advice=f"is this the {role}'s file?")
        known = {key: value for key, value in section.items() if key in IdentitySection.model_fields}
        file = cls.parse({"role": role, "name": section.get("name", ""), "party": known})
        file._folder = path.resolve().parent
        return file

    @property
    def identity(self) -> IdentitySection:
        """The section with the certificate."""
        return self.party

    @property
    def _section(self) -> str:
        return self.role


class DialingFile(PartyFile):
    """The file of a party that connects to a coordinator."""

    @property
    def dialing(self) -> DialingSection:
        """The section that names the coordinator."""
        raise AttributeError("a dialing file defines its section")

    @property
    def identity(self) -> IdentitySection:
        """The same section holds the certificate."""
        return self.dialing
