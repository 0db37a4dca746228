"""Errors of the native API, beside those of the protocol."""

from __future__ import annotations

from typing import Any

from dragoman.errors import A2AError


class NotFound(A2AError):
    """There is no such thing, or none that this caller may know about."""

    reason, http = "NOT_FOUND", 404


class Conflict(A2AError):
    """It exists already. `existing` is the existing one."""

    reason, http = "CONFLICT", 409

    def __init__(self, message: str, *, existing: Any = None) -> None:
        super().__init__(message)
        self.existing = existing


class NotConfigured(A2AError):
    """The operator has not set this up."""

    reason, http = "NOT_CONFIGURED", 503
