"""The protocols of the engine: what a store and a bus promise. Each has one conformance suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypedDict, TypeVar, Unpack

from msgspec import Struct

from dragoman.engine.push_configs import PushConfigStore, PushQueue, StoredPushConfig
from dragoman.engine.records import PIECE_BYTES, Cancel, Mail, Record
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import TaskNotFound
from dragoman.model.ops import Call, ListTasks, PushConfig, Scope, Service
from dragoman.model.task import TaskState

T = TypeVar("T")

MAIL_TOPIC = "mail"
"""The topic that wakes runners when a task can be claimed."""
PAGE_BYTES = 4 << 20
"""Bytes of the logs that a page of `Log.find` is made from. A single task may be larger."""
HEAD_BYTES = 4 << 10
"""Bytes from the beginning of a log in `TaskInfo.head`."""
SCAN_TASKS = 10_000
"""Tasks that one search of `TaskIndex.find` looks at."""


class LeaseLost(Exception):
    """The caller does not hold the lease of this task any more: another node may run it. Nothing was written."""


class NewMail(Exception):
    """Mail arrived that the turn has not read. Nothing was written."""


class TaskExists(Exception):
    """The id is taken in this scope."""


class Lease(Struct, gc=False):
    """The right to write a task's output, until another lease with a higher `fence` is given."""

    scope: Scope
    task: str
    key: int
    """The store's key of the task, the same for all its leases; 0 until it has one."""
    fence: int
    attempt: int
    """How often the task was claimed since it last settled or made progress (`Record.progress`); 1 the first time."""


class HeldLease(Struct, frozen=True):
    """A lease that the node still holds, and the last mail of its task."""

    key: int
    fence: int
    mail: int


class Delivered(Struct, frozen=True):
    """Mail that is on disk, or on its way there (`stored`). `lease` is set if the node that delivered it also runs the task."""

    snapshot: Snapshot
    seq: int
    """Where the mail is in the log."""
    lease: Lease | None = None
    duplicate: bool = False
    """The same key was delivered before: this is the earlier delivery."""
    stored: Awaitable[object] | None = None
    """Done when the mail is on disk; None if it is on disk already."""
    unclaimed: bool = False
    """No node holds the task: it waits to be claimed."""


class Head(Struct, frozen=True):
    """What is known of a task without reading its log."""

    scope: Scope
    task_id: str
    context_id: str
    seq: int
    state: TaskState
    terminal: bool
    hidden: bool
    """See `Snapshot.hidden`."""
    mail: int
    """The last record that came from outside."""
    size: int
    """Bytes of its log."""


class FoundTasks(Struct, frozen=True):
    """A page of `Log.find`."""

    snapshots: Sequence[Snapshot]
    """At most as many as asked for; fewer if they are large."""
    next: str
    """The cursor of the next page; empty on the last."""
    total: int


WaitForMemory = Callable[[int], Awaitable[None]]
"""Waits until this number of bytes may be read into memory."""


class DeliverOptions(TypedDict, total=False):
    dedupe: str
    """The idempotency key, by which a repeated delivery is recognised; empty for none."""
    node: str
    """The node that takes the lease; empty for none."""
    webhook: StoredPushConfig | None


