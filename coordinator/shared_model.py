"""The shared blocks of a study: as it was submitted, moved on by every committed round, whole on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coordinator import first_models
from coordinator.bulk_files import BulkFiles
from coordinator.merging import OpenedCircles, measurements
from coordinator.store import Store, StoredModel
from secure_fl.aggregation import Aggregate
from secure_fl.blocks import Blocks
from secure_fl.encoding.integers import BlockSum
from secure_fl.encoding.metrics import METRICS_BLOCK, SiteMetrics, decode_metrics
from secure_fl.encoding.robust import decode_circles
from secure_fl.encoding.steps import require_step
from secure_fl.encoding.update import decode_sums
from secure_fl.encoding.weights import WEIGHT_UNITS, whole_weight
from secure_fl.errors import (
    CohortTooSmallError,
    InitialModelError,
    LayoutMismatchError,
    MalformedMessageError,
    ProtectionError,
    StorageError,
)
from secure_fl.files import sha256_of
from secure_fl.protect.contract import Opened, OpenedSums
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.base import State
from secure_fl.strategies.merging import Arrival, own_part, with_own_part
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.turns import Turn
from secure_fl.transport.wire import layout_to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An opened round in floats: what the strategy may see, and what the record says of it."""

    means: Aggregate
    metrics: SiteMetrics
    blocks_kept: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTurn:
    """A circle's turn whose sum is open: it is merged into a model that may have moved on since the turn began."""

    turn: Turn
    opened: Opened
    share: float  # of the study's sites that are in the circle
    asked: tuple[str, ...] = ()  # the blocks that they sent; none: all of them


