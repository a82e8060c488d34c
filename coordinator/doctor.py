"""`python -m coordinator.doctor FILE`: is this coordinator fit to serve?"""

from __future__ import annotations

import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from coordinator import first_models
from coordinator.config import CoordinatorFile
from coordinator.store import Store
from secure_fl.addresses import split_address
from secure_fl.counting import counted
from secure_fl.errors import DoubtError, SettingsError, StorageError
from secure_fl.identity.certificates import Certificate
from secure_fl.operations import doctor
from secure_fl.study.first_model import FirstModel
from secure_fl.study.settings import Study


def main(arguments: list[str] | None = None) -> int:
    """Check everything that can be known on this machine."""
    return doctor.command("python -m coordinator.doctor", __doc__, _checks, arguments)


def _checks(path: Path, study: Path | None) -> Iterator[doctor.Check]:
    file = yield from doctor.common(CoordinatorFile, path, role="coordinator")
    if file is None:
        return
    yield "address", lambda: _address(file)
    yield "store", lambda: _store(file)
    for listed in file.studies:
        yield f"study {listed}", partial(_listed, file, listed)
    if study is not None:
        yield "study", lambda: _study(study, file)


def _address(file: CoordinatorFile) -> str:
    host, port = split_address(file.coordinator.address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except PermissionError:
            raise SettingsError(
                f"{file.coordinator.address}: ports below 1024 need a privilege",
                advice="choose a port above 1024, or AmbientCapabilities=CAP_NET_BIND_SERVICE in the unit",
            ) from None
        except OSError as error:
            raise DoubtError(
                f"{file.coordinator.address}: {error.strerror}",
                advice="fine if this coordinator is running; otherwise stop what listens there",
            ) from None
    return f"{file.coordinator.address} is free"


def _store(file: CoordinatorFile) -> str:
    path = Store.path_in(file.state_folder)
    if not path.exists():
        return "none yet"
    # Read-only and without our own store: that would migrate it, perhaps under a coordinator that runs.
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            (sound,) = database.execute("PRAGMA quick_check").fetchone()
            states = Counter(state for (state,) in database.execute("SELECT state FROM studies"))
    except sqlite3.Error as error:
        raise StorageError(f"{path}: {error}", advice="restore the state folder from a backup") from None
    if sound != "ok":
        raise StorageError(f"{path}: {sound}", advice="restore the state folder from a backup")
    return ", ".join(f"{counted(count, 'study', 'studies')} {state}" for state, count in states.items()) or "no studies"


def _listed(file: CoordinatorFile, listed: str) -> str:
    """Whether `serve` takes up a study of the coordinator's own file; the task is imported only if it may be."""
    study = Study.read(file.path(listed))
    if study.id in _known(file):
        return f"{study.study.name} is in the store"
    first_models.require_allowed(study, file.coordinator.tasks)
    study.check()
    first_models.require_fit(study, _first_model(study), model_bytes=file.limits.model_bytes)
    return f"{study.study.name} {study.id} can run here, with {len(study.study.roster)} sites"


def _first_model(study: Study) -> FirstModel:
    from secure_fl.study.submission import start_of_study  # torch

    return start_of_study(study).first_model()


def _known(file: CoordinatorFile) -> frozenset[str]:
    path = Store.path_in(file.state_folder)
    if not path.exists():
        return frozenset()
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return frozenset(name for (name,) in database.execute("SELECT id FROM studies"))
    except sqlite3.Error:
        return frozenset()  # "store" has said it.


def _study(path: Path, file: CoordinatorFile) -> str:
    """Whether this coordinator could run it. Nothing of its task is needed here, and nothing of it is imported."""
    study = Study.read(path)
    study.check_parts()
    mine: Certificate = file.credential().certificate
    if mine.fingerprint in study.study.roster.values():
        raise SettingsError("the roster names the coordinator's certificate", advice="a roster names sites only")
    return f"{study.study.name} can run here, with {len(study.study.roster)} sites"


if __name__ == "__main__":
    sys.exit(main())
