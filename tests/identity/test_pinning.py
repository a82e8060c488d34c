"""The pin, against real servers on the loopback: gRPC's, OpenSSL's, a proxy's and broken ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from secure_fl.errors import (
    CertificateError,
    CoordinatorMismatchError,
    NetworkError,
    SecureFLError,
    SettingsError,
)
from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.pinning import _Proxy, fetch_pinned
from tests.identity.conftest import START, Clock

HOSTS = ("localhost", "127.0.0.1")


class Echo(grpc.GenericRpcHandler):
    """Answers every call with its own request."""

    def service(self, _details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(lambda request, _context: request)


@contextmanager
def coordinator(credential: Credential, ca_pem: bytes) -> Iterator[int]:
    """A gRPC server that demands client certificates; yields its port."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers((Echo(),))
    pair = (credential.tls_key.reveal(), credential.certificate.pem)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], ca_pem, True))
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A TCP server that hands every connection to `serve`; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def loop() -> None:
            with contextlib.suppress(OSError):
                while True:
                    link, _ = listener.accept()
                    threading.Thread(target=_quietly, args=(serve, link), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def _quietly(serve: Callable[[socket.socket], object], link: socket.socket) -> None:
    with link, contextlib.suppress(OSError):
        serve(link)


def answering(answer: bytes) -> Callable[[socket.socket], None]:
    """Say one thing, whatever was asked."""

    def serve(link: socket.socket) -> None:
        link.recv(4096)
        link.sendall(answer)

    return serve


@dataclass
class ConnectProxy:
    """A CONNECT proxy small enough to read."""

    answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n"
    requests: list[bytes] = field(default_factory=list)

    def __call__(self, link: socket.socket) -> None:
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += link.recv(4096)
        self.requests.append(request)
        link.sendall(self.answer)
        if b" 200 " in self.answer:
            host, _, port = request.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                back = threading.Thread(target=_pump, args=(upstream, link), daemon=True)
                back.start()
                _pump(link, upstream)
                back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while chunk := source.recv(4096):
            sink.sendall(chunk)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def hub(authority: Authority) -> Credential:
    return authority.issue("coordinator", "hub", hosts=HOSTS)


def fetch(authority: Authority, credential: Credential, port: int, **changes: Any) -> bytes:
    arguments: dict[str, Any] = {
        "host": "localhost",
        "port": port,
        "ca_pem": authority.ca_pem,
        "fingerprint": credential.certificate.fingerprint,
        "timeout": 5.0,
    }
    return fetch_pinned(**(arguments | changes))


def one_line(error: SecureFLError) -> bool:
    return "\n" not in str(error) and "\n" not in error.hint and bool(error.hint)


# --- the pin and gRPC -------------------------------------------------------------------------------------


async def _call(port: int, root: bytes, node: Credential, *, host: str = "localhost") -> bytes:
    credentials = grpc.ssl_channel_credentials(root, node.tls_key.reveal(), node.certificate.pem)
    async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as channel:
        echo: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/echo/Echo")
        return await echo(b"hello", timeout=5)


def call(port: int, root: bytes, node: Credential, *, host: str = "localhost") -> bytes:
    return asyncio.run(_call(port, root, node, host=host))


@pytest.mark.parametrize("host", HOSTS)
def test_grpc_accepts_the_pinned_leaf_as_its_only_root(authority: Authority, hub: Credential, host: str) -> None:
    node = authority.issue("node", "charite")
    with coordinator(hub, authority.ca_pem) as port:
        pinned = fetch(authority, hub, port, host=host)
        assert pinned == hub.certificate.pem
        assert call(port, pinned, node, host=host) == b"hello"


def test_grpc_refuses_another_leaf_of_the_same_authority(authority: Authority, hub: Credential) -> None:
    """The attack: a holder of another valid coordinator certificate takes over after the pin was checked."""
    node = authority.issue("node", "charite")
    twin = authority.issue("coordinator", "twin", hosts=HOSTS)
    with coordinator(twin, authority.ca_pem) as port:
        assert call(port, authority.ca_pem, node) == b"hello"  # Without the pin it would succeed.
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            call(port, hub.certificate.pem, node)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in (caught.value.details() or "")


def test_grpc_refuses_the_same_name_and_hosts_under_another_key(authority: Authority, hub: Credential) -> None:
    node = authority.issue("node", "charite")
    renewed = authority.issue("coordinator", "hub", hosts=HOSTS, renew=True)
    with coordinator(renewed, authority.ca_pem) as port, pytest.raises(grpc.aio.AioRpcError):
        call(port, hub.certificate.pem, node)


def test_grpc_still_checks_the_host_of_a_pinned_leaf(authority: Authority) -> None:
    node = authority.issue("node", "charite")
    elsewhere = authority.issue("coordinator", "hub", hosts=["fl.example.org"])
    with coordinator(elsewhere, authority.ca_pem) as port, pytest.raises(grpc.aio.AioRpcError) as caught:
        call(port, elsewhere.certificate.pem, node)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_grpc_still_checks_the_dates_of_a_pinned_leaf(tmp_path: Path) -> None:
    authority, expired = _expired(tmp_path)
    node = authority.issue("node", "charite", days=365)
    with coordinator(expired, authority.ca_pem) as port, pytest.raises(grpc.aio.AioRpcError) as caught:
        call(port, expired.certificate.pem, node)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


# --- what fetch_pinned accepts ----------------------------------------------------------------------------


def test_a_fingerprint_may_be_written_with_colons(authority: Authority, hub: Credential) -> None:
    digits = hub.certificate.fingerprint.upper()
    colons = ":".join(digits[i : i + 2] for i in range(0, 64, 2))
    with coordinator(hub, authority.ca_pem) as port:
        assert fetch(authority, hub, port, fingerprint=colons) == hub.certificate.pem


def test_an_older_server_gets_the_nodes_certificate(authority: Authority, hub: Credential, tmp_path: Path) -> None:
    certificate, key, _ = hub.save(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority.ca_pem.decode())
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    chosen: queue.Queue[tuple[str | None, str | None]] = queue.Queue()  # the server's end is done a little later

    def serve(link: socket.socket) -> None:
        with context.wrap_socket(link, server_side=True) as session:
            chosen.put((session.version(), session.selected_alpn_protocol()))
            session.recv(1)

    own, own_key, _ = authority.issue("node", "charite").save(tmp_path)
    with listening(serve) as port:
        assert fetch(authority, hub, port, certfile=own, keyfile=own_key) == hub.certificate.pem
        assert chosen.get(timeout=5) == ("TLSv1.2", "h2")
        with pytest.raises(NetworkError, match="handshake failed") as caught:
            fetch(authority, hub, port)
    assert one_line(caught.value)


def test_nothing_older_than_tls_1_2(authority: Authority, hub: Credential) -> None:
    alert = b"\x15\x03\x01\x00\x02\x02\x46"  # Fatal, "protocol version".
    with listening(answering(alert)) as port, pytest.raises(NetworkError, match="handshake failed"):
        fetch(authority, hub, port)


# --- certificates it refuses ------------------------------------------------------------------------------


def _expired(tmp_path: Path) -> tuple[Authority, Credential]:
    past = Clock(START - timedelta(days=60))
    authority = Authority.create(tmp_path / "past", consortium="Heart Study", now=past)
    return authority, authority.issue("coordinator", "hub", hosts=HOSTS, days=1)


def test_a_wrong_fingerprint(authority: Authority, hub: Credential) -> None:
    twin = authority.issue("coordinator", "twin", hosts=HOSTS)
    with coordinator(twin, authority.ca_pem) as port, pytest.raises(CoordinatorMismatchError) as caught:
        fetch(authority, hub, port)
    assert twin.certificate.fingerprint in str(caught.value)
    assert one_line(caught.value)


def test_an_expired_certificate(tmp_path: Path) -> None:
    authority, expired = _expired(tmp_path)
    with (
        coordinator(expired, authority.ca_pem) as port,
        pytest.raises(CertificateError, match="expired") as caught,
    ):
        fetch(authority, expired, port)
    assert one_line(caught.value)


def test_a_certificate_of_the_future(tmp_path: Path) -> None:
    """The authority's clock, not the node's, is ahead."""
    clock = Clock()
    authority = Authority.create(tmp_path / "a", consortium="Heart Study", now=clock)
    clock.forward(days=2)
    early = authority.issue("coordinator", "hub", hosts=HOSTS)
    with coordinator(early, authority.ca_pem) as port, pytest.raises(CertificateError, match="not valid yet"):
        fetch(authority, early, port)


def test_another_authority(authority: Authority, stranger: Authority, hub: Credential) -> None:
    foreign = stranger.issue("coordinator", "hub", hosts=HOSTS)
    with (
        coordinator(foreign, stranger.ca_pem) as port,
        pytest.raises(CertificateError, match="not from this consortium") as caught,
    ):
        fetch(authority, foreign, port)
    assert one_line(caught.value)


def test_an_authority_of_another_name(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", consortium="Lung Study")
    foreign = other.issue("coordinator", "hub", hosts=HOSTS)
    with (
        coordinator(foreign, other.ca_pem) as port,
        pytest.raises(CertificateError, match="not from this consortium") as caught,
    ):
        fetch(authority, foreign, port)
    assert one_line(caught.value)


@pytest.mark.parametrize("host", HOSTS)
def test_another_host(authority: Authority, host: str) -> None:
    # Its name is "localhost", which must not be taken for a host.
    elsewhere = authority.issue("coordinator", "localhost", hosts=["10.1.2.3"])
    with (
        coordinator(elsewhere, authority.ca_pem) as port,
        pytest.raises(CertificateError, match="not for this host") as caught,
    ):
        fetch(authority, elsewhere, port, host=host)
    assert one_line(caught.value)


def test_settings_that_cannot_be(authority: Authority, hub: Credential, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="fingerprint"):
        fetch(authority, hub, 1, fingerprint="abc")
    with pytest.raises(CertificateError, match="is not a host"):
        fetch(authority, hub, 1, host="localhost\r\nX: y")
    with pytest.raises(CertificateError, match="cannot be read"):
        fetch(authority, hub, 1, ca_pem=b"noise")
    with pytest.raises(CertificateError, match="cannot be loaded"):
        fetch(authority, hub, 1, certfile=tmp_path / "none.pem", keyfile=tmp_path / "none.key")


# --- networks ---------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_nobody_there(authority: Authority, hub: Credential) -> None:
    with pytest.raises(NetworkError, match="refused") as caught:
        fetch(authority, hub, closed_port())
    assert one_line(caught.value)


def test_a_name_that_does_not_resolve(authority: Authority, hub: Credential, monkeypatch: pytest.MonkeyPatch) -> None:
    def unresolved(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unresolved)
    with pytest.raises(NetworkError, match="does not resolve"):
        fetch(authority, hub, 443, host="fl.invalid")


def test_a_port_that_cannot_be(authority: Authority, hub: Credential) -> None:
    with pytest.raises(NetworkError):
        fetch(authority, hub, 70_000)


def test_a_silent_server(authority: Authority, hub: Credential) -> None:
    with listening(lambda _: time.sleep(2)) as port:
        began = time.monotonic()
        with pytest.raises(NetworkError, match="in time"):
            fetch(authority, hub, port, timeout=0.2)
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_a_server_that_speaks_no_tls(authority: Authority, hub: Credential, answer: bytes) -> None:
    with listening(answering(answer)) as port, pytest.raises(NetworkError, match="handshake") as caught:
        fetch(authority, hub, port)
    assert one_line(caught.value)


# --- proxies ----------------------------------------------------------------------------------------------


def test_through_a_proxy(authority: Authority, hub: Credential) -> None:
    proxy = ConnectProxy()
    with coordinator(hub, authority.ca_pem) as port, listening(proxy) as gate:
        pem = fetch(authority, hub, port, proxy=f"http://us%40er:p%3Aw@127.0.0.1:{gate}")
    assert pem == hub.certificate.pem
    expected = base64.b64encode(b"us@er:p:w").decode()
    assert proxy.requests == [
        f"CONNECT localhost:{port} HTTP/1.1\r\nHost: localhost:{port}\r\n"
        f"Proxy-Authorization: Basic {expected}\r\n\r\n".encode()
    ]


def test_through_a_proxy_without_a_password(authority: Authority, hub: Credential) -> None:
    proxy = ConnectProxy()
    with coordinator(hub, authority.ca_pem) as port, listening(proxy) as gate:
        assert fetch(authority, hub, port, proxy=f"http://127.0.0.1:{gate}") == hub.certificate.pem
    assert b"Authorization" not in proxy.requests[0]


def test_an_address_in_brackets(authority: Authority, hub: Credential) -> None:
    proxy = ConnectProxy(answer=b"HTTP/1.1 403 Forbidden\r\n\r\n")
    with listening(proxy) as gate, pytest.raises(NetworkError):
        fetch(authority, hub, 443, host="::1", proxy=f"http://127.0.0.1:{gate}")
    assert proxy.requests[0].startswith(b"CONNECT [::1]:443 HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "advice"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 2\r\n\r\nno", "user and password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "may reach this host"),
        (b"HTTP/1.1 200 OK\r\n\r\nsmuggled", "may reach this host"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "may reach this host"),
        (b"x" * 20_000, "may reach this host"),
    ],
)
def test_a_proxy_that_says_no(authority: Authority, hub: Credential, answer: bytes, advice: str) -> None:
    with (
        listening(answering(answer)) as gate,
        pytest.raises(NetworkError, match="refused the connection") as caught,
    ):
        fetch(authority, hub, 443, proxy=f"http://user:hunter2@127.0.0.1:{gate}")
    assert advice in caught.value.hint
    assert "hunter2" not in str(caught.value) + caught.value.hint
    assert one_line(caught.value)


def test_a_proxy_that_is_not_there_is_named_as_the_proxy(authority: Authority, hub: Credential) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        gate = nobody.getsockname()[1]
        with pytest.raises(NetworkError, match=rf"^proxy 127.0.0.1:{gate}: connection refused") as caught:
            fetch(authority, hub, 443, proxy=f"http://127.0.0.1:{gate}")
    assert "proxy setting" in caught.value.hint


def test_a_proxy_that_hangs_up_or_hangs(authority: Authority, hub: Credential) -> None:
    with listening(lambda _: None) as gate, pytest.raises(NetworkError, match="proxy"):
        fetch(authority, hub, 443, proxy=f"http://127.0.0.1:{gate}")
    with listening(lambda _: time.sleep(2)) as gate, pytest.raises(NetworkError, match=r"proxy .* in time"):
        fetch(authority, hub, 443, proxy=f"http://127.0.0.1:{gate}", timeout=0.2)


def test_a_proxy_that_drips_does_not_outlast_the_deadline(authority: Authority, hub: Credential) -> None:
    def drip(link: socket.socket) -> None:
        for _ in range(40):
            link.sendall(b"x")
            time.sleep(0.05)

    with listening(drip) as gate, pytest.raises(NetworkError, match="in time"):
        fetch(authority, hub, 443, proxy=f"http://127.0.0.1:{gate}", timeout=0.3)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:3128",
        "https://u:hunter2@a:1",
        "http://u:hunter2@a",
        "http://u:hunter2@a:x",
        "http://[a:1",
    ],
)
def test_a_proxy_that_is_no_address(authority: Authority, hub: Credential, url: str) -> None:
    with pytest.raises(SettingsError, match="not of the form") as caught:
        fetch(authority, hub, 443, proxy=url)
    assert "hunter2" not in str(caught.value)


def test_a_proxy_does_not_show_its_password() -> None:
    proxy = _Proxy.parse("http://user:hunter2@proxy:3128")
    assert proxy.authorization is not None
    assert proxy.authorization not in repr(proxy)
    assert "hunter2" not in repr(proxy)
