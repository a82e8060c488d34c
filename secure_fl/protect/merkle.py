"""A hash tree over a long byte string: one root stands for all of it, and a part can be checked by itself.

Leaves are 64 KiB, the last one shorter. A leaf's hash and an inner node's begin with different bytes (RFC 9162), so
that no inner node passes for a leaf; a level with an odd number of nodes hands its last one up as it is.
"""

from __future__ import annotations

import hashlib

LEAF_BYTES = 1 << 16


def root(content: bytes | memoryview) -> bytes:
    """The root of the tree over `content`."""
    view = memoryview(content).cast("B")
    level = [
        hashlib.sha256(b"\x00" + view[start : start + LEAF_BYTES]).digest()
        for start in range(0, max(1, view.nbytes), LEAF_BYTES)
    ]
    while len(level) > 1:
        pairs = [hashlib.sha256(b"\x01" + a + b).digest() for a, b in zip(level[::2], level[1::2], strict=False)]
        level = [*pairs, *level[len(pairs) * 2 :]]
    return level[0]
