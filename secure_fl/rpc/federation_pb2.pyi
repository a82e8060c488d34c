from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RoundKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROUND_KIND_UNSPECIFIED: _ClassVar[RoundKind]
    ROUND_KIND_TRAIN: _ClassVar[RoundKind]
    ROUND_KIND_EVALUATE: _ClassVar[RoundKind]
    ROUND_KIND_DECLARE: _ClassVar[RoundKind]
ROUND_KIND_UNSPECIFIED: RoundKind
ROUND_KIND_TRAIN: RoundKind
ROUND_KIND_EVALUATE: RoundKind
ROUND_KIND_DECLARE: RoundKind

class GreetRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Greeting(_message.Message):
    __slots__ = ("versions", "software", "clock_ms")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_MS_FIELD_NUMBER: _ClassVar[int]
    versions: VersionRange
    software: str
    clock_ms: int
    def __init__(self, versions: _Optional[_Union[VersionRange, _Mapping]] = ..., software: _Optional[str] = ..., clock_ms: _Optional[int] = ...) -> None: ...

class VersionRange(_message.Message):
    __slots__ = ("lowest", "highest")
    LOWEST_FIELD_NUMBER: _ClassVar[int]
    HIGHEST_FIELD_NUMBER: _ClassVar[int]
    lowest: int
    highest: int
    def __init__(self, lowest: _Optional[int] = ..., highest: _Optional[int] = ...) -> None: ...

