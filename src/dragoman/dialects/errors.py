"""Errors on the wire: the code of each error in each version, and back; and errors over HTTP+JSON.

A number means different things in different versions (-32007 means three), so a code is read with the table of the
version that wrote it. 1.0 also names the reason, which is read first.

Over HTTP+JSON, 1.0 writes `{"error": {"code": 404, "status": "NOT_FOUND", "message": ..., "details": [{"reason":
"TASK_NOT_FOUND", ...}]}}`. 0.3 never defined a form: its peers write `{"code": -32001, "message": ...}`, or only a message, or
problem+json (RFC 9457), with statuses of their own; one reads nothing but `"type": "TaskNotFoundError"`. Reading accepts all
of them, the most precise first: the reason, the JSON-RPC code, the problem's type, the gRPC status, the HTTP status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dragoman import errors as e
from dragoman.errors import A2AError

_COMMON: dict[type[A2AError], int] = {
    e.ParseError: -32700,
    e.InvalidRequest: -32600,
    e.ProtocolError: -32600,
    e.MethodNotFound: -32601,
    e.InvalidParams: -32602,
    e.A2AError: -32603,
    e.TaskNotFound: -32001,
    e.TaskNotCancelable: -32002,
    e.PushNotSupported: -32003,
    e.UnsupportedOperation: -32004,
    e.ContentTypeNotSupported: -32005,
}
_SINCE_0_2 = {
    **_COMMON,
    e.InvalidAgentResponse: -32006,
    e.Unauthenticated: -32000,
    e.Forbidden: -32000,
    e.RateLimited: -32000,
    e.QuotaExceeded: -32000,
}
_DRAFT = {
    **_COMMON,
    e.ExtendedCardNotConfigured: -32004,
    e.ExtensionRequired: -32602,
    e.VersionNotSupported: -32600,
    e.Unauthenticated: -32007,
    e.Forbidden: -32008,
    e.RateLimited: -32010,
    e.QuotaExceeded: -32010,
    e.Unavailable: -32011,
}
_V0_2 = {
    **_SINCE_0_2,
    e.ExtendedCardNotConfigured: -32004,
    e.ExtensionRequired: -32602,
    e.VersionNotSupported: -32600,
}
_V0_3 = {
    **_SINCE_0_2,
    e.ExtendedCardNotConfigured: -32007,
    e.ExtensionRequired: -32602,
    e.VersionNotSupported: -32009,
}
_CODES: dict[str, dict[type[A2AError], int]] = {
    "draft": _DRAFT,
    "0.1": {**_DRAFT, e.StreamingNotSupported: -32006, e.TaskClosed: -32009},
    "0.2-type": _V0_2,
    "0.2": _V0_2,
    "0.3": _V0_3,
    "0.3-proto": _V0_3,
    "1.0": {**_V0_3, e.ExtensionRequired: -32008},
    "arbiter": {
        **_SINCE_0_2,
        e.PushNotSupported: -32004,
        e.ExtendedCardNotConfigured: -32601,
        e.ExtensionRequired: -32602,
        e.VersionNotSupported: -32007,
    },
}


def _meanings(codes: dict[type[A2AError], int]) -> dict[int, type[A2AError]]:
    """What each code says. Of several errors that share one, the first listed is what it means."""
    out: dict[int, type[A2AError]] = {}
    for kind, code in codes.items():
        if code != -32000:
            out.setdefault(code, kind)
    return out


_MEANINGS = {name: _meanings(codes) for name, codes in _CODES.items()}
_SEEN: dict[int, type[A2AError]] = {-31401: e.Unauthenticated, -31403: e.Forbidden}
"""Codes that no version defines and that peers send all the same."""
BY_HTTP: dict[int, type[A2AError]] = {
    401: e.Unauthenticated,
    403: e.Forbidden,
    429: e.RateLimited,
    502: e.Unavailable,
    503: e.Unavailable,
    504: e.Unavailable,
}


def _kinds(kind: type[A2AError]) -> Iterator[type[A2AError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _reasons() -> dict[str, type[A2AError]]:
    out: dict[str, type[A2AError]] = {}
    for kind in _kinds(A2AError):
        out.setdefault(kind.reason, kind)
    return out


_BY_REASON = {**_reasons(), "INVALID_REQUEST": e.InvalidRequest}


_BY_NAME: dict[str, type[A2AError]] = {
    "JSONParseError": e.ParseError,
    "InvalidRequestError": e.InvalidRequest,
    "MethodNotFoundError": e.MethodNotFound,
    "InvalidParamsError": e.InvalidParams,
    "InternalError": A2AError,
    "TaskNotFoundError": e.TaskNotFound,
    "TaskNotCancelableError": e.TaskNotCancelable,
    "PushNotificationNotSupportedError": e.PushNotSupported,
    "UnsupportedOperationError": e.UnsupportedOperation,
    "ContentTypeNotSupportedError": e.ContentTypeNotSupported,
    "InvalidAgentResponseError": e.InvalidAgentResponse,
    "ExtendedAgentCardNotConfiguredError": e.ExtendedCardNotConfigured,
    "AuthenticatedExtendedCardNotConfiguredError": e.ExtendedCardNotConfigured,
}
"""What the SDKs call them; of two names, theirs in 1.0 first."""
_NAMES = {kind: name for name, kind in reversed(_BY_NAME.items()) if kind is not A2AError}


def by_name(name: str) -> type[A2AError] | None:
    return _BY_NAME.get(name)


def name_of(error: A2AError) -> str:
    """What the SDKs call an error, or the nearest kind they know; empty if they know none."""
    if type(error) is A2AError:
        return "InternalError"
    return next((_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES), "")


def by_reason(reason: str) -> type[A2AError] | None:
    return _BY_REASON.get(reason)


def code(error: A2AError, dialect: str) -> int:
    """The JSON-RPC code for an error in a dialect: its own, or that of the nearest kind the version knows."""
    codes = _CODES[dialect]
    return next((codes[kind] for kind in type(error).__mro__ if kind in codes), -32603)


def write_error(error: A2AError, dialect: str) -> dict[str, Any]:
    """The JSON-RPC `error` member. 1.0 has details; the others at most a plain object, Arbiter nothing.

    Where a version has no code for an error, it has the one of the nearest error, and `data` says which error it is.
    """
    out: dict[str, Any] = {"code": code(error, dialect), "message": error.message}
    if dialect == "1.0":
        out["data"] = error.details()
    elif dialect != "arbiter" and (error.metadata or error.fields or _is_nearest(error, dialect)):
        out["data"] = {"reason": error.reason, **error.metadata}
        if error.fields:
            out["data"]["fields"] = dict(error.fields)
    return out


def _is_nearest(error: A2AError, dialect: str) -> bool:
    """Whether the code of an error means another error."""
    meaning = _MEANINGS[dialect].get(code(error, dialect))
    return meaning is None or meaning.reason != error.reason


def read_error(error: Any, dialect: str, *, http: int = 200) -> A2AError:
    """A peer's JSON-RPC `error` member as one of our errors, with the message of the peer."""
    if not isinstance(error, dict):
        error = {"message": error} if isinstance(error, str) else {}
    number = error.get("code")
    message = error.get("message")
    info, fields = _details(error.get("data"))
    kind = _BY_REASON.get(info.get("reason", ""))
    if kind is None:
        kind = _MEANINGS[dialect].get(number) or _SEEN.get(number) if isinstance(number, int) else None
    if kind is None or kind in (A2AError, e.InvalidRequest):
        kind = BY_HTTP.get(http, kind or A2AError)
    if not isinstance(message, str) or not message:
        message = (
            f"the peer answered with error {number}"
            if number is not None
            else f"the peer answered HTTP {http}"
        )
    metadata = {k: v for k, v in (info.get("metadata") or {}).items() if isinstance(v, str)}
    return make(kind, message, metadata=metadata, fields=fields)


