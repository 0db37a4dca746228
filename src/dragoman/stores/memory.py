"""Tasks in memory: for tests, for trying things out, and for agents whose work may end with their process."""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, groupby, islice
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import (
    HEAD_BYTES,
    SCAN_TASKS,
    SEARCH_WEIGHTS,
    AuditEntry,
    Delivered,
    FoundInfos,
    FoundTasks,
    Head,
    HeldLease,
    Lease,
    LeaseLost,
    NodeInfo,
    RegisteredAgent,
    SearchText,
    TaskExists,
    TaskInfo,
    TaskQuery,
    WaitForMemory,
)
from dragoman.engine.push_configs import Delivery, StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot, mark_written, pack
from dragoman.engine.transition import (
    Advance,
    Append,
    Claim,
    ClaimPush,
    Create,
    Decision,
    Deliver,
    Notify,
    PushRow,
    Redeliver,
    Release,
    ReleasePush,
    Replace,
    Settle,
    TaskRow,
    check_push_count,
    decide,
    decide_push,
    first_push_row,
)
from dragoman.errors import TaskNotFound
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores import heartbeat
from dragoman.stores.common import (
    PushListeners,
    Row,
    is_prefix,
    merge,
    plain_words,
    query_words,
    read_filters,
)
from dragoman.stores.heartbeat import wall_time

T = TypeVar("T")

DAY = 24 * 60 * 60.0
MAX_AUDIT_ENTRIES = 100_000
MOVED_TASKS = 256
"""How many tasks may have changed before they are indexed."""
_LAST_KEY = 1 << 63
"""After every key."""
_LAST_ID = "\U0010ffff" * 300
"""After every id."""


