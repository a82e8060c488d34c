"""Uploads of one attempt on their way to the disk: one at a time from each site, gone on with after a broken line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from coordinator.bulk_files import BulkFiles
from secure_fl.errors import NetworkError, NotConnectedError, StorageError
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.threads import in_thread, in_thread_whole
from secure_fl.transport.objects import IncomingObject


class Reception:
    """What has come so far, by site. It ends with its attempt."""

    def __init__(self, files: BulkFiles, folder: str) -> None:
        self._files = files
        self._folder = folder
        self._incoming: dict[str, tuple[bytes, IncomingObject]] = {}  # by node: which upload, and what is here of it
        self._calls: dict[str, asyncio.Task[Any]] = {}  # by node: the call that writes it

    def received(self, node: str, upload_id: bytes) -> int:
        """How many bytes of an upload's bulk are here: where its sender goes on."""
        known, incoming = self._incoming.get(node, (b"", None))
        return incoming.position if incoming is not None and known == upload_id else 0

    async def spool(
        self, node: str, header: pb.UploadHeader, chunks: AsyncIterator[pb.Chunk], *, name: str
    ) -> tuple[IncomingObject, int]:
        """The bulk in a file that has no name yet, to be finished as `name`; and how many bytes came over the line.

        Raises `NotConnectedError` where the line breaks: what is here stays. After any other error nothing does.
        """
        call, size = asyncio.current_task(), header.ByteSize()
        if call is None or self._calls.get(node, call) is not call:
            raise NotConnectedError(f"{node} is still sending something else")  # It asks again; the other call ends.
        self._calls[node] = call
        try:
            incoming = await self._resumed(node, header, name)
            if incoming.position < header.bulk.size:  # The line may have broken after the last chunk.
                async for chunk in chunks:
                    size += chunk.ByteSize()
                    await in_thread_whole(incoming.write, chunk)
        except NotConnectedError:
            raise
        except (NetworkError, StorageError):
            await self._discard(node)
            raise
        finally:
            if self._calls.get(node) is call:
                del self._calls[node]
        del self._incoming[node]
        return incoming, size

    async def close(self) -> None:
        """End every call under way, and forget what has come so far."""
        calls = [call for call in self._calls.values() if call is not asyncio.current_task()]
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        for node in list(self._incoming):
            await self._discard(node)

    async def _resumed(self, node: str, header: pb.UploadHeader, name: str) -> IncomingObject:
        known, incoming = self._incoming.get(node, (b"", None))
        if incoming is None or known != header.upload_id:
            await self._discard(node)
            incoming = await in_thread(self._files.incoming, self._folder, name, header.bulk)
            self._incoming[node] = (header.upload_id, incoming)
        return incoming

    async def _discard(self, node: str) -> None:
        _, incoming = self._incoming.pop(node, (b"", None))
        if incoming is not None:
            await in_thread_whole(incoming.discard)
