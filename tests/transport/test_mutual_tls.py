"""The gRPC edge with real TLS on loopback: who gets in, who does not, and through which proxy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from coordinator.config import CoordinatorFile
from coordinator.server import start_server
from node.config import NodeFile
from node.link import GrpcConnector
from node.service import Node
from secure_fl.errors import (
    CertificateError,
    CoordinatorMismatchError,
    MalformedMessageError,
    NetworkError,
    NotEnrolledError,
    PortInUseError,
    SignatureError,
    VersionMismatchError,
)
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import utc_now
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.settings import read_toml
from secure_fl.study.settings import Study
from secure_fl.transport.wire import reference, sign_upload_header
from tests.identity.test_pinning import ConnectProxy, listening
from tests.support.edge import Edge, at_the_edge, first_messages, hello
from tests.support.training import FakeTraining


def test_an_enrolled_node_is_welcomed_and_offered_its_study(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        welcome, offer = await first_messages(edge.node_file())
        assert welcome.welcome.version == 1
        assert offer.study_id == edge.workspace.study.id
        assert Study.from_canonical(offer.study_offer.settings).id == offer.study_id

    at_the_edge(tmp_path, scenario)


def test_a_node_of_another_authority_does_not_get_in(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        stranger = Authority.create(tmp_path / "stranger", consortium="stranger")
        with pytest.raises(NetworkError):
            await first_messages(edge.enrol(stranger, "node", "site-01"))

    at_the_edge(tmp_path, scenario)


def test_an_expired_node_does_not_get_in(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        past = Authority.open(edge.workspace.folder / "pki", now=lambda: utc_now() - timedelta(days=10))
        with pytest.raises((NetworkError, CertificateError)):
            await first_messages(edge.enrol(past, "node", "late", days=5))

    at_the_edge(tmp_path, scenario)


def test_an_operator_is_not_a_node(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        with pytest.raises(CertificateError):
            await first_messages(edge.enrol(edge.authority, "operator", "site-01"))

    at_the_edge(tmp_path, scenario)


def test_a_revoked_node_does_not_get_in(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        edge.authority.revoke("site-01")
        with pytest.raises(CertificateError):
            await first_messages(edge.node_file())

    at_the_edge(tmp_path, scenario)


def test_a_node_revoked_while_connected_is_told_nothing_more(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        link = await GrpcConnector(edge.node_file()).connect()
        messages = link.session(hello())
        await anext(messages)
        edge.authority.revoke("site-01")
        with pytest.raises(CertificateError):
            async for _ in messages:
                pass
        await link.close()

    at_the_edge(tmp_path, scenario)


def test_a_node_refuses_any_coordinator_but_its_own(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        other = edge.authority.issue("coordinator", "other", hosts=("127.0.0.1",)).certificate
        file = edge.node_file(fingerprint=other.fingerprint)
        with pytest.raises(CoordinatorMismatchError):
            await GrpcConnector(file).connect()
        # The whole node gives up at once instead of retrying.
        node = Node(file, GrpcConnector(file), FakeTraining())
        with pytest.raises(CoordinatorMismatchError):
            await node.run()

    at_the_edge(tmp_path, scenario)


def test_a_node_outside_the_roster_sees_no_study_and_may_not_upload(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        file = edge.enrol(edge.authority, "node", "site-99")
        link = await GrpcConnector(file).connect()
        messages = link.session(hello())
        assert (await anext(messages)).WhichOneof("body") == "welcome"
        assert (await anext(messages)).WhichOneof("body") == "heartbeat"
        with pytest.raises(NotEnrolledError):
            await link.upload(upload(edge, file), timeout=10)
        request = pb.DownloadRequest(study_id=edge.workspace.study.id, sha256=bytes(32))
        with pytest.raises(NotEnrolledError):
            await anext(link.download(request, timeout=10))
        await link.close()

    at_the_edge(tmp_path, scenario)


async def upload(edge: Edge, file: NodeFile, *, signer: NodeFile | None = None, **changes: Any) -> AsyncIterator[Any]:
    """A well-formed upload, to be spoilt."""
    payload = pb.Payload(protection="none", phase="upload", version=1)
    header = pb.UploadHeader(
        study_id=edge.workspace.study.id, round=1, attempt=1, phase="upload", payload=payload, bulk=reference(b"")
    )
    sign_upload_header(header, (signer or file).credential().signing_key)
    for name, value in changes.items():
        setattr(header, name, value)
    yield pb.UploadPart(header=header)


def test_an_upload_signed_by_another_site_is_refused(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        file, other = edge.node_file("site-01"), edge.node_file("site-02")
        link = await GrpcConnector(file).connect()
        with pytest.raises(SignatureError):
            await link.upload(upload(edge, file, signer=other), timeout=10)
        with pytest.raises(MalformedMessageError):
            await link.upload(upload(edge, file, round=2), timeout=10)
        await link.close()

    at_the_edge(tmp_path, scenario)


def test_no_common_protocol_version(tmp_path: Path) -> None:
    async def newer() -> AsyncIterator[pb.NodeMessage]:
        versions = pb.VersionRange(lowest=7, highest=9)
        yield pb.NodeMessage(hello=pb.Hello(versions=versions))
        await asyncio.sleep(5)

    async def scenario(edge: Edge) -> None:
        link = await GrpcConnector(edge.node_file()).connect()
        with pytest.raises(VersionMismatchError):
            await anext(link.session(newer()))
        await link.close()

    at_the_edge(tmp_path, scenario)


def test_a_port_in_use_is_said_so(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        path = edge.workspace.coordinator_file
        table = read_toml(path)
        table["coordinator"]["address"] = f"127.0.0.1:{edge.port}"
        path.write_bytes(tomli_w.dumps(table).encode())
        with pytest.raises(PortInUseError):
            await start_server(edge.coordinator, CoordinatorFile.read(path))

    at_the_edge(tmp_path, scenario)


@pytest.mark.parametrize("how", ["file", "environment"])
def test_a_proxy_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    proxy = ConnectProxy()
    for name in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "grpc_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def scenario(edge: Edge) -> None:
        changes = {}
        if how == "file":
            changes["proxy"] = address
        else:
            monkeypatch.setenv("https_proxy", address)
        welcome, _ = await first_messages(edge.node_file(**changes))
        assert welcome.welcome.version == 1
        assert len(proxy.requests) >= 2  # the pin and the channel
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        if how == "environment":
            before = len(proxy.requests)
            await first_messages(edge.node_file())
            assert len(proxy.requests) == before

    with listening(proxy) as port:
        address = f"http://127.0.0.1:{port}"
        at_the_edge(tmp_path, scenario)
