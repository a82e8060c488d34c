"""What a rehearsal found, and how it is told to whoever decides at the site."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from secure_fl.errors import SecureFLError
from secure_fl.operations.doctor import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingBlock:
    """One block of the update that was trained: what it is called and how large it is, not what is in it."""

    name: str
    tensors: dict[str, list[int]]
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """What a round would send."""

    protection: str
    blocks: tuple[LeavingBlock, ...]
    stay: tuple[str, ...]  # blocks of the model that do not leave
    bits: int  # of each value
    upload_bytes: int  # the most that the protected update takes
    phases: tuple[str, ...]  # of a round: what is said in each besides the update is keys, commitments and signatures
    metrics_share: str
    metrics: dict[str, float | int]  # as measured here; they leave only as `metrics_share` says
    sums: dict[str, list[int]]  # behind the metrics that the task declares; they leave in the same way


@dataclass(slots=True, kw_only=True)
class Rehearsal:
    """What came of it."""

    study: str
    id: str = ""
    steps: list[Finding] = field(default_factory=list)
    leaves: Leaving | None = None
    model: str = "the study's first model"  # what was played with, in words
    learned: tuple[str, ...] = ()  # by others, in sentences
    cost: tuple[str, ...] = ()
    seconds: float | None = None  # of training, in a round
    rounds: int = 0
    exit_code: int = 0

    @contextmanager
    def step(self, name: str) -> Iterator[Callable[[str], None]]:
        """One thing that may fail: what it raises is kept, with the exit code of the first failure."""
        said: list[str] = []
        try:
            yield said.append
            self.steps.append(Finding(name, "ok", "; ".join(said)))
        except SecureFLError as error:
            self.steps.append(self._failure(name, error))
            self.exit_code = self.exit_code or error.exit_code

    def _failure(self, name: str, error: SecureFLError) -> Finding:
        """What failed and what to do, unless an earlier step has said the very same."""
        for step in self.steps:
            if (step.state, step.message) == ("failed", error.message):
                return Finding(name, "failed", f"for the same reason as {step.check}")
        return Finding(name, "failed", error.message, error.hint)

    @property
    def failed(self) -> bool:
        """Whether something does not work."""
        return self.exit_code != 0


# --- in words -------------------------------------------------------------------------------------------------

_SHOWN = 8  # sums of one metric
_MARKS = {"ok": "ok     ", "warning": "to do  ", "failed": "FAILED "}
_METRICS = {
    "none": "no measurement leaves",
    "aggregate": "inside a protected sum over several sites: {values}",
    "per-node": "in the clear, to the coordinator: {values}",
}


def tell(found: Rehearsal, file: Path, study: Path) -> None:
    """For people."""
    write = sys.stdout.write
    write(f"rehearsal of {found.study} {found.id}\n")
    for step in found.steps:
        write(f"{_MARKS[step.state]}  {step.check}{f': {step.message}' if step.message else ''}\n")
        write(f"         → {step.fix}\n" if step.fix else "")
    if found.leaves is not None:
        write("\nWhat would leave this site in a round\n")
        for line in _leaving_lines(found.leaves, found.model):
            write(f"  {line}\n")
    if found.learned:
        write("\nWhat others learn\n" + "".join(f"  {sentence}\n" for sentence in found.learned))
    if found.cost:
        write("\nWhat it costs\n" + "".join(f"  {line}\n" for line in found.cost))
    if found.seconds is not None:
        total = found.rounds * found.seconds
        write(
            f"\nTraining takes about {_time(found.seconds)} a round on this machine, {_time(total)} for all "
            f"{found.rounds} rounds.\n"
        )
    write("\nNothing was sent, charged or kept.\n")
    if found.failed:
        write("This site cannot take part yet: see FAILED above.\n")
    elif any(step.check == "approval" and step.state == "warning" for step in found.steps):
        write(f"If the site agrees: secure-fl node approve {file} {study}\n")


def _leaving_lines(leaves: Leaving, model: str) -> Iterator[str]:
    width = max((len(block.name) for block in leaves.blocks), default=0)
    for block in leaves.blocks:
        shapes = ", ".join(f"{name} {'×'.join(map(str, shape)) or '1'}" for name, shape in block.tensors.items())
        yield f"{block.name:<{width}}  {block.parameters:>10,} values  ({shapes})"
    values = sum(block.parameters for block in leaves.blocks)
    yield (
        f"in all {values:,} values of {leaves.bits} bits; under the protection {leaves.protection!r} the update takes "
        f"at most {leaves.upload_bytes:,} bytes"
    )
    phases = ", ".join(leaves.phases)
    yield f"besides, in the phases {phases}: keys, commitments and signatures, and how long this site's ledger is"
    if leaves.stay:
        yield f"blocks that stay here: {', '.join(leaves.stay)}"
    values_text = ", ".join(f"{name} {value:.4g}" for name, value in leaves.metrics.items())
    yield f"measurements, here of {model}: {_METRICS[leaves.metrics_share].format(values=values_text)}"
    for name, own in leaves.sums.items():
        shown = ", ".join([*map(str, own[:_SHOWN]), *["…"] * (len(own) > _SHOWN)])
        yield f"  for {name}: {len(own)} whole numbers, {shown}"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds:.1g} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
