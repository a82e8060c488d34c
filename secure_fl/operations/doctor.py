"""What is wrong with an installation or a deployment, and the fix.

A check is a function that returns what it found in good order, raises `DoubtError` for what will bite later, and any
other error of ours for what does not work now; the error's advice is the fix. The parties add checks of their own
(`node/doctor.py`, `coordinator/doctor.py`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import shutil
import stat
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import secure_fl
from secure_fl.errors import DoubtError, SecureFLError, SettingsError, StorageError
from secure_fl.files import open_to_others, private_folder
from secure_fl.identity.certificates import utc_now
from secure_fl.identity.party_file import DialingFile, PartyFile
from secure_fl.limits import MIB
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.rpc.federation_pb2_grpc import ReceptionStub
from secure_fl.study.settings import Study
from secure_fl.transport.channel import dial, typed_errors
from secure_fl.transport.wire import negotiate

F = TypeVar("F", bound=PartyFile)
Check: TypeAlias = tuple[str, Callable[[], str]]

_PACKAGES = ("torch", "opacus", "cryptography", "tenseal", "zstandard", "grpcio", "protobuf")
_ACCESS = "check that the user who runs this may read, and where it is state also write, what is there"
_UNEXPECTED = "this is a mistake in secure-fl: please report it, with this line"
_EXPIRY_DAYS = 30
_GREET_SECONDS = 20.0
_SKEW_SECONDS = 60.0  # beyond this a fresh certificate or revocation list may look as if from the future
_LITTLE_DISK, _NO_DISK = 2048 * MIB, 128 * MIB


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    check: str
    state: Literal["ok", "warning", "failed"]
    message: str
    fix: str = ""


def examine(checks: Iterable[Check]) -> Iterator[Finding]:
    """Run checks in order; one that fails does not stop the others."""
    for name, check in checks:
        try:
            yield Finding(name, "ok", check())
        except DoubtError as doubt:
            yield Finding(name, "warning", doubt.message, doubt.hint)
        except SecureFLError as error:
            yield Finding(name, "failed", error.message, error.hint)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            yield Finding(name, "failed", f"{where}{error.strerror or type(error).__name__}", _ACCESS)
        except Exception as error:
            # Where it happened, and not what it says: that could quote what is in a file.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            yield Finding(name, "failed", f"unexpected {type(error).__name__} ({where})", _UNEXPECTED)


def failing(error: Exception) -> Callable[[], str]:
    """A check whose outcome is known: it failed."""

    def fail() -> str:
        raise error

    return fail


def tell(findings: Iterable[Finding], *, as_json: bool) -> int:
    """Print findings as they come; the exit code is 0 only if nothing failed.

    What fails for a reason that was told before is only named, in the end: a person has one thing to correct. In JSON
    every check has its outcome.
    """
    seen: list[Finding] = []
    again: list[str] = []
    for finding in findings:
        if any((one.message, one.fix) == (finding.message, finding.fix) for one in seen if one.state == "failed"):
            again.append(finding.check)
        elif not as_json:
            _print(finding)
        seen.append(finding)
    if again and not as_json:
        sys.stdout.write(f"         for a reason above, these fail, too: {', '.join(again)}\n")
    failed = sum(finding.state == "failed" for finding in seen)
    if as_json:
        sys.stdout.write(json.dumps({"ok": failed == 0, "checks": [asdict(finding) for finding in seen]}) + "\n")
    return 1 if failed else 0


def _print(finding: Finding) -> None:
    mark = {"ok": "ok     ", "warning": "warning", "failed": "FAILED "}[finding.state]
    sys.stdout.write(f"{mark}  {finding.check}: {finding.message}\n")
    sys.stdout.write(f"         → {finding.fix}\n" if finding.fix else "")
    sys.stdout.flush()


def command(
    prog: str,
    description: str | None,
    checks: Callable[[Path, Path | None], Iterable[Check]],
    arguments: list[str] | None,
) -> int:
    """The command line of a party's doctor: its file, perhaps a study, and how to print."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("file", type=Path)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    return tell(examine(checks(options.file, options.study)), as_json=options.json)


# --- the installation -----------------------------------------------------------------------------------------


def installation() -> Iterator[Check]:
    """The packages everything rests on."""
    yield "installation", _packages


def _packages() -> str:
    found = [f"secure-fl {secure_fl.__version__}", f"Python {platform.python_version()}"]
    for name in _PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise SettingsError(
                f"{name} is not installed", advice="pip install -c constraints.txt . (in the project's folder)"
            ) from None
    return ", ".join(found)


# --- a party's own files --------------------------------------------------------------------------------------


