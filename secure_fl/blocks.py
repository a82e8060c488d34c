"""A model as an ordered set of named blocks.

A block is a cell, a layer, a hierarchy, a decoder: the unit that a strategy selects, a cohort forms around and
a protection seals. On this side of torch a block is one flat float32 vector; its `BlockShape` remembers which
tensors it was made of. Everything that leaves a node is a set of blocks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from secure_fl.errors import LayoutMismatchError

Vector: TypeAlias = npt.NDArray[np.float32]
Blocks: TypeAlias = Mapping[str, Vector]

# Weights travel and rest as raw little-endian float32. Nothing executable is ever decoded.
DTYPE = np.dtype("<f4")

# What a reserved block's name begins with. No task can have such a block, since "@" starts no Python attribute.
RESERVED = "@"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorShape:
    """One named tensor inside a block."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """One block: its name and the tensors that are laid end to end in its vector."""

    name: str
    tensors: tuple[TensorShape, ...]

    @property
    def size(self) -> int:
        """Number of parameters in the block."""
        return sum(tensor.size for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Layout:
    """The blocks of a model, in order."""

    shapes: tuple[BlockShape, ...]

    def __post_init__(self) -> None:
        if len({shape.name for shape in self.shapes}) != len(self.shapes):
            raise LayoutMismatchError("two blocks have the same name")

    def __iter__(self) -> Iterator[BlockShape]:
        return iter(self.shapes)

    def __getitem__(self, name: str) -> BlockShape:
        for shape in self.shapes:
            if shape.name == name:
                return shape
        raise LayoutMismatchError(f"the model has no block {name!r}; it has {', '.join(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """Block names in order."""
        return tuple(shape.name for shape in self.shapes)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(shape.size for shape in self.shapes)

    def select(self, names: Iterable[str]) -> Layout:
        """The part of this layout that `names` asks for, in this layout's order."""
        wanted = set(names)
        for name in wanted:
            self[name]
        return Layout(tuple(shape for shape in self.shapes if shape.name in wanted))

    @property
    def model(self) -> Layout:
        """Without the reserved blocks: those of the task's model."""
        return Layout(tuple(shape for shape in self.shapes if not shape.name.startswith(RESERVED)))

    @property
    def reserved(self) -> Layout:
        """The reserved blocks alone."""
        return Layout(tuple(shape for shape in self.shapes if shape.name.startswith(RESERVED)))

    def require(self, other: Layout, *, who: str) -> None:
        """Raise `LayoutMismatchError` naming the first difference between this layout and `other`'s."""
        if self.names != other.names:
            raise LayoutMismatchError(
                f"{who} has blocks {', '.join(other.names) or '(none)'}; expected {', '.join(self.names) or '(none)'}"
            )
        for mine, theirs in zip(self.shapes, other.shapes, strict=True):
            if mine != theirs:
                raise LayoutMismatchError(
                    f"block {mine.name!r} of {who} has shapes {_shapes(theirs)}; expected {_shapes(mine)}"
                )

    def check(self, blocks: Blocks) -> None:
        """Raise unless `blocks` has exactly this layout's names, sizes and dtype."""
        if tuple(blocks) != self.names:
            raise LayoutMismatchError(f"blocks {', '.join(blocks)}; expected {', '.join(self.names)}")
        for shape in self.shapes:
            vector = blocks[shape.name]
            if vector.dtype != DTYPE or vector.shape != (shape.size,):
                raise LayoutMismatchError(
                    f"block {shape.name!r} is {vector.dtype}{list(vector.shape)}; expected float32[{shape.size}]"
                )

    def tensors(self, blocks: Blocks) -> dict[str, Vector]:
        """The blocks cut back into their tensors, `block/tensor` → array (views, no copy)."""
        cut: dict[str, Vector] = {}
        for shape in self.shapes:
            offset = 0
            for tensor in shape.tensors:
                part = blocks[shape.name][offset : offset + tensor.size]
                cut[f"{shape.name}/{tensor.name}"] = part.reshape(tensor.shape)
                offset += tensor.size
        return cut

    def join(self, tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, Vector]:
        """The inverse of `tensors`."""
        joined: dict[str, Vector] = {}
        for shape in self.shapes:
            parts = []
            for tensor in shape.tensors:
                key = f"{shape.name}/{tensor.name}"
                if key not in tensors:
                    raise LayoutMismatchError(f"tensor {key!r} is missing")
                part = tensors[key]
                if part.shape != tensor.shape:
                    raise LayoutMismatchError(f"tensor {key!r} is {part.shape}; expected {tensor.shape}")
                parts.append(np.asarray(part, dtype=DTYPE).reshape(-1))
            joined[shape.name] = np.concatenate(parts) if parts else np.zeros(0, DTYPE)
        return joined

    def pieces(self, blocks: Blocks) -> Iterator[memoryview]:
        """All blocks as raw little-endian bytes, in order and without a copy of the whole: what a model travels as."""
        self.check(blocks)
        for name in self.names:
            yield np.ascontiguousarray(blocks[name]).data.cast("B") if blocks[name].size else memoryview(b"")

    def flatten(self, blocks: Blocks) -> bytes:
        """The same as one run of bytes: a copy."""
        return b"".join(self.pieces(blocks))

    def unflatten(self, raw: bytes | memoryview | npt.NDArray[np.uint8]) -> dict[str, Vector]:
        """The inverse of `flatten` (views into `raw`, no copy)."""
        octets = np.frombuffer(raw, dtype=np.uint8)
        if octets.size != self.size * DTYPE.itemsize:
            raise LayoutMismatchError(f"{octets.size} bytes arrived; the model has {self.size} values of 4 bytes")
        flat = octets.view(DTYPE)
        blocks: dict[str, Vector] = {}
        offset = 0
        for shape in self.shapes:
            blocks[shape.name] = flat[offset : offset + shape.size]
            offset += shape.size
        return blocks

    def digest(self, blocks: Blocks) -> bytes:
        """The identity of one version of a model: of its names, shapes and values."""
        content = hashlib.sha256()
        for piece in self.pieces(blocks):
            content.update(piece)
        return self.digest_of(content.digest())

    def digest_of(self, content: bytes) -> bytes:
        """The same, where the SHA-256 of all `pieces` is known: nobody hashes a model twice."""
        digest = hashlib.sha256(b"secure-fl model v2\x00" + content)
        for shape in self.shapes:
            digest.update(repr((shape.name, [(t.name, t.shape) for t in shape.tensors])).encode())
        return digest.digest()


def zeros(layout: Layout) -> dict[str, Vector]:
    """A zero vector for every block."""
    return {shape.name: np.zeros(shape.size, DTYPE) for shape in layout}


def _shapes(shape: BlockShape) -> str:
    return ", ".join(f"{tensor.name}{list(tensor.shape)}" for tensor in shape.tensors)
