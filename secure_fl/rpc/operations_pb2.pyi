from secure_fl.rpc import federation_pb2 as _federation_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitPart(_message.Message):
    __slots__ = ("request", "chunk")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    request: SubmitRequest
    chunk: _federation_pb2.Chunk
    def __init__(self, request: _Optional[_Union[SubmitRequest, _Mapping]] = ..., chunk: _Optional[_Union[_federation_pb2.Chunk, _Mapping]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ("settings", "first")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    settings: bytes
    first: FirstModel
    def __init__(self, settings: _Optional[bytes] = ..., first: _Optional[_Union[FirstModel, _Mapping]] = ...) -> None: ...

class FirstModel(_message.Message):
    __slots__ = ("blocks", "object", "parameters", "kind")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[_federation_pb2.BlockEntry]
    object: _federation_pb2.ObjectRef
    parameters: int
    kind: str
    def __init__(self, blocks: _Optional[_Iterable[_Union[_federation_pb2.BlockEntry, _Mapping]]] = ..., object: _Optional[_Union[_federation_pb2.ObjectRef, _Mapping]] = ..., parameters: _Optional[int] = ..., kind: _Optional[str] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ("wanted", "status")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    wanted: bool
    status: StudyStatus
    def __init__(self, wanted: _Optional[bool] = ..., status: _Optional[_Union[StudyStatus, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("study_id",)
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    def __init__(self, study_id: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("studies",)
    STUDIES_FIELD_NUMBER: _ClassVar[int]
    studies: _containers.RepeatedCompositeFieldContainer[StudyStatus]
    def __init__(self, studies: _Optional[_Iterable[_Union[StudyStatus, _Mapping]]] = ...) -> None: ...

class StudyStatus(_message.Message):
    __slots__ = ("study_id", "name", "state", "reason", "rounds_done", "rounds_planned", "sites", "record", "owner", "needed", "circles")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_PLANNED_FIELD_NUMBER: _ClassVar[int]
    SITES_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NEEDED_FIELD_NUMBER: _ClassVar[int]
    CIRCLES_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    name: str
    state: str
    reason: str
    rounds_done: int
    rounds_planned: int
    sites: _containers.RepeatedCompositeFieldContainer[SiteStatus]
    record: bytes
    owner: str
    needed: int
    circles: _containers.RepeatedCompositeFieldContainer[CircleStatus]
    def __init__(self, study_id: _Optional[str] = ..., name: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., rounds_done: _Optional[int] = ..., rounds_planned: _Optional[int] = ..., sites: _Optional[_Iterable[_Union[SiteStatus, _Mapping]]] = ..., record: _Optional[bytes] = ..., owner: _Optional[str] = ..., needed: _Optional[int] = ..., circles: _Optional[_Iterable[_Union[CircleStatus, _Mapping]]] = ...) -> None: ...

class CircleStatus(_message.Message):
    __slots__ = ("members", "missing")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, members: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ...) -> None: ...

class SiteStatus(_message.Message):
    __slots__ = ("name", "connected", "accepted", "refusal", "set_aside", "sat_out", "sat_out_round")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    SAT_OUT_FIELD_NUMBER: _ClassVar[int]
    SAT_OUT_ROUND_FIELD_NUMBER: _ClassVar[int]
    name: str
    connected: bool
    accepted: bool
    refusal: str
    set_aside: str
    sat_out: str
    sat_out_round: int
    def __init__(self, name: _Optional[str] = ..., connected: _Optional[bool] = ..., accepted: _Optional[bool] = ..., refusal: _Optional[str] = ..., set_aside: _Optional[str] = ..., sat_out: _Optional[str] = ..., sat_out_round: _Optional[int] = ...) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ("study_id",)
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    def __init__(self, study_id: _Optional[str] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ("study_id",)
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    def __init__(self, study_id: _Optional[str] = ...) -> None: ...

class ExportPart(_message.Message):
    __slots__ = ("version", "data", "study_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    data: bytes
    study_id: str
    def __init__(self, version: _Optional[int] = ..., data: _Optional[bytes] = ..., study_id: _Optional[str] = ...) -> None: ...
