"""The shared blocks of a study: made once from its seed, moved on by every committed round, whole on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.depot import Depot
from coordinator.store import Store, StoredModel
from secure_fl import tasks
from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape
from secure_fl.errors import LayoutMismatchError, MalformedMessageError, ProtectionError, StorageError
from secure_fl.metrics import METRICS_BLOCK, SiteMetrics, from_vector, metrics_codec
from secure_fl.protect.base import Opened, OpenedSums
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.aggregate import decode_sums
from secure_fl.strategies.base import SHIPPED_TENSOR, Aggregate, Array, Strategy
from secure_fl.study import Study
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.wire import layout_to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An opened round in floats: what the strategy may see, and what the record says of it."""

    means: Aggregate
    metrics: SiteMetrics
    blocks_kept: tuple[str, ...]


class SharedModel:
    """The current version, and the way to the next one."""

    def __init__(self, study: Study, strategy: Strategy, store: Store, depot: Depot) -> None:
        self._study = study
        self._strategy = strategy
        self._depot = depot
        task = tasks.create(study.task.name, study.task.settings)
        whole, start = initial_blocks(task, study.study.seed)
        request = strategy.request_for(task, whole)
        shipped = strategy.ship(task, study.study.seed)
        self.kind = request.kind
        self.parameters = whole.size  # of the whole model, personal blocks included
        self.layout = Layout((*whole.select(request.blocks), *(_shipped_shape(*item) for item in shipped.items())))
        self._classification = task.kind == "classification"
        current = store.model(study.id)
        if current is None:
            start |= {name: values.reshape(-1) for name, values in shipped.items()}
            current = self._write(0, {name: start[name] for name in self.layout.names})
            store.add_model(study.id, current)
        self.current: StoredModel = current
        self._blocks: Blocks = self._read(current)

    def _read(self, version: StoredModel) -> Blocks:
        """The blocks of a stored version, bit for bit, or `StorageError`."""
        try:
            blocks = self.layout.unflatten(self._depot.object_path(version.object).read_bytes())
        except (OSError, MalformedMessageError, LayoutMismatchError) as error:
            raise StorageError(f"version {version.version} of the model is damaged on disk ({error})") from error
        if self.layout.digest(blocks) != version.digest:
            raise StorageError(f"version {version.version} of the model is damaged on disk")
        return blocks

    def decode(self, opened: Opened, *, training: bool) -> Decoded:
        """Opened integers as means."""
        sums = dict(opened.blocks) if isinstance(opened, OpenedSums) else {}
        metrics = SiteMetrics()
        if (block := sums.pop(METRICS_BLOCK, None)) is not None:
            mean = metrics_codec(self._study.protection.bits).decode(block)
            metrics = from_vector(
                mean,
                ceiling=self._study.metrics.ceiling,
                classification=self._classification,
                has_global_model=self._strategy.has_global_model,
            )
        asked = self.layout.model.names if training and isinstance(opened, OpenedSums) else ()
        return Decoded(
            means=decode_sums(sums, self._study.codec()),
            metrics=metrics,
            blocks_kept=tuple(name for name in asked if name not in sums),
        )

    def step(self, means: Aggregate) -> tuple[StoredModel, Blocks]:
        """Let the strategy make the next version, and write it down. It is the current one once `adopt`ed."""
        blocks = self._strategy.step(self._blocks, means)
        self.layout.check(blocks)
        if not all(np.isfinite(vector).all() for vector in blocks.values()):
            raise ProtectionError("the strategy's step produced NaN or infinity")
        return self._write(self.current.version + 1, blocks), blocks

    def adopt(self, version: StoredModel, blocks: Blocks) -> None:
        """Go on from a version that the store has committed."""
        self.current, self._blocks = version, blocks

    def reference(self) -> pb.ModelRef:
        """What nodes are told to fetch."""
        return pb.ModelRef(
            version=self.current.version,
            digest=self.current.digest,
            blocks=layout_to_wire(self.layout),
            object=pb.ObjectRef(sha256=self.current.object, size=self.layout.size * 4),
        )

    def _write(self, version: int, blocks: Blocks) -> StoredModel:
        digest = self.layout.digest(blocks)
        return StoredModel(version=version, digest=digest, object=self._depot.put_model(version, self.layout, blocks))


def _shipped_shape(name: str, values: Array) -> BlockShape:
    return BlockShape(name=name, tensors=(TensorShape(name=SHIPPED_TENSOR, shape=values.shape),))
