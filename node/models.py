"""The models a node trains from: the study's initial one, and later ones that rounds can have made of it.

The first model has the digest that is in the study's hash. Each later one is at most as many steps of the strategy from
the last one that this node verified, which it keeps in a file, as there were rounds since.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from node.store import read_json
from secure_fl.blocks import Blocks, Layout
from secure_fl.encoding.steps import require_step
from secure_fl.errors import ProtectionError, RefusedError, StorageError
from secure_fl.files import publish, write_atomically
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.study.resolved import ResolvedStudy

log = logging.getLogger(__name__)

_Kept = TypeAdapter(tuple[int, str, str])


@dataclass(frozen=True, slots=True)
class _Verified:
    """The last model that passed: how many steps from the first it may be, its digest, and that of its bytes alone."""

    version: int
    digest: bytes
    sha256: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A model to fetch and verify, and how many steps from the first one it may be."""

    object: pb.ObjectRef
    version: int


class VerifiedModels:
    """One study's models at this node. Every method may read or write files as large as the model."""

    def __init__(self, resolved: ResolvedStudy, folder: Path, layout: Layout) -> None:
        self._largest = resolved.largest_step
        self._initial = resolved.study.study.initial
        self._rounds = resolved.study.rounds
        self._declares = resolved.division.declares
        self._turns = resolved.study.study.rounds
        self._folder = folder
        self._layout = layout
        self._last = self._load()

    def route(self, model: pb.ModelRef, *, number: int) -> Sequence[Target]:
        """What to fetch for round `number`: where this node has no model yet the study's first one, then this one.

        Raises `RefusedError` where the first model is not the study's own, or where this one claims more steps than
        there can have been, `ProtectionError` for another layout.
        """
        if any(target.size != 4 * self._layout.size for target in (model.object, model.first) if target.sha256):
            raise ProtectionError("the model's size does not fit its blocks")
        if self._layout.digest_of(model.object.sha256) != model.digest:
            raise ProtectionError("the model's digest does not match its blocks")
        target = Target(object=model.object, version=self._version(model, number))
        here = self._last
        if here is not None:
            if self._layout.digest_of(here.sha256) != here.digest:
                raise ProtectionError("the model has other blocks than before")
            if target.version < here.version:
                raise RefusedError("the model is an older one than this node has trained from")
            return [target]
        first = model.first if model.first.sha256 else model.object
        if self._layout.digest_of(first.sha256).hex() != self._initial:
            raise RefusedError(
                "the coordinator's first model is not the study's initial one",
                advice="if this node lost its state, it cannot come back to this study",
            )
        return [target] if first == model.object else [Target(object=first, version=0), target]

    def accept(self, path: Path, target: Target) -> Path:
        """Verify a model that was fetched into the file `path`; returns where it is kept from now on.

        Raises `StepTooLargeError`, and then nothing has changed. Steps that were not taken until now are forfeited.
        """
        here = self._last
        reached = _Verified(target.version, self._layout.digest_of(target.object.sha256), target.object.sha256)
        if here is not None:
            if reached.sha256 == here.sha256:
                self._note(reached)
                return path
            # Where that file is gone this raises: beginning anew would be one more start for the coordinator to use.
            before, after, steps = self._mapped(self._file(here)), self._mapped(path), target.version - here.version
            require_step(before, after, self._layout, largest=self._largest, steps=steps)
        kept = self._file(reached)
        try:
            publish(path, kept)
            self._note(reached)
            for old in self._folder.glob("verified-*.bin"):
                if old != kept:
                    old.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{kept}: cannot be stored ({error.strerror})") from error
        return kept

    def _version(self, model: pb.ModelRef, number: int) -> int:
        """How many steps a round's model may be from the first one."""
        # In synchronous rounds a round is a step. Where circles do not wait for each other, others' steps are no rounds
        # of this site's: the coordinator says how many there were, and can say no more than the study has.
        if not self._rounds.is_buffered:
            return number - 1
        if self._declares and number <= 1 and model.version:
            raise RefusedError(
                "this site's first training is from the study's first model, and a later one was announced"
            )
        if model.version > self._most_steps(number):
            raise RefusedError("the model is more steps away than the study has")
        return model.version

    def _most_steps(self, number: int) -> int:
        """Of a buffered study: how many flushes there can have been before a site's turn `number`."""
        return self._rounds.pace(self._turns).flushes - (0 if number > self._turns else 1)

    def _load(self) -> _Verified | None:
        kept = read_json(self._folder / "verified.json", _Kept)
        if kept is None:
            return None
        return _Verified(kept[0], bytes.fromhex(kept[1]), bytes.fromhex(kept[2]))

    def _note(self, verified: _Verified) -> None:
        fields = (verified.version, verified.digest.hex(), verified.sha256.hex())
        write_atomically(self._folder / "verified.json", json.dumps(fields).encode(), mode=0o600)
        self._last = verified

    def _file(self, verified: _Verified) -> Path:
        return self._folder / f"verified-{verified.sha256.hex()[:16]}.bin"

    def _mapped(self, path: Path) -> Blocks:
        try:
            return self._layout.unflatten(np.memmap(path, np.uint8, mode="r") if self._layout.size else b"")
        except (OSError, ValueError) as error:
            raise StorageError(f"{path}: cannot be read ({type(error).__name__})") from error
