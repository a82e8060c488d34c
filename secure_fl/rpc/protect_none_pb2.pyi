from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PlainUpload(_message.Message):
    __slots__ = ("blocks", "weight", "row")
    class RowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[str]
    weight: int
    row: _containers.ScalarMap[str, int]
    def __init__(self, blocks: _Optional[_Iterable[str]] = ..., weight: _Optional[int] = ..., row: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PlainCombination(_message.Message):
    __slots__ = ("blocks", "weight", "contributors")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[str]
    weight: int
    contributors: int
    def __init__(self, blocks: _Optional[_Iterable[str]] = ..., weight: _Optional[int] = ..., contributors: _Optional[int] = ...) -> None: ...
