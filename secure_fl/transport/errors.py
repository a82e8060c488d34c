"""Typed errors across the wire: the code travels, the text stays at home."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from secure_fl.errors import NetworkError, SecureFLError, known_code, rebuild
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb

DETAIL_KEY = "secure-fl-error-bin"

log = logging.getLogger(__name__)


@asynccontextmanager
async def errors_as_status(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Turn whatever a servicer raises into a status that says only the error's code."""
    try:
        yield
    except SecureFLError as error:
        log.info("refused a call: %s: %s", error.code, error.message)
        await _abort(context, getattr(grpc.StatusCode, error.status), error.code)
    except (grpc.aio.AbortError, grpc.aio.UsageError):
        raise
    except Exception:
        log.exception("a call failed unexpectedly")
        await _abort(context, grpc.StatusCode.INTERNAL, "SecureFL")


async def _abort(context: grpc.aio.ServicerContext[Any, Any], status: grpc.StatusCode, code: str) -> None:
    detail = pb.ErrorDetail(code=code).SerializeToString()
    await context.abort(status, code, trailing_metadata=((DETAIL_KEY, detail),))


def error_from_status(error: grpc.aio.AioRpcError) -> SecureFLError:
    """The typed error behind a failed call."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAIL_KEY and isinstance(value, bytes):
            return remote_error(parse(pb.ErrorDetail, value).code)
    if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return remote_error("Identity")
    return NetworkError(f"the call to the coordinator failed: {error.code().name}")


def remote_error(code: str) -> SecureFLError:
    """An error the other side reported by its code."""
    known = known_code(code)
    return rebuild(known, f"the coordinator answered: {known}")
