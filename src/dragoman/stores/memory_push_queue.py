"""Push configs in memory, and what is still to be told to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import LeaseLost
from dragoman.engine.push_configs import MAX_PUSH_CONFIGS, Delivery, StoredPushConfig
from dragoman.engine.records import PUBLIC, Record, Snapshot
from dragoman.errors import InvalidParams, TaskNotFound
from dragoman.model.ops import Scope

if TYPE_CHECKING:
    from dragoman.stores.memory import MemoryStore


class MemoryPushQueue:
    """`PushConfigStore` and `PushQueue` of one store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._last = 0
        self._of_task: dict[int, dict[str, int]] = {}
        """By the store's key of the task, then by id: the key of each webhook."""
        self._webhooks: dict[int, Delivery] = {}
        self._holders: dict[int, str] = {}
        self._listeners: list[Callable[[], None]] = []

    # -- PushConfigStore -------------------------------------------------------------------------------------------------

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        key, snapshot = self._task(scope, task)
        kept = self.check(key, webhook)
        self.add(key, kept, snapshot, told=snapshot.seq - 1 if snapshot.over else snapshot.seq)
        self._wake()
        return kept

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        key, _ = self._task(scope, task)
        return [self._webhooks[webhook].webhook for webhook in self._of_task.get(key, {}).values()]

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        key, _ = self._task(scope, task)
        if (webhook := self._of_task.get(key, {}).pop(id, None)) is not None:
            del self._webhooks[webhook]
            self._holders.pop(webhook, None)

    def _task(self, scope: Scope, task: str) -> tuple[int, Snapshot]:
        key = self._store._keys.get(scope, {}).get(task)
        if key is None:
            raise TaskNotFound(task)
        return key, self._store._tasks[key].snapshot

    # -- for the log -------------------------------------------------------------------------------------------

    def check(self, task: int, webhook: StoredPushConfig) -> StoredPushConfig:
        """The webhook as it will be kept. Raises `InvalidParams` if there are too many."""
        others = self._of_task.get(task, {})
        if (same := others.get(webhook.config.id)) is not None:
            return replace(webhook, uid=self._webhooks[same].webhook.uid)
        if len(others) >= MAX_PUSH_CONFIGS:
            raise InvalidParams(f"a task can have up to {MAX_PUSH_CONFIGS} push configs")
        return webhook

    def add(self, task: int, webhook: StoredPushConfig, snapshot: Snapshot, *, told: int) -> None:
        others = self._of_task.setdefault(task, {})
        if (same := others.get(webhook.config.id)) is not None:
            self._again(same, webhook=webhook)
            return
        self._last = key = self._last + 1
        others[webhook.config.id] = key
        self._webhooks[key] = Delivery(
            key=key,
            scope=snapshot.scope,
            task=snapshot.task_id,
            webhook=webhook,
            cursor=told,
            last=snapshot.seq,
        )

    def mark(self, task: int, records: Sequence[Record]) -> None:
        """There is news of a task, if one of these records is news."""
        webhooks = self._of_task.get(task)
        if not webhooks or not (news := [record.seq for record in records if record.kind in PUBLIC]):
            return
        for key in webhooks.values():
            self._webhooks[key] = replace(self._webhooks[key], last=news[-1])
        self._wake()

    def waiting(self, task: int) -> bool:
        """Whether somebody is still to be told of a task."""
        return any(_is_due(self._webhooks[key]) for key in self._of_task.get(task, {}).values())

    def forget(self, task: int) -> None:
        for key in self._of_task.pop(task, {}).values():
            del self._webhooks[key]
            self._holders.pop(key, None)

    def leave(self, node: str) -> None:
        self._holders = {key: holder for key, holder in self._holders.items() if holder != node}

    def _wake(self) -> None:
        for woken in tuple(self._listeners):
            woken()

    # -- PushQueue ------------------------------------------------------------------------------------------------

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        now = push_configs.now()
        due = [
            webhook
            for webhook in self._webhooks.values()
            if _is_due(webhook)
            and not now < webhook.at <= now + longest
            and (holder := self._holders.get(webhook.key, "")) != node
            and not self._store._alive(holder)
        ]
        due.sort(key=lambda webhook: webhook.at)
        claimed = [replace(webhook, fence=webhook.fence + 1) for webhook in due[:limit]]
        for webhook in claimed:
            self._webhooks[webhook.key] = webhook
            self._holders[webhook.key] = node
        return claimed

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        mine = self._mine(delivery)
        if mine is None:
            raise LeaseLost(delivery.task)
        self._webhooks[mine.key] = replace(mine, cursor=cursor, attempt=0, since=0.0, at=0.0, error="")

    async def release(
        self,
        delivery: Delivery,
        cursor: int,
        *,
        retry_in: float = 0.0,
        error: str = "",
        dead: bool = False,
    ) -> None:
        mine = self._mine(delivery)
        if mine is None:
            return
        now = push_configs.now()
        if cursor != mine.cursor:
            mine = replace(mine, cursor=cursor, attempt=0, since=0.0, error="")
        if error or dead:
            since = mine.since if mine.attempt else now
            mine = replace(mine, attempt=mine.attempt + 1, since=since, error=error, dead=dead)
        self._webhooks[mine.key] = replace(mine, at=now + retry_in if retry_in or error else 0.0)
        del self._holders[mine.key]

    async def when(self) -> float | None:
        free = [
            webhook.at
            for webhook in self._webhooks.values()
            if _is_due(webhook) and webhook.key not in self._holders
        ]
        return min(free, default=None)

    @contextmanager
    def listen(self, woken: Callable[[], None]) -> Iterator[None]:
        self._listeners.append(woken)
        try:
            yield
        finally:
            self._listeners.remove(woken)

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        waiting = [
            webhook
            for webhook in self._webhooks.values()
            if webhook.cursor < webhook.last and (webhook.dead or not dead)
        ]
        return waiting[:limit]

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        if key not in self._webhooks:
            return False
        self._again(key, cursor=cursor)
        self._wake()
        return True

    def _again(self, key: int, *, webhook: StoredPushConfig | None = None, cursor: int | None = None) -> None:
        was = self._webhooks[key]
        self._holders.pop(key, None)
        self._webhooks[key] = replace(
            was,
            webhook=webhook or was.webhook,
            cursor=was.cursor if cursor is None else min(cursor, was.last),
            fence=was.fence + 1,
            attempt=0,
            since=0.0,
            at=0.0,
            error="",
            dead=False,
        )

    def _mine(self, delivery: Delivery) -> Delivery | None:
        held = self._webhooks.get(delivery.key)
        return held if held and held.fence == delivery.fence and held.key in self._holders else None


def _is_due(webhook: Delivery) -> bool:
    return webhook.cursor < webhook.last and not webhook.dead
