"""A small HTTP endpoint beside a process: `/metrics` for Prometheus, `/health` for whoever restarts things."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, make_wsgi_app

from secure_fl.addresses import AddressOrNone, split_address
from secure_fl.errors import PortInUseError
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.settings import Settings

_SECONDS = 10.0  # for a client to state its request
_BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000, 3600, 10_000)


class MonitoringSection(Settings):
    """Where to answer; empty: nowhere. The page names studies and counts, no data, but is not for the world either."""

    address: AddressOrNone = ""  # host:port


class Instruments:
    """Makes a party's metrics, all named alike."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Something that is counted."""
        return Counter(f"secure_fl_{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A state."""
        return Gauge(f"secure_fl_{name}", text, labels, registry=self._registry)

    def loop_lag(self, lag: LoopLag) -> None:
        """How long the event loop was kept waiting: the longest since the last scrape."""
        text = "the longest that the event loop was kept waiting since the last scrape"
        self.gauge("loop_lag_seconds", text).set_function(lag.read)

    def duration(self, name: str, text: str, *labels: str) -> Histogram:
        """Seconds, from a tenth to hours."""
        return Histogram(f"secure_fl_{name}", text, labels, registry=self._registry, buckets=_BUCKETS)


@contextmanager
def monitored(address: str, registry: CollectorRegistry, healthy: Callable[[], bool]) -> Iterator[int]:
    """Answer at `address` (nowhere, if empty) for as long as the block runs; yields the port."""
    if not address:
        yield 0
        return
    host, port = split_address(address)
    try:
        server = make_server(host, port, _pages(registry, healthy), _Server, _Quiet)
    except OSError as error:
        raise PortInUseError(
            f"cannot answer on {address} ({error.strerror})",
            advice='choose another [monitoring] address, or "" for none',
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="monitoring", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


def _pages(registry: CollectorRegistry, healthy: Callable[[], bool]) -> Callable[..., Iterable[bytes]]:
    metrics = make_wsgi_app(registry)

    def page(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics(environ, start_response)  # type: ignore[no-any-return]
            case "/health":
                well = healthy()
                start_response("200 OK" if well else "503 Service Unavailable", [("Content-Type", "text/plain")])
                return [b"ok\n" if well else b"not connected\n"]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"/metrics or /health\n"]

    return page


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    timeout = _SECONDS

    def log_message(self, *_: Any) -> None:
        """Scrapes are no events."""
