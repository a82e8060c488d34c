"""Both ends in one process: the same messages, serialised and parsed as on a wire, without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TypeVar

from google.protobuf.message import Message as ProtoMessage

from secure_fl.errors import NetworkError, SecureFLError
from secure_fl.identity.certificates import Certificate
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.base import CoordinatorLink, FederationService
from secure_fl.transport.errors import remote_error

P = TypeVar("P", bound=ProtoMessage)

log = logging.getLogger(__name__)


class LocalLink:
    """A node's link to a service in the same process."""

    def __init__(self, service: FederationService, peer: Certificate) -> None:
        self._service = service
        self._peer = peer

    async def session(self, outgoing: AsyncIterator[pb.NodeMessage]) -> AsyncIterator[pb.CoordinatorMessage]:
        """As on the wire."""
        try:
            async for message in self._service.session(self._peer, _crossing(outgoing)):
                yield _cross(message)
        except SecureFLError as error:
            raise remote_error(error.code) from None
        except Exception:
            log.exception("a call failed unexpectedly")
            raise remote_error("SecureFL") from None

    async def upload(self, parts: AsyncIterator[pb.UploadPart], *, timeout: float) -> pb.UploadReceipt:  # noqa: ASYNC109
        """As on the wire."""
        try:
            async with asyncio.timeout(timeout):
                return _cross(await self._service.upload(self._peer, _crossing(parts)))
        except SecureFLError as error:
            raise remote_error(error.code) from None
        except TimeoutError:
            raise NetworkError("the upload timed out") from None
        except Exception:
            log.exception("a call failed unexpectedly")
            raise remote_error("SecureFL") from None

    async def uploaded(self, query: pb.UploadQuery, *, timeout: float) -> pb.UploadProgress:  # noqa: ASYNC109
        """As on the wire."""
        try:
            async with asyncio.timeout(timeout):
                return _cross(await self._service.uploaded(self._peer, _cross(query)))
        except SecureFLError as error:
            raise remote_error(error.code) from None
        except TimeoutError:
            raise NetworkError("the question timed out") from None
        except Exception:
            log.exception("a call failed unexpectedly")
            raise remote_error("SecureFL") from None

    async def download(self, request: pb.DownloadRequest, *, timeout: float) -> AsyncIterator[pb.Chunk]:  # noqa: ASYNC109
        """As on the wire."""
        try:
            async with asyncio.timeout(timeout):
                async for chunk in self._service.download(self._peer, _cross(request)):
                    yield _cross(chunk)
        except SecureFLError as error:
            raise remote_error(error.code) from None
        except TimeoutError:
            raise NetworkError("the download timed out") from None
        except Exception:
            log.exception("a call failed unexpectedly")
            raise remote_error("SecureFL") from None

    async def close(self) -> None:
        """Nothing to hang up."""


class LocalConnector:
    """Connects to whatever service runs now; raises `NetworkError` while none does."""

    def __init__(self, peer: Certificate) -> None:
        self._peer = peer
        self.service: FederationService | None = None

    async def connect(self) -> CoordinatorLink:
        """A link to the current service."""
        if self.service is None:
            raise NetworkError("no coordinator is running in this process")
        return LocalLink(self.service, self._peer)


def _cross(message: P) -> P:
    return parse(type(message), message.SerializeToString())


async def _crossing(messages: AsyncIterator[P]) -> AsyncIterator[P]:
    async for message in messages:
        yield _cross(message)
