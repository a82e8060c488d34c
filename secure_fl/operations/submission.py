"""A submission on the wire: a study, what its first model looks like, and that model's bytes in chunks.

Both ends use this module, so that a request which the coordinator would refuse is never built by the study lead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from secure_fl.limits import CHUNK_BYTES, SETTINGS_BYTES
from secure_fl.messages import require
from secure_fl.rpc import federation_pb2
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.first_model import FirstModel, TaskKind
from secure_fl.study.settings import Study
from secure_fl.transport.wire import check_object, layout_from_wire, layout_to_wire

if TYPE_CHECKING:
    from secure_fl.study.start import Start


def request_of(study: Study, first: FirstModel) -> pb.SubmitPart:
    """What a submission begins with."""
    model = pb.FirstModel(
        blocks=layout_to_wire(first.layout),
        object=federation_pb2.ObjectRef(sha256=first.sha256, size=first.size),
        parameters=first.parameters,
        kind=first.kind,
    )
    return pb.SubmitPart(request=pb.SubmitRequest(settings=study.canonical(), first=model))


def read_request(part: pb.SubmitPart) -> tuple[Study, FirstModel]:
    """The inverse, within bounds. Raises `MalformedMessageError`, or `SettingsError` for what is no study."""
    require(part.WhichOneof("body") == "request", "a submission begins with its study")
    request = part.request
    require(len(request.settings) <= SETTINGS_BYTES, "a study is too long")
    require(
        request.HasField("first"), "a submission without its first model: the lead's release is older than this one"
    )
    check_object(request.first.object)
    first = FirstModel(
        layout=layout_from_wire(request.first.blocks),
        sha256=request.first.object.sha256,
        parameters=request.first.parameters,
        kind=cast("TaskKind", request.first.kind),
    )
    require(first.size == request.first.object.size, "a model's size does not fit its blocks")
    return Study.from_canonical(request.settings), first


def chunks_of(study_id: str, start: Start) -> Iterator[pb.SubmitPart]:
    """The model's bytes, in chunks of at most 1 MiB and without a copy of the whole."""
    offset = 0
    for piece in start.layout.pieces(start.blocks):
        for begin in range(0, len(piece), CHUNK_BYTES):
            data = bytes(piece[begin : begin + CHUNK_BYTES])
            yield pb.SubmitPart(chunk=federation_pb2.Chunk(study_id=study_id, offset=offset, data=data))
            offset += len(data)
