from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CircleManifest(_message.Message):
    __slots__ = ("mask_key",)
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    mask_key: bytes
    def __init__(self, mask_key: _Optional[bytes] = ...) -> None: ...

class CircleCommit(_message.Message):
    __slots__ = ("node", "upload", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    upload: bytes
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., upload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class CircleCommits(_message.Message):
    __slots__ = ("commits",)
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[CircleCommit]
    def __init__(self, commits: _Optional[_Iterable[_Union[CircleCommit, _Mapping]]] = ...) -> None: ...
