from secure_fl.rpc import protect_uploads_pb2 as _protect_uploads_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SealedOpening(_message.Message):
    __slots__ = ("commits", "envelopes", "rows", "earlier")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadCommit]
    envelopes: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadEnvelope]
    rows: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    earlier: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    def __init__(self, commits: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadCommit, _Mapping]]] = ..., envelopes: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadEnvelope, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ..., earlier: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ...) -> None: ...

class SealedSums(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shares: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SealedDelivery(_message.Message):
    __slots__ = ("commits", "rows", "replies")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadCommit]
    rows: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    replies: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadReply]
    def __init__(self, commits: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadCommit, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ..., replies: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadReply, _Mapping]]] = ...) -> None: ...

class SealedMemory(_message.Message):
    __slots__ = ("envelope_key", "reply_key", "roster", "upload", "decided")
    class DecidedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    ENVELOPE_KEY_FIELD_NUMBER: _ClassVar[int]
    REPLY_KEY_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    DECIDED_FIELD_NUMBER: _ClassVar[int]
    envelope_key: bytes
    reply_key: bytes
    roster: bytes
    upload: bytes
    decided: _containers.ScalarMap[str, bytes]
    def __init__(self, envelope_key: _Optional[bytes] = ..., reply_key: _Optional[bytes] = ..., roster: _Optional[bytes] = ..., upload: _Optional[bytes] = ..., decided: _Optional[_Mapping[str, bytes]] = ...) -> None: ...