class Log(Protocol):
    """The tasks of one scope. A task outside the scope cannot be named: it is `TaskNotFound`.

    What these methods return is on disk; only `begin` does not wait for that. A `Snapshot` that they return does not change.
    """

    def create(
        self, task: str, context: str, mail: Mail, **options: Unpack[DeliverOptions]
    ) -> Awaitable[Delivered]:
        """Begin a task. With `node`, that node holds its lease from the start. With `webhook`, the task has that push config.

        Raises `TaskExists`.
        """
        ...

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        """`create`, without waiting for the disk: awaiting `stored` waits, and raises the error if it could not be written.
        Records under the lease are written after it, or not at all. None if the store does not offer this now.
        """
        ...

    def deliver(
        self, task: str, mail: Mail | Cancel, **options: Unpack[DeliverOptions]
    ) -> Awaitable[Delivered]:
        """Add mail, and make the task claimable. With `node`, claim it if no node holds it. With `webhook`, add that push config.

        Raises `TaskNotFound`, and `TaskClosed` on a finished task.
        """
        ...

    async def find_delivered(self, dedupe: str) -> Delivered | None:
        """The delivery with this idempotency key in the last 24 hours; None if there was none."""
        ...

    def append(self, lease: Lease, records: Sequence[Record]) -> Awaitable[int]:
        """Add output, all records or none, and return the number of the last one. Raises `LeaseLost`.

        If one of them is progress, the attempts are counted from 1 again.
        """
        ...

    def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Awaitable[Snapshot | None]:
        """`append`, and give the lease back. Returns the task as it is then, or None if the store would have to read it.

        Raises `NewMail` (and writes nothing) if mail came after `mail`.
        """
        ...

    def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Awaitable[Sequence[Record]]:
        """The records after `after`, in order, at most `limit` of them. Raises `TaskNotFound`.

        With `max_bytes`, it stops after the append that reaches that number (`size_of`). If there are fewer records than `limit`
        and fewer bytes than `max_bytes`, the log ends there.
        """
        ...

    async def head(self, task: str) -> Head:
        """What is known of a task without reading its log. Raises `TaskNotFound`."""
        ...

    def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Awaitable[Snapshot]:
        """The log folded to its end. Raises `TaskNotFound`.

        `wait_for_memory` is awaited with the bytes of a large log before the log is read.
        """
        ...

    def find(self, query: ListTasks, *, limit: int) -> Awaitable[FoundTasks]:
        """Tasks by last status, newest first, ties by id. The query is checked (`ListTasks.check`).

        Raises `InvalidParams` for a cursor it did not make.

        A page ends early when the logs of its tasks exceed `PAGE_BYTES`; it holds at least one.
        """
        ...

    async def find_replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        """The tasks of a context that were answered with a bare message: when they began, and their ids. Newest first, ties by
        id, the largest first. `after` is the last of the page before."""
        ...

    async def count_unfinished(self) -> int:
        """How many tasks that peers can see are not finished. The cost does not depend on their number."""
        ...


async def snapshot_at(log: Log, snapshot: Snapshot, seq: int) -> Snapshot:
    """The task of `snapshot` as it was at record `seq`. Raises `TaskNotFound`."""
    if snapshot.seq == seq:
        return snapshot
    task, then = snapshot.task_id, Snapshot(snapshot.scope, snapshot.task_id, snapshot.context_id)
    while then.seq < seq:
        records = await log.read(task, after=then.seq, limit=seq - then.seq, max_bytes=PIECE_BYTES)
        if not records:
            raise TaskNotFound(task)  # purged meanwhile
        then = then.after(records)
    return then


class Push(Protocol):
    """The sender of push notifications."""

    async def check_config(self, call: Call, config: PushConfig) -> StoredPushConfig:
        """The config as it is stored. Raises `InvalidParams` if notifications may not be sent to its URL."""
        ...

    def show_config(self, webhook: StoredPushConfig) -> PushConfig:
        """The config as its owner gave it. Raises `Unavailable`."""
        ...

    async def start(self) -> None: ...

    async def stop(self, drain: float) -> None:
        """Send for `drain` seconds. The rest is sent after the next start."""
        ...


class QuotaStore(Protocol):
    """Small rows that several nodes change: the parts of a quota that each holds (`observe/shared_quota.py`)."""

    @property
    def spans_machines(self) -> bool:
        """True if nodes of several machines use the store, so that no shared memory can count for all of them."""
        ...

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        """Replace a row in one transaction, and return the result of `change`. Raises `Unavailable`.

        `change` gets the bytes of the row, empty if there is none, and the time of the store's clock. It returns the new
        bytes, the time from which the row may be deleted, and the result. It may run more than once.
        """
        ...


