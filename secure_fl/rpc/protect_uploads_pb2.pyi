from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class UploadManifest(_message.Message):
    __slots__ = ("envelope_key", "reply_key", "sketch_hashes", "sketch_proof", "opened", "made_from", "told")
    ENVELOPE_KEY_FIELD_NUMBER: _ClassVar[int]
    REPLY_KEY_FIELD_NUMBER: _ClassVar[int]
    SKETCH_HASHES_FIELD_NUMBER: _ClassVar[int]
    SKETCH_PROOF_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    MADE_FROM_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    envelope_key: bytes
    reply_key: bytes
    sketch_hashes: bytes
    sketch_proof: bytes
    opened: _containers.RepeatedScalarFieldContainer[bytes]
    made_from: ModelVersion
    told: _containers.RepeatedCompositeFieldContainer[ModelVersion]
    def __init__(self, envelope_key: _Optional[bytes] = ..., reply_key: _Optional[bytes] = ..., sketch_hashes: _Optional[bytes] = ..., sketch_proof: _Optional[bytes] = ..., opened: _Optional[_Iterable[bytes]] = ..., made_from: _Optional[_Union[ModelVersion, _Mapping]] = ..., told: _Optional[_Iterable[_Union[ModelVersion, _Mapping]]] = ...) -> None: ...

class ModelVersion(_message.Message):
    __slots__ = ("number", "digest")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    number: int
    digest: bytes
    def __init__(self, number: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...

class UploadEnvelope(_message.Message):
    __slots__ = ("peer", "key_shares", "sketch_share")
    PEER_FIELD_NUMBER: _ClassVar[int]
    KEY_SHARES_FIELD_NUMBER: _ClassVar[int]
    SKETCH_SHARE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    key_shares: _containers.RepeatedScalarFieldContainer[bytes]
    sketch_share: bytes
    def __init__(self, peer: _Optional[str] = ..., key_shares: _Optional[_Iterable[bytes]] = ..., sketch_share: _Optional[bytes] = ...) -> None: ...

class UploadCommit(_message.Message):
    __slots__ = ("node", "upload", "digests", "signature")
    NODE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    upload: bytes
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., upload: _Optional[bytes] = ..., digests: _Optional[_Iterable[bytes]] = ..., signature: _Optional[bytes] = ...) -> None: ...

class UploadAnswer(_message.Message):
    __slots__ = ("commit", "envelopes")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    commit: UploadCommit
    envelopes: _containers.RepeatedCompositeFieldContainer[UploadEnvelope]
    def __init__(self, commit: _Optional[_Union[UploadCommit, _Mapping]] = ..., envelopes: _Optional[_Iterable[_Union[UploadEnvelope, _Mapping]]] = ...) -> None: ...

class UploadEnvelopes(_message.Message):
    __slots__ = ("commits", "envelopes")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[UploadCommit]
    envelopes: _containers.RepeatedCompositeFieldContainer[UploadEnvelope]
    def __init__(self, commits: _Optional[_Iterable[_Union[UploadCommit, _Mapping]]] = ..., envelopes: _Optional[_Iterable[_Union[UploadEnvelope, _Mapping]]] = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ("peer", "sealed")
    PEER_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    peer: str
    sealed: bytes
    def __init__(self, peer: _Optional[str] = ..., sealed: _Optional[bytes] = ...) -> None: ...

class UploadReplies(_message.Message):
    __slots__ = ("replies",)
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    replies: _containers.RepeatedCompositeFieldContainer[UploadReply]
    def __init__(self, replies: _Optional[_Iterable[_Union[UploadReply, _Mapping]]] = ...) -> None: ...

class UploadScores(_message.Message):
    __slots__ = ("commits", "replies")
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    REPLIES_FIELD_NUMBER: _ClassVar[int]
    commits: _containers.RepeatedCompositeFieldContainer[UploadCommit]
    replies: _containers.RepeatedCompositeFieldContainer[UploadReply]
    def __init__(self, commits: _Optional[_Iterable[_Union[UploadCommit, _Mapping]]] = ..., replies: _Optional[_Iterable[_Union[UploadReply, _Mapping]]] = ...) -> None: ...

class UploadRow(_message.Message):
    __slots__ = ("node", "row", "signature")
    class RowEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    node: str
    row: _containers.ScalarMap[str, int]
    signature: bytes
    def __init__(self, node: _Optional[str] = ..., row: _Optional[_Mapping[str, int]] = ..., signature: _Optional[bytes] = ...) -> None: ...