def make(
    kind: type[A2AError], message: str, *, metadata: dict[str, str] | None = None, fields: Any = ()
) -> A2AError:
    """An error of a class, with the message of the peer."""
    if kind is e.TaskNotFound:
        return e.TaskNotFound(message=message, metadata=metadata, fields=fields)
    return kind(message, metadata=metadata, fields=fields)


def _details(data: Any) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The ErrorInfo and the field violations in an error's `data`, which has several forms."""
    info: dict[str, Any] = {}
    fields: list[tuple[str, str]] = []
    if isinstance(data, dict) and "@type" not in data:
        plain = {k: v for k, v in data.items() if isinstance(v, str) and k != "reason"}
        if isinstance(data.get("fields"), dict):
            fields = [(str(k), str(v)) for k, v in data["fields"].items()]
        return {"reason": data.get("reason"), "metadata": plain}, tuple(fields)
    for detail in data if isinstance(data, list) else [data]:
        if not isinstance(detail, dict):
            continue
        if isinstance(detail.get("reason"), str):
            info = detail
        for violation in detail.get("fieldViolations") or ():
            if isinstance(violation, dict):
                fields.append((str(violation.get("field", "")), str(violation.get("description", ""))))
    return info, tuple(fields)


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
BY_GRPC: dict[str, type[A2AError]] = {
    "INVALID_ARGUMENT": e.InvalidParams,
    "FAILED_PRECONDITION": e.UnsupportedOperation,
    "UNIMPLEMENTED": e.UnsupportedOperation,
    "UNAUTHENTICATED": e.Unauthenticated,
    "PERMISSION_DENIED": e.Forbidden,
    "RESOURCE_EXHAUSTED": e.RateLimited,
    "UNAVAILABLE": e.Unavailable,
    "INTERNAL": A2AError,
}


