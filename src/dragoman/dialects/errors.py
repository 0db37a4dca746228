"""Errors on the wire: which code a version has for each of ours, and back.

The same number means different things in different versions (-32007 means three), so a code is only ever read with
the table of the version that wrote it. 1.0 also names the reason, and that is asked first.
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
_LATER = {
    **_COMMON,
    e.InvalidAgentResponse: -32006,
    e.Unauthenticated: -32000,
    e.Forbidden: -32000,
    e.RateLimited: -32000,
}
_DRAFT = {
    **_COMMON,
    e.ExtendedCardNotConfigured: -32004,
    e.ExtensionRequired: -32602,
    e.VersionNotSupported: -32600,
    e.Unauthenticated: -32007,
    e.Forbidden: -32008,
    e.RateLimited: -32010,
    e.Unavailable: -32011,
}
_V0_2 = {
    **_LATER,
    e.ExtendedCardNotConfigured: -32004,
    e.ExtensionRequired: -32602,
    e.VersionNotSupported: -32600,
}
_V0_3 = {
    **_LATER,
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
        **_LATER,
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
_BY_HTTP: dict[int, type[A2AError]] = {
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


def name(error: A2AError) -> str:
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
    """The JSON-RPC `error` member. 1.0 has details; the others at most a plain object, Arbiter nothing."""
    out: dict[str, Any] = {"code": code(error, dialect), "message": error.message}
    if dialect == "1.0":
        out["data"] = error.details()
    elif dialect != "arbiter" and (error.metadata or error.fields):
        out["data"] = {"reason": error.reason, **error.metadata}
        if error.fields:
            out["data"]["fields"] = dict(error.fields)
    return out


def read_error(error: Any, dialect: str, *, http: int = 200) -> A2AError:
    """A peer's JSON-RPC `error` member as one of ours; the peer's own words are kept."""
    if not isinstance(error, dict):
        error = {"message": error} if isinstance(error, str) else {}
    number = error.get("code")
    message = error.get("message")
    info, fields = _details(error.get("data"))
    kind = _BY_REASON.get(info.get("reason", ""))
    if kind is None:
        kind = _MEANINGS[dialect].get(number) or _SEEN.get(number) if isinstance(number, int) else None
    if kind is None or kind in (A2AError, e.InvalidRequest):
        kind = _BY_HTTP.get(http, kind or A2AError)
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
    """An error of a kind with somebody else's sentence in it."""
    if kind is e.TaskNotFound:
        return e.TaskNotFound(message=message, metadata=metadata, fields=fields)
    return kind(message, metadata=metadata, fields=fields)


def _details(data: Any) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The ErrorInfo and the field violations in an error's `data`, in whatever form it has."""
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
