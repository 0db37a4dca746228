"""The protocols of push configs: storing them, and delivering notifications to their webhooks.

A stored push config holds a cursor in its task's log, so there is no queue that could differ from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypedDict, Unpack

from msgspec import Struct

from dragoman.model.ops import PushConfig, Scope

MAX_PUSH_CONFIGS = 16
"""How many push configs a task may have."""

_BEGAN = time.time() - time.monotonic()


def steady_time() -> float:
    """The time of day at the start of the process plus the monotonic time since: setting the clock does not delay deliveries."""
    return _BEGAN + time.monotonic()


class StoredPushConfig(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A push config, and the dialect that it was registered in: its notifications use that dialect."""

    config: PushConfig
    dialect: str = "1.0"
    uid: str = ""
    """The prefix of its delivery ids. It stays the same when the config is replaced."""
    generation: int | None = None
    """Which of the caller's successive tokens set it, where that is counted (`Principal`)."""


class PushRow(Struct, frozen=True, kw_only=True):
    """How far a push config was delivered, and the node that delivers. It is due while `cursor < last`."""

    cursor: int
    """The last record that was delivered."""
    last: int
    """The last record to deliver."""
    node: str = ""
    """The node that holds it; empty if none does."""
    fence: int = 0
    attempt: int = 0
    """How often delivery of the next notification failed."""
    since: float = 0.0
    """When it first failed, by `steady_time`."""
    at: float = 0.0
    """The time of the next attempt, by `steady_time`."""
    error: str = ""
    dead: bool = False
    """Delivery was given up. Later records wait for `redeliver`."""

    @property
    def due(self) -> bool:
        return self.cursor < self.last and not self.dead


class Delivery(PushRow, frozen=True, kw_only=True):
    """A webhook and its cursor. The node that claimed it may send, until another node claims it with a higher `fence`."""

    key: int
    """The key of the webhook in the store."""
    scope: Scope
    task: str
    webhook: StoredPushConfig


class PushConfigStore(Protocol):
    """The push configs of tasks. A task outside the scope is `TaskNotFound`."""

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        """Add a config, or replace the one with the same id, which keeps its cursor.

        A new one receives later records, and the last status if the task has ended or waits for input.
        Raises `TaskNotFound`, and `InvalidParams` when the task has `MAX_PUSH_CONFIGS` of them.
        """
        ...

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        """The configs of a task, oldest first. Raises `TaskNotFound`."""
        ...

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        """Delete a config if it exists; nothing more is sent to it. Raises `TaskNotFound` if the task does not exist."""
        ...


class ReleaseOptions(TypedDict, total=False):
    retry_in: float
    """Seconds until the next attempt."""
    error: str
    """Why the attempt failed; empty if it did not."""
    dead: bool
    """Delivery is given up."""


class PushQueue(Protocol):
    """Deliveries that are due. Only push senders use it.

    A webhook is due when its task's log has a public record after its cursor. The transaction that adds the record makes it
    due, so no committed record is missed. One live node at a time holds a webhook.
    """

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        """Take up to `limit` webhooks that are due and that no live node holds. The fence of each rises.

        An attempt that is planned more than `longest` seconds ahead is due now: the clock was wrong when it was planned.
        """
        ...

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        """Records up to `cursor` were delivered. Raises `LeaseLost` if the caller does not hold the webhook."""
        ...

    async def release(self, delivery: Delivery, cursor: int, **options: Unpack[ReleaseOptions]) -> None:
        """`advance`, and release the webhook. Does nothing if the caller does not hold it."""
        ...

    async def next_due(self) -> float | None:
        """The time at which the next webhook that no node holds is due; None if there is none."""
        ...

    def listen(self, woken: Callable[[], None]) -> AbstractContextManager[None]:
        """Call `woken` when a write of this process makes a webhook due. Writes of other processes are found by polling."""
        ...

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        """Webhooks with notifications that are not delivered yet, oldest first. With `dead`, only those that were given up."""
        ...

    async def browse(
        self, *, of: tuple[Scope, str] | None = None, after: int = 0, limit: int
    ) -> Sequence[Delivery]:
        """All webhooks by key, after `after`; with `of`, those of one task."""
        ...

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        """Make a webhook due at once, from `cursor` on if given. False if there is no such webhook."""
        ...
