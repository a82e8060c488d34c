"""The endpoint beside a process, scraped over HTTP as Prometheus does."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.parser import text_string_to_metric_families

import coordinator.monitoring
import node.monitoring
from node import events
from secure_fl.errors import PortInUseError, SettingsError
from secure_fl.events import Answered, CallRefused, Listening, PhaseClosed, RoundCommitted, RoundVoid, SatOut
from secure_fl.operations.loop_lag import LoopLag
from secure_fl.operations.monitoring import MonitoringSection, monitored
from secure_fl.results.record import NodeRound, RoundRecord
from secure_fl.rounds import RoundKind

STUDY = "ab" * 32


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Every sample with the values of its labels, as a scrape shows them."""
    with monitored("127.0.0.1:0", registry, lambda: True) as port:
        status, text = get(port, "/metrics")
    assert status == 200
    return {
        (sample.name, "/".join(value for name, value in sorted(sample.labels.items()) if name != "study")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_and_health_are_answered_until_the_block_ends() -> None:
    registry = CollectorRegistry()
    Counter("things", "things", registry=registry).inc(3)
    well = threading.Event()
    with monitored("127.0.0.1:0", registry, well.is_set) as port:
        assert "things_total 3.0" in get(port, "/metrics")[1]
        assert get(port, "/health") == (503, "not connected\n")
        well.set()
        assert get(port, "/health") == (200, "ok\n")
        assert get(port, "/../../etc/passwd")[0] == 404
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_nothing_listens_without_an_address() -> None:
    with monitored("", CollectorRegistry(), lambda: True) as port:
        assert port == 0


@pytest.mark.parametrize("address", ["9464", "localhost", "localhost:http", "localhost:84430", "localhost:²", "\0:80"])
def test_a_malformed_address_is_said_so(address: str) -> None:
    with pytest.raises(SettingsError, match=r"monitoring\.address: must be host:port, with a port up to 65535"):
        MonitoringSection.parse({"address": address}, where="monitoring")


def test_a_taken_port_is_said_so() -> None:
    with monitored("127.0.0.1:0", CollectorRegistry(), lambda: True) as port:  # noqa: SIM117
        with (
            pytest.raises(PortInUseError, match="cannot answer"),
            monitored(f"127.0.0.1:{port}", CollectorRegistry(), lambda: True),
        ):
            pass


def test_a_coordinators_events_become_metrics() -> None:
    registry = CollectorRegistry()
    metrics = coordinator.monitoring.Metrics(registry)
    nodes = tuple(NodeRound(name=n, outcome="took part", bytes_up=up, bytes_down=4) for n, up in (("a", 10), ("b", 5)))
    record = RoundRecord(number=1, kind=RoundKind.TRAIN, attempts=1, seconds=2.0, nodes=nodes)
    metrics(RoundCommitted(study_id=STUDY, record=record))
    metrics(PhaseClosed(study_id=STUDY, phase="upload", seconds=0.2))
    metrics(Answered(study_id=STUDY, round=1, phase="upload", node="a"))
    metrics(RoundVoid(study_id=STUDY, round=1, attempt=1, reason="CohortTooSmall"))
    metrics(SatOut(study_id=STUDY, round=1, node="a", reason="Refused"))
    metrics(CallRefused(method="Upload", code="LateMessage"))
    metrics(Listening(port=1))  # which nobody counts
    found = samples(registry)
    assert found["secure_fl_rounds_total", ""] == 1
    assert (found["secure_fl_bytes_total", "up"], found["secure_fl_bytes_total", "down"]) == (15, 8)
    assert found["secure_fl_phase_seconds_count", "upload"] == 1
    assert found["secure_fl_round_seconds_sum", ""] == 2.0
    assert found["secure_fl_attempts_void_total", "CohortTooSmall"] == 1
    assert found["secure_fl_sat_out_total", "Refused"] == 1
    assert found["secure_fl_calls_refused_total", "LateMessage/Upload"] == 1


def test_a_node_cannot_make_the_coordinator_invent_labels() -> None:
    registry = CollectorRegistry()
    metrics = coordinator.monitoring.Metrics(registry)
    for number in range(1000):
        metrics(SatOut(study_id=STUDY, round=1, node="a", reason="A" * (number % 60 + 1)))
    counted = {key: value for key, value in samples(registry).items() if key[0] == "secure_fl_sat_out_total"}
    assert counted == {("secure_fl_sat_out_total", "SecureFL"): 1000}


def test_a_coordinator_cannot_make_a_node_invent_labels() -> None:
    registry = CollectorRegistry()
    metrics = node.monitoring.Metrics(registry)
    for number in range(1000):
        metrics(events.StudyRefused(study_id=f"{number:064x}", code="Refused"))
    counted = {key: value for key, value in samples(registry).items() if key[0] == "secure_fl_refused_total"}
    assert counted == {("secure_fl_refused_total", "Refused"): 1000}


def test_a_nodes_events_become_metrics() -> None:
    registry = CollectorRegistry()
    metrics = node.monitoring.Metrics(registry)
    metrics.watch(lambda: True, LoopLag())
    metrics(events.Fetched(study_id=STUDY, round=1, bytes=40))
    metrics(events.Trained(study_id=STUDY, round=1, seconds=1.5))
    metrics(events.AnswerSent(study_id=STUDY, round=1, phase="upload", bytes=20))
    metrics(events.RoundDone(study_id=STUDY, round=1))
    metrics(events.SatOut(study_id=STUDY, round=1, code="Training"))
    found = samples(registry)
    assert found["secure_fl_connected", ""] == 1
    assert (found["secure_fl_bytes_total", "up"], found["secure_fl_bytes_total", "down"]) == (20, 40)
    assert found["secure_fl_training_seconds_sum", ""] == 1.5
    assert (found["secure_fl_rounds_total", ""], found["secure_fl_sat_out_total", "Training"]) == (1, 1)


def test_the_operations_page_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    for module in (coordinator.monitoring, node.monitoring):
        registry = CollectorRegistry()
        metrics = module.Metrics(registry)
        metrics.watch(None, LoopLag())
        for family in registry._names_to_collectors:
            name = family.removeprefix("secure_fl_")
            if name.endswith(("_total", "_seconds")) or name in ("connected", "nodes_connected", "studies"):
                assert f"`{name}`" in page, name
