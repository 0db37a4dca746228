"""The SDK's errors, by its names. `raise ServerError(error=InvalidParamsError())` raises the error itself.

Raised by an executor, an error is how its task fails, and its message is what the caller reads.
"""

from __future__ import annotations

from typing import Any

from dragoman import errors
from dragoman.errors import A2AError


def ServerError(error: A2AError | None = None) -> A2AError:
    """What the SDK wraps around an error to raise it."""
    return error or InternalError()


def InternalError(message: str = "Internal error", data: Any = None) -> A2AError:
    return A2AError(message)


def InvalidRequestError(message: str = "Request payload validation error", data: Any = None) -> A2AError:
    return errors.InvalidRequest(message)


def InvalidParamsError(message: str = "Invalid parameters", data: Any = None) -> A2AError:
    return errors.InvalidParams(message)


def UnsupportedOperationError(message: str = "This operation is not supported", data: Any = None) -> A2AError:
    return errors.UnsupportedOperation(message)


def TaskNotFoundError(message: str = "Task not found", data: Any = None) -> A2AError:
    return errors.TaskNotFound(message=message)


def TaskNotCancelableError(message: str = "Task cannot be canceled", data: Any = None) -> A2AError:
    return errors.TaskNotCancelable(message)


def ContentTypeNotSupportedError(message: str = "Incompatible content types", data: Any = None) -> A2AError:
    return errors.ContentTypeNotSupported(message)


def InvalidAgentResponseError(message: str = "Invalid agent response", data: Any = None) -> A2AError:
    return errors.InvalidAgentResponse(message)
