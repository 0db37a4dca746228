"""Who is to be told of a task, and what they have not been told yet: one seam of the engine, with a suite of its own.

A webhook is a push config as it is kept. It is a cursor in its task's log, so there is no queue that could differ from that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from msgspec import Struct

from dragoman.model.ops import PushConfig, Scope

MAX_PUSH_CONFIGS = 16
"""How many push configs a task may have."""

_BEGAN = time.time() - time.monotonic()


def now() -> float:
    """The time of day as it was when we began, counted on from there: deliveries do not mind that somebody sets a clock."""
    return _BEGAN + time.monotonic()


class StoredPushConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A push config as it is kept: with the tongue it was registered in, which is the one its notifications speak."""

    config: PushConfig
    dialect: str = "1.0"
    uid: str = ""
    """Begins the ids of its deliveries. It stays when the config is replaced."""


class Delivery(Struct, frozen=True, kw_only=True):
    """A webhook, and how far it has been told. Whoever claimed it may send, until somebody with a higher `fence` does."""

    key: int
    """The store's own name for the webhook."""
    scope: Scope
    task: str
    webhook: StoredPushConfig
    cursor: int
    """Everything up to this record has been told."""
    last: int
    """The last record there is to tell of."""
    fence: int = 0
    attempt: int = 0
    """How often the next notification was tried in vain."""
    since: float = 0.0
    """When it first was, by `now`."""
    at: float = 0.0
    """Not to be tried before this time, by `now`."""
    error: str = ""
    dead: bool = False
    """Given up. What comes meanwhile waits behind it, for `redeliver`."""


class PushConfigStore(Protocol):
    """The push configs of tasks. A task outside the scope is `TaskNotFound`."""

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        """Add a webhook, or replace the one with its id, which then goes on from where it is.

        A new one is told what comes from now on, and how the task ended or what it waits for if it does already.
        Raises `TaskNotFound`, and `InvalidParams` when the task has `MAX_PUSH_CONFIGS` of them.
        """
        ...

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        """Those of a task, oldest first. Raises `TaskNotFound`."""
        ...

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        """Forget a webhook, if it is there; nothing is sent any more. Raises `TaskNotFound` if the task is not."""
        ...


class PushQueue(Protocol):
    """What is still to be told to whom. Only push senders use it.

    A webhook is due when its task's log has a public record after its cursor: that changes in the transaction that adds
    the record, so nothing that was committed can be forgotten. One live node at a time holds a webhook.
    """

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        """Take up to `limit` webhooks that are due and that no live node holds. The fence of each rises.

        Nobody waits for more than `longest` seconds: a later time is of a clock that was wrong, and means now.
        """
        ...

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        """Everything up to `cursor` has been told. Raises `LeaseLost` if it is not ours (any more)."""
        ...

    async def release(
        self,
        delivery: Delivery,
        cursor: int,
        *,
        retry_in: float = 0.0,
        error: str = "",
        dead: bool = False,
    ) -> None:
        """`advance`, and give it back. With `error` the attempt was in vain: the next one is in `retry_in` seconds.

        `dead`: there is no next one. Does nothing if it is not ours.
        """
        ...

    async def when(self) -> float | None:
        """The time at which something that nobody holds is due; None if nothing is."""
        ...

    def listen(self, woken: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `woken` when something becomes due by a write of this process. Those of others are found by looking."""
        ...

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        """What is not told yet, oldest webhook first; only what was given up, if `dead`."""
        ...

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        """Make a webhook due at once, from `cursor` on if given. False if there is no such webhook."""
        ...