def write_rest_error(error: A2AError, dialect: str) -> tuple[int, dict[str, Any]]:
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
    called = name_of(error)
    return status, {**write_error(error, dialect), **({"type": called} if called else {})}


def read_rest_error(document: Any, dialect: str, *, http: int, of_task: bool = False) -> A2AError:
    """What a peer's error says. `of_task`: the address named a task, so that a bare 404 is about it."""
    found = error_in(document, dialect)
    if found is not None and not (type(found) is A2AError and http in (401, 403, 429)):
        return found  # 0.3 has no code for authentication, permission and rate limits: only the HTTP status
    return _by_status(document, http, e.TaskNotFound if of_task else e.MethodNotFound)


def error_in(document: Any, dialect: str) -> A2AError | None:
    """The error that a document names; None if it does not."""
    error = _inner(document)
    code = error.get("code")
    stated = {
        "code": code if isinstance(code, int) and code < 0 else None,
        "message": _message(document, "the peer answered with an error"),
        "data": error.get("details") or error.get("data"),
    }
    found = read_error(stated, dialect)
    if type(found) is not A2AError or stated["code"] is not None or _is_internal(stated["data"]):
        return found
    kind = _problem(error)
    return make(kind, found.message, metadata=found.metadata, fields=found.fields) if kind else None


def _is_internal(details: Any) -> bool:
    """Whether an error is called internal, and not only called nothing else."""
    return isinstance(details, list) and any(
        isinstance(detail, dict) and detail.get("reason") == A2AError.reason for detail in details
    )


def _by_status(document: Any, http: int, missing: type[A2AError]) -> A2AError:
    kind = (
        missing if http == 404 else BY_GRPC.get(str(_inner(document).get("status"))) or _BY_STATUS.get(http)
    )
    if kind is None:
        kind = e.Unavailable if http >= 500 else e.Unreachable
    return make(kind, _message(document, f"the peer answered HTTP {http}"))


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
    return by_reason(slug) or by_name(kind)
