from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class PlainUpload(_message.Message):
    __slots__ = ("blocks", "weight", "sketch")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[str]
    weight: int
    sketch: bytes
    def __init__(self, blocks: _Optional[_Iterable[str]] = ..., weight: _Optional[int] = ..., sketch: _Optional[bytes] = ...) -> None: ...

class PlainDistances(_message.Message):
    __slots__ = ("squared",)
    class SquaredEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SQUARED_FIELD_NUMBER: _ClassVar[int]
    squared: _containers.ScalarMap[str, int]
    def __init__(self, squared: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PlainRow(_message.Message):
    __slots__ = ("row",)
    class RowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    ROW_FIELD_NUMBER: _ClassVar[int]
    row: _containers.ScalarMap[str, int]
    def __init__(self, row: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PlainCombination(_message.Message):
    __slots__ = ("blocks", "weight", "contributors")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedScalarFieldContainer[str]
    weight: int
    contributors: int
    def __init__(self, blocks: _Optional[_Iterable[str]] = ..., weight: _Optional[int] = ..., contributors: _Optional[int] = ...) -> None: ...
