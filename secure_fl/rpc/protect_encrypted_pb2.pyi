from secure_fl.rpc import protect_uploads_pb2 as _protect_uploads_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EncryptedKeys(_message.Message):
    __slots__ = ("key_id", "envelopes")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    key_id: bytes
    envelopes: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadReply]
    def __init__(self, key_id: _Optional[bytes] = ..., envelopes: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadReply, _Mapping]]] = ...) -> None: ...

class EncryptedStart(_message.Message):
    __slots__ = ("roster", "key_id", "sealed")
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    roster: bytes
    key_id: bytes
    sealed: bytes
    def __init__(self, roster: _Optional[bytes] = ..., key_id: _Optional[bytes] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class EncryptedCheck(_message.Message):
    __slots__ = ("commits", "rows", "earlier")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadCommit]
    rows: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    earlier: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    def __init__(self, commits: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadCommit, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ..., earlier: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ...) -> None: ...

class EncryptedVouch(_message.Message):
    __slots__ = ("node", "recipient", "half", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    RECIPIENT_FIELD_NUMBER: _ClassVar[int]
    HALF_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    recipient: str
    half: bytes
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., recipient: _Optional[str] = ..., half: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class EncryptedVouches(_message.Message):
    __slots__ = ("vouches",)
    VOUCHES_FIELD_NUMBER: _ClassVar[int]
    vouches: _containers.RepeatedCompositeFieldContainer[EncryptedVouch]
    def __init__(self, vouches: _Optional[_Iterable[_Union[EncryptedVouch, _Mapping]]] = ...) -> None: ...

class EncryptedOpening(_message.Message):
    __slots__ = ("commits", "rows", "vouches")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    VOUCHES_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadCommit]
    rows: _containers.RepeatedCompositeFieldContainer[_protect_uploads_pb2.UploadRow]
    vouches: _containers.RepeatedCompositeFieldContainer[EncryptedVouch]
    def __init__(self, commits: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadCommit, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[_protect_uploads_pb2.UploadRow, _Mapping]]] = ..., vouches: _Optional[_Iterable[_Union[EncryptedVouch, _Mapping]]] = ...) -> None: ...

class EncryptedOpened(_message.Message):
    __slots__ = ("totals",)
    TOTALS_FIELD_NUMBER: _ClassVar[int]
    totals: bytes
    def __init__(self, totals: _Optional[bytes] = ...) -> None: ...
