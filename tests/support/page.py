"""A page of the documentation whose commands can be carried out: which fence runs where is said in its first line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import typer

from secure_fl.cli import app
from tests.support.processes import ROOT

_FENCE = re.compile(r"^```(\w+)(.*)\n((?:.*\n)*?)^```$", re.MULTILINE)
_COMMAND_SECONDS = 120.0
_UNTIL_SECONDS = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fence that names its machines."""

    language: str
    text: str
    sites: tuple[str, ...]
    file: str = ""
    until: str = ""
    background: bool = False


def fences(page: str) -> Iterator[Fence]:
    """Those that are to be carried out. A word nobody knows is an error, so that no fence is left out by a slip."""
    for language, info, text in _FENCE.findall(page):
        words = dict(word.partition("=")[::2] for word in shlex.split(info))
        if "site" in words:
            sites = tuple(words.pop("site").split(","))
            background = words.pop("background", None) is not None
            assert words.keys() <= {"file", "until"}, words
            assert (language == "toml") == ("file" in words), info
            yield Fence(language=language, text=text, sites=sites, background=background, **words)


def with_arguments(page: str) -> list[str]:
    """The commands in a page's text, outside of fences, that could be typed as they are.

    Not those that stand for themselves (`secure-fl doctor`), nor those with a FILE or NAME to be filled in.
    """
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    found = [" ".join(command.split()) for command in re.findall(r"`(secure-fl [^`]+)`", text)]
    return [command for command in found if _has_arguments(command) and not re.search(r"\b[A-Z]{3,}\b|…", command)]


def _has_arguments(command: str) -> bool:
    known: Any = typer.main.get_command(app)
    for word in command.split()[1:]:
        if word not in getattr(known, "commands", {}):
            return True
        known = known.commands[word]
    return False


def links(page: Path) -> list[str]:
    """Where a page leads to, as written."""
    return re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))


def missing_links(page: Path) -> list[str]:
    """Links of a page that lead to no file, or to no heading in it."""

    def leads_somewhere(link: str) -> bool:
        name, _, heading = link.partition("#")
        target = page.parent / name if name else page
        return target.exists() and (not heading or heading in anchors(target))

    return [link for link in links(page) if not link.startswith("https://") and not leads_somewhere(link)]


def anchors(page: Path) -> set[str]:
    """Where links into a page may lead."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Machines:
    """A folder for each machine the page names, side by side, and what runs there. Use as a context manager."""

    def __init__(self, folder: Path, *, addresses: Mapping[str, str]) -> None:
        self.folder = folder
        self._addresses = addresses
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._running.values():
            child.kill()
            child.wait()

    def carry_out(self, fence: Fence) -> str:
        """Do what a fence says; returns what its commands wrote."""
        lines = fence.text.splitlines()
        text = "\n".join(lines) + "\n"
        for written, real in self._addresses.items():
            text = text.replace(written, real)
        for site in fence.sites:
            (self.folder / site).mkdir(exist_ok=True)
        if fence.language == "toml":
            for site in fence.sites:
                (self.folder / site / fence.file).write_text(text)
            return ""
        if fence.background:
            for site in fence.sites:
                with (self.folder / site / "log").open("ab") as log:
                    self._running[site] = self._start(site, text, log.fileno())
            return ""
        return self.until(fence.sites, text, fence.until)

    def until(self, sites: Iterable[str], text: str, wanted: str = "") -> str:
        """Run a script at every site, again and again until its output has `wanted`."""
        deadline = time.monotonic() + _UNTIL_SECONDS
        while True:
            children = [(site, self._start(site, text, subprocess.PIPE)) for site in sites]
            outputs = [
                (site, child, child.communicate(timeout=_COMMAND_SECONDS)[0].decode()) for site, child in children
            ]
            for site, child, output in outputs:
                # A server may need a moment before the first answer; nothing else may fail.
                assert child.returncode == 0 or wanted, f"{site}: {text}{output}{self.logs()}"
            said = "".join(output for _, _, output in outputs)
            if wanted in said:
                return said
            assert time.monotonic() < deadline, f"no {wanted!r}: {text}{said}{self.logs()}"
            assert all(child.poll() is None for child in self._running.values()), self.logs()
            time.sleep(1.0)

    @property
    def running(self) -> Mapping[str, subprocess.Popen[bytes]]:
        """What runs in the background, by machine."""
        return self._running

    def stop(self) -> dict[str, int]:
        """Stop what runs, as a service manager does; returns the exit codes."""
        for child in self._running.values():
            child.terminate()
        codes = {site: child.wait(40) for site, child in self._running.items()}
        self._running.clear()
        return codes

    def logs(self) -> str:
        """The end of every log, for a failing test."""
        paths = sorted(self.folder.glob("*/log"))
        return "".join(f"\n--- {path.parent.name}\n{path.read_text()[-1500:]}" for path in paths)

    def _start(self, site: str, script: str, output: int) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            # One command alone replaces the shell, so a signal to it reaches the party.
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder / site,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SITE": site},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
