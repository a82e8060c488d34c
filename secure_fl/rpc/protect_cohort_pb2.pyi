from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Manifest(_message.Message):
    __slots__ = ("node", "certificate", "blocks", "mask_key", "envelope_key", "signature", "reply_key", "sketch_hashes", "sketch_proof", "opened")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    REPLY_KEY_FIELD_NUMBER: _ClassVar[int]
    SKETCH_HASHES_FIELD_NUMBER: _ClassVar[int]
    SKETCH_PROOF_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    node: str
    certificate: bytes
    blocks: bytes
    mask_key: bytes
    envelope_key: bytes
    signature: bytes
    reply_key: bytes
    sketch_hashes: bytes
    sketch_proof: bytes
    opened: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, node: _Optional[str] = ..., certificate: _Optional[bytes] = ..., blocks: _Optional[bytes] = ..., mask_key: _Optional[bytes] = ..., envelope_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., reply_key: _Optional[bytes] = ..., sketch_hashes: _Optional[bytes] = ..., sketch_proof: _Optional[bytes] = ..., opened: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Roster(_message.Message):
    __slots__ = ("manifests",)
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    manifests: _containers.RepeatedCompositeFieldContainer[Manifest]
    def __init__(self, manifests: _Optional[_Iterable[_Union[Manifest, _Mapping]]] = ...) -> None: ...
