"""The shared blocks of a study: made once from its seed, moved on by every committed round, whole on disk."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.bulk_files import BulkFiles
from coordinator.store import Store, StoredModel
from secure_fl import tasks
from secure_fl.aggregation import Aggregate
from secure_fl.blocks import Blocks, BlockShape, Layout, TensorShape
from secure_fl.encoding.metrics import METRICS_BLOCK, SiteMetrics, from_vector, metrics_codec
from secure_fl.encoding.update import decode_sums
from secure_fl.errors import LayoutMismatchError, MalformedMessageError, ProtectionError, StorageError
from secure_fl.files import sha256_of
from secure_fl.protect.contract import Opened, OpenedSums
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.strategies.base import SHIPPED_TENSOR, Array, State
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.tasks.model_blocks import initial_blocks
from secure_fl.transport.wire import layout_to_wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An opened round in floats: what the strategy may see, and what the record says of it."""

    means: Aggregate
    metrics: SiteMetrics
    blocks_kept: tuple[str, ...]


class SharedModel:
    """The versions, and the way to the next one. Values rest on disk and are mapped when they are needed."""

    def __init__(self, resolved: ResolvedStudy, store: Store, files: BulkFiles) -> None:
        self._resolved = resolved
        self._store = store
        self._files = files
        study = resolved.study
        task = tasks.create(study.task.name, study.task.settings)
        whole, start = initial_blocks(task, study.study.seed)
        request = resolved.strategy.request_for(task, whole)
        shipped = resolved.strategy.ship(task, study.study.seed)
        self.parameters = whole.size  # of the whole model, personal blocks included
        self.layout = Layout((*whole.select(request.blocks), *(_shipped_shape(*item) for item in shipped.items())))
        self._classification = task.kind == "classification"
        current = store.model(resolved.id)
        if current is None:
            start |= {name: values.reshape(-1) for name, values in shipped.items()}
            current = self._write(0, {name: start[name] for name in self.layout.names}, State())
            store.add_model(resolved.id, current)
        else:
            self._require_whole(current)
        self.current: StoredModel = current

    def version(self, number: int) -> StoredModel:
        """A version that is kept; `StorageError` for one that is not."""
        if number == self.current.version:
            return self.current
        if (found := self._store.model(self._resolved.id, version=number)) is None:
            raise StorageError(f"version {number} of the model is not in the store")
        return found

    def decode(self, opened: Opened, *, training: bool) -> Decoded:
        """Opened integers as means. The integers go as they are decoded: both at once would be a model too many."""
        sums = opened.taken() if isinstance(opened, OpenedSums) else {}
        study = self._resolved.study
        metrics = SiteMetrics()
        if (block := sums.pop(METRICS_BLOCK, None)) is not None:
            metrics = from_vector(
                metrics_codec(study.protection.bits).decode(block),
                ceiling=study.metrics.ceiling,
                classification=self._classification,
                has_global_model=self._resolved.strategy.has_global_model,
            )
        asked = self.layout.model.names if training and isinstance(opened, OpenedSums) else ()
        kept = tuple(name for name in asked if name not in sums)
        return Decoded(means=decode_sums(sums, self._resolved.codec), metrics=metrics, blocks_kept=kept)

    def step(self, means: Aggregate) -> StoredModel:
        """Let the strategy make the next version, and write it down. It is the current one once `adopt`ed."""
        current = self.current
        remembered = State(values=current.state, vectors=self._files.state(current.version))
        blocks, state = self._resolved.strategy.step(self._files.model(self.layout, current.object), means, remembered)
        self.layout.check(blocks)
        if not all(np.isfinite(vector).all() for vector in (*blocks.values(), *state.vectors.values())):
            raise ProtectionError("the strategy's step produced NaN or infinity")
        return self._write(current.version + 1, blocks, state)

    def adopt(self, version: StoredModel) -> None:
        """Go on from a version that the store has committed."""
        self.current = version

    def reference(self, version: StoredModel) -> pb.ModelRef:
        """What nodes are told to fetch."""
        return pb.ModelRef(
            version=version.version,
            digest=version.digest,
            blocks=layout_to_wire(self.layout),
            object=pb.ObjectRef(sha256=version.object, size=self.layout.size * 4),
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


def _shipped_shape(name: str, values: Array) -> BlockShape:
    return BlockShape(name=name, tensors=(TensorShape(name=SHIPPED_TENSOR, shape=values.shape),))
