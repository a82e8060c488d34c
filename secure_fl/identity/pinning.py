"""Fetch the coordinator's certificate and make sure that it is of the coordinator the site agreed to.

gRPC for Python verifies a chain but cannot pin: every certificate of the consortium's authority would do.
So the node fetches the certificate first, compares the fingerprint of its signing key, and then gives gRPC exactly
this leaf as its only root. The certificate ties its TLS key to the signing key, with a signature of the latter: not
even the authority can make one that has this fingerprint and a TLS key of its own choosing. BoringSSL, as gRPC
configures it, ends a chain at any certificate it was told to trust, so the later channel reaches a holder of this
leaf's key or nobody.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from secure_fl.errors import CertificateError, CoordinatorMismatchError, NetworkError, SettingsError
from secure_fl.identity.certificates import Certificate, parse_fingerprint, parse_host

_PROXY_ADVICE = "check the proxy setting and whether the proxy may reach this host and port"
_MAX_PROXY_ANSWER = 16_384

# OpenSSL's X509_V_ERR_… codes; Python has no names for them.
_NOT_YET_VALID, _EXPIRED = 9, 10
_UNKNOWN_ISSUER = (18, 19, 20, 21)
_HOST_MISMATCH = (62, 64)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proxy:
    """An HTTP proxy. Its credentials are in no repr and in no error."""

    host: str
    port: int
    authorization: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Self:
        # The URL is never quoted, since it may hold a password.
        problem = SettingsError("the proxy is not of the form http://[user:password@]host:port")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            raise problem from None
        if parts.scheme != "http" or not host or not port:
            raise problem
        if parts.username is None:
            return cls(host=host, port=port, authorization=None)
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(host=host, port=port, authorization=base64.b64encode(user.encode()).decode())


def fetch_pinned(
    *,
    host: str,
    port: int,
    ca_pem: bytes,
    fingerprint: str,
    timeout: float,
    proxy: str | None = None,
    certfile: Path | None = None,
    keyfile: Path | None = None,
) -> bytes:
    """Return the PEM certificate of the coordinator at `host`, whose signing key is the one with `fingerprint`.

    `certfile` and `keyfile` are the node's own. In TLS 1.3 a client is done before the server has checked
    them; a TLS 1.2 server wants them within the handshake. `timeout` is in seconds and covers the whole call,
    except that resolving the name takes what it takes and that every address of the host is given as long.

    Raises `NetworkError` when nobody answers, `CertificateError` when the answer is not a valid certificate
    of the consortium for this host, and `CoordinatorMismatchError` when it is another coordinator than agreed.
    """
    expected = parse_fingerprint(fingerprint)
    if expected is None:
        raise SettingsError("the coordinator's fingerprint is not a SHA-256 in hex", advice="64 hex digits")
    parse_host(host)  # It goes into a header of the proxy request, so nothing but a host may be in it.
    context = _context(ca_pem, certfile, keyfile)
    deadline = time.monotonic() + timeout

    # 1. Connect, 2. through the proxy if there is one.
    route = None if proxy is None else _Proxy.parse(proxy)
    with _connect(host, port, deadline) if route is None else _tunnel(route, host, port, deadline) as link:
        # 3. Handshake: chain and host name are checked here, against the consortium's authority only.
        der = _handshake(link, context, host, port, deadline)

    # 4. Of all certificates that would do, it has to be one for this key.
    actual = Certificate.from_der(der).fingerprint
    if not hmac.compare_digest(actual, expected):
        raise CoordinatorMismatchError(f"{host}:{port}: the coordinator shows {actual}, not {expected}")
    return ssl.DER_cert_to_PEM_cert(der).encode()


def _context(ca_pem: bytes, certfile: Path | None, keyfile: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Verifies chain and host name, trusts nobody yet.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.hostname_checks_common_name = False  # It holds the site's name, which is no host.
    context.set_alpn_protocols(["h2"])
    try:
        context.load_verify_locations(cadata=ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError):
        raise CertificateError("the consortium's certificate cannot be read") from None
    if certfile is not None:
        try:
            # An empty password, because without one OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certfile, keyfile, password="")
        except (OSError, ValueError):
            raise CertificateError(f"{certfile}: the certificate and its key cannot be loaded") from None
    return context


def _connect(host: str, port: int, deadline: float, *, what: str = "") -> socket.socket:
    where = f"{what}{host}:{port}"
    try:
        return socket.create_connection((host, port), timeout=_remaining(deadline))
    except socket.gaierror:
        raise NetworkError(f"{where}: the name does not resolve") from None
    except ConnectionRefusedError:
        advice = _PROXY_ADVICE if what else "is the coordinator running there?"
        raise NetworkError(f"{where}: connection refused", advice=advice) from None
    except TimeoutError:
        raise NetworkError(f"{where}: no answer in time") from None
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535.
        raise NetworkError(f"{where}: cannot be reached ({type(error).__name__})") from None


def _tunnel(proxy: _Proxy, host: str, port: int, deadline: float) -> socket.socket:
    """A connection to `host` through an HTTP CONNECT proxy (RFC 9110, 9.3.6)."""
    link = _connect(proxy.host, proxy.port, deadline, what="proxy ")
    try:
        link.sendall(_connect_request(proxy, host, port))
        head, _, rest = _proxy_answer(link, deadline).partition(b"\r\n\r\n")
    except TimeoutError:
        link.close()
        raise NetworkError(f"proxy {proxy.host}:{proxy.port}: no answer in time", advice=_PROXY_ADVICE) from None
    except OSError:
        link.close()
        raise NetworkError(f"proxy {proxy.host}:{proxy.port}: the link broke", advice=_PROXY_ADVICE) from None
    status = head.split(b"\r\n")[0].split(b" ")
    # Bytes after the head would stand before the handshake: the server never speaks first in TLS.
    if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or status[1] != b"200" or rest:
        link.close()
        said = status[1][:3].decode("ascii", "replace") if len(status) > 1 else "nothing intelligible"
        raise NetworkError(
            f"proxy {proxy.host}:{proxy.port}: refused the connection to {host}:{port} ({said})",
            advice="check the user and password in the proxy setting" if said == "407" else _PROXY_ADVICE,
        )
    return link


def _connect_request(proxy: _Proxy, host: str, port: int) -> bytes:
    target = f"{_bracketed(host)}:{port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    if proxy.authorization is not None:
        lines.append(f"Proxy-Authorization: Basic {proxy.authorization}")
    return "\r\n".join((*lines, "", "")).encode("ascii")


def _proxy_answer(link: socket.socket, deadline: float) -> bytes:
    """Everything up to the end of the head; what a proxy sends beyond a bound is cut off."""
    answer = b""
    while b"\r\n\r\n" not in answer and len(answer) < _MAX_PROXY_ANSWER:
        link.settimeout(_remaining(deadline))
        chunk = link.recv(4096)
        if not chunk:
            break
        answer += chunk
    return answer


def _handshake(link: socket.socket, context: ssl.SSLContext, host: str, port: int, deadline: float) -> bytes:
    where = f"{host}:{port}"
    try:
        link.settimeout(_remaining(deadline))
        with context.wrap_socket(link, server_hostname=host) as session:
            der = session.getpeercert(binary_form=True)
    except ssl.SSLCertVerificationError as error:
        raise _unacceptable(where, error) from None
    except TimeoutError:
        raise NetworkError(f"{where}: the TLS handshake was not finished in time") from None
    except ssl.SSLError as error:
        reason = (error.reason or "closed").lower().replace("_", " ")
        raise NetworkError(
            f"{where}: the TLS handshake failed ({reason})",
            advice="is this the coordinator's port, and is the node's certificate of the same consortium?",
        ) from None
    except OSError as error:
        raise NetworkError(f"{where}: the link broke in the handshake ({type(error).__name__})") from None
    if der is None:  # Cannot be: the context demands a certificate.
        raise CertificateError(f"{where}: the coordinator showed no certificate")
    return der


def _unacceptable(where: str, error: ssl.SSLCertVerificationError) -> CertificateError:
    """What was wrong with the certificate, in a person's words."""
    code = error.verify_code
    if code == _EXPIRED:
        return CertificateError(
            f"{where}: the coordinator's certificate has expired", advice="ask for a new one; check the clock"
        )
    if code == _NOT_YET_VALID:
        return CertificateError(f"{where}: the coordinator's certificate is not valid yet", advice="check the clock")
    if code in _HOST_MISMATCH:
        return CertificateError(
            f"{where}: the coordinator's certificate is not for this host",
            advice="use a host of its certificate, or renew that: `secure-fl pki renew coordinator.toml --host HOST`",
        )
    if code in _UNKNOWN_ISSUER:
        return CertificateError(
            f"{where}: the certificate is not from this consortium",
            advice="another consortium's ca.pem, or a firewall that opens TLS: have it exempt this host",
        )
    return CertificateError(f"{where}: the coordinator's certificate was refused ({error.verify_message})")


def _remaining(deadline: float) -> float:
    """Seconds left. Never zero, which would mean a socket that does not wait at all."""
    return max(deadline - time.monotonic(), 0.001)


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host