class NodeMessage(_message.Message):
    __slots__ = ("study_id", "hello", "heartbeat", "study_answer", "sit_out")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STUDY_ANSWER_FIELD_NUMBER: _ClassVar[int]
    SIT_OUT_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    hello: Hello
    heartbeat: Heartbeat
    study_answer: StudyAnswer
    sit_out: SitOut
    def __init__(self, study_id: _Optional[str] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., study_answer: _Optional[_Union[StudyAnswer, _Mapping]] = ..., sit_out: _Optional[_Union[SitOut, _Mapping]] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("study_id", "welcome", "heartbeat", "study_offer", "announcement", "round_closed", "study_closed")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STUDY_OFFER_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCEMENT_FIELD_NUMBER: _ClassVar[int]
    ROUND_CLOSED_FIELD_NUMBER: _ClassVar[int]
    STUDY_CLOSED_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    welcome: Welcome
    heartbeat: Heartbeat
    study_offer: StudyOffer
    announcement: PhaseAnnouncement
    round_closed: RoundClosed
    study_closed: StudyClosed
    def __init__(self, study_id: _Optional[str] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., study_offer: _Optional[_Union[StudyOffer, _Mapping]] = ..., announcement: _Optional[_Union[PhaseAnnouncement, _Mapping]] = ..., round_closed: _Optional[_Union[RoundClosed, _Mapping]] = ..., study_closed: _Optional[_Union[StudyClosed, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("versions", "software")
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    versions: VersionRange
    software: str
    def __init__(self, versions: _Optional[_Union[VersionRange, _Mapping]] = ..., software: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "software", "heartbeat_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    version: int
    software: str
    heartbeat_ms: int
    def __init__(self, version: _Optional[int] = ..., software: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("sequence",)
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    def __init__(self, sequence: _Optional[int] = ...) -> None: ...

class StudyOffer(_message.Message):
    __slots__ = ("settings",)
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    settings: bytes
    def __init__(self, settings: _Optional[bytes] = ...) -> None: ...

class StudyAnswer(_message.Message):
    __slots__ = ("accepted", "refusal")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    refusal: str
    def __init__(self, accepted: _Optional[bool] = ..., refusal: _Optional[str] = ...) -> None: ...

class PhaseAnnouncement(_message.Message):
    __slots__ = ("round", "attempt", "kind", "phase", "deadline_ms", "model", "invited", "payload", "bulk", "declared", "asked", "agreements")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INVITED_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    ASKED_FIELD_NUMBER: _ClassVar[int]
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    kind: RoundKind
    phase: str
    deadline_ms: int
    model: ModelRef
    invited: _containers.RepeatedScalarFieldContainer[str]
    payload: Payload
    bulk: ObjectRef
    declared: ObjectRef
    asked: _containers.RepeatedScalarFieldContainer[str]
    agreements: bytes
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., kind: _Optional[_Union[RoundKind, str]] = ..., phase: _Optional[str] = ..., deadline_ms: _Optional[int] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., invited: _Optional[_Iterable[str]] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ..., bulk: _Optional[_Union[ObjectRef, _Mapping]] = ..., declared: _Optional[_Union[ObjectRef, _Mapping]] = ..., asked: _Optional[_Iterable[str]] = ..., agreements: _Optional[bytes] = ...) -> None: ...

class RoundClosed(_message.Message):
    __slots__ = ("round", "attempt", "committed", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    committed: bool
    reason: str
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., committed: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class StudyClosed(_message.Message):
    __slots__ = ("finished", "reason")
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    finished: bool
    reason: str
    def __init__(self, finished: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class SitOut(_message.Message):
    __slots__ = ("round", "attempt", "reason")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    round: int
    attempt: int
    reason: str
    def __init__(self, round: _Optional[int] = ..., attempt: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Payload(_message.Message):
    __slots__ = ("protection", "phase", "version", "body")
    PROTECTION_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    protection: str
    phase: str
    version: int
    body: bytes
    def __init__(self, protection: _Optional[str] = ..., phase: _Optional[str] = ..., version: _Optional[int] = ..., body: _Optional[bytes] = ...) -> None: ...

class TensorEntry(_message.Message):
    __slots__ = ("name", "shape")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ...) -> None: ...

class BlockEntry(_message.Message):
    __slots__ = ("name", "dtype", "tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    tensors: _containers.RepeatedCompositeFieldContainer[TensorEntry]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., tensors: _Optional[_Iterable[_Union[TensorEntry, _Mapping]]] = ...) -> None: ...

class ModelRef(_message.Message):
    __slots__ = ("version", "digest", "blocks", "object", "first")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: bytes
    blocks: _containers.RepeatedCompositeFieldContainer[BlockEntry]
    object: ObjectRef
    first: ObjectRef
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[bytes] = ..., blocks: _Optional[_Iterable[_Union[BlockEntry, _Mapping]]] = ..., object: _Optional[_Union[ObjectRef, _Mapping]] = ..., first: _Optional[_Union[ObjectRef, _Mapping]] = ...) -> None: ...

class ObjectRef(_message.Message):
    __slots__ = ("sha256", "size")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size: int
    def __init__(self, sha256: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("offset", "data", "study_id")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    offset: int
    data: bytes
    study_id: str
    def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ..., study_id: _Optional[str] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("study_id", "sha256", "offset")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    sha256: bytes
    offset: int
    def __init__(self, study_id: _Optional[str] = ..., sha256: _Optional[bytes] = ..., offset: _Optional[int] = ...) -> None: ...

class UploadPart(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: UploadHeader
    chunk: Chunk
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ("study_id", "round", "attempt", "phase", "upload_id", "payload", "bulk", "metrics", "signature")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    round: int
    attempt: int
    phase: str
    upload_id: bytes
    payload: Payload
    bulk: ObjectRef
    metrics: MetricsReport
    signature: bytes
    def __init__(self, study_id: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., phase: _Optional[str] = ..., upload_id: _Optional[bytes] = ..., payload: _Optional[_Union[Payload, _Mapping]] = ..., bulk: _Optional[_Union[ObjectRef, _Mapping]] = ..., metrics: _Optional[_Union[MetricsReport, _Mapping]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MetricsReport(_message.Message):
    __slots__ = ("samples", "accuracy", "loss", "mse", "global_accuracy", "sums")
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    ACCURACY_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MSE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_ACCURACY_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    samples: int
    accuracy: float
    loss: float
    mse: float
    global_accuracy: float
    sums: _containers.RepeatedCompositeFieldContainer[MetricSums]
    def __init__(self, samples: _Optional[int] = ..., accuracy: _Optional[float] = ..., loss: _Optional[float] = ..., mse: _Optional[float] = ..., global_accuracy: _Optional[float] = ..., sums: _Optional[_Iterable[_Union[MetricSums, _Mapping]]] = ...) -> None: ...

class MetricSums(_message.Message):
    __slots__ = ("name", "values")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[int]] = ...) -> None: ...

class UploadReceipt(_message.Message):
    __slots__ = ("study_id", "upload_id", "duplicate")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    upload_id: bytes
    duplicate: bool
    def __init__(self, study_id: _Optional[str] = ..., upload_id: _Optional[bytes] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class UploadQuery(_message.Message):
    __slots__ = ("study_id", "round", "attempt", "upload_id")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    round: int
    attempt: int
    upload_id: bytes
    def __init__(self, study_id: _Optional[str] = ..., round: _Optional[int] = ..., attempt: _Optional[int] = ..., upload_id: _Optional[bytes] = ...) -> None: ...

class UploadProgress(_message.Message):
    __slots__ = ("study_id", "received")
    STUDY_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    study_id: str
    received: int
    def __init__(self, study_id: _Optional[str] = ..., received: _Optional[int] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "advice")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    advice: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., advice: _Optional[str] = ...) -> None: ...