class Store(Protocol):
    """All scopes of a database, as the server sees them. Only runners use `claim`."""

    @property
    def persistent(self) -> bool:
        """True if what is stored outlives the process."""
        ...

    @property
    def push_configs(self) -> PushConfigStore: ...

    @property
    def push_queue(self) -> PushQueue: ...

    @property
    def audit(self) -> Audit: ...

    @property
    def index(self) -> TaskIndex: ...

    @property
    def catalogue(self) -> CatalogueStore: ...

    @property
    def quotas(self) -> QuotaStore: ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def scope(self, scope: Scope) -> Log: ...

    async def join(self, node: str, *, ttl: float) -> None:
        """Start as `node`, which is alive for `ttl` seconds. A lease belongs to a node, and lapses with it.

        Tasks that an earlier process of this name held can be claimed at once.
        """
        ...

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        """The heartbeat: stay alive for `ttl` seconds from now, and return the leases that the node still holds."""
        ...

    async def leave(self, node: str) -> None:
        """Stop as `node`: the tasks that it held can be claimed at once."""
        ...

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        serves: Callable[[Scope], bool] | None = None,
        may_take_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        """Take up to `limit` tasks that have work and that no live node holds. The fence of each rises.

        `node` keeps the tasks that it holds, also if its heartbeat was late: the transaction that claims renews its leases.
        `serves`: only tasks of these scopes are claimed. `may_take_over` is called inside the transaction. If it returns
        False, tasks of nodes whose leases have lapsed are not claimed. They are not claimed either if the leases of
        `node` itself have lapsed: then the database may have stopped, and not the other nodes.
        """
        ...

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give a task back unfinished: it can be claimed at once. The attempt counts only if it `failed`."""
        ...

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        """Delete up to `limit` finished tasks whose last status is older than `before`; return how many.

        With `unfinished`, those that are not finished and that no node runs. A task with a webhook that is still to be
        notified stays. Logs may be deleted later, piece by piece (`tidy`).
        """
        ...

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        """Delete up to `limit` tasks of a tenant that no node runs, finished or not, with their webhooks and idempotency keys.

        Returns how many, and whether there are tasks left. Logs may be deleted later (`tidy`).
        """
        ...

    async def purge_tasks(self, tasks: Sequence[tuple[Scope, str]]) -> int:
        """Delete those of these tasks that no node runs, in one transaction; return how many. Logs may be deleted later (`tidy`)."""
        ...

    async def tidy(self) -> bool:
        """Delete a bounded part of what is not needed: expired idempotency keys and quotas, logs of purged tasks, free pages.

        True if there is more to do.
        """
        ...

    def damage(self) -> str:
        """A sentence about damaged data that cannot be read; empty if no damage is known."""
        ...

    def count_unclaimed(self) -> int:
        """How many tasks have work and no node; at a store of several nodes, as of the last heartbeat."""
        ...

    async def count_unclaimed_of(self, serves: Callable[[Scope], bool]) -> int:
        """How many tasks of these scopes have work and no node now."""
        ...

    async def find_behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        """The places in `cursors` (scope, task, last record that a reader knows) whose log has more records, or whose task was
        deleted. Records that this process wrote need not count."""
        ...

    def time_commits(self, report: Callable[[float], None]) -> None:
        """Before `open`: have `report` called with the seconds of each transaction."""
        ...


Woken = Callable[[Sequence[Record]], None]


class Bus(Protocol):
    """Says *when* to look at a log, never *what* is in it.

    Delivery is best effort. Readers poll as well, so a bus that drops every message makes the system slower, not
    wrong. `records` are for readers of the same process, which then need not read the log.
    """

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None: ...

    def wake_all(self) -> None:
        """Wake all listeners of this process: something happened, and it is not known what."""
        ...

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        """Call `woken` at each wake-up of `topic`, from now on until the context ends."""
        ...

    def listen_all(self, woken: Callable[[str], None]) -> AbstractContextManager[None]:
        """Call `woken` with the topic at each wake-up, until the context ends. `read_topic` reads it."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Peers(Protocol):
    """The agents that agents here may call."""

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        """Who `name` is, and in which scope to call it for a task in `scope`. Raises `A2AError`."""
        ...

    async def close(self) -> None: ...


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation of a caller on a task, and its outcome: `OK`, or the reason of the error."""

    at: str
    operation: str
    outcome: str
    tenant: str = ""
    agent: str = ""
    principal: str = ""
    task: str = ""
    dialect: str = ""
    trace: str = ""
    id: int = 0
    hash: str = ""
    """The hash of this entry and of the hash before it, so of all entries before; in persistent stores."""


class AuditQuery(TypedDict, total=False):
    """Which entries of the audit log. An empty value does not filter, except for `tenant`: there None does not filter."""

    tenant: str | None
    principal: str
    task: str
    operation: str
    since: str
    before: int
    """Only entries with a smaller id: for the next page."""


class Audit(Protocol):
    """The audit log. Entries never change, and are deleted only by age."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry to the next commit. Does not wait."""
        ...

    async def entries(self, *, limit: int = 100, **query: Unpack[AuditQuery]) -> Sequence[AuditEntry]:
        """Newest first."""
        ...

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        """Delete up to `limit` entries that are older than `before`, oldest first, and return them.

        The newest entry always stays, because the hash of the next one needs it.
        """
        ...


