"""What the round asks of training and what it gets back: plain values and paths, no torch, no pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.encoding.metrics import SiteMetrics
from secure_fl.rounds import RoundKind

FEATURES = "features"  # the one entry of the file that `features_to` names


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What to train or evaluate: plain values and paths, so that it crosses a pipe as JSON and never as pickle."""

    kind: RoundKind
    study: str  # path of the approved study
    round: int
    attempt: int
    me: str
    seed: int  # of this attempt
    dataset: dict[str, Any]
    folder: str  # to which the data set's path is relative
    device: str
    threads: int
    layout: list[Any]  # of the received blocks
    received: str
    personal: str
    combination: str
    state: str
    update_to: str
    features_to: str
    personal_to: str
    state_to: str
    model_to: str
    traces_to: str = ""
    version: int | None = None  # of the model that was received, where that is not round − 1
    asked: tuple[str, ...] = ()  # the blocks that everybody in the circle sends; none: all of them
    budget: int | None = None  # parameters that may leave in a round
    privacy: dict[str, Any] | None = None  # the mechanism that training runs under
    privacy_seed: str = ""  # hexadecimal, in simulations alone: noise that somebody can repeat protects nobody
    reserved_steps: int = 0  # under noise; there are no more
    split_key: str = ""  # hexadecimal, a secret of the site: which rows are trained on
    salt: str = ""  # hexadecimal, of the fingerprint that the ledger has of the data
    code: str = ""  # digest of the task's code that was agreed to; empty: any
    task_file: str = ""  # that has the task; empty: it is in a package
    task_sha256: str = ""  # of that file, as it was agreed to; empty: any
    package_sha256: str = ""  # of the task's package, as it was agreed to; empty: any
    rehearsal: bool = False  # nothing is received yet: only try whether it could be done

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str | bytes) -> Self:
        """The inverse."""
        values = json.loads(line)
        return cls(**{**values, "kind": RoundKind(values["kind"]), "asked": tuple(values.get("asked", ()))})


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What came of a job; the update itself lies in the file the job named."""

    samples: int
    metrics: SiteMetrics
    richness: float = 1.0  # by how much the samples count in the site's weight; never leaves
    # Of a rehearsal: what the ledger says of data and code. Words and digests.
    found: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """From decoded JSON."""
        return cls(
            samples=values["samples"],
            metrics=SiteMetrics(**values["metrics"]),
            richness=values.get("richness", 1.0),
            found=values.get("found", {}),
        )


def layout_to_json(layout: Layout) -> list[Any]:
    """A layout as nested lists."""
    return [[shape.name, [[tensor.name, list(tensor.shape)] for tensor in shape.tensors]] for shape in layout]


def layout_from_json(values: list[Any]) -> Layout:
    """The inverse."""
    return Layout(
        tuple(
            BlockShape(name=name, tensors=tuple(TensorShape(name=n, shape=tuple(s)) for n, s in tensors))
            for name, tensors in values
        )
    )