class SharedModel:
    """The versions, and the way to the next one. Values rest on disk and are mapped when they are needed."""

    def __init__(self, resolved: ResolvedStudy, store: Store, files: BulkFiles) -> None:
        self._resolved = resolved
        self._store = store
        self._files = files
        if (first := first_models.load(files)) is None:
            raise StorageError("what the study's model looks like is not on this disk", advice="submit the study again")
        self.parameters = first.parameters  # of the whole model, personal blocks included
        self.layout = first.layout
        self._classification = first.kind == "classification"
        current = store.model(resolved.id)
        if current is None:
            current = self._write(0, files.model(self.layout, first.sha256), State())
            if current.digest.hex() != resolved.study.study.initial:
                raise InitialModelError("the study's first model is not the one that it names")
            store.add_model(resolved.id, current)
        else:
            self._require_whole(current)
        self.current: StoredModel = current
        self.first = self.version(0).object  # It is kept for sites that come late.

    def version(self, number: int) -> StoredModel:
        """A version that is kept; `StorageError` for one that is not."""
        if number == self.current.version:
            return self.current
        if (found := self._store.model(self._resolved.id, version=number)) is None:
            raise StorageError(f"version {number} of the model is not in the store")
        return found

    def decode(self, opened: Opened, *, training: bool, whole: float | None = None) -> Decoded:
        """Opened integers as means. The integers go as they are decoded: both at once would be a model too many.

        `whole` is what all its sites weigh, where measurements have been taken out of it.
        """
        if whole is None:
            whole = _whole(opened)
        sums = opened.taken() if isinstance(opened, OpenedSums) else {}
        study = self._resolved.study
        metrics = SiteMetrics()
        if (block := sums.pop(METRICS_BLOCK, None)) is not None:
            metrics = decode_metrics(
                block,
                ceiling=study.metrics.ceiling,
                sizes=study.metrics.sizes,
                bits=study.protection.bits,
                classification=self._classification,
                has_global_model=self._resolved.strategy.has_global_model,
            )
        means = self._means(opened, sums, whole) if training else decode_sums(sums, self._resolved.codec)
        asked = self.layout.model.names if training and isinstance(opened, OpenedSums) else ()
        kept = tuple(name for name in asked if name not in means)
        return Decoded(means=means, metrics=metrics, blocks_kept=kept)

    def _means(self, opened: Opened, sums: dict[str, BlockSum], whole: float) -> Aggregate:
        settings, codec = self._resolved.study.protection, self._resolved.codec
        if isinstance(opened, OpenedCircles) and settings.robust != "none":
            return decode_circles(opened.circles, codec, kind=settings.robust, colluders=settings.colluders)
        return decode_sums(sums, codec, whole=whole if self._resolved.strategy.counts_unsent else None)

    def step(self, means: Aggregate) -> StoredModel:
        """Let the strategy make the next version, and write it down. It is the current one once `adopt`ed."""
        current = self.current
        return self._stepped(means, State(values=current.state, vectors=self._files.state(current.version)))

    def _stepped(self, means: Aggregate, remembered: State) -> StoredModel:
        current = self.current
        before = self._files.model(self.layout, current.object)
        blocks, own = self._resolved.strategy.step(before, means, own_part(remembered))
        state = with_own_part(remembered, own)
        self.layout.check(blocks)
        if not all(np.isfinite(vector).all() for vector in (*blocks.values(), *state.vectors.values())):
            raise ProtectionError("the strategy's step produced NaN or infinity")
        # Sites check the same: a model that they would refuse is not published, and the round is tried again.
        require_step(before, blocks, self.layout, largest=self._resolved.largest_step)
        return self._write(current.version + 1, blocks, state)

    def unchanged(self) -> StoredModel:
        """The next version of a round that came to nothing: the same values under the next number. Blocks."""
        current = self.current
        state = State(values=current.state, vectors=self._files.state(current.version))
        return self._write(current.version + 1, self._files.model(self.layout, current.object), state)

    def asked(self, turn: int) -> tuple[str, ...]:
        """Which blocks a circle sends in its next turn, of which it has taken so many; none: all of them. Blocks."""
        current, shapes = self.current, self.layout.model
        remembered = State(values=current.state, vectors=self._files.state(current.version))
        sizes = {shape.name: shape.size for shape in shapes}
        asked = self._resolved.strategy.asked(shapes.names, sizes, own_part(remembered), turn)
        return () if asked is None or set(asked) >= set(shapes.names) else shapes.select(asked).names

    def merge(self, turns: Sequence[OpenedTurn]) -> tuple[Decoded, StoredModel]:
        """The next version of several circles' turns, and what the record says of them. Blocks."""
        current, arrivals = self.current, []
        asked, sent = set[str](), set[str]()
        # Of all sites together, each on the model that its circle began from.
        wholes = [_whole(each.opened) for each in turns]
        metrics = self.decode(measurements(each.opened for each in turns), training=False).metrics
        for opened, whole in zip(turns, wholes, strict=True):
            decoded = self.decode(opened.opened, training=True, whole=whole)
            asked.update(opened.asked or self.layout.model.names)
            sent.update(decoded.means)
            turn = opened.turn
            arrivals.append(
                Arrival(
                    circle=turn.circle,
                    base=turn.base,
                    staleness=current.version - turn.base,
                    share=opened.share,
                    weight=whole / (WEIGHT_UNITS * len(opened.opened.cohort)),
                    change=decoded.means,
                )
            )
        remembered = State(values=current.state, vectors=self._files.state(current.version))
        before = self._files.model(self.layout, current.object)
        merging = self._resolved.strategy.merging(
            self._resolved.study.rounds.merging, largest=self._resolved.largest_mean
        )
        means, state = merging.merged(before, arrivals, self._base, remembered)
        if asked and not means:  # Where sites share nothing, as with `local`, there is nothing to miss.
            raise CohortTooSmallError(
                have=len(turns), need=self._resolved.study.min_cohort(self._resolved.request), what="every block"
            )
        return Decoded(means=means, metrics=metrics, blocks_kept=tuple(sorted(asked - sent))), self._stepped(
            means, state
        )

    def _base(self, version: int) -> Blocks:
        return self._files.model(self.layout, self.version(version).object)

    def adopt(self, version: StoredModel) -> None:
        """Go on from a version that the store has committed."""
        self.current = version

    def reference(self, version: StoredModel) -> pb.ModelRef:
        """What nodes are told to fetch: this version and, if they have no model of the study yet, the first one."""
        size = self.layout.size * 4
        return pb.ModelRef(
            version=version.version,
            digest=version.digest,
            blocks=layout_to_wire(self.layout),
            object=pb.ObjectRef(sha256=version.object, size=size),
            first=pb.ObjectRef(sha256=self.first, size=size),
        )

    def _write(self, version: int, blocks: Blocks, state: State) -> StoredModel:
        content = self._files.put_model(version, self.layout, blocks)
        self._files.put_state(version, state.vectors)
        digest = self.layout.digest_of(content)
        return StoredModel(version=version, digest=digest, object=content, state=dict(state.values))

    def _require_whole(self, version: StoredModel) -> None:
        """Raise `StorageError` unless a stored version is on disk as it was written, bit for bit."""
        damaged = f"version {version.version} of the model is damaged on disk"
        try:
            path = self._files.object_path(version.object)
            if sha256_of(path) != version.object or self.layout.digest_of(version.object) != version.digest:
                raise StorageError(damaged)
            self._files.model(self.layout, version.object)
        except (OSError, MalformedMessageError, LayoutMismatchError) as error:
            raise StorageError(f"{damaged} ({error})") from error


def _whole(opened: Opened) -> float:
    return whole_weight(opened.blocks if isinstance(opened, OpenedSums) else {}, sites=len(opened.cohort))
