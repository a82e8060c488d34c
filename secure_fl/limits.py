"""A bound on every length that crosses the wire."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_LOWEST: Final = 1
PROTOCOL_HIGHEST: Final = 1

CHUNK_BYTES: Final = 1 * MIB
# One gRPC message: a chunk and its framing, or an announcement with a protection's payload.
MESSAGE_BYTES: Final = 3 * MIB
METADATA_BYTES: Final = 16 * KIB
PAYLOAD_BYTES: Final = 2 * MIB
SETTINGS_BYTES: Final = 256 * KIB
DECLARED_BYTES: Final = 16 * MIB  # what all sites of a study declare of a partial model
AGREEMENTS_BYTES: Final = 512 * KIB  # that sites of a study signed, with their certificates
OBJECT_BYTES: Final = 4 * 1024 * MIB
NAME_CHARS: Final = 128
CODE_CHARS: Final = 64
STUDY_ID_CHARS: Final = 64
DIGEST_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
NODES: Final = 512
KEYED_NODES: Final = 256  # where every node shares keys with every other
SAMPLES: Final = 2**53  # what a double counts exactly
BLOCKS: Final = 4096
TENSORS: Final = 16_384  # of a whole model
DIMENSIONS: Final = 8
METRICS: Final = 32  # of one task
METRIC_SUMS: Final = 4096  # of one metric, and of all metrics of a study together
METRIC_SUM_BITS: Final = 45  # of one sum at one site

SESSION_QUEUE: Final = 64  # announcements waiting for one slow node before its session is dropped
