from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MaskedManifest(_message.Message):
    __slots__ = ("mask_key", "envelope_key")
    MASK_KEY_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_KEY_FIELD_NUMBER: _ClassVar[int]
    mask_key: bytes
    envelope_key: bytes
    def __init__(self, mask_key: _Optional[bytes] = ..., envelope_key: _Optional[bytes] = ...) -> None: ...

class MaskedEnvelope(_message.Message):
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

class MaskedEnvelopes(_message.Message):
    __slots__ = ("envelopes", "commitments")
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    COMMITMENTS_FIELD_NUMBER: _ClassVar[int]
    envelopes: _containers.RepeatedCompositeFieldContainer[MaskedEnvelope]
    commitments: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, envelopes: _Optional[_Iterable[_Union[MaskedEnvelope, _Mapping]]] = ..., commitments: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MaskedCommit(_message.Message):
    __slots__ = ("signature",)
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    signature: bytes
    def __init__(self, signature: _Optional[bytes] = ...) -> None: ...

class MaskedSurvivor(_message.Message):
    __slots__ = ("node", "upload", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    upload: bytes
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., upload: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskedSurvivors(_message.Message):
    __slots__ = ("survivors",)
    SURVIVORS_FIELD_NUMBER: _ClassVar[int]
    survivors: _containers.RepeatedCompositeFieldContainer[MaskedSurvivor]
    def __init__(self, survivors: _Optional[_Iterable[_Union[MaskedSurvivor, _Mapping]]] = ...) -> None: ...

class MaskedAgreement(_message.Message):
    __slots__ = ("node", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., signature: _Optional[bytes] = ...) -> None: ...

class MaskedAgreements(_message.Message):
    __slots__ = ("agreements",)
    AGREEMENTS_FIELD_NUMBER: _ClassVar[int]
    agreements: _containers.RepeatedCompositeFieldContainer[MaskedAgreement]
    def __init__(self, agreements: _Optional[_Iterable[_Union[MaskedAgreement, _Mapping]]] = ...) -> None: ...

class MaskedSeedShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shares: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MaskedShare(_message.Message):
    __slots__ = ("node", "seeds", "key")
    NODE_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    node: str
    seeds: MaskedSeedShares
    key: bytes
    def __init__(self, node: _Optional[str] = ..., seeds: _Optional[_Union[MaskedSeedShares, _Mapping]] = ..., key: _Optional[bytes] = ...) -> None: ...

class MaskedShares(_message.Message):
    __slots__ = ("shares",)
    SHARES_FIELD_NUMBER: _ClassVar[int]
    shares: _containers.RepeatedCompositeFieldContainer[MaskedShare]
    def __init__(self, shares: _Optional[_Iterable[_Union[MaskedShare, _Mapping]]] = ...) -> None: ...
