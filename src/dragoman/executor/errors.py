"""The SDK's errors, by its names.

Raised by an executor, an error is how its task fails, and its message is what the caller reads.
"""

from __future__ import annotations

from typing import Any

from dragoman import errors
from dragoman.errors import A2AError


class InternalError(A2AError):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Internal error")


class ServerError(A2AError):
    """What the SDK wraps around an error to raise it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or InternalError()
        super().__init__(getattr(self.error, "message", "") or str(self.error) or "Internal error")


class InvalidRequestError(errors.InvalidRequest):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Request payload validation error")


class InvalidParamsError(errors.InvalidParams):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Invalid parameters")


class MethodNotFoundError(errors.MethodNotFound):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Method not found")


class UnsupportedOperationError(errors.UnsupportedOperation):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "This operation is not supported")


class TaskNotFoundError(errors.TaskNotFound):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message=message or "Task not found")


class TaskNotCancelableError(errors.TaskNotCancelable):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Task cannot be canceled")


class PushNotificationNotSupportedError(errors.PushNotSupported):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Push Notification is not supported")


class ContentTypeNotSupportedError(errors.ContentTypeNotSupported):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Incompatible content types")


class InvalidAgentResponseError(errors.InvalidAgentResponse):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Invalid agent response")


class JSONParseError(errors.ParseError):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "Invalid JSON payload")


class ExtendedAgentCardNotConfiguredError(errors.ExtendedCardNotConfigured):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "There is no extended card")


AuthenticatedExtendedCardNotConfiguredError = ExtendedAgentCardNotConfiguredError


class ExtensionSupportRequiredError(errors.ExtensionRequired):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "An extension is required")


class VersionNotSupportedError(errors.VersionNotSupported):
    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message or "The version is not supported")


def __getattr__(name: str) -> Any:
    from dragoman.executor.missing import find_in_package

    return find_in_package(name)
