"""Messages and the values they carry: bounds checked on receipt, conversions, digests.

Both ends use this module, so a message one side would refuse is never built by the other.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path

from secure_fl import limits
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import VersionMismatchError
from secure_fl.identity.signing import SigningKey, verify
from secure_fl.messages import require
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.threads import in_thread_whole

_STUDY_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9@][A-Za-z0-9@._-]*")
_CODE = re.compile(r"[A-Za-z]*")
_UPLOAD_DOMAIN = "upload"


def is_name(text: str) -> bool:
    """Whether `text` can be a block, phase or node name: short, plain, no path in it."""
    return 0 < len(text) <= limits.NAME_CHARS and _NAME.fullmatch(text) is not None and ".." not in text


# --- session --------------------------------------------------------------------------------------------------


def negotiate(theirs: pb.VersionRange) -> int:
    """The highest protocol version both sides speak."""
    version = min(theirs.highest, limits.PROTOCOL_HIGHEST)
    if version < max(theirs.lowest, limits.PROTOCOL_LOWEST):
        raise VersionMismatchError(
            f"the other side speaks protocol {theirs.lowest}–{theirs.highest}, "
            f"this one {limits.PROTOCOL_LOWEST}–{limits.PROTOCOL_HIGHEST}"
        )
    return version


def our_versions() -> pb.VersionRange:
    """The range this build speaks."""
    return pb.VersionRange(lowest=limits.PROTOCOL_LOWEST, highest=limits.PROTOCOL_HIGHEST)


def check_study_id(study_id: str) -> None:
    """Raise unless this is a study id: it becomes a folder name on both sides."""
    require(_STUDY_ID.fullmatch(study_id) is not None, "a study id is 64 hexadecimal digits")


def check_node_message(message: pb.NodeMessage) -> None:
    """Every bound on what a node says in its session."""
    body = message.WhichOneof("body")
    require(body is not None, "an empty message")
    if body in ("study_answer", "sit_out"):
        check_study_id(message.study_id)
    _check_code(message.study_answer.refusal)
    _check_code(message.sit_out.reason)
    require(len(message.hello.software) <= limits.NAME_CHARS, "a software name is too long")


def check_coordinator_message(message: pb.CoordinatorMessage) -> None:
    """Every bound on what the coordinator says in a session."""
    body = message.WhichOneof("body")
    require(body is not None, "an empty message")
    if body not in ("welcome", "heartbeat"):
        check_study_id(message.study_id)
    require(len(message.welcome.software) <= limits.NAME_CHARS, "a software name is too long")
    require(len(message.study_offer.settings) <= limits.SETTINGS_BYTES, "a study is too long")
    if body == "announcement":
        _check_announcement(message.announcement)
    _check_code(message.round_closed.reason)
    _check_code(message.study_closed.reason)


def _check_announcement(message: pb.PhaseAnnouncement) -> None:
    require(is_name(message.phase), "a phase has no proper name")
    # Enums of proto3 are open: a number without a name arrives as it was sent.
    require(message.kind in _ROUND_KINDS, "a round has no known kind")
    require(0 < len(message.invited) <= limits.NODES, "a round invites too few or too many nodes")
    require(all(is_name(name) for name in message.invited), "a node has no proper name")
    require(len(set(message.invited)) == len(message.invited), "a node is invited twice")
    check_payload(message.payload)
    require(message.payload.phase == message.phase, "payload and announcement disagree on the phase")
    if message.HasField("bulk"):
        check_object(message.bulk)
    if message.HasField("declared"):
        check_object(message.declared)
        require(message.declared.size <= limits.DECLARED_BYTES, "a list of declarations is too long")
    require(len(message.agreements) <= limits.AGREEMENTS_BYTES, "a list of agreements is too long")
    require(len(message.model.blocks) <= limits.BLOCKS, "a model has too many blocks")
    tensors = sum(len(block.tensors) for block in message.model.blocks)
    require(tensors <= limits.TENSORS, "a model has too many tensors")
    require(len(message.model.digest) == limits.DIGEST_BYTES, "a model has no digest")
    check_object(message.model.object)
    if message.model.HasField("first"):
        check_object(message.model.first)


_ROUND_KINDS = {
    pb.ROUND_KIND_TRAIN: RoundKind.TRAIN,
    pb.ROUND_KIND_EVALUATE: RoundKind.EVALUATE,
    pb.ROUND_KIND_DECLARE: RoundKind.DECLARE,
}


def round_kind(kind: pb.RoundKind) -> RoundKind:
    """What an announcement that was checked asks for."""
    return _ROUND_KINDS.get(kind, RoundKind.EVALUATE)


def round_kind_to_wire(kind: RoundKind) -> pb.RoundKind:
    """The inverse."""
    return next(wire for wire, known in _ROUND_KINDS.items() if known is kind)


def _check_code(code: str) -> None:
    require(len(code) <= limits.CODE_CHARS and _CODE.fullmatch(code) is not None, "an error code is malformed")


# --- transfers ------------------------------------------------------------------------------------------------


def check_payload(payload: pb.Payload) -> None:
    """Bounds of a protection's payload."""
    require(len(payload.body) <= limits.PAYLOAD_BYTES, "a payload is too long")
    require(is_name(payload.protection) and is_name(payload.phase), "a payload has no proper type")


