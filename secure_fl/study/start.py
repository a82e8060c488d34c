"""The model a study starts from: the shared blocks that its seed makes, and what the strategy ships beside them.

Its digest is part of the study's hash. A site trains its first round from this model and from no other, whoever sends
it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import torch

from secure_fl.blocks import BlockShape, Layout, TensorShape, Vector
from secure_fl.strategies.base import SHIPPED_TENSOR, Array, Strategy
from secure_fl.study.first_model import FirstModel, TaskKind
from secure_fl.tasks.base import Task
from secure_fl.tasks.model_blocks import initial_blocks

_REMEMBERED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Version 0 of a study's shared model."""

    whole: Layout  # of the task's whole model, personal blocks included
    layout: Layout  # of what is shared and what is shipped
    blocks: dict[str, Vector]
    kind: TaskKind  # of the task

    def first_model(self) -> FirstModel:
        """The same without its values, for a coordinator."""
        content = hashlib.sha256()
        for piece in self.layout.pieces(self.blocks):
            content.update(piece)
        return FirstModel(layout=self.layout, sha256=content.digest(), parameters=self.whole.size, kind=self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The same without its values."""

    whole: Layout
    digest: bytes


_Key: TypeAlias = tuple[type[Task], str, type[Strategy], str, int]
_outlines: dict[_Key, Outline] = {}


def start_of(task: Task, strategy: Strategy, seed: int) -> Start:
    """Make the model. Raises `SettingsError` where the strategy cannot use the task's model."""
    whole, values = initial_blocks(task, seed)
    request = strategy.request_for(task, whole)
    with _one_thread():
        shipped = strategy.ship(task, seed)
    layout = Layout((*whole.select(request.blocks), *(_shipped_shape(*item) for item in shipped.items())))
    values |= {name: array.reshape(-1) for name, array in shipped.items()}
    blocks = {name: values[name] for name in layout.names}
    return Start(whole=whole, layout=layout, blocks=blocks, kind=task.kind)


def outline_of(task: Task, strategy: Strategy, seed: int) -> Outline:
    """The digest of that model. One that this process has made already is not made again."""
    settings = (json.dumps(of.settings.model_dump(mode="json"), sort_keys=True) for of in (task, strategy))
    key = (type(task), next(settings), type(strategy), next(settings), seed)
    if key not in _outlines:
        start = start_of(task, strategy, seed)
        while len(_outlines) >= _REMEMBERED:
            _outlines.pop(next(iter(_outlines)), None)
        _outlines[key] = Outline(whole=start.whole, digest=start.layout.digest(start.blocks))
    return _outlines[key]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums that several threads share come out differently on machines with other numbers of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _shipped_shape(name: str, values: Array) -> BlockShape:
    return BlockShape(name=name, tensors=(TensorShape(name=SHIPPED_TENSOR, shape=values.shape),))
