"""What a coordinator is told of the model that a study starts from. With it, it needs no code of the study's task."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias, cast

from secure_fl.blocks import DTYPE, BlockShape, Layout, TensorShape
from secure_fl.errors import InitialModelError, LayoutMismatchError

TaskKind: TypeAlias = Literal["classification", "regression"]

_KINDS = ("classification", "regression")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstModel:
    """Which blocks there are, a digest of their values, and two facts about the task."""

    layout: Layout  # of what is shared, and of what the strategy ships beside it
    sha256: bytes  # of the raw bytes
    parameters: int  # of the task's whole model, personal blocks included
    kind: TaskKind

    def __post_init__(self) -> None:
        """Raise `LayoutMismatchError` for facts that contradict each other."""
        if self.kind not in _KINDS:
            raise LayoutMismatchError("a task is for classification or for regression")
        if self.parameters < self.layout.model.size:
            raise LayoutMismatchError("the whole model has fewer parameters than are shared of it")
        for block in self.layout:
            if len({tensor.name for tensor in block.tensors}) != len(block.tensors):
                raise LayoutMismatchError(f"two tensors of block {block.name!r} have the same name")

    @property
    def size(self) -> int:
        """How many bytes the values take."""
        return self.layout.size * DTYPE.itemsize

    @property
    def digest(self) -> str:
        """What `study.initial` has to be."""
        return self.layout.digest_of(self.sha256).hex()

    def require(self, *, initial: str, shipped: Collection[str]) -> None:
        """Raise unless this is the model that a study names, with the blocks that its strategy ships."""
        if not initial:
            raise InitialModelError(
                "the study does not say which model it starts from",
                advice="submit it with `secure-fl study submit`, or write it out with `secure-fl study check --write`",
            )
        if self.digest != initial:
            raise InitialModelError("the model that came with the study is not the one that study.initial names")
        if self.layout.reserved.names != tuple(shipped):
            raise LayoutMismatchError(
                "the study's first model has other blocks beside the task's than its strategy ships",
                advice="use the same release of secure-fl at the study lead and the coordinator",
            )

    def to_json(self) -> bytes:
        """For a file."""
        blocks = [[block.name, [[tensor.name, tensor.shape] for tensor in block.tensors]] for block in self.layout]
        facts = {"blocks": blocks, "sha256": self.sha256.hex(), "parameters": self.parameters, "kind": self.kind}
        return json.dumps(facts).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """The inverse. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        facts = json.loads(content)
        shapes = tuple(
            BlockShape(
                name=name, tensors=tuple(TensorShape(name=inner, shape=tuple(shape)) for inner, shape in tensors)
            )
            for name, tensors in facts["blocks"]
        )
        return cls(
            layout=Layout(shapes),
            sha256=bytes.fromhex(facts["sha256"]),
            parameters=int(facts["parameters"]),
            kind=cast("TaskKind", facts["kind"]),
        )
