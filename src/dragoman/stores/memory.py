"""Tasks in memory: for tests, for trying things out, and for agents whose work may end with their process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dragoman.engine.hooks import Hook
from dragoman.engine.log import Cancel, Mail, Record, Snapshot, number
from dragoman.engine.seams import Delivered, Found, Held, Lease, LeaseLost, NewMail, TaskExists
from dragoman.errors import TaskClosed, TaskNotFound
from dragoman.model.ops import ListTasks, Scope
from dragoman.stores import heartbeat
from dragoman.stores.memory_audit import MemoryAudit
from dragoman.stores.memory_hooks import MemoryHooks
from dragoman.stores.pages import read_filters

DAY = 24 * 60 * 60.0


class _Task:
    """A log, what it folds to, and its lease."""

    __slots__ = ("key", "snapshot", "records", "ready", "node", "fence", "attempt")

    def __init__(self, key: int, snapshot: Snapshot) -> None:
        self.key = key
        self.snapshot = snapshot
        self.records: list[Record] = []
        self.ready = True
        self.node = ""
        self.fence = 0
        self.attempt = 0

    def add(self, records: Sequence[Record]) -> int:
        number(records, self.snapshot.seq + 1)
        for record in records:
            self.records.append(record)
            self.snapshot.apply(record)
        return self.snapshot.seq

    def claim(self, node: str) -> Lease:
        self.node = node
        self.fence += 1
        self.attempt += 1
        return Lease(self.snapshot.scope, self.snapshot.task_id, self.key, self.fence, self.attempt)


class MemoryStore:
    def __init__(self) -> None:
        self._last = 0
        self._tasks: dict[int, _Task] = {}
        self._keys: dict[Scope, dict[str, int]] = {}
        self._seen: dict[tuple[Scope, str], tuple[int, int, float]] = {}
        self._nodes: dict[str, float] = {}
        self._ttls: dict[str, float] = {}
        self.hooks = self.outbox = MemoryHooks(self)
        self.audit = MemoryAudit()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def waiting(self) -> int:
        return sum(1 for task in self._tasks.values() if task.ready and not task.node)

    def changed(self) -> bool:
        return False  # no other process can

    def time_commits(self, told: Callable[[float], None]) -> None:
        pass  # nothing to wait for

    def scope(self, scope: Scope) -> MemoryLog:
        return MemoryLog(self, scope)

    async def join(self, node: str, *, ttl: float) -> None:
        await self.leave(node)
        await self.renew(node, ttl=ttl)

    async def renew(self, node: str, *, ttl: float) -> Sequence[Held]:
        self._ttls[node] = ttl
        self._nodes[node] = heartbeat.now() + ttl
        return [Held(t.key, t.fence, t.snapshot.mail) for t in self._tasks.values() if t.node == node]

    async def leave(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._ttls.pop(node, None)
        for task in self._tasks.values():
            if task.node == node:
                task.node = ""
        self.hooks.leave(node)

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        fits: Callable[[Scope], bool] | None = None,
        takes_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        over = takes_over is None or takes_over()
        if node in self._nodes:
            over = over and self._alive(node)
            self._nodes[node] = max(self._nodes[node], heartbeat.now() + self._ttls[node])
        leases: list[Lease] = []
        for task in self._tasks.values():
            if len(leases) >= limit:
                break
            free = not task.node or (over and task.node != node and not self._alive(task.node))
            if task.ready and free and (fits is None or fits(task.snapshot.scope)):
                leases.append(task.claim(node))
        return leases

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        task = self._tasks.get(lease.key)
        if task is not None and task.fence == lease.fence and task.node:
            task.node = ""
            task.attempt -= not failed

    async def purge(self, before: str, *, limit: int) -> int:
        old = [
            t
            for t in self._tasks.values()
            if t.snapshot.terminal and t.snapshot.status.timestamp < before and not self.hooks.waiting(t.key)
        ]
        for task in old[:limit]:
            self.hooks.forget(task.key)
            del self._tasks[task.key]
            del self._keys[task.snapshot.scope][task.snapshot.task_id]
        for name, (_, _, at) in list(self._seen.items()):
            if at <= time.time() - DAY:
                del self._seen[name]
        return len(old[:limit])

    def _alive(self, node: str) -> bool:
        return self._nodes.get(node, float("-inf")) > heartbeat.now()


class MemoryLog:
    """One scope's tasks."""

    def __init__(self, store: MemoryStore, scope: Scope) -> None:
        self._store = store
        self._scope = scope

    async def create(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        hook: Hook | None = None,
    ) -> Delivered:
        return self._create(task, context, mail, dedupe, node, hook)

    def _create(
        self, task: str, context: str, mail: Mail, dedupe: str, node: str, hook: Hook | None
    ) -> Delivered:
        if (earlier := self._earlier(dedupe)) is not None:
            return earlier
        store = self._store
        keys = store._keys.setdefault(self._scope, {})
        if task in keys:
            raise TaskExists(task)
        store._last = key = store._last + 1
        made = _Task(key, Snapshot(self._scope, task, context))
        keys[task] = key
        store._tasks[key] = made
        return self._take(made, Record("message", mail), dedupe, node, hook)

    def begin(self, task: str, context: str, mail: Mail, *, node: str, hook: Hook | None = None) -> Delivered:
        return self._create(task, context, mail, "", node, hook)

    async def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        hook: Hook | None = None,
    ) -> Delivered:
        if (earlier := self._earlier(dedupe)) is not None:
            return earlier
        found = self._task(task)
        if found.snapshot.terminal:
            raise TaskClosed(f"task {task!r} is finished")
        if hook is not None:
            hook = self._store.hooks.check(found.key, hook)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail)
        return self._take(found, record, dedupe, node, hook)

    async def seen(self, dedupe: str) -> Delivered | None:
        return self._earlier(dedupe)

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        task = self._held(lease)
        seq = task.add(records)
        if task.attempt > 1 and any(record.progress for record in records):
            task.attempt = 1
        self._store.hooks.mark(task.key, records)
        return seq

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> int:
        task = self._held(lease)
        if task.snapshot.mail != mail:
            raise NewMail(lease.task)
        task.ready, task.node, task.attempt = False, "", 0
        seq = task.add(records)
        self._store.hooks.mark(task.key, records)
        return seq

    async def read(self, task: str, *, after: int = 0, limit: int | None = None) -> Sequence[Record]:
        return self._task(task).records[after : None if limit is None else after + limit]

    async def load(self, task: str) -> Snapshot:
        return self._task(task).snapshot

    async def find(self, query: ListTasks, *, limit: int) -> Found:
        filters = read_filters(self._scope, query)
        tasks = [self._store._tasks[key] for key in self._store._keys.get(self._scope, {}).values()]
        matching = [
            t.snapshot
            for t in tasks
            if not t.snapshot.hidden
            and filters.context in ("", t.snapshot.context_id)
            and filters.state in ("", t.snapshot.state.value)
            and t.snapshot.status.timestamp >= filters.since
        ]
        matching.sort(key=lambda s: s.task_id)
        matching.sort(key=lambda s: s.status.timestamp, reverse=True)
        rest = matching
        if filters.after is not None:
            updated, id = filters.after
            rest = [
                s
                for s in matching
                if s.status.timestamp < updated or (s.status.timestamp == updated and s.task_id > id)
            ]
        page = rest[:limit]
        more = filters.cursor(page[-1].status.timestamp, page[-1].task_id) if len(rest) > limit else ""
        return Found(page, more, len(matching))

    def _take(self, task: _Task, record: Record, dedupe: str, node: str, hook: Hook | None) -> Delivered:
        seq = task.add((record,))
        if hook is not None:
            self._store.hooks.add(task.key, hook, task.snapshot, told=seq)
        task.ready = True
        lease = task.claim(node) if node and not task.node else None
        if dedupe:
            self._store._seen[self._scope, dedupe] = (task.key, seq, time.time())
        return Delivered(task.snapshot, seq, lease)

    def _earlier(self, dedupe: str) -> Delivered | None:
        if not dedupe or (self._scope, dedupe) not in self._store._seen:
            return None
        key, seq, at = self._store._seen[self._scope, dedupe]
        task = self._store._tasks.get(key)
        if task is None or at <= time.time() - DAY:
            return None
        return Delivered(task.snapshot, seq, duplicate=True)

    def _task(self, task: str) -> _Task:
        key = self._store._keys.get(self._scope, {}).get(task)
        if key is None:
            raise TaskNotFound(task)
        return self._store._tasks[key]

    def _held(self, lease: Lease) -> _Task:
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        task = self._store._tasks.get(lease.key)
        if task is None or task.fence != lease.fence or not task.node:
            raise LeaseLost(lease.task)
        return task
