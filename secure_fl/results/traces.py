"""What a strategy notes at a site, round by round: a few named numbers, for the site's own eyes.

They are written by the training process into the site's own folder and are part of no message: the process that talks
to the coordinator never reads them. In a simulation one person holds all the folders, and the report shows them. What
a site asked to be combined with is written in the same form, by that process, in a file of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from secure_fl.errors import StorageError
from secure_fl.files import write_atomically

Traces = Mapping[str, Mapping[str, float]]  # of one round: what is noted, for which part of the model


def note(path: Path, number: int, traces: Traces) -> None:
    """Write down a round. A round that is trained again replaces what it wrote before. Raises `StorageError`."""
    rounds = {**read(path), number: traces}
    lines = (json.dumps({"round": at, "traces": rounds[at]}) + "\n" for at in sorted(rounds))
    write_atomically(path, "".join(lines).encode(), mode=0o600)


def read(path: Path) -> dict[int, Traces]:
    """All rounds by number; none where there is no file. What is no trace is left out: notes must not stop a round."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error
    rounds: dict[int, Traces] = {}
    for line in lines:
        try:
            values = json.loads(line)
            traces = values["traces"].items()
            rounds[int(values["round"])] = {
                str(name): {str(part): float(value) for part, value in parts.items()} for name, parts in traces
            }
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return rounds
