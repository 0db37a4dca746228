"""The errors that cross the wire, as one tree.

    A2AError
      ProtocolError          the request could not be understood
        ParseError InvalidRequest MethodNotFound InvalidParams
      StoreDamaged TaskUnreadable TaskNotFound TaskNotCancelable TaskClosed
      PushNotSupported UnsupportedOperation StreamingNotSupported
      ContentTypeNotSupported InvalidAgentResponse
      ExtendedCardNotConfigured ExtensionRequired VersionNotSupported
      Unauthenticated Forbidden RateLimited QuotaExceeded Unavailable
      Unreachable            a peer could not be reached, or its answer could not be read
      ToolFailed             a tool failed, was not approved, or may have run without an answer

Each class has its `reason` and its codes in A2A 1.0.1 (JSON-RPC, HTTP, gRPC). `dialects/errors.py` has the codes of older
versions. Any other exception becomes an internal error without details, and is logged once where it is caught.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from logging import Logger
from types import TracebackType
from typing import Any

__all__ = [
    "A2AError",
    "ContentTypeNotSupported",
    "ExtendedCardNotConfigured",
    "ExtensionRequired",
    "Forbidden",
    "InvalidAgentResponse",
    "InvalidParams",
    "InvalidRequest",
    "MethodNotFound",
    "ParseError",
    "ProtocolError",
    "PushNotSupported",
    "QuotaExceeded",
    "RateLimited",
    "StoreDamaged",
    "StoreUnavailable",
    "StreamingNotSupported",
    "TaskClosed",
    "TaskNotCancelable",
    "TaskNotFound",
    "TaskUnreadable",
    "ToolFailed",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "UnsupportedOperation",
    "VersionNotSupported",
]

DOMAIN = "a2a-protocol.org"


class A2AError(Exception):
    """An error that a peer is told: a sentence for a person, a reason and codes for a program."""

    reason, rpc, http, grpc = "INTERNAL_ERROR", -32603, 500, "INTERNAL"

    def __init__(
        self,
        message: str = "",
        *,
        metadata: Mapping[str, str] | None = None,
        fields: Sequence[tuple[str, str]] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message or "internal error")
        self.message = message or "internal error"
        self.metadata = dict(metadata or {})
        self.fields = tuple(fields)
        """Which fields were wrong, and why: `(("message.parts", "must not be empty"),)`."""
        self.retry_after = retry_after
        self.delegated = False
        """It came from another agent. Our caller must not learn that agent's address or answer."""

    def details(self) -> list[dict[str, Any]]:
        """The google.rpc details that 1.0 requires."""
        out: list[dict[str, Any]] = [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": self.reason,
                "domain": DOMAIN,
                **({"metadata": self.metadata} if self.metadata else {}),
            }
        ]
        if self.fields:
            violations = [{"field": field, "description": why} for field, why in self.fields]
            out.append({"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": violations})
        return out


class ProtocolError(A2AError):
    """The request could not be understood."""

    reason, rpc, http, grpc = "INVALID_REQUEST", -32600, 400, "INVALID_ARGUMENT"


class ParseError(ProtocolError):
    reason, rpc, http, grpc = "PARSE_ERROR", -32700, 400, "INVALID_ARGUMENT"


class InvalidRequest(ProtocolError):
    pass


class MethodNotFound(ProtocolError):
    reason, rpc, http, grpc = "METHOD_NOT_FOUND", -32601, 404, "UNIMPLEMENTED"


class InvalidParams(ProtocolError):
    reason, rpc, http, grpc = "INVALID_PARAMS", -32602, 400, "INVALID_ARGUMENT"


class TaskNotFound(A2AError):
    """There is no such task, or this caller may not see it."""

    reason, rpc, http, grpc = "TASK_NOT_FOUND", -32001, 404, "NOT_FOUND"

    def __init__(self, task_id: str = "", **kw: Any) -> None:
        super().__init__(kw.pop("message", "") or f"task {task_id[:80]!r} was not found", **kw)
        self.task_id = task_id


class StoreDamaged(A2AError):
    """A part of the database cannot be read. Trying again does not help: it has to be restored."""


class TaskUnreadable(A2AError):
    """The stored data of this task is damaged. Trying again does not help."""

    def __init__(self, task_id: str = "", **kw: Any) -> None:
        damaged = f"task {task_id[:80]!r} cannot be read: its stored data is damaged"
        super().__init__(kw.pop("message", "") or damaged, **kw)
        self.task_id = task_id


class TaskNotCancelable(A2AError):
    reason, rpc, http, grpc = "TASK_NOT_CANCELABLE", -32002, 400, "FAILED_PRECONDITION"


