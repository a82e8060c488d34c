"""Typed errors across the wire: the code travels, the text stays at home.

With one exception: what a coordinator says to an operator, who may know, about that operator's own request.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from secure_fl.errors import (
    CertificateError,
    NetworkError,
    RoundError,
    SecureFLError,
    SettingsError,
    StorageError,
    SubmissionsFullError,
    by_code,
    known_code,
    rebuild,
)
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb

DETAIL_KEY = "secure-fl-error-bin"

# What is wrong with a study, or with a request about one. None quotes anything of the coordinator's machine, as
# errors of its disk do. A caller meets none before it is authenticated.
_TOLD = (SettingsError, RoundError, SubmissionsFullError)
_TOLD_CHARS = 600
ASK = "ask whoever runs the coordinator: its log says what it is"

log = logging.getLogger(__name__)


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any], *, tells: bool = False) -> AsyncIterator[None]:
    """Turn whatever a servicer raises into a status that says only the error's code.

    With `tells`, for operators, also what is wrong with their request, and what to do about it.
    """
    try:
        yield
    except SecureFLError as error:
        log.info("refused a call: %s: %s", error.code, error.message)
        detail = pb.ErrorDetail(code=error.code)
        if tells and isinstance(error, _TOLD):
            detail.message, detail.advice = error.message[:_TOLD_CHARS], error.hint[:_TOLD_CHARS]
        await _abort(context, getattr(grpc.StatusCode, error.status), detail)
    except (grpc.aio.AbortError, grpc.aio.UsageError):
        raise
    except Exception:
        log.exception("a call failed unexpectedly")
        await _abort(context, grpc.StatusCode.INTERNAL, pb.ErrorDetail(code="SecureFL"))


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: grpc.StatusCode, detail: pb.ErrorDetail) -> None:
    metadata = ((DETAIL_KEY, detail.SerializeToString()),)
    await context.abort(status, detail.code, trailing_metadata=metadata)


def error_from_status(error: grpc.aio.AioRpcError) -> SecureFLError:
    """The typed error behind a failed call."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            return _told(parse(pb.ErrorDetail, value))
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return remote_error("Identity")
    return NetworkError(f"the call to the coordinator failed: {error.code().name}")


def _told(detail: pb.ErrorDetail) -> SecureFLError:
    if not detail.message:
        return remote_error(detail.code)
    # The coordinator's own words: shown as such, and not as they come.
    message, advice = _plain(detail.message), _plain(detail.advice)
    return rebuild(known_code(detail.code), f"the coordinator says: {message}", advice=advice or None)


def _plain(text: str) -> str:
    return "".join(char for char in text[:_TOLD_CHARS] if char.isprintable())


_ADVICE = {
    CertificateError.code: "this certificate was revoked, has expired or is of another role; ask the authority of the "
    "consortium",
}


def remote_error(code: str) -> SecureFLError:
    """An error the other side reported by its code."""
    found = by_code(code)
    # What its class advises is for whoever has the disk, or wrote the file: that is not the one who reads this.
    advice = None if found.advice and not issubclass(found, StorageError) else ASK
    advice = _ADVICE.get(found.code, advice)
    return rebuild(found.code, f"the coordinator answered: {found.code}", advice=advice)
