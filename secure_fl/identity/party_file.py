"""What the files of both processes have in common: identity, log, folders relative to the file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, PrivateAttr

from secure_fl.errors import CertificateError
from secure_fl.identity.certificates import TrustStore
from secure_fl.identity.credential import Credential
from secure_fl.settings import Settings, read_toml


class LogSection(Settings):
    """How to log."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class StateSection(Settings):
    """Where to keep state."""

    folder: str = "state"


class IdentitySection(Settings):
    """A party's certificate with its two keys, and the consortium's CA."""

    certificate: str
    key: str = ""  # default: the certificate's name with .key
    signing_key: str = ""  # default: the certificate's name with .signing.key
    ca: str = "ca.pem"
    crl: str = "crl.pem"


class DialingSection(IdentitySection):
    """The one coordinator a party talks to."""

    coordinator: str  # host:port
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    proxy: str = ""  # http://[user:password@]host:port; empty: the environment's HTTPS_PROXY / NO_PROXY


class PartyFile(Settings):
    """A TOML file whose paths are relative to its own folder."""

    log: LogSection = LogSection()
    state: StateSection = StateSection()
    _folder: Path = PrivateAttr(default=Path())

    @classmethod
    def read(cls, path: Path) -> Self:
        """Parse and remember where the file is."""
        file = cls.parse(read_toml(path))
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

    def credential(self) -> Credential:
        """The party's certificate and keys; `CertificateError` when they are missing or do not match."""
        named = self.identity.signing_key
        signing_key = self.path(named) if named else self.certificate_path.with_suffix(".signing.key")
        return Credential.read(self.certificate_path, tls_key=self.key_path, signing_key=signing_key)

    def ca_pem(self) -> bytes:
        """The consortium's CA certificate."""
        path = self.path(self.identity.ca)
        try:
            return path.read_bytes()
        except OSError as error:
            raise CertificateError(f"{path}: cannot be read ({error.strerror})") from None

    def trust(self) -> TrustStore:
        """The CA with its revocation list."""
        return TrustStore(self.ca_pem(), self.path(self.identity.crl))


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