class PushNotSupported(A2AError):
    reason, rpc, http, grpc = "PUSH_NOTIFICATION_NOT_SUPPORTED", -32003, 400, "FAILED_PRECONDITION"


class UnsupportedOperation(A2AError):
    reason, rpc, http, grpc = "UNSUPPORTED_OPERATION", -32004, 400, "FAILED_PRECONDITION"


class StreamingNotSupported(UnsupportedOperation):
    """The agent does not stream. 0.1 has a code of its own for this; 1.0 uses the parent's."""


class TaskClosed(UnsupportedOperation):
    """The message is refused: the task is finished, or does not wait with the question that the message answers."""


class ContentTypeNotSupported(A2AError):
    reason, rpc, http, grpc = "CONTENT_TYPE_NOT_SUPPORTED", -32005, 400, "INVALID_ARGUMENT"


class InvalidAgentResponse(A2AError):
    reason, rpc, http, grpc = "INVALID_AGENT_RESPONSE", -32006, 500, "INTERNAL"


class ExtendedCardNotConfigured(A2AError):
    reason, rpc, http, grpc = "EXTENDED_AGENT_CARD_NOT_CONFIGURED", -32007, 400, "FAILED_PRECONDITION"


class ExtensionRequired(A2AError):
    reason, rpc, http, grpc = "EXTENSION_SUPPORT_REQUIRED", -32008, 400, "FAILED_PRECONDITION"


class VersionNotSupported(A2AError):
    reason, rpc, http, grpc = "VERSION_NOT_SUPPORTED", -32009, 400, "FAILED_PRECONDITION"


class Unauthenticated(A2AError):
    reason, rpc, http, grpc = "UNAUTHENTICATED", -32000, 401, "UNAUTHENTICATED"


class Forbidden(A2AError):
    reason, rpc, http, grpc = "PERMISSION_DENIED", -32000, 403, "PERMISSION_DENIED"


class RateLimited(A2AError):
    reason, rpc, http, grpc = "RATE_LIMITED", -32000, 429, "RESOURCE_EXHAUSTED"


class QuotaExceeded(A2AError):
    """A caller has reached a limit of what it may store. It does not help to try again."""

    reason, rpc, http, grpc = "QUOTA_EXCEEDED", -32000, 413, "RESOURCE_EXHAUSTED"


class Unavailable(A2AError):
    """Temporary: the server is full, is stopping, or cannot reach its store."""

    reason, rpc, http, grpc = "UNAVAILABLE", -32603, 503, "UNAVAILABLE"


class StoreUnavailable(Unavailable):
    """The database did not answer for as long as anybody would wait. A turn that meets it does not fail: it runs again."""


class Unreachable(A2AError):
    """A peer could not be reached, or its answer could not be read."""

    may_be_restarting = False
    """Nobody accepted the connection: whoever can wait may try again."""
    reason, rpc, http, grpc = "UNREACHABLE", -32603, 502, "UNAVAILABLE"


class ToolFailed(A2AError):
    """A tool that a turn called did not return a result. Whoever does not catch it fails the task with `message`.

    `explanation` is for the agent or its model, and is not shown to callers: what the tool or its server said.
    """

    reason, rpc, http, grpc = "TOOL_FAILED", -32603, 502, "INTERNAL"

    def __init__(self, message: str = "", *, why: str = "error", explanation: str = "", **kw: Any) -> None:
        super().__init__(message, **kw)
        self.why = why
        """`error` (the tool said so), `arguments`, `result` (it does not fit its schema), `declined`, `timeout`, `unknown` (it may
        have run, and must not run twice), `unreachable`, `refused` (it wanted what it may not have), `unknown-tool`."""
        self.explanation = explanation

    @property
    def text(self) -> str:
        """What to tell a model: the message, and the explanation."""
        return f"{self.message}: {self.explanation}" if self.explanation else self.message


class keep_going:
    """Surrounds one round of a background loop: logs errors, so that the loop continues.

    `expected` errors are logged without a traceback. Only a cancel of the task itself passes through. A `CancelledError` that
    something inside raised is logged like any other error.
    """

    def __init__(self, log: Logger, what: str, *expected: type[Exception]) -> None:
        self._log, self._what, self._expected = log, what, expected

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is None or task.cancelling():
                return False
        elif not isinstance(error, Exception):
            return False
        if isinstance(error, self._expected):
            self._log.warning("%s: %s", self._what, error)
        else:
            self._log.error("%s failed, and continues", self._what, exc_info=error)
        return True
