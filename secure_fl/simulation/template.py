"""`python -P -m secure_fl.simulation.template MODULE …`: imports once what many processes need, and forks them.

Every party of a simulation and every training process needs the same seconds of imports and the same hundreds of
megabytes. This process imports them once; its children share the pages. Whoever holds a connection asks for children
and is told when they end; a child may be given a connection of its own. `secure_fl.simulation.forks` is the other side.

A fork copies one thread, and every lock as it is. So nothing here has a second thread, an event loop or a channel.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from secure_fl.operations.process_name import name_process
from secure_fl.simulation.forks import Forks, receive

_STANDARD = 3  # input, output, error

Work: TypeAlias = Callable[[], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    pid: int
    handle: int  # a pidfd: readable once the child has ended, and never another process's as a bare pid may be
    owner: socket.socket


class _Template:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._selector = selectors.DefaultSelector()
        self._selector.register(control, selectors.EVENT_READ)

    def serve(self) -> Work | None:
        """Fork on request. Returns in every child, with what that child has to do, and here when the run is over."""
        while True:
            for key, _ in self._selector.select():
                if isinstance(key.data, _Child):
                    self._bury(key.data)
                    continue
                connection: Any = key.fileobj
                message, descriptors = receive(connection, _STANDARD)
                if message:
                    if (work := self._fork(connection, json.loads(message), descriptors)) is not None:
                        return work
                else:
                    self._abandon(connection)
                    if connection is self._control:
                        return None

    def _fork(self, owner: socket.socket, request: dict[str, Any], descriptors: list[int]) -> Work | None:
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) if request["forks"] else None
        try:
            pid = os.fork()
        except OSError as error:
            _tell(owner, {"failed": str(error)})
            pid = -1
        if pid == 0:
            if pair:
                pair[0].close()
            return self._born(request, descriptors, pair[1] if pair else None)
        if pid > 0:
            child = _Child(pid=pid, handle=os.pidfd_open(pid), owner=owner)
            self._selector.register(child.handle, selectors.EVENT_READ, child)
            _tell(owner, {"started": pid}, child.handle)
        if pair:
            self._selector.register(pair[0], selectors.EVENT_READ)  # after a failed fork it is at its end, and goes
            pair[1].close()
        # A copy kept here of what ties a child to its parent would keep the child alive without it.
        for descriptor in descriptors:
            os.close(descriptor)
        return None

    def _born(self, request: dict[str, Any], descriptors: list[int], connection: socket.socket | None) -> Work:
        """In the child: let go of what is the template's, and look like a process of one's own."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        os.setsid()  # Ctrl-C reaches parties through their parent, in order
        for standard, descriptor in enumerate(descriptors):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        for key in list(self._selector.get_map().values()):
            os.close(key.fd)
        self._selector.close()
        gc.enable()
        np.random.seed()  # a task may draw from the global generator, which is otherwise the same in every child
        sys.argv = [request["module"], *request["arguments"]]
        main = import_module(request["module"]).main
        return (lambda: main(forks=Forks(connection))) if connection else main

    def _bury(self, child: _Child) -> None:
        _, status = os.waitpid(child.pid, 0)
        self._selector.unregister(child.handle)
        os.close(child.handle)
        _tell(child.owner, {"ended": child.pid, "code": os.waitstatus_to_exitcode(status)})

    def _abandon(self, connection: socket.socket) -> None:
        """Whoever held this connection is gone, and its children go too."""
        self._selector.unregister(connection)
        for key in self._selector.get_map().values():
            if isinstance(key.data, _Child) and key.data.owner is connection:
                signal.pidfd_send_signal(key.data.handle, signal.SIGKILL)
        connection.close()


def _tell(owner: socket.socket, message: dict[str, Any], *descriptors: int) -> None:
    with contextlib.suppress(OSError):  # it is gone, which its connection will say
        socket.send_fds(owner, [json.dumps(message).encode()], descriptors)


def main() -> None:
    """Import the modules named on the command line, then serve the connection on standard input."""
    name_process("fl-template")
    control = socket.socket(fileno=os.dup(0))
    # Three descriptors a site: the usual limit of 1024 would end a run of a few hundred.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # A user's own task may lie in the folder one works in. Last, so that no file there is taken for a module of ours.
    sys.path.append(str(Path.cwd()))
    gc.disable()
    for module in sys.argv[1:]:
        import_module(module)
    if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
        sys.exit(f"the template has {threads} threads and cannot be forked")
    gc.collect()
    gc.freeze()  # or the collector of every child would touch, and so copy, every page
    # From here on it leaves with its parent, and takes everybody along. Blocked rather than ignored: a child that is
    # told to leave while it is being born does so once it is.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    work = _Template(control).serve()
    if work is not None:
        _do(work)


def _do(work: Work) -> None:
    """A child's whole life. It ends here: tidying away what the template imported would copy every page first."""
    code: object = 1
    try:
        code = work() or 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    if not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
