from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecoveryManifest(_message.Message):
    __slots__ = ("mask_key", "envelope_key")
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_KEY_FIELD_NUMBER: _ClassVar[int]
    mask_key: bytes
    envelope_key: bytes
    def __init__(self, mask_key: _Optional[bytes] = ..., envelope_key: _Optional[bytes] = ...) -> None: ...

class RecoveryEnvelope(_message.Message):
    __slots__ = ("peer", "key_share", "seed_shares", "commitments")
    PEER_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARE_FIELD_NUMBER: _ClassVar[int]
    SEED_SHARES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    key_share: bytes
    seed_shares: _containers.RepeatedScalarFieldContainer[bytes]
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, peer: _Optional[str] = ..., key_share: _Optional[bytes] = ..., seed_shares: _Optional[_Iterable[bytes]] = ..., commitments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RecoveryEnvelopes(_message.Message):
    __slots__ = ("envelopes", "commitments")
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[RecoveryEnvelope]
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, envelopes: _Optional[_Iterable[_Union[RecoveryEnvelope, _Mapping]]] = ..., commitments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RecoveryCommit(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class RecoverySurvivor(_message.Message):
    __slots__ = ("node", "upload", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    upload: bytes
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., upload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RecoverySurvivors(_message.Message):
    __slots__ = ("survivors",)
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    survivors: _containers.RepeatedCompositeFieldContainer[RecoverySurvivor]
    def __init__(self, survivors: _Optional[_Iterable[_Union[RecoverySurvivor, _Mapping]]] = ...) -> None: ...

class RecoveryAgreement(_message.Message):
    __slots__ = ("node", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RecoveryAgreements(_message.Message):
    __slots__ = ("agreements",)
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    agreements: _containers.RepeatedCompositeFieldContainer[RecoveryAgreement]
    def __init__(self, agreements: _Optional[_Iterable[_Union[RecoveryAgreement, _Mapping]]] = ...) -> None: ...

class RecoverySeedShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shares: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RecoveryShare(_message.Message):
    __slots__ = ("node", "seeds", "key")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    node: str
    seeds: RecoverySeedShares
    key: bytes
    def __init__(self, node: _Optional[str] = ..., seeds: _Optional[_Union[RecoverySeedShares, _Mapping]] = ..., key: _Optional[bytes] = ...) -> None: ...

class RecoveryShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[RecoveryShare]
    def __init__(self, shares: _Optional[_Iterable[_Union[RecoveryShare, _Mapping]]] = ...) -> None: ...
