"""Names of tasks, webhooks and pages in URLs of the console: JSON in base64url."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypeVar

import msgspec

from dragoman.console.access import OPERATOR, Viewer
from dragoman.model.ops import Scope
from dragoman.server.routes import NotFound

T = TypeVar("T")


def write_json(value: Any) -> str:
    return urlsafe_b64encode(msgspec.json.encode(value)).rstrip(b"=").decode()


def read_json(text: str, kind: type[T]) -> T:
    """Raises `ValueError`."""
    return msgspec.json.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=kind)


def key_of(scope: Scope, task: str) -> str:
    """The name of a task in URLs."""
    return write_json((scope.tenant, scope.agent, scope.owner, task))


def read_key(key: str, viewer: Viewer) -> tuple[Scope, str]:
    """Raises `NotFound` for what is no key, and for a task that is not the viewer's."""
    try:
        tenant, agent, owner, task = read_json(key, tuple[str, str, str, str])
    except ValueError:
        raise no_task() from None
    if viewer.role != OPERATOR and tenant != viewer.tenant:
        raise no_task()
    return Scope(tenant, agent, owner), task


def no_task() -> NotFound:
    return NotFound("there is no such task")
