"""The models a node trains from: the study's initial one, and then one step after the other.

The first model has the digest that is in the study's hash. Each later one is at most one step of the strategy from the
last one that this node verified, which it keeps in a file. A node that was away is given the models in between and
checks every step, so that rounds it missed are no excuse for a jump; nor are there more steps than rounds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
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
    """The last model that passed: how many steps from the first, its digest, and that of its bytes alone."""

    version: int
    digest: bytes
    sha256: bytes


class VerifiedModels:
    """One study's models at this node. Every method may read or write files as large as the model."""

    def __init__(self, resolved: ResolvedStudy, folder: Path, layout: Layout) -> None:
        self._largest = resolved.largest_step
        self._initial = resolved.study.study.initial
        self._rounds = resolved.study.rounds
        self._turns = resolved.study.study.rounds
        self._folder = folder
        self._layout = layout
        self._last = self._load()

    @property
    def version(self) -> int:
        """How many steps the last verified model is from the first one."""
        return 0 if self._last is None else self._last.version

    def route(self, model: pb.ModelRef, *, number: int) -> Sequence[pb.ObjectRef]:
        """What to fetch for round `number`, in this order; the announced model comes last.

        Raises `RefusedError` where the way does not begin where this node is, `ProtectionError` for another layout.
        """
        targets = [*model.earlier, model.object]
        if any(target.size != 4 * self._layout.size for target in targets):
            raise ProtectionError("the model's size does not fit its blocks")
        if self._layout.digest_of(model.object.sha256) != model.digest:
            raise ProtectionError("the model's digest does not match its blocks")
        here = self._last
        if here is None:
            if self._layout.digest_of(targets[0].sha256).hex() != self._initial:
                raise RefusedError(
                    "the coordinator's first model is not the study's initial one",
                    advice="if this node lost its state, or was away for longer than the coordinator keeps models, it "
                    "cannot come back to this study",
                )
            passed, since, rest = targets[0].sha256, 0, targets[1:]
        else:
            if self._layout.digest_of(here.sha256) != here.digest:
                raise ProtectionError("the model has other blocks than before")
            known = [index for index, target in enumerate(targets) if target.sha256 == here.sha256]
            passed, since, rest = here.sha256, here.version, targets[known[-1] + 1 if known else 0 :]
        steps = [
            target for target, before in zip(rest, (passed, *(t.sha256 for t in rest)), strict=False)
            if target.sha256 != before
        ]  # fmt: skip
        if since + len(steps) > self._most_steps(number):
            raise RefusedError("the model is more steps away than there were rounds")
        route = [*(targets[:1] if here is None else ()), *steps]
        return route if route and route[-1] == model.object else [*route, model.object]

    def accept(self, path: Path, target: pb.ObjectRef) -> Path:
        """Verify a model that was fetched into the file `path`; returns where it is kept from now on.

        Raises `StepTooLargeError`, and then nothing has changed.
        """
        here = self._last
        if here is not None:
            if target.sha256 == here.sha256:
                return path
            # Where that file is gone this raises: beginning anew would be one more start for the coordinator to use.
            require_step(self._mapped(self._file(here)), self._mapped(path), self._layout, largest=self._largest)
        version = 0 if here is None else here.version + 1
        reached = _Verified(version, self._layout.digest_of(target.sha256), target.sha256)
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

    def arrived(self, number: int) -> None:
        """Note that round `number` begins from the last model: steps that were not taken until now are forfeited."""
        # Where circles do not wait for each other, other circles' steps are no round of this site's.
        if self._last is not None and self._last.version != number - 1 and not self._rounds.is_buffered:
            self._note(replace(self._last, version=number - 1))

    def _most_steps(self, number: int) -> int:
        """How many steps the model of round `number` can be from the first one."""
        if self._rounds.is_buffered:
            return self._rounds.pace(self._turns).flushes - (0 if number > self._turns else 1)
        return number - 1

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