class TaskInfo(Struct, frozen=True, kw_only=True, gc=False):
    """The row of a task, and the beginning of its log, for a list of tasks."""

    scope: Scope
    id: str
    context: str
    key: int
    """The store's key of the task."""
    seq: int
    size: int
    """Bytes of its log."""
    state: TaskState
    updated: str
    done: bool
    hidden: bool
    """See `Snapshot.hidden`."""
    ready: bool
    """There is work: mail that no turn has settled."""
    node: str
    """The node that holds the lease; empty if none does."""
    expires: float
    """When the lease ends unless the node renews it, in `time.time()` seconds; 0 if no node holds it or the node is gone."""
    attempt: int
    fence: int
    """How often a node took the lease, of all its turns."""
    head: bytes
    """The first `HEAD_BYTES` of its log."""


class TaskQuery(Struct, frozen=True, kw_only=True):
    """Which tasks of all scopes. None and an empty string do not filter."""

    tenant: str | None = None
    """Only tasks of this tenant that peers can see."""
    agent: str | None = None
    owner: str | None = None
    states: frozenset[TaskState] = frozenset()
    context: str = ""
    since: str = ""
    """The oldest `updated` wanted."""
    until: str = ""
    """The first `updated` that is not wanted."""
    before: tuple[str, int] | None = None
    """`(updated, key)` of the last task of the page before."""


class FoundInfos(Struct, frozen=True):
    tasks: Sequence[TaskInfo]
    next: tuple[str, int] | None
    """`before` of the next page; None on the last."""


class NodeInfo(Struct, frozen=True, kw_only=True):
    id: str
    expires: float
    """When its leases end unless it renews them, in `time.time()` seconds."""
    leases: int


class TaskIndex(Protocol):
    """Tasks of every scope, for operators. Peers use `Log`, which knows one scope."""

    async def find(self, query: TaskQuery, *, limit: int) -> FoundInfos:
        """Tasks by `updated`, newest first, ties by key. A page may have fewer than `limit` tasks, or none, and a `next`:
        one search looks at `SCAN_TASKS` of them at most."""
        ...

    async def get(self, scope: Scope, task: str) -> TaskInfo:
        """Raises `TaskNotFound`."""
        ...

    async def counts(self) -> Sequence[tuple[str, str, TaskState, int]]:
        """How many tasks that peers can see are in each state, by tenant and agent."""
        ...

    async def size(self, tenant: str) -> int:
        """The bytes of the logs and the push configs of all tasks of a tenant."""
        ...

    async def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that are known, also those whose leases have lapsed."""
        ...


class RegisteredAgent(Struct, frozen=True, kw_only=True):
    """A remote agent that the operator added to the catalogue."""

    tenant: str = ""
    """The tenant of a hub that sees it; empty: every tenant."""
    name: str
    url: str
    due: float = 0.0
    """When it is checked again, in `time.time()` seconds."""
    body: bytes = b"{}"
    """The data that the catalogue has about it, as JSON."""


class SearchText(Struct, frozen=True, kw_only=True):
    """The texts of an agent that are searched."""

    name: str = ""
    tags: str = ""
    skills: str = ""
    about: str = ""


class CatalogueStore(Protocol):
    """The agents that were registered, and the texts in which agents are searched.

    The name of a text is a hash of its content. So a text never changes, and nodes that share a store cannot disagree about it.
    The caller decides who may see an agent: it names the texts that are searched.
    """

    async def registered(self) -> Sequence[RegisteredAgent]:
        """All of them, by name."""
        ...

    async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
        """Add an agent. False if its name is taken, or if there are `limit` agents already."""
        ...

    async def unregister(self, tenant: str, name: str) -> bool:
        """False if there is none."""
        ...

    async def take_due(self, now: float, until: float, *, limit: int) -> Sequence[RegisteredAgent]:
        """Up to `limit` agents that are due, longest due first. They are due again at `until`. Of several nodes that call this, one
        gets each agent."""
        ...

    async def update(self, agent: RegisteredAgent) -> bool:
        """Set `due` and `body` of the agent with this name and URL. False if there is none."""
        ...

    async def put_texts(self, texts: Mapping[str, SearchText], now: float) -> None:
        """Make these texts searchable, and store that they are in use `now`."""
        ...

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        """The texts `among` these that have a word of the query, best first, each with its score from 0 to 1.

        Each word of the query counts by the heaviest member that has it (`SEARCH_WEIGHTS`); the score is the mean over the
        words. It depends on no other text. Words are compared by their stems, and by their beginnings.
        """
        ...

    async def forget_texts(self, before: float) -> int:
        """Delete the texts that were last in use before this time; return how many."""
        ...


SEARCH_WEIGHTS = {"name": 1.0, "tags": 0.8, "skills": 0.8, "about": 0.5}
"""How much a word of a query counts, by the member of `SearchText` that has it."""