class _Task:
    """A log, what it folds to, and its row."""

    __slots__ = ("key", "snapshot", "records", "row", "place")

    def __init__(self, key: int, snapshot: Snapshot) -> None:
        self.key = key
        self.snapshot = snapshot
        self.records: list[Record] = []
        self.row = TaskRow()
        self.place: _Place | None = None
        """Where the indexes have it."""

    @property
    def unclaimed(self) -> bool:
        """There is work that no node has taken."""
        return self.row.ready and not self.row.node

    @property
    def lease(self) -> Lease:
        """The lease as its holder has it."""
        return Lease(self.snapshot.scope, self.snapshot.task_id, self.key, self.row.fence, self.row.attempt)


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

    def newest(self, before: tuple[str, int] | None, until: str) -> Iterator[tuple[str, str, int]]:
        """Those up to the time of `before` and older than `until`, newest first."""
        end = len(self._entries)
        if before is not None:
            end = bisect_right(self._entries, (before[0], _LAST_ID))
        if until:
            end = min(end, bisect_left(self._entries, (until,)))
        return (self._entries[n] for n in range(end - 1, -1, -1))

    def older(self, than: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """`updated` and id of the first `limit` that come before `than`, newest first."""
        end = len(self._entries) if than is None else bisect_left(self._entries, (*than, 0))
        return [(updated, id) for updated, id, _ in self._entries[max(0, end - limit) : end][::-1]]

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


class MemoryQuotas:
    """`QuotaStore` of one process."""

    spans_machines = False

    def __init__(self) -> None:
        self._rows: dict[str, tuple[bytes, float]] = {}

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        body, until, answer = change(self._rows.get(key, (b"", 0.0))[0], heartbeat.now())
        self._rows[key] = body, until
        return answer

    def forget(self) -> None:
        now = heartbeat.now()
        self._rows = {key: row for key, row in self._rows.items() if row[1] > now}


class MemoryStore:
    persistent = False

    def __init__(self) -> None:
        self._last = 0
        self._tasks: dict[int, _Task] = {}
        self._keys: dict[Scope, dict[str, int]] = {}
        self._seen: dict[tuple[Scope, str], tuple[int, int, float]] = {}
        self._nodes: dict[str, float] = {}
        self._ttls: dict[str, float] = {}
        self._found: dict[tuple[Scope, str | None], dict[str, _Sorted]] = {}
        self._replies: dict[tuple[Scope, str], _Sorted] = {}
        """Exchanges that were answered with a bare message, by their context."""
        """The tasks that peers can see: by scope, and by scope and context; then by state."""
        self._moved: dict[int, _Task] = {}
        """Tasks that have changed since they were indexed: most change twice in a moment, and are indexed once."""
        self._aged = {True: _Sorted(), False: _Sorted()}
        """All tasks by age: finished or not."""
        self.push_configs = self.push_queue = MemoryPushQueue(self)
        self.audit = MemoryAudit()
        self.catalogue = MemoryCatalogue()
        self.index = MemoryIndex(self)
        self.quotas = MemoryQuotas()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def waiting(self) -> int:
        return sum(1 for task in self._tasks.values() if task.unclaimed)

    async def backlog(self, fits: Callable[[Scope], bool]) -> int:
        waiting = (task.snapshot.scope for task in self._tasks.values() if task.unclaimed)
        return sum(1 for scope in waiting if fits(scope))

    async def behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        found = []
        for place, (scope, task, after) in enumerate(cursors):
            known = self._tasks.get(self._keys.get(scope, {}).get(task, 0))
            if known is None or known.snapshot.seq > after:
                found.append(place)
        return found

    def time_commits(self, report: Callable[[float], None]) -> None:
        pass  # nothing to wait for

    def scope(self, scope: Scope) -> MemoryLog:
        return MemoryLog(self, scope)

    async def join(self, node: str, *, ttl: float) -> None:
        await self.leave(node)
        await self.renew(node, ttl=ttl)

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        self._ttls[node] = ttl
        self._nodes[node] = heartbeat.now() + ttl
        return [HeldLease(t.key, t.row.fence, t.row.mail) for t in self._tasks.values() if t.row.node == node]

    async def leave(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._ttls.pop(node, None)
        for task in self._tasks.values():
            if task.row.node == node:
                task.row = replace(task.row, node="")
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
            if fits is None or fits(task.snapshot.scope):
                alive = not over or self._alive(task.row.node)
                decision = decide(task.row, Claim(node, holder_alive=alive))
                task.row = decision.row
                if decision.leased:
                    leases.append(task.lease)
        return leases

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        task = self._tasks.get(lease.key)
        if task is not None:
            task.row = decide(task.row, Release(lease.fence, failed)).row

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        self._index()
        old = (self._tasks[key] for _, _, key in self._aged[not unfinished].before(before))
        at_rest = (task for task in old if not task.row.node and not self.push_configs.waiting(task.key))
        return self._forget(list(islice(at_rest, limit)))

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        self._index()
        own = [task for task in self._tasks.values() if task.snapshot.scope.tenant == tenant]
        gone = self._forget([task for task in own if not task.row.node][:limit])
        for name in [name for name in self._seen if name[0].tenant == tenant]:
            del self._seen[name]
        return gone, len(own) > gone

    def _forget(self, chosen: list[_Task]) -> int:
        for task in chosen:
            self.push_configs.forget(task.key)
            self._remove_from_index(task)
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
        self.quotas.forget()
        return len(names) == 1000

    def damage(self) -> str:
        return ""

    def _change(self, task: _Task, decision: Decision) -> int:
        """Do what was decided; return the last record."""
        task.row = decision.row
        if decision.records:
            mark_written(decision.records)
        task.records += decision.records
        task.snapshot = task.snapshot.after(decision.records)
        self._moved[task.key] = task
        if len(self._moved) >= MOVED_TASKS:
            self._index()
        if decision.notify:
            self.push_configs.notify(task.key, decision.notify)
        return task.row.seq

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
                    self._remove_from_index(task)
                self._add_to_index(task)

    def _add_to_index(self, task: _Task) -> None:
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
        if place.hidden and place.done:
            self._replies.setdefault((place.scope, place.context), _Sorted()).add(
                place.updated, place.id, task.key
            )
        if not place.hidden:
            for context in (None, place.context):
                states = self._found.setdefault((place.scope, context), {})
                states.setdefault(place.state, _Sorted()).add(place.updated, place.id, task.key)

    def _remove_from_index(self, task: _Task) -> None:
        place = task.place
        assert place is not None
        self._aged[place.done].remove(place.updated, place.id, task.key)
        if place.hidden and place.done:
            replies = self._replies[place.scope, place.context]
            replies.remove(place.updated, place.id, task.key)
            if not replies:
                del self._replies[place.scope, place.context]
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
        decision = decide(made.row, Create(Record("message", mail), mail.at, node, webhook is not None))
        return self._take(made, decision, dedupe, webhook)

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
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail)
        at = mail.at if isinstance(mail, Mail) else ""
        reply = found.snapshot.mails[0][1].reply
        decision = decide(found.row, Deliver(task, record, at, node, webhook is not None, reply))
        if webhook is not None:
            webhook = self._store.push_configs.check(found.key, webhook)
        return self._take(found, decision, dedupe, webhook)

    async def seen(self, dedupe: str) -> Delivered | None:
        return self._earlier(dedupe)

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        task = self._held(lease)
        return self._store._change(task, decide(task.row, Append(lease.task, lease.fence, records)))

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Snapshot:
        task = self._held(lease)
        self._store._change(task, decide(task.row, Settle(lease.task, lease.fence, records, mail)))
        return task.snapshot.share()

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

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        found = self._task(task).snapshot
        if wait_for_memory is not None and found.size >= LARGE_BYTES:
            await wait_for_memory(found.size)
        return self._task(task).snapshot.share()

    async def replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        self._store._index()
        found = self._store._replies.get((self._scope, context))
        return found.older(after, limit) if found is not None else ()

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
        return FoundTasks([self._store._tasks[row[0]].snapshot.share() for row in page], next, total)

    def _take(
        self, task: _Task, decision: Decision, dedupe: str, webhook: StoredPushConfig | None
    ) -> Delivered:
        seq = self._store._change(task, decision)
        if webhook is not None:
            self._store.push_configs.add(task.key, webhook, task.snapshot, PushRow(cursor=seq, last=seq))
        if dedupe:
            self._store._seen[self._scope, dedupe] = (task.key, seq, time.time())
        lease = task.lease if decision.leased else None
        return Delivered(task.snapshot.share(), seq, lease, unclaimed=not task.row.node)

    def _earlier(self, dedupe: str) -> Delivered | None:
        if not dedupe or (self._scope, dedupe) not in self._store._seen:
            return None
        key, seq, at = self._store._seen[self._scope, dedupe]
        task = self._store._tasks.get(key)
        if task is None or at <= time.time() - DAY:
            return None
        return Delivered(task.snapshot.share(), seq, duplicate=True)

    def _task(self, task: str) -> _Task:
        key = self._store._keys.get(self._scope, {}).get(task)
        if key is None:
            raise TaskNotFound(task)
        return self._store._tasks[key]

    def _held(self, lease: Lease) -> _Task:
        if lease.scope != self._scope:
            raise TaskNotFound(lease.task)
        task = self._store._tasks.get(lease.key)
        if task is None:
            raise LeaseLost(lease.task)
        return task


class MemoryIndex:
    """Tasks of every scope, for operators."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find(self, query: TaskQuery, *, limit: int) -> FoundInfos:
        self._store._index()
        sides = [self._newest(query, done) for done in (False, True)]
        found: list[TaskInfo] = []
        last: tuple[str, int] | None = None
        for looked, (updated, key) in enumerate(heapq.merge(*sides, reverse=True)):
            if len(found) == limit or looked == SCAN_TASKS:
                return FoundInfos(found, last)
            last = updated, key
            task = self._store._tasks[key]
            if _matches(query, task.snapshot):
                found.append(self._info(task))
        return FoundInfos(found, None)

    def _newest(self, query: TaskQuery, done: bool) -> Iterator[tuple[str, int]]:
        """The finished tasks, or the others, newest first."""
        for updated, ties in groupby(
            self._store._aged[done].newest(query.before, query.until), key=lambda entry: entry[0]
        ):
            if updated < query.since:
                return
            keys = sorted((key for _, _, key in ties), reverse=True)
            yield from (
                (updated, key) for key in keys if query.before is None or (updated, key) < query.before
            )

    async def get(self, scope: Scope, task: str) -> TaskInfo:
        return self._info(MemoryLog(self._store, scope)._task(task))

    async def counts(self) -> Sequence[tuple[str, str, TaskState, int]]:
        self._store._index()
        counts: Counter[tuple[str, str, str]] = Counter()
        for (scope, context), states in self._store._found.items():
            if context is None:
                for state, tasks in states.items():
                    counts[scope.tenant, scope.agent, state] += len(tasks)
        return [(tenant, agent, TaskState(state), n) for (tenant, agent, state), n in counts.items()]

    async def size(self, tenant: str) -> int:
        snapshots = (task.snapshot for task in self._store._tasks.values())
        return sum(each.size for each in snapshots if each.scope.tenant == tenant)

    async def nodes(self) -> Sequence[NodeInfo]:
        leases = Counter(task.row.node for task in self._store._tasks.values() if task.row.node)
        nodes = self._store._nodes
        return [
            NodeInfo(id=node, expires=wall_time(nodes[node]), leases=leases[node]) for node in sorted(nodes)
        ]

    def _info(self, task: _Task) -> TaskInfo:
        snapshot, row = task.snapshot, task.row
        until = self._store._nodes.get(row.node, 0.0) if row.node else 0.0
        return TaskInfo(
            scope=snapshot.scope,
            id=snapshot.task_id,
            context=snapshot.context_id,
            key=task.key,
            seq=snapshot.seq,
            size=snapshot.size,
            state=snapshot.state,
            updated=snapshot.status.timestamp,
            done=row.done,
            hidden=snapshot.hidden,
            ready=row.ready,
            node=row.node,
            expires=wall_time(until) if until else 0.0,
            attempt=row.attempt,
            fence=row.fence,
            head=pack(task.records[:1], at=task.records[0].at)[:HEAD_BYTES],
        )


def _matches(query: TaskQuery, task: Snapshot) -> bool:
    scope = task.scope
    return (
        (query.tenant is None or (scope.tenant == query.tenant and not task.hidden))
        and (query.agent is None or scope.agent == query.agent)
        and (query.owner is None or scope.owner == query.owner)
        and (not query.states or task.state in query.states)
        and (not query.context or task.context_id == query.context)
    )


class _Webhook:
    """A push config of a task, and how far it has been told."""

    __slots__ = ("key", "scope", "task", "config", "row")

    def __init__(self, key: int, scope: Scope, task: str, config: StoredPushConfig, row: PushRow) -> None:
        self.key, self.scope, self.task, self.config, self.row = key, scope, task, config, row

    @property
    def delivery(self) -> Delivery:
        row = self.row
        return Delivery(
            key=self.key,
            scope=self.scope,
            task=self.task,
            webhook=self.config,
            cursor=row.cursor,
            last=row.last,
            fence=row.fence,
            attempt=row.attempt,
            since=row.since,
            at=row.at,
            error=row.error,
            dead=row.dead,
        )


class MemoryPushQueue(PushListeners):
    """`PushConfigStore` and `PushQueue` of one store."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._store = store
        self._last = 0
        self._of_task: dict[int, dict[str, _Webhook]] = {}
        """By the store's key of the task, then by the id of the config."""
        self._webhooks: dict[int, _Webhook] = {}

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        found = self._task(scope, task)
        stored = self.check(found.key, webhook)
        self.add(found.key, stored, found.snapshot, first_push_row(found.row))
        found.row = replace(found.row, push=True)
        self.wake()
        return stored

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        return [w.config for w in self._of_task.get(self._task(scope, task).key, {}).values()]

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        found = self._task(scope, task)
        webhooks = self._of_task.get(found.key, {})
        if (webhook := webhooks.pop(id, None)) is not None:
            del self._webhooks[webhook.key]
            found.row = replace(found.row, push=bool(webhooks))

    def _task(self, scope: Scope, task: str) -> _Task:
        key = self._store._keys.get(scope, {}).get(task)
        if key is None:
            raise TaskNotFound(task)
        return self._store._tasks[key]

    def check(self, task: int, webhook: StoredPushConfig) -> StoredPushConfig:
        """The config as it will be stored. Raises `InvalidParams` if there are too many."""
        others = self._of_task.get(task, {})
        if (same := others.get(webhook.config.id)) is not None:
            return replace(webhook, uid=same.config.uid)
        check_push_count(len(others))
        return webhook

    def add(self, task: int, config: StoredPushConfig, snapshot: Snapshot, row: PushRow) -> None:
        """Store a config that was checked; one with the same id is replaced."""
        others = self._of_task.setdefault(task, {})
        if (same := others.get(config.config.id)) is not None:
            same.config, same.row = config, decide_push(same.row, Replace())
            return
        self._last = key = self._last + 1
        webhook = _Webhook(key, snapshot.scope, snapshot.task_id, config, row)
        others[config.config.id] = self._webhooks[key] = webhook

    def notify(self, task: int, seq: int) -> None:
        """The configs of a task are to be told of everything up to `seq`."""
        for webhook in self._of_task.get(task, {}).values():
            webhook.row = decide_push(webhook.row, Notify(seq))
        self.wake()

    def waiting(self, task: int) -> bool:
        """Whether somebody is still to be told of a task."""
        return any(webhook.row.due for webhook in self._of_task.get(task, {}).values())

    def forget(self, task: int) -> None:
        for webhook in self._of_task.pop(task, {}).values():
            del self._webhooks[webhook.key]

    def leave(self, node: str) -> None:
        for webhook in self._webhooks.values():
            if webhook.row.node == node:
                webhook.row = replace(webhook.row, node="")

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        now, claimed = push_configs.now(), list[Delivery]()
        for webhook in sorted(self._webhooks.values(), key=lambda webhook: webhook.row.at):
            if len(claimed) == limit:
                break
            alive = self._store._alive(webhook.row.node)
            row = decide_push(webhook.row, ClaimPush(node, now, alive, longest))
            if row is not webhook.row:
                webhook.row = row
                claimed.append(webhook.delivery)
        return claimed

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        webhook = self._webhooks.get(delivery.key)
        if webhook is None:
            raise LeaseLost(delivery.task)
        webhook.row = decide_push(webhook.row, Advance(delivery.task, delivery.fence, cursor))

    async def release(
        self,
        delivery: Delivery,
        cursor: int,
        *,
        retry_in: float = 0.0,
        error: str = "",
        dead: bool = False,
    ) -> None:
        if (webhook := self._webhooks.get(delivery.key)) is not None:
            job = ReleasePush(delivery.fence, cursor, push_configs.now(), retry_in, error, dead)
            webhook.row = decide_push(webhook.row, job)

    async def when(self) -> float | None:
        free = [w.row.at for w in self._webhooks.values() if w.row.due and not w.row.node]
        return min(free, default=None)

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        rows = (w for w in self._webhooks.values() if w.row.cursor < w.row.last and (w.row.dead or not dead))
        return [webhook.delivery for webhook in islice(rows, limit)]

    async def browse(
        self, *, of: tuple[Scope, str] | None = None, after: int = 0, limit: int
    ) -> Sequence[Delivery]:
        webhooks = self._webhooks.values()
        if of is not None:
            webhooks = self._of_task.get(self._task(*of).key, {}).values()  # type: ignore[assignment]
        return [webhook.delivery for webhook in islice((w for w in webhooks if w.key > after), limit)]

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        if (webhook := self._webhooks.get(key)) is None:
            return False
        webhook.row = decide_push(webhook.row, Redeliver(cursor))
        self.wake()
        return True


class MemoryAudit:
    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_AUDIT_ENTRIES)
        self._ids = count(1)

    def record(self, entry: AuditEntry) -> None:
        self._entries.append(replace(entry, id=next(self._ids)))

    async def entries(
        self,
        *,
        tenant: str | None = None,
        principal: str = "",
        task: str = "",
        operation: str = "",
        since: str = "",
        before: int = 0,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        found = (
            entry
            for entry in reversed(self._entries)
            if (tenant is None or entry.tenant == tenant)
            and (not principal or entry.principal == principal)
            and (not task or entry.task == task)
            and (not operation or entry.operation == operation)
            and (not since or entry.at >= since)
            and (not before or entry.id < before)
        )
        return list(islice(found, limit))

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        gone: list[AuditEntry] = []
        while len(self._entries) > 1 and self._entries[0].at < before and len(gone) < limit:
            gone.append(self._entries.popleft())
        return gone


_ENDING = re.compile(r"(?<=[^\W_]{3})(?:ings?|ies|ied|es|ed|e|s|y)$")


class MemoryCatalogue:
    def __init__(self) -> None:
        self._agents: dict[tuple[str, str], RegisteredAgent] = {}
        self._texts: dict[str, tuple[float, Mapping[str, str]]] = {}
        """When each was last in use, and the stems of its members, with spaces around them."""

    async def registered(self) -> Sequence[RegisteredAgent]:
        return sorted(self._agents.values(), key=lambda agent: (agent.name, agent.tenant))

    async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
        key = (agent.tenant, agent.name)
        if key in self._agents or len(self._agents) >= limit:
            return False
        self._agents[key] = agent
        return True

    async def unregister(self, tenant: str, name: str) -> bool:
        return self._agents.pop((tenant, name), None) is not None

    async def take_due(self, now: float, until: float, *, limit: int) -> Sequence[RegisteredAgent]:
        waiting = sorted((agent for agent in self._agents.values() if agent.due <= now), key=lambda a: a.due)
        for agent in waiting[:limit]:
            self._agents[agent.tenant, agent.name] = replace(agent, due=until)
        return waiting[:limit]

    async def update(self, agent: RegisteredAgent) -> bool:
        stored = self._agents.get((agent.tenant, agent.name))
        if stored is None or stored.url != agent.url:
            return False
        self._agents[agent.tenant, agent.name] = agent
        return True

    async def put_texts(self, texts: Mapping[str, SearchText], now: float) -> None:
        for digest, text in texts.items():
            if digest in self._texts:
                self._texts[digest] = now, self._texts[digest][1]
            else:
                members = {name: getattr(text, name) for name in SEARCH_WEIGHTS}
                self._texts[digest] = (
                    now,
                    {
                        name: f" {' '.join(map(_stem, plain_words(member)))} "
                        for name, member in members.items()
                    },
                )

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        words = query_words(query)
        found = []
        for digest in dict.fromkeys(among) if words else ():
            if (text := self._texts.get(digest)) is not None:
                score = sum(_weight(word, text[1]) for word in words) / len(words)
                if score:
                    found.append((digest, score))
        return sorted(found, key=lambda each: (-each[1], each[0]))[:limit]

    async def forget_texts(self, before: float) -> int:
        old = [digest for digest, (used, _) in self._texts.items() if used < before]
        for digest in old:
            del self._texts[digest]
        return len(old)


def _stem(word: str) -> str:
    return _ENDING.sub("", word)


def _weight(word: str, members: Mapping[str, str]) -> float:
    """The weight of the heaviest member that has the word."""
    wanted = f" {_stem(word)}" if is_prefix(word) else f" {_stem(word)} "
    return max((SEARCH_WEIGHTS[name] for name, stems in members.items() if wanted in stems), default=0.0)
