"""Tasks in memory: for tests, for trying things out, and for agents whose work may end with their process."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from msgspec import Struct

from dragoman.engine.protocols import (
    Admit,
    Delivered,
    FoundTasks,
    Head,
    HeldLease,
    Lease,
    LeaseLost,
    NewMail,
    TaskExists,
)
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot, number
from dragoman.errors import TaskClosed, TaskNotFound
from dragoman.model.inflight import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores import heartbeat
from dragoman.stores.memory_audit import MemoryAudit
from dragoman.stores.memory_push_queue import MemoryPushQueue
from dragoman.stores.pages import Row, merge, read_filters

DAY = 24 * 60 * 60.0
MOVED_TASKS = 256
"""How many tasks may have changed before they are indexed."""
_LAST_KEY = 1 << 63
"""After every key."""


class _Task:
    """A log, what it folds to, and its lease."""

    __slots__ = ("key", "snapshot", "records", "ready", "node", "fence", "attempt", "place")

    def __init__(self, key: int, snapshot: Snapshot) -> None:
        self.key = key
        self.snapshot = snapshot
        self.records: list[Record] = []
        self.ready = True
        self.node = ""
        self.fence = 0
        self.attempt = 0
        self.place: _Place | None = None
        """Where the indexes have it."""

    def claim(self, node: str) -> Lease:
        self.node = node
        self.fence += 1
        self.attempt += 1
        return Lease(self.snapshot.scope, self.snapshot.task_id, self.key, self.fence, self.attempt)


class _Place(Struct, frozen=True):
    """What a task is found by."""

    scope: Scope
    context: str
    state: str
    updated: str
    id: str
    hidden: bool
    done: bool


class _Sorted:
    """Tasks in the order of `(updated, id)`. What changed last is at the end, so that adding is cheap."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[tuple[str, str, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, updated: str, id: str, key: int) -> None:
        insort(self._entries, (updated, id, key))

    def remove(self, updated: str, id: str, key: int) -> None:
        del self._entries[bisect_left(self._entries, (updated, id, key))]

    def since(self, updated: str) -> int:
        """How many are not older."""
        return len(self._entries) - bisect_left(self._entries, (updated,))

    def before(self, updated: str) -> Iterator[tuple[str, str, int]]:
        """Those that are older, the oldest first."""
        return islice(self._entries, bisect_left(self._entries, (updated,)))

    def page(self, since: str, after: tuple[str, str] | None, limit: int) -> list[int]:
        """The keys of the first `limit` tasks after `after`, newest first, ties in the order of their ids."""
        entries, keys = self._entries, list[int]()
        end = len(entries)
        if after is not None:
            start = bisect_right(entries, (*after, _LAST_KEY))
            end = bisect_left(entries, (after[0],))
            ties = entries[start : start + limit]
            keys += [key for updated, _, key in ties if updated == after[0]]
        while end > 0 and len(keys) < limit and entries[end - 1][0] >= since:
            start = bisect_left(entries, (entries[end - 1][0],))
            keys += [key for _, _, key in entries[start : min(end, start + limit)]]
            end = start
        return keys[:limit]


