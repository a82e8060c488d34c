"""What a node says of its reasons when it sits out: one of a few words.

A reason that depends on the data would answer questions about them. So all that can fail at a site is one word on the
wire, and the details stay in the site's log.
"""

from __future__ import annotations

from secure_fl.errors import (
    BudgetExceededError,
    LateMessageError,
    NotReadyError,
    ProtectionError,
    RefusedError,
    ReleaseRefusedError,
    RestartedError,
)

# A budget that is used up, the site's policy, what was opened before, what the coordinator or a peer said, time, a
# restart: none of them depends on a record. A subclass that is not here goes as the class that is.
_SPOKEN = (BudgetExceededError, RefusedError, ReleaseRefusedError, ProtectionError, LateMessageError, RestartedError)

REASONS = frozenset({*(cls.code for cls in _SPOKEN), NotReadyError.code})


def spoken(error: Exception) -> str:
    """The word for an error; `NotReady` for all that has none of its own."""
    return next((cls.code for cls in _SPOKEN if isinstance(error, cls)), NotReadyError.code)
