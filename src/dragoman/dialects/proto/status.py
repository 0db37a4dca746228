"""Errors on gRPC: a status code, a sentence, and in the trailer `grpc-status-details-bin` the reason.

Between 1.0.0 and 1.0.1 some errors changed their status code, and 0.3 never said which to use. So the reason is read
first, then the name that the SDKs put before the sentence, and the code only when there is nothing else.
"""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError, Message

from dragoman import errors as e
from dragoman.dialects import errors
from dragoman.dialects.proto.messages import RPC
from dragoman.errors import DOMAIN, A2AError

DETAILS = "grpc-status-details-bin"

_PREFIX = "type.googleapis.com/"
MAX_STATUS_TEXT = 1024
"""Characters of the message, and bytes of the other texts: trailers have little room."""

CODES = {
    name: number
    for number, name in enumerate(
        (
            "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
            "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
            "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
        )
    )
}  # fmt: skip

_BY_CODE: dict[str, type[A2AError]] = {
    **errors.BY_GRPC,
    "NOT_FOUND": e.TaskNotFound,
    "UNIMPLEMENTED": e.MethodNotFound,
    **dict.fromkeys(("UNAVAILABLE", "CANCELLED", "ABORTED", "DEADLINE_EXCEEDED"), e.Unreachable),
}


def status_message(error: A2AError, version: str = "1.0") -> str:
    """The message of a status. In 0.3 the SDKs put the error's name before it, and some read nothing else."""
    words = (
        error.message if len(error.message) <= MAX_STATUS_TEXT else error.message[: MAX_STATUS_TEXT - 1] + "…"
    )
    name = "" if version == "1.0" else errors.name_of(error)
    return f"{name}: {words}" if name else words


def write_status(error: A2AError, version: str = "1.0") -> bytes:
    """A google.rpc.Status with all details of an error."""
    status = RPC.Status(code=CODES[error.grpc], message=status_message(error, version))
    info = RPC.ErrorInfo(reason=error.reason, domain=DOMAIN)
    info.metadata.update(
        {name: value for name, value in error.metadata.items() if len(value) <= MAX_STATUS_TEXT}
    )
    _pack(status, info)
    if error.fields:
        request = RPC.BadRequest()
        for field, why in error.fields:
            if request.ByteSize() < MAX_STATUS_TEXT:
                request.field_violations.add(field=field[:MAX_STATUS_TEXT], description=why[:MAX_STATUS_TEXT])
        _pack(status, request)
    if error.retry_after is not None:
        retry = RPC.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_after * 1e9))
        _pack(status, retry)
    body: bytes = status.SerializeToString()
    return body


def _pack(status: Any, detail: Message) -> None:
    status.details.add(type_url=_PREFIX + detail.DESCRIPTOR.full_name, value=detail.SerializeToString())


def read_status(code: str, message: str, details: bytes = b"") -> A2AError:
    """A peer's status as an error of ours. `code` is the name of the gRPC status."""
    try:
        status = RPC.Status.FromString(details)
        found = {each.type_url.rpartition("/")[2]: each.value for each in status.details}
        info = RPC.ErrorInfo.FromString(found.get("google.rpc.ErrorInfo", b""))
        request = RPC.BadRequest.FromString(found.get("google.rpc.BadRequest", b""))
        retry = RPC.RetryInfo.FromString(found.get("google.rpc.RetryInfo", b""))
    except DecodeError:
        return read_status(code, message)
    message = message or status.message
    name, colon, rest = message.partition(":")
    called = errors.by_name(name.strip()) if colon else None
    if called is not None:
        message = rest.strip() or message
    kind = errors.by_reason(info.reason) or called or _BY_CODE.get(code, A2AError)
    error = errors.make(
        kind,
        message or f"the peer answered {code}",
        metadata=dict(info.metadata),
        fields=tuple((each.field, each.description) for each in request.field_violations),
    )
    if "google.rpc.RetryInfo" in found:
        error.retry_after = retry.retry_delay.ToNanoseconds() / 1e9
    return error
