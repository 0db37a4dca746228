"""The SDK's errors, by its names.

If an executor raises one, its task fails, and the caller gets the message of the error.
"""

from __future__ import annotations

from typing import Any

from dragoman import errors
from dragoman.errors import A2AError
from dragoman.executor.missing import find_in_package


class _SdkError(A2AError):
    """Has the arguments of the SDK's errors. `default`: its message if none is given. The data is ignored."""

    default = "Internal error"

    def __init__(self, message: str | None = None, data: Any = None) -> None:
        super().__init__(message=message or self.default)


class InternalError(_SdkError):
    pass


class ServerError(A2AError):
    """An exception with one of the errors in it: in 0.2 and 0.3, the errors themselves cannot be raised."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error or InternalError()
        super().__init__(getattr(self.error, "message", "") or str(self.error) or "Internal error")


class InvalidRequestError(_SdkError, errors.InvalidRequest):
    default = "Request payload validation error"


class InvalidParamsError(_SdkError, errors.InvalidParams):
    default = "Invalid parameters"


class MethodNotFoundError(_SdkError, errors.MethodNotFound):
    default = "Method not found"


class UnsupportedOperationError(_SdkError, errors.UnsupportedOperation):
    default = "This operation is not supported"


class TaskNotFoundError(_SdkError, errors.TaskNotFound):
    default = "Task not found"


class TaskNotCancelableError(_SdkError, errors.TaskNotCancelable):
    default = "Task cannot be canceled"


class PushNotificationNotSupportedError(_SdkError, errors.PushNotSupported):
    default = "Push Notification is not supported"


class ContentTypeNotSupportedError(_SdkError, errors.ContentTypeNotSupported):
    default = "Incompatible content types"


class InvalidAgentResponseError(_SdkError, errors.InvalidAgentResponse):
    default = "Invalid agent response"


class JSONParseError(_SdkError, errors.ParseError):
    default = "Invalid JSON payload"


class ExtendedAgentCardNotConfiguredError(_SdkError, errors.ExtendedCardNotConfigured):
    default = "There is no extended card"


AuthenticatedExtendedCardNotConfiguredError = ExtendedAgentCardNotConfiguredError


class ExtensionSupportRequiredError(_SdkError, errors.ExtensionRequired):
    default = "An extension is required"


class VersionNotSupportedError(_SdkError, errors.VersionNotSupported):
    default = "The version is not supported"


__getattr__ = find_in_package