class MemoryStore:
    def __init__(self) -> None:
        self._last = 0
        self._tasks: dict[int, _Task] = {}
        self._keys: dict[Scope, dict[str, int]] = {}
        self._seen: dict[tuple[Scope, str], tuple[int, int, float]] = {}
        self._nodes: dict[str, float] = {}
        self._ttls: dict[str, float] = {}
        self._found: dict[tuple[Scope, str | None], dict[str, _Sorted]] = {}
        """The tasks that peers can see: by scope, and by scope and context; then by state."""
        self._moved: dict[int, _Task] = {}
        """Tasks that have changed since they were indexed: most change twice in a moment, and are indexed once."""
        self._aged = {True: _Sorted(), False: _Sorted()}
        """All tasks by age: finished or not."""
        self.push_configs = self.push_queue = MemoryPushQueue(self)
        self.audit = MemoryAudit()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def waiting(self) -> int:
        return sum(1 for task in self._tasks.values() if task.ready and not task.node)

    async def backlog(self, fits: Callable[[Scope], bool]) -> int:
        waiting = (task.snapshot.scope for task in self._tasks.values() if task.ready and not task.node)
        return sum(1 for scope in waiting if fits(scope))

    async def behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        found = []
        for place, (scope, task, after) in enumerate(cursors):
            known = self._tasks.get(self._keys.get(scope, {}).get(task, 0))
            if known is None or known.snapshot.seq > after:
                found.append(place)
        return found

    def time_commits(self, told: Callable[[float], None]) -> None:
        pass  # nothing to wait for

    def scope(self, scope: Scope) -> MemoryLog:
        return MemoryLog(self, scope)

    async def join(self, node: str, *, ttl: float) -> None:
        await self.leave(node)
        await self.renew(node, ttl=ttl)

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        self._ttls[node] = ttl
        self._nodes[node] = heartbeat.now() + ttl
        return [HeldLease(t.key, t.fence, t.snapshot.mail) for t in self._tasks.values() if t.node == node]

    async def leave(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._ttls.pop(node, None)
        for task in self._tasks.values():
            if task.node == node:
                task.node = ""
        self.push_configs.leave(node)

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

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        self._index()
        old = (self._tasks[key] for _, _, key in self._aged[not unfinished].before(before))
        at_rest = (task for task in old if not task.node and not self.push_configs.waiting(task.key))
        chosen = list(islice(at_rest, limit))
        for task in chosen:
            self.push_configs.forget(task.key)
            self._unplace(task)
            del self._tasks[task.key]
            keys = self._keys[task.snapshot.scope]
            del keys[task.snapshot.task_id]
            if not keys:
                del self._keys[task.snapshot.scope]
        return len(chosen)

    async def tidy(self) -> bool:
        expired = time.time() - DAY
        names = list(islice((name for name, (_, _, at) in self._seen.items() if at <= expired), 1000))
        for name in names:
            del self._seen[name]
        return len(names) == 1000

    def damage(self) -> str:
        return ""

    def _add(self, task: _Task, records: Sequence[Record]) -> int:
        """Add to the log of a task."""
        snapshot = task.snapshot
        number(records, snapshot.seq + 1)
        for record in records:
            task.records.append(record)
            snapshot.apply(record)
        self._moved[task.key] = task
        if len(self._moved) >= MOVED_TASKS:
            self._index()
        return snapshot.seq

    def _index(self) -> None:
        """Move the tasks that changed to where they are found now. Who searches does this first."""
        moved, self._moved = self._moved, {}
        for task in moved.values():
            snapshot, place = task.snapshot, task.place
            if (
                place is None
                or place.updated != snapshot.status.timestamp
                or place.state != snapshot.status.state.value
                or place.done != snapshot.terminal
            ):
                if place is not None:
                    self._unplace(task)
                self._place(task)

    def _place(self, task: _Task) -> None:
        snapshot = task.snapshot
        place = task.place = _Place(
            snapshot.scope,
            snapshot.context_id,
            snapshot.status.state.value,
            snapshot.status.timestamp,
            snapshot.task_id,
            snapshot.hidden,
            snapshot.terminal,
        )
        self._aged[place.done].add(place.updated, place.id, task.key)
        if not place.hidden:
            for context in (None, place.context):
                states = self._found.setdefault((place.scope, context), {})
                states.setdefault(place.state, _Sorted()).add(place.updated, place.id, task.key)

    def _unplace(self, task: _Task) -> None:
        place = task.place
        assert place is not None
        self._aged[place.done].remove(place.updated, place.id, task.key)
        if not place.hidden:
            for context in (None, place.context):
                states = self._found[place.scope, context]
                states[place.state].remove(place.updated, place.id, task.key)
                if not states[place.state]:
                    del states[place.state]
                if not states:
                    del self._found[place.scope, context]

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
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        return self._create(task, context, mail, dedupe, node, webhook)

    def _create(
        self, task: str, context: str, mail: Mail, dedupe: str, node: str, webhook: StoredPushConfig | None
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
        return self._take(made, Record("message", mail), dedupe, node, webhook)

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered:
        return self._create(task, context, mail, "", node, webhook)

    async def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        if (earlier := self._earlier(dedupe)) is not None:
            return earlier
        found = self._task(task)
        if found.snapshot.terminal:
            raise TaskClosed(f"task {task!r} is finished")
        if webhook is not None:
            webhook = self._store.push_configs.check(found.key, webhook)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail)
        return self._take(found, record, dedupe, node, webhook)

    async def seen(self, dedupe: str) -> Delivered | None:
        return self._earlier(dedupe)

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        task = self._held(lease)
        seq = self._store._add(task, records)
        if task.attempt > 1 and any(record.progress for record in records):
            task.attempt = 1
        self._store.push_configs.mark(task.key, records)
        return seq

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> int:
        task = self._held(lease)
        if task.snapshot.mail != mail:
            raise NewMail(lease.task)
        task.ready, task.node, task.attempt = False, "", 0
        seq = self._store._add(task, records)
        self._store.push_configs.mark(task.key, records)
        return seq

    async def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Sequence[Record]:
        records = self._task(task).records
        end = len(records) if limit is None else min(len(records), after + limit)
        if max_bytes is not None:
            size, upto = 0, after
            while upto < end and size < max_bytes:
                size += len(records[upto].raw)
                upto += 1
            end = upto
        return records[after:end]

    async def head(self, task: str) -> Head:
        found = self._task(task).snapshot
        return Head(
            found.scope,
            task,
            found.context_id,
            found.seq,
            found.state,
            found.terminal,
            found.hidden,
            found.mail,
            found.size,
        )

    async def unfinished(self) -> int:
        self._store._index()
        states = self._store._found.get((self._scope, None), {})
        return sum(len(tasks) for state, tasks in states.items() if TaskState(state) not in TERMINAL)

    async def load(self, task: str, *, admit: Admit | None = None) -> Snapshot:
        found = self._task(task).snapshot
        if admit is not None and found.size >= LARGE_BYTES:
            await admit(found.size)
        return self._task(task).snapshot

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        self._store._index()
        states = self._store._found.get((self._scope, filters.context or None), {})
        rows: list[Row] = []
        total = 0
        for state, tasks in states.items():
            if filters.state in ("", state):
                total += tasks.since(filters.since)
                for key in tasks.page(filters.since, filters.after, limit + 1):
                    known = self._store._tasks[key].snapshot
                    updated = known.status.timestamp
                    rows.append((key, known.seq, known.task_id, known.context_id, updated, known.size))
        page, next = merge(rows, filters, limit)
        return FoundTasks([self._store._tasks[row[0]].snapshot for row in page], next, total)

    def _take(
        self, task: _Task, record: Record, dedupe: str, node: str, webhook: StoredPushConfig | None
    ) -> Delivered:
        seq = self._store._add(task, (record,))
        if webhook is not None:
            self._store.push_configs.add(task.key, webhook, task.snapshot, told=seq)
        task.ready = True
        lease = task.claim(node) if node and not task.node else None
        if dedupe:
            self._store._seen[self._scope, dedupe] = (task.key, seq, time.time())
        return Delivered(task.snapshot, seq, lease, waits=not task.node)

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
