"""Errors over HTTP+JSON: a status and a body.

1.0 says everything twice, for machines that look at HTTP and for those that know A2A: `{"error": {"code": 404, "status":
"NOT_FOUND", "message": ..., "details": [{"reason": "TASK_NOT_FOUND", ...}]}}`. 0.3 never said how; its peers write
`{"code": -32001, "message": ...}`, or only a message, or problem+json (RFC 9457), and statuses of their own; one reads
nothing but `"type": "TaskNotFoundError"`. Reading takes all of them, the most telling first: the reason, the JSON-RPC
code, the problem's type, the gRPC status, and the HTTP status when there is nothing else.
"""

from __future__ import annotations

from typing import Any

from dragoman import errors as e
from dragoman.dialects import errors
from dragoman.errors import A2AError

_STATUS_0_3: dict[type[A2AError], int] = {
    e.InvalidParams: 422,
    e.TaskNotCancelable: 409,
    e.PushNotSupported: 501,
    e.UnsupportedOperation: 501,
    e.ContentTypeNotSupported: 415,
    e.InvalidAgentResponse: 502,
    e.ExtendedCardNotConfigured: 404,
}
"""Where the practice of 0.3 differs from 1.0."""

_BY_STATUS: dict[int, type[A2AError]] = {
    400: e.InvalidRequest,
    401: e.Unauthenticated,
    403: e.Forbidden,
    405: e.MethodNotFound,
    409: e.TaskNotCancelable,
    415: e.ContentTypeNotSupported,
    422: e.InvalidParams,
    429: e.RateLimited,
    501: e.UnsupportedOperation,
}
_BY_GRPC: dict[str, type[A2AError]] = {
    "INVALID_ARGUMENT": e.InvalidParams,
    "FAILED_PRECONDITION": e.UnsupportedOperation,
    "UNIMPLEMENTED": e.UnsupportedOperation,
    "UNAUTHENTICATED": e.Unauthenticated,
    "PERMISSION_DENIED": e.Forbidden,
    "RESOURCE_EXHAUSTED": e.RateLimited,
    "UNAVAILABLE": e.Unavailable,
    "INTERNAL": A2AError,
}


def write(error: A2AError, dialect: str) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the body."""
    if dialect == "1.0":
        body = {
            "code": error.http,
            "status": error.grpc,
            "message": error.message,
            "details": error.details(),
        }
        return error.http, {"error": body}
    status = next((_STATUS_0_3[kind] for kind in type(error).__mro__ if kind in _STATUS_0_3), error.http)
    name = errors.name(error)
    return status, {**errors.write_error(error, dialect), **({"type": name} if name else {})}


def read(document: Any, dialect: str, *, http: int, of_task: bool = False) -> A2AError:
    """What a peer's error says. `of_task`: the address named a task, so that a bare 404 is about it."""
    found = told(document, dialect)
    if found is not None and not (type(found) is A2AError and http in (401, 403, 429)):
        return found  # for who may not call, and how often, 0.3 has only the status
    return _by_status(document, http, e.TaskNotFound if of_task else e.MethodNotFound)


def told(document: Any, dialect: str) -> A2AError | None:
    """The error that a document names; None if it does not."""
    error = _inner(document)
    code = error.get("code")
    stated = {
        "code": code if isinstance(code, int) and code < 0 else None,
        "message": _message(document, "the peer answered with an error"),
        "data": error.get("details") or error.get("data"),
    }
    found = errors.read_error(stated, dialect)
    if type(found) is not A2AError or stated["code"] is not None or _is_internal(stated["data"]):
        return found
    kind = _problem(error)
    return errors.make(kind, found.message, metadata=found.metadata, fields=found.fields) if kind else None


def _is_internal(details: Any) -> bool:
    """Whether an error is called internal, and not only called nothing else."""
    return isinstance(details, list) and any(
        isinstance(detail, dict) and detail.get("reason") == A2AError.reason for detail in details
    )


def _by_status(document: Any, http: int, missing: type[A2AError]) -> A2AError:
    kind = (
        missing if http == 404 else _BY_GRPC.get(str(_inner(document).get("status"))) or _BY_STATUS.get(http)
    )
    if kind is None:
        kind = e.Unavailable if http >= 500 else e.Unreachable
    return errors.make(kind, _message(document, f"the peer answered HTTP {http}"))


def _inner(document: Any) -> dict[str, Any]:
    if not isinstance(document, dict):
        return {}
    inner = document.get("error")
    return inner if isinstance(inner, dict) else document


def _message(document: Any, default: str) -> str:
    error = _inner(document)
    words = (error.get(member) for member in ("message", "detail", "title", "error"))
    return next((word for word in words if isinstance(word, str) and word), default)


def _problem(document: dict[str, Any]) -> type[A2AError] | None:
    """The kind a document names in its `type`: `https://a2a-protocol.org/errors/task-not-found`, `TaskNotFoundError`."""
    kind = document.get("type")
    if not isinstance(kind, str):
        return None
    slug = kind.rstrip("/").rpartition("/")[2].removesuffix("-error").replace("-", "_").upper()
    return errors.by_reason(slug) or errors.by_name(kind)