def common(kind: type[F], path: Path, *, role: str) -> Generator[Check, None, F | None]:
    """What is asked of either party: its installation, its file, its identity. Returns the file, if there is one."""
    yield from installation()
    try:
        file = kind.read(path)
    except Exception as error:
        yield "file", failing(error)
        return None
    yield "file", lambda: f"{path} is the file of {'an' if role == 'operator' else 'a'} {role}"
    yield from party(file, role)
    return file


def party(file: PartyFile, role: str) -> Iterator[Check]:
    """Certificate, keys, revocations, state folder, disk."""
    yield "certificate", lambda: _certificate(file, role)
    yield "keys", lambda: _keys(file)
    yield "revocation list", lambda: _revocations(file)
    yield "state folder", lambda: _state_folder(file.state_folder)
    yield "disk", lambda: _disk(file.state_folder)


def _certificate(file: PartyFile, role: str) -> str:
    now = utc_now()
    mine = file.check_certificate(role, now=now)
    left = (mine.not_after - now).days
    if left < _EXPIRY_DAYS:
        raise DoubtError(
            f"{role} {mine.name!r} expires in {left} days, on {mine.not_after:%Y-%m-%d}",
            advice="request a new one for the same keys, in time: `secure-fl pki renew FILE`",
        )
    return f"{role} {mine.name!r}, valid until {mine.not_after:%Y-%m-%d}, fingerprint {mine.fingerprint}"


def _keys(file: PartyFile) -> str:
    file.credential()  # refuses keys that others can read
    folder = file.key_path.parent
    if stat.S_IMODE(folder.stat().st_mode) & stat.S_IWOTH:
        raise DoubtError(f"{folder}: anybody may replace the keys in it", advice=f"chmod o-w {folder}")
    return "belong to the certificate; nobody else can read them"


def _revocations(file: PartyFile) -> str:
    if file.trust().crl_stale(utc_now()):
        raise DoubtError("a newer list should be out by now", advice="fetch crl.pem from the consortium")
    return "signed by the consortium and current"


def _state_folder(folder: Path) -> str:
    private_folder(folder)
    try:
        probe = folder / f".doctor-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise StorageError(
            f"{folder}: {error.strerror}", advice=f"give {folder} to the user this process runs as"
        ) from None
    if open_to_others(folder):
        raise DoubtError(
            f"{folder}: others on this machine can look into it",
            advice=f"chmod 700 {folder} (nothing here changes the mode of a folder that is there)",
        )
    return f"{folder} is writable"


def _disk(folder: Path) -> str:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent  # "state folder" has said why it is not there.
    free = shutil.disk_usage(folder).free
    text = f"{free / 2**30:.1f} GiB free in {folder}"
    if free < _NO_DISK:
        raise StorageError(text, advice="free some space; nothing committed is lost meanwhile")
    if free < _LITTLE_DISK:
        raise DoubtError(text, advice="a round needs a few times the size of the model; free some space")
    return text


# --- the coordinator, from afar -------------------------------------------------------------------------------


def connection(file: DialingFile) -> Iterator[Check]:
    """Reach the coordinator, and compare versions and clocks with it."""
    greetings: list[tuple[pb.Greeting, float]] = []

    def reach() -> str:
        greetings.append(asyncio.run(_greet(file)))
        return f"{file.dialing.coordinator} answers, with the pinned certificate"

    yield "connection", reach
    if greetings:
        greeting, here = greetings[0]
        yield "versions", lambda: _versions(greeting)
        yield "clock", lambda: _clock(greeting.clock_ms / 1000 - here)


async def _greet(file: DialingFile) -> tuple[pb.Greeting, float]:
    channel = await dial(file)
    try:
        with typed_errors():
            before = time.time()
            stub = ReceptionStub(channel)  # type: ignore[no-untyped-call]
            greeting = await stub.Greet(pb.GreetRequest(), timeout=_GREET_SECONDS)
            return greeting, (before + time.time()) / 2
    finally:
        await channel.close()


def _versions(greeting: pb.Greeting) -> str:
    version = negotiate(greeting.versions)
    mine = f"secure-fl {secure_fl.__version__}"
    if greeting.software != mine:
        # The coordinator's own words: shown, but not as they come.
        theirs = "".join(char for char in greeting.software[:64] if char.isprintable())
        raise DoubtError(f"the coordinator runs {theirs!r}, here is {mine}", advice="plan the upgrade of the older one")
    return f"both sides run {mine} and speak protocol {version}"


def _clock(ahead: float) -> str:
    text = f"the coordinator's clock is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this one"
    if abs(ahead) > _SKEW_SECONDS:
        raise DoubtError(text, advice="switch on time synchronisation (timedatectl set-ntp true) on both machines")
    return text


# --- a study --------------------------------------------------------------------------------------------------


def read_study(path: Path) -> Study:
    """The study as it would be submitted: with every default written out."""
    study = Study.read(path).completed()
    study.check()
    return study
