"""What the hub's own API refuses with, beside the errors of the protocol."""

from __future__ import annotations

from typing import Any, TypeVar

from dragoman.errors import A2AError

T = TypeVar("T")


class NotFound(A2AError):
    """There is no such thing, or none that this caller may know about."""

    reason, http = "NOT_FOUND", 404


class Conflict(A2AError):
    """There is one already. `existing` is what there is."""

    reason, http = "CONFLICT", 409

    def __init__(self, message: str, *, existing: Any = None) -> None:
        super().__init__(message)
        self.existing = existing


class NotConfigured(A2AError):
    """This hub has no such thing, because nobody set it up."""

    reason, http = "NOT_CONFIGURED", 503


def there(found: T | None, what: str, id: object) -> T:
    """What was found. Raises `NotFound`."""
    if found is None:
        raise NotFound(f"there is no {what} {str(id)[:40]}")
    return found