def check_object(reference: pb.ObjectRef) -> None:
    """Bounds of a reference to bulk."""
    require(len(reference.sha256) == limits.DIGEST_BYTES, "an object has no SHA-256")
    require(reference.size <= limits.OBJECT_BYTES, "an object is too large")


def check_download(request: pb.DownloadRequest) -> None:
    """Bounds of a download request."""
    check_study_id(request.study_id)
    require(len(request.sha256) == limits.DIGEST_BYTES, "an object has no SHA-256")
    require(request.offset <= limits.OBJECT_BYTES, "an offset is out of range")


def check_upload_query(query: pb.UploadQuery) -> None:
    """Bounds of a question about an upload."""
    check_study_id(query.study_id)
    require(len(query.upload_id) == limits.DIGEST_BYTES, "an upload has no id")


def check_upload_header(header: pb.UploadHeader) -> None:
    """Bounds of an upload's header, and that its id is the digest of its content."""
    check_study_id(header.study_id)
    require(is_name(header.phase), "a phase has no proper name")
    check_payload(header.payload)
    require(header.payload.phase == header.phase, "payload and header disagree on the phase")
    check_object(header.bulk)
    require(len(header.signature) == limits.SIGNATURE_BYTES, "an upload is not signed")
    _check_metrics(header.metrics)
    require(header.upload_id == upload_id(header), "an upload id does not match its content")


def _check_metrics(report: pb.MetricsReport) -> None:
    require(report.samples <= limits.SAMPLES, "a number of samples is out of range")
    for rate in (report.accuracy, report.global_accuracy):
        require(0.0 <= rate <= 1.0, "an accuracy is out of range")
    for error in (report.loss, report.mse):
        require(math.isfinite(error), "a loss is not finite")
    require(len(report.sums) <= limits.METRICS, "there are too many metrics")
    for metric in report.sums:
        require(is_name(metric.name), "a metric has no proper name")
        require(len(metric.values) <= limits.METRIC_SUMS, "a metric has too many sums")
        require(max(metric.values, default=0) < 1 << limits.METRIC_SUM_BITS, "a sum is out of range")


def upload_id(header: pb.UploadHeader) -> bytes:
    """The digest of an upload: its header without id and signature (the bulk enters by its own digest)."""
    bare = pb.UploadHeader()
    bare.CopyFrom(header)
    bare.ClearField("upload_id")
    bare.ClearField("signature")
    return hashlib.sha256(b"secure-fl upload v1\x00" + bare.SerializeToString(deterministic=True)).digest()


def sign_upload_header(header: pb.UploadHeader, key: SigningKey) -> None:
    """Give a finished header its id and its signature."""
    header.upload_id = upload_id(header)
    header.signature = key.sign(_UPLOAD_DOMAIN, header.upload_id)


def verify_upload_header(header: pb.UploadHeader, public: bytes) -> None:
    """Raise `SignatureError` unless the enrolled key of the sender signed this upload."""
    verify(public, header.signature, _UPLOAD_DOMAIN, header.upload_id)


def chunks(content: bytes | memoryview, *, study_id: str, offset: int = 0) -> Iterator[pb.Chunk]:
    """`content` from `offset` on, in chunks of 1 MiB."""
    view = memoryview(content)
    for start in range(offset, len(view), limits.CHUNK_BYTES):
        yield pb.Chunk(study_id=study_id, offset=start, data=bytes(view[start : start + limits.CHUNK_BYTES]))


async def file_chunks(path: Path, *, study_id: str, offset: int = 0) -> AsyncIterator[pb.Chunk]:
    """A file from `offset` on, in chunks of 1 MiB, each read in a thread."""
    with path.open("rb") as file:
        file.seek(offset)
        while data := await in_thread_whole(file.read, limits.CHUNK_BYTES):
            yield pb.Chunk(study_id=study_id, offset=offset, data=data)
            offset += len(data)


def reference(content: bytes | memoryview, digest: bytes = b"") -> pb.ObjectRef:
    """Digest, unless it is known, and size of `content`."""
    return pb.ObjectRef(sha256=digest or hashlib.sha256(content).digest(), size=len(content))


# --- models ---------------------------------------------------------------------------------------------------


def layout_to_wire(layout: Layout) -> Iterable[pb.BlockEntry]:
    """A layout as block entries."""
    for shape in layout:
        tensors = [pb.TensorEntry(name=tensor.name, shape=tensor.shape) for tensor in shape.tensors]
        yield pb.BlockEntry(name=shape.name, dtype="<f4", tensors=tensors)


def layout_from_wire(entries: Iterable[pb.BlockEntry]) -> Layout:
    """Block entries as a layout, within bounds."""
    shapes = []
    for entry in entries:
        require(is_name(entry.name), "a block has no proper name")
        require(entry.dtype == "<f4", "a block is not little-endian float32")
        require(len(entry.tensors) <= limits.TENSORS, "a block has too many tensors")
        tensors = []
        for tensor in entry.tensors:
            require(len(tensor.name) <= limits.NAME_CHARS, "a tensor's name is too long")
            require(len(tensor.shape) <= limits.DIMENSIONS, "a tensor has too many dimensions")
            tensors.append(TensorShape(name=tensor.name, shape=tuple(tensor.shape)))
        shapes.append(BlockShape(name=entry.name, tensors=tuple(tensors)))
    require(len(shapes) <= limits.BLOCKS, "a model has too many blocks")
    layout = Layout(tuple(shapes))
    require(layout.size * 4 <= limits.OBJECT_BYTES, "a model is too large")
    return layout
