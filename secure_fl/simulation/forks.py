"""Children forked from a template: how a process of a simulation asks for them and hears of their end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass
from typing import Any

_MESSAGE_BYTES = 1 << 16
_HANDLES = 1


def receive(connection: socket.socket, descriptors: int) -> tuple[bytes, list[int]]:
    """A message and what came with it; an empty one when the other side is gone, whatever it left unread."""
    try:
        message, received, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, descriptors)
    except ConnectionError:
        return b"", []
    return message, received


class Forked:
    """A child of the template's: what `asyncio.subprocess.Process` is for a child of one's own."""

    def __init__(self, *, pid: int, handle: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader | None):
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self._handle = handle
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @property
    def returncode(self) -> int | None:
        """The exit code, negative for a signal; none while it runs."""
        return self._code.result() if self._code.done() else None

    async def wait(self) -> int:
        """Until it has ended."""
        return await asyncio.shield(self._code)

    def terminate(self) -> None:
        """Ask it to leave."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Make it leave."""
        self._signal(signal.SIGKILL)

    def ended(self, code: int) -> None:
        """Note that it has ended. The template says so."""
        self._code.set_result(code)
        self.stdin.close()
        os.close(self._handle)

    def _signal(self, number: signal.Signals) -> None:
        if not self._code.done():
            with contextlib.suppress(ProcessLookupError):  # ended, and the news is on its way
                signal.pidfd_send_signal(self._handle, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A request that the template has not answered yet."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader | None
    child: asyncio.Future[Forked]

    def refuse(self, error: OSError) -> None:
        """There will be no child."""
        self.stdin.close()
        if not self.child.done():
            self.child.set_exception(error)


class Forks:
    """A connection to the template. It belongs to the event loop that first asks for a child."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._listening = False
        self._asked: deque[_Asked] = deque()  # answered in this order
        self._children: dict[int, Forked] = {}
        self.lost = False  # whether the template has died

    async def start(
        self,
        module: str,
        *arguments: str,
        stderr: int,
        stdout: int | None = None,
        forks: bool = False,
        limit: int = 1 << 16,
    ) -> Forked:
        """Run `main` of a module in a new process, as `python -m module arguments` would.

        Without a descriptor for its standard output that is a pipe, read with lines of up to `limit` bytes. With
        `forks` the child is given a connection of its own. Raises `OSError` if there can be no such process, of the
        kind `ConnectionError` if the template is gone.
        """
        if not self._listening:
            asyncio.get_running_loop().add_reader(self._connection, self._hear)
            self._listening = True
        with contextlib.ExitStack() as theirs:
            # A socket rather than a pipe, because asyncio writes to it as it is. The child only ever reads from it, so
            # that it sees an end here, and never a reset, when this process dies.
            ours, stdin = socket.socketpair()
            theirs.callback(stdin.close)
            _, writer = await asyncio.open_connection(sock=ours)
            reader = None
            if stdout is None:
                source, stdout = os.pipe()
                theirs.callback(os.close, stdout)
                reader = await _reader(source, limit)
            request = {"module": module, "arguments": arguments, "forks": forks}
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], [stdin.fileno(), stdout, stderr])
            except OSError:
                writer.close()
                raise
            asked = _Asked(stdin=writer, stdout=reader, child=asyncio.get_running_loop().create_future())
            self._asked.append(asked)
        return await asked.child

    def _hear(self) -> None:
        message, handles = receive(self._connection, _HANDLES)
        if not message:
            self._lose()
            return
        news = json.loads(message)
        if "ended" in news:
            self._children.pop(news["ended"]).ended(news["code"])
        else:
            self._answered(self._asked.popleft(), news, handles)

    def _answered(self, asked: _Asked, news: dict[str, Any], handles: list[int]) -> None:
        if "failed" in news:
            asked.refuse(OSError(news["failed"]))
            return
        child = Forked(pid=news["started"], handle=handles[0], stdin=asked.stdin, stdout=asked.stdout)
        self._children[child.pid] = child
        if asked.child.done():  # cancelled: nobody waits for this child any more
            child.kill()
        else:
            asked.child.set_result(child)

    def _lose(self) -> None:
        """The template is gone, and with it the news of its children: they go too."""
        self.lost = True
        asyncio.get_running_loop().remove_reader(self._connection)
        while self._asked:
            self._asked.popleft().refuse(ConnectionError("the template process is gone"))
        while self._children:
            _, child = self._children.popitem()
            child.kill()
            child.ended(-signal.SIGKILL)


async def _reader(descriptor: int, limit: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return reader
