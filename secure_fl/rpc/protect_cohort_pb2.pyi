from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Manifest(_message.Message):
    __slots__ = ("node", "certificate", "blocks", "extension", "signature", "exceptions", "opened", "ledger", "agreement")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EXTENSION_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    EXCEPTIONS_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_FIELD_NUMBER: _ClassVar[int]
    node: str
    certificate: bytes
    blocks: bytes
    extension: bytes
    signature: bytes
    exceptions: _containers.RepeatedScalarFieldContainer[str]
    opened: _containers.RepeatedCompositeFieldContainer[Together]
    ledger: SignedHead
    agreement: bytes
    def __init__(self, node: _Optional[str] = ..., certificate: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., extension: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., exceptions: _Optional[_Iterable[str]] = ..., opened: _Optional[_Iterable[_Union[Together, _Mapping]]] = ..., ledger: _Optional[_Union[SignedHead, _Mapping]] = ..., agreement: _Optional[bytes] = ...) -> None: ...

class Agreement(_message.Message):
    __slots__ = ("certificate", "signature")
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    signature: bytes
    def __init__(self, certificate: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Agreements(_message.Message):
    __slots__ = ("agreements",)
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    agreements: _containers.RepeatedCompositeFieldContainer[Agreement]
    def __init__(self, agreements: _Optional[_Iterable[_Union[Agreement, _Mapping]]] = ...) -> None: ...

class SignedHead(_message.Message):
    __slots__ = ("length", "head", "signature")
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    length: int
    head: bytes
    signature: bytes
    def __init__(self, length: _Optional[int] = ..., head: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Together(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Declaration(_message.Message):
    __slots__ = ("node", "certificate", "blocks", "signature", "pace")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    node: str
    certificate: bytes
    blocks: _containers.RepeatedScalarFieldContainer[str]
    signature: bytes
    pace: int
    def __init__(self, node: _Optional[str] = ..., certificate: _Optional[bytes] = ..., blocks: _Optional[_Iterable[str]] = ..., signature: _Optional[bytes] = ..., pace: _Optional[int] = ...) -> None: ...

class Declarations(_message.Message):
    __slots__ = ("declarations",)
    DECLARATIONS_FIELD_NUMBER: _ClassVar[int]
    declarations: _containers.RepeatedCompositeFieldContainer[Declaration]
    def __init__(self, declarations: _Optional[_Iterable[_Union[Declaration, _Mapping]]] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("manifests",)
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[Manifest]
    def __init__(self, manifests: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ...) -> None: ...
