"""Which privacy limit the running node keeps: that of its file as it was when the node started.

A limit that somebody changes in the file counts after the next start. Until then the desk would tell another one than
the node enforces, so the node writes down what it began with.
"""

from __future__ import annotations

import json
import logging
from typing import TypeAlias

from pydantic import TypeAdapter

from node.config import NodeFile
from node.store import NodeStore, read_json
from secure_fl.errors import StorageError
from secure_fl.files import is_held, private_folder, write_private

log = logging.getLogger(__name__)

Limit: TypeAlias = tuple[float | None, float | None]  # ε and δ; None: no limit

_LIMIT = TypeAdapter(tuple[float | None, float | None])
_FILE = "limit.json"


def keep_limit(file: NodeFile, store: NodeStore) -> None:
    """For a node that starts. Where the disk is full it starts all the same: this is for the desk alone."""
    try:
        private_folder(store.folder)
        write_private(store.folder / _FILE, json.dumps(_limit(file)).encode())
    except StorageError as error:
        log.warning("which limit this node keeps could not be written down: %s", error.message)


def limit_doubt(file: NodeFile, store: NodeStore) -> str:
    """What to tell if a node runs here with another limit than its file names now; empty if none does."""
    running = read_json(store.folder / _FILE, _LIMIT)
    try:
        if running is None or running == _limit(file) or not is_held(store.folder):
            return ""
    except OSError:
        return ""
    return (
        f"the running node still keeps {_words(running)}, and its file now says {_words(_limit(file))}: restart the "
        "node for that to count"
    )


def _limit(file: NodeFile) -> Limit:
    return file.policy.epsilon, file.policy.delta


def _words(limit: Limit) -> str:
    epsilon, delta = limit
    return "no limit" if epsilon is None or delta is None else f"epsilon {epsilon:g} (delta {delta:g})"
