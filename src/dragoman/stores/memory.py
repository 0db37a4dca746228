"""Tasks in memory: for tests, for trials, and for agents whose tasks may end with their process."""

from __future__ import annotations

import heapq
import re
import time
from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, count, groupby, islice
from typing import TypeVar, Unpack

from msgspec.structs import replace

from dragoman.engine import push_configs
from dragoman.engine.protocols import (
    HEAD_BYTES,
    SCAN_TASKS,
    SEARCH_WEIGHTS,
    AuditEntry,
    AuditQuery,
    Delivered,
    DeliverOptions,
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
from dragoman.engine.push_configs import Delivery, ReleaseOptions, StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, mark_written, pack
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import (
    Advance,
    Append,
    Claim,
    ClaimPush,
    Create,
    Decision,
    Deliver,
    Notify,
    PushJob,
    Redeliver,
    Release,
    ReleasePush,
    Replace,
    Settle,
    TaskRow,
    check_push_config,
    decide,
    decide_push,
    first_push_row,
)
from dragoman.errors import TaskNotFound
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TERMINAL, TaskState
from dragoman.stores import lease_clock
from dragoman.stores.lease_clock import wall_time
from dragoman.stores.pages import ListRow, merge_page, read_filters
from dragoman.stores.rows import DEDUPE_SECONDS, PushListeners, encode_push_config
from dragoman.stores.search_words import finds_longer_words, split_query, split_text

T = TypeVar("T")

MAX_AUDIT_ENTRIES = 100_000
MAX_UNINDEXED_TASKS = 256
"""Changed tasks after which the indexes are updated."""
_LAST_KEY = 1 << 63
"""Larger than every key."""
_LAST_ID = "\U0010ffff" * 300
"""Larger than every id."""
_UNFINISHED = [state for state in TaskState if state not in TERMINAL]

_Entry = tuple[str, str, int]
"""A task in an index: when it was updated, its id and its key."""
_Key = tuple[object, ...]
"""The name of an index."""


class _Task:
    """A task: its log, the fold of the log, and its row."""

    __slots__ = ("key", "snapshot", "records", "row", "indexed")

    def __init__(self, key: int, snapshot: Snapshot) -> None:
        self.key = key
        self.snapshot = snapshot
        self.records: list[Record] = []
        self.row = TaskRow()
        self.indexed: tuple[_Entry, list[_Key]] | None = None
        """Its entry in the indexes, and the names of the indexes that have it."""

    @property
    def lease(self) -> Lease:
        """The lease as its holder has it."""
        return Lease(self.snapshot.scope, self.snapshot.task_id, self.key, self.row.fence, self.row.attempt)


class _Sorted:
    """Tasks in the order of `(updated, id)`. Most entries are added at the end, which is cheap."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: _Entry) -> None:
        if not self._entries or self._entries[-1] < entry:
            self._entries.append(entry)
        else:
            insort(self._entries, entry)

    def remove(self, entry: _Entry) -> None:
        del self._entries[bisect_left(self._entries, entry)]

    def since(self, updated: str) -> int:
        """How many tasks are not older."""
        return len(self._entries) - bisect_left(self._entries, (updated,))

    def before(self, updated: str) -> Iterator[_Entry]:
        """The tasks that are older, oldest first."""
        return islice(self._entries, bisect_left(self._entries, (updated,)))

    def newest(self, before: tuple[str, int] | None, until: str) -> Iterator[_Entry]:
        """The tasks up to the time of `before` and older than `until`, newest first."""
        end = len(self._entries)
        if before is not None:
            end = bisect_right(self._entries, (before[0], _LAST_ID))
        if until:
            end = min(end, bisect_left(self._entries, (until,)))
        return (self._entries[n] for n in range(end - 1, -1, -1))

    def older(self, than: tuple[str, str] | None, limit: int) -> list[tuple[str, str]]:
        """`updated` and id of the first `limit` tasks that are older than `than`, newest first."""
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
        body, until, answer = change(self._rows.get(key, (b"", 0.0))[0], lease_clock.now())
        self._rows[key] = body, until
        return answer

    def forget(self) -> None:
        now = lease_clock.now()
        self._rows = {key: row for key, row in self._rows.items() if row[1] > now}


class MemoryStore:
    persistent = False

    def __init__(self) -> None:
        self._last = 0
        self._tasks: dict[int, _Task] = {}
        self._unfinished: dict[str, dict[int, _Task]] = {"": {}}
        """The tasks that have work, by the node that holds them; empty for those that no node has taken."""
        self._keys: dict[Scope, dict[str, int]] = {}
        self._seen: dict[tuple[Scope, str], tuple[int, int, float]] = {}
        self._nodes: dict[str, float] = {}
        self._ttls: dict[str, float] = {}
        self._indexes: dict[_Key, _Sorted] = {}
        """The indexes by name, see `_index_entry`. None is empty."""
        self._unindexed: dict[int, _Task] = {}
        """Tasks that changed since they were indexed. Most change several times at once, and are indexed once."""
        self.push_configs = self.push_queue = MemoryPushQueue(self)
        self.audit = MemoryAudit()
        self.catalogue = MemoryCatalogue()
        self.index = MemoryIndex(self)
        self.quotas = MemoryQuotas()

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def count_unclaimed(self) -> int:
        return len(self._unfinished[""])

    async def count_unclaimed_of(self, serves: Callable[[Scope], bool]) -> int:
        return sum(1 for task in self._unfinished[""].values() if serves(task.snapshot.scope))

    async def find_behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        found = []
        for place, (scope, task, after) in enumerate(cursors):
            known = self._tasks.get(self._keys.get(scope, {}).get(task, 0))
            if known is None or known.snapshot.seq > after:
                found.append(place)
        return found

    def time_commits(self, report: Callable[[float], None]) -> None:
        pass  # there are no transactions

    def scope(self, scope: Scope) -> MemoryLog:
        return MemoryLog(self, scope)

    async def join(self, node: str, *, ttl: float) -> None:
        await self.leave(node)
        await self.renew(node, ttl=ttl)

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        self._ttls[node] = ttl
        self._nodes[node] = lease_clock.now() + ttl
        held = sorted(self._unfinished.get(node, {}).values(), key=_age)
        return [HeldLease(task.key, task.row.fence, task.row.mail) for task in held]

    async def leave(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._ttls.pop(node, None)
        for task in list(self._unfinished.get(node, {}).values()):
            self.set_row(task, replace(task.row, node=""))
        self.push_configs.leave(node)

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        serves: Callable[[Scope], bool] | None = None,
        may_take_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        take_over = may_take_over is None or may_take_over()
        if node in self._nodes:
            take_over = take_over and self._alive(node)
            self._nodes[node] = max(self._nodes[node], lease_clock.now() + self._ttls[node])
        dead = (name for name in self._unfinished if name not in ("", node) and not self._alive(name))
        orphans = chain.from_iterable(self._unfinished[name].values() for name in dead) if take_over else ()
        found = (task for part in (orphans, self._unfinished[""].values()) for task in sorted(part, key=_age))
        chosen = islice((t for t in found if serves is None or serves(t.snapshot.scope)), limit)
        leases: list[Lease] = []
        for task in list(chosen):
            decision = decide(task.row, Claim(node, holder_alive=False))
            self.set_row(task, decision.row)
            if decision.leased:
                leases.append(task.lease)
        return leases

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        task = self._tasks.get(lease.key)
        if task is not None:
            self.set_row(task, decide(task.row, Release(lease.fence, failed)).row)

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        self._update_indexes()
        old = (self._tasks[key] for _, _, key in self._find_index("done", not unfinished).before(before))
        unused = (task for task in old if not task.row.node and not self.push_configs.waiting(task.key))
        return self._forget(list(islice(unused, limit)))

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        self._update_indexes()
        own = [task for task in self._tasks.values() if task.snapshot.scope.tenant == tenant]
        gone = self._forget([task for task in own if not task.row.node][:limit])
        for name in [name for name in self._seen if name[0].tenant == tenant]:
            del self._seen[name]
        return gone, len(own) > gone

    async def purge_tasks(self, tasks: Sequence[tuple[Scope, str]]) -> int:
        self._update_indexes()
        keys = [self._keys.get(scope, {}).get(task) for scope, task in dict.fromkeys(tasks)]
        found = [self._tasks[key] for key in keys if key is not None]
        return self._forget([task for task in found if not task.row.node])

    def _forget(self, chosen: list[_Task]) -> int:
        for task in chosen:
            self.push_configs.forget(task.key)
            self._remove_from_index(task)
            self.set_row(task, TaskRow())
            del self._tasks[task.key]
            keys = self._keys[task.snapshot.scope]
            del keys[task.snapshot.task_id]
            if not keys:
                del self._keys[task.snapshot.scope]
        return len(chosen)

    async def tidy(self) -> bool:
        expired = time.time() - DEDUPE_SECONDS
        names = list(islice((name for name, (_, _, at) in self._seen.items() if at <= expired), 1000))
        for name in names:
            del self._seen[name]
        self.quotas.forget()
        return len(names) == 1000

    def damage(self) -> str:
        return ""

    def _change(self, task: _Task, decision: Decision) -> int:
        """Apply a decision. Returns the number of the last record."""
        self.set_row(task, decision.row)
        if decision.records:
            mark_written(decision.records)
        task.records += decision.records
        task.snapshot = task.snapshot.after(decision.records)
        self._unindexed[task.key] = task
        if len(self._unindexed) >= MAX_UNINDEXED_TASKS:
            self._update_indexes()
        if decision.notify:
            self.push_configs.notify(task.key, decision.notify)
        return task.row.seq

    def set_row(self, task: _Task, row: TaskRow) -> None:
        before, task.row = task.row, row
        if before.ready is row.ready and before.node == row.node:
            return
        if before.ready:
            held = self._unfinished[before.node]
            del held[task.key]
            if before.node and not held:
                del self._unfinished[before.node]
        if row.ready:
            self._unfinished.setdefault(row.node, {})[task.key] = task

    def _update_indexes(self) -> None:
        """Index the tasks that changed. Every search does this first."""
        moved, self._unindexed = self._unindexed, {}
        for task in sorted(moved.values(), key=_updated):
            if (indexed := _index_entry(task)) != task.indexed:
                self._remove_from_index(task)
                task.indexed = entry, keys = indexed
                for key in keys:
                    if (index := self._indexes.get(key)) is None:
                        index = self._indexes[key] = _Sorted()
                    index.add(entry)

    def _find_index(self, *key: object) -> _Sorted:
        return self._indexes.get(key) or _Sorted()

    def _remove_from_index(self, task: _Task) -> None:
        if task.indexed is None:
            return
        entry, keys = task.indexed
        for key in keys:
            self._indexes[key].remove(entry)
            if not self._indexes[key]:
                del self._indexes[key]

    def _alive(self, node: str) -> bool:
        return self._nodes.get(node, float("-inf")) > lease_clock.now()


def _age(task: _Task) -> int:
    return task.key


def _updated(task: _Task) -> str:
    return task.snapshot.status.timestamp


def _index_entry(task: _Task) -> tuple[_Entry, list[_Key]]:
    """The entry of a task in the indexes, and the names of the indexes that have it.

    `("done", terminal)` has all tasks. `("state", scope, state)` and `("state", scope, state, context)` have those that peers can
    see. `("reply", scope, context)` has those that were answered with a bare message.
    """
    snapshot = task.snapshot
    scope, context, status = snapshot.scope, snapshot.context_id, snapshot.status
    keys: list[_Key] = [("done", snapshot.terminal)]
    if not snapshot.hidden:
        keys += (("state", scope, status.state), ("state", scope, status.state, context))
    elif snapshot.terminal:
        keys.append(("reply", scope, context))
    return (status.timestamp, snapshot.task_id, task.key), keys


class MemoryLog:
    """The tasks of one scope."""

    def __init__(self, store: MemoryStore, scope: Scope) -> None:
        self._store = store
        self._scope = scope

    async def create(
        self, task: str, context: str, mail: Mail, **options: Unpack[DeliverOptions]
    ) -> Delivered:
        return self.begin(task, context, mail, **options)

    def begin(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        if (earlier := self._find_earlier(dedupe)) is not None:
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
        return self._apply(made, decision, dedupe, webhook)

    async def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Delivered:
        if (earlier := self._find_earlier(dedupe)) is not None:
            return earlier
        found = self._task(task)
        record = Record("message" if isinstance(mail, Mail) else "cancel", mail)
        at = mail.at if isinstance(mail, Mail) else ""
        reply = found.snapshot.mails[0][1].reply
        decision = decide(found.row, Deliver(task, record, at, node, webhook is not None, reply))
        if webhook is not None:
            webhook = self._store.push_configs.check(found.key, webhook)
        return self._apply(found, decision, dedupe, webhook)

    async def find_delivered(self, dedupe: str) -> Delivered | None:
        return self._find_earlier(dedupe)

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

    async def count_unfinished(self) -> int:
        self._store._update_indexes()
        return sum(len(self._store._find_index("state", self._scope, state)) for state in _UNFINISHED)

    async def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Snapshot:
        found = self._task(task).snapshot
        if wait_for_memory is not None and found.size >= LARGE_BYTES:
            await wait_for_memory(found.size)
        return self._task(task).snapshot.share()

    async def find_replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        self._store._update_indexes()
        return self._store._find_index("reply", self._scope, context).older(after, limit)

    async def find(self, query: ListTasks, *, limit: int) -> FoundTasks:
        filters = read_filters(self._scope, query)
        self._store._update_indexes()
        rows: list[ListRow] = []
        total = 0
        context = (filters.context,) if filters.context else ()
        for state in (TaskState(filters.state),) if filters.state else TaskState:
            tasks = self._store._find_index("state", self._scope, state, *context)
            total += tasks.since(filters.since)
            for key in tasks.page(filters.since, filters.after, limit + 1):
                known = self._store._tasks[key].snapshot
                updated = known.status.timestamp
                rows.append(ListRow(key, known.seq, known.task_id, known.context_id, updated, known.size))
        page, next = merge_page(rows, filters, limit)
        return FoundTasks([self._store._tasks[row.key].snapshot.share() for row in page], next, total)

    def _apply(
        self, task: _Task, decision: Decision, dedupe: str, webhook: StoredPushConfig | None
    ) -> Delivered:
        seq = self._store._change(task, decision)
        if webhook is not None:
            self._store.push_configs.add(task, webhook, seq, seq)
        if dedupe:
            self._store._seen[self._scope, dedupe] = (task.key, seq, time.time())
        lease = task.lease if decision.leased else None
        return Delivered(task.snapshot.share(), seq, lease, unclaimed=not task.row.node)

    def _find_earlier(self, dedupe: str) -> Delivered | None:
        if not dedupe or (self._scope, dedupe) not in self._store._seen:
            return None
        key, seq, at = self._store._seen[self._scope, dedupe]
        task = self._store._tasks.get(key)
        if task is None or at <= time.time() - DEDUPE_SECONDS:
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
        self._store._update_indexes()
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
        """The finished tasks, or the unfinished ones, newest first."""
        newest = self._store._find_index("done", done).newest(query.before, query.until)
        for updated, ties in groupby(newest, key=lambda entry: entry[0]):
            if updated < query.since:
                return
            keys = sorted((key for _, _, key in ties), reverse=True)
            yield from (
                (updated, key) for key in keys if query.before is None or (updated, key) < query.before
            )

    async def get(self, scope: Scope, task: str) -> TaskInfo:
        return self._info(MemoryLog(self._store, scope)._task(task))

    async def counts(self) -> Sequence[tuple[str, str, TaskState, int]]:
        self._store._update_indexes()
        counts: Counter[tuple[str, str, TaskState]] = Counter()
        for key, tasks in self._store._indexes.items():
            match key:
                case ("state", Scope() as scope, TaskState() as state):
                    counts[scope.tenant, scope.agent, state] += len(tasks)
        return [(*key, n) for key, n in counts.items()]

    async def size(self, tenant: str) -> int:
        snapshots = (task.snapshot for task in self._store._tasks.values())
        webhooks = self._store.push_configs.of_tenant(tenant)
        logs = sum(each.size for each in snapshots if each.scope.tenant == tenant)
        return logs + sum(len(encode_push_config(each)) for each in webhooks)

    async def nodes(self) -> Sequence[NodeInfo]:
        nodes, held = self._store._nodes, self._store._unfinished
        return [
            NodeInfo(id=node, expires=wall_time(nodes[node]), leases=len(held.get(node, ())))
            for node in sorted(nodes)
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


class MemoryPushQueue(PushListeners):
    """`PushConfigStore` and `PushQueue` of one store."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._store = store
        self._last = 0
        self._of_task: dict[int, dict[str, int]] = {}
        """Keys of webhooks, by the store's key of the task, then by the id of the config."""
        self._webhooks: dict[int, Delivery] = {}
        self._active: dict[int, Delivery] = {}
        """Those that are due, or that a node holds."""

    async def put(self, scope: Scope, task: str, webhook: StoredPushConfig) -> StoredPushConfig:
        found = self._task(scope, task)
        stored = self.check(found.key, webhook)
        first = first_push_row(found.row)
        self.add(found, stored, first.cursor, first.last)
        self._store.set_row(found, replace(found.row, push=True))
        self.wake()
        return stored

    async def list(self, scope: Scope, task: str) -> Sequence[StoredPushConfig]:
        return [each.webhook for each in self._of(self._task(scope, task).key)]

    async def delete(self, scope: Scope, task: str, id: str) -> None:
        found = self._task(scope, task)
        webhooks = self._of_task.get(found.key, {})
        if (key := webhooks.pop(id, None)) is not None:
            self._drop(key)
            self._store.set_row(found, replace(found.row, push=bool(webhooks)))

    def of_tenant(self, tenant: str) -> Sequence[StoredPushConfig]:
        return [each.webhook for each in self._webhooks.values() if each.scope.tenant == tenant]

    def _task(self, scope: Scope, task: str) -> _Task:
        return MemoryLog(self._store, scope)._task(task)

    def _of(self, task: int) -> Sequence[Delivery]:
        return [self._webhooks[key] for key in self._of_task.get(task, {}).values()]

    def check(self, task: int, webhook: StoredPushConfig) -> StoredPushConfig:
        """The config as it is stored. Raises `InvalidParams` if there are too many."""
        others = self._of_task.get(task, {})
        same = others.get(webhook.config.id)
        return check_push_config(webhook, self._webhooks[same].webhook if same else None, len(others))

    def add(self, task: _Task, webhook: StoredPushConfig, cursor: int, last: int) -> None:
        """Store a config that was checked. It replaces one with the same id."""
        others, id = self._of_task.setdefault(task.key, {}), webhook.config.id
        if (same := others.get(id)) is not None:
            self._set(replace(self._change(same, Replace()), webhook=webhook))
            return
        self._last = key = others[id] = self._last + 1
        scope, name = task.snapshot.scope, task.snapshot.task_id
        self._set(Delivery(key=key, scope=scope, task=name, webhook=webhook, cursor=cursor, last=last))

    def _change(self, key: int, job: PushJob) -> Delivery:
        before = self._webhooks[key]
        changed = decide_push(before, job)
        if changed is not before:
            self._set(changed)
        return changed

    def _set(self, webhook: Delivery) -> None:
        self._webhooks[webhook.key] = webhook
        if webhook.due or webhook.node:
            self._active[webhook.key] = webhook
        else:
            self._active.pop(webhook.key, None)

    def _drop(self, key: int) -> None:
        del self._webhooks[key]
        self._active.pop(key, None)

    def notify(self, task: int, seq: int) -> None:
        """Make the configs of a task due for all records up to `seq`."""
        for key in self._of_task.get(task, {}).values():
            self._change(key, Notify(seq))
        self.wake()

    def waiting(self, task: int) -> bool:
        """True if a webhook of a task is due."""
        return any(webhook.due for webhook in self._of(task))

    def forget(self, task: int) -> None:
        for key in self._of_task.pop(task, {}).values():
            self._drop(key)

    def leave(self, node: str) -> None:
        for webhook in list(self._active.values()):
            if webhook.node == node:
                self._set(replace(webhook, node=""))

    async def claim_due(self, node: str, *, limit: int, longest: float = float("inf")) -> Sequence[Delivery]:
        now, claimed = push_configs.steady_time(), list[Delivery]()
        for webhook in sorted(self._active.values(), key=lambda webhook: webhook.at):
            if len(claimed) == limit:
                break
            alive = self._store._alive(webhook.node)
            taken = self._change(webhook.key, ClaimPush(node, now, alive, longest))
            if taken is not webhook:
                claimed.append(taken)
        return claimed

    async def advance(self, delivery: Delivery, cursor: int) -> None:
        if delivery.key not in self._webhooks:
            raise LeaseLost(delivery.task)
        self._change(delivery.key, Advance(delivery.task, delivery.fence, cursor))

    async def release(self, delivery: Delivery, cursor: int, **options: Unpack[ReleaseOptions]) -> None:
        if delivery.key in self._webhooks:
            self._change(
                delivery.key, ReleasePush(delivery.fence, cursor, push_configs.steady_time(), **options)
            )

    async def next_due(self) -> float | None:
        return min((w.at for w in self._active.values() if w.due and not w.node), default=None)

    async def find(self, *, dead: bool = False, limit: int) -> Sequence[Delivery]:
        waiting = (w for w in self._webhooks.values() if w.cursor < w.last and (w.dead or not dead))
        return list(islice(waiting, limit))

    async def browse(
        self, *, of: tuple[Scope, str] | None = None, after: int = 0, limit: int
    ) -> Sequence[Delivery]:
        webhooks = self._webhooks.values() if of is None else self._of(self._task(*of).key)
        return list(islice((w for w in webhooks if w.key > after), limit))

    async def redeliver(self, key: int, *, cursor: int | None = None) -> bool:
        if key not in self._webhooks:
            return False
        self._change(key, Redeliver(cursor))
        self.wake()
        return True


class MemoryAudit:
    def __init__(self) -> None:
        self._entries: deque[AuditEntry] = deque(maxlen=MAX_AUDIT_ENTRIES)
        self._ids = count(1)

    def record(self, entry: AuditEntry) -> None:
        self._entries.append(replace(entry, id=next(self._ids)))

    async def entries(self, *, limit: int = 100, **query: Unpack[AuditQuery]) -> Sequence[AuditEntry]:
        since, before = query.get("since", ""), query.get("before") or float("inf")
        same = {name: query.get(name) or None for name in ("principal", "task", "operation")}
        same["tenant"] = query.get("tenant")
        wanted = [(name, value) for name, value in same.items() if value is not None]
        found = (
            entry
            for entry in reversed(self._entries)
            if entry.at >= since
            and entry.id < before
            and all(getattr(entry, name) == value for name, value in wanted)
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
        """When each text was last in use, and the stems of its members, with spaces around them."""

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
                        name: f" {' '.join(map(_stem, split_text(member)))} "
                        for name, member in members.items()
                    },
                )

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        words = split_query(query)
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
    wanted = f" {_stem(word)}" if finds_longer_words(word) else f" {_stem(word)} "
    return max((SEARCH_WEIGHTS[name] for name, stems in members.items() if wanted in stems), default=0.0)
