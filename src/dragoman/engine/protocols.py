"""The protocols of the engine: what a store and a bus promise. Each has one conformance suite."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from msgspec import Struct

from dragoman.engine.push_configs import PushConfigStore, PushQueue, StoredPushConfig
from dragoman.engine.records import Cancel, Mail, Record, Snapshot
from dragoman.model.ops import Call, ListTasks, PushConfig, Scope, Service
from dragoman.model.task import TaskState

T = TypeVar("T")


class LeaseLost(Exception):
    """Somebody else runs this task now. Write nothing more."""


class NewMail(Exception):
    """Something arrived that the turn has not read."""


class TaskExists(Exception):
    """The id is taken in this scope."""


class Lease(Struct, gc=False):
    """The right to write a task's output, until somebody with a higher `fence` has it."""

    scope: Scope
    task: str
    key: int
    """The store's own name for the task: one number, the same for all leases of a task; 0 until it has one."""
    fence: int
    attempt: int
    """How often the task was claimed since it last settled or got on (`Record.progress`); 1 the first time."""


class HeldLease(Struct, frozen=True):
    """A lease that is still ours, and the last mail of its task."""

    key: int
    fence: int
    mail: int


class Delivered(Struct, frozen=True):
    """Mail is on disk, or on its way there (`stored`). `lease` is there if the node that delivered it also runs it."""

    snapshot: Snapshot
    seq: int
    """Where the mail is in the log."""
    lease: Lease | None = None
    duplicate: bool = False
    """The same key was delivered before; this is what became of that one."""
    stored: Awaitable[object] | None = None
    """Done when it is on disk; None if it is."""
    unclaimed: bool = False
    """No node has the task: it waits for one."""


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
    snapshots: Sequence[Snapshot]
    """At most as many as asked for; fewer if they are large."""
    next: str
    """The cursor of the next page; empty on the last."""
    total: int


WaitForMemory = Callable[[int], Awaitable[None]]
"""Waits until there is room for so many bytes."""


class Log(Protocol):
    """One scope's tasks. A task outside it cannot be named: it is `TaskNotFound`.

    What these methods return is on disk; only `begin` does not wait for that. A `Snapshot` that they return does not change.
    """

    def create(
        self,
        task: str,
        context: str,
        mail: Mail,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Awaitable[Delivered]:
        """Begin a task. With `node`, that node holds its lease from the start. Raises `TaskExists`.

        With `webhook`, it is there from the first record on.
        """
        ...

    def begin(
        self, task: str, context: str, mail: Mail, *, node: str, webhook: StoredPushConfig | None = None
    ) -> Delivered | None:
        """`create`, without waiting for the disk: `stored` does, and raises what went wrong. What is written under the
        lease comes after it, or not at all. None if the store would rather be waited for.
        """
        ...

    def deliver(
        self,
        task: str,
        mail: Mail | Cancel,
        *,
        dedupe: str = "",
        node: str = "",
        webhook: StoredPushConfig | None = None,
    ) -> Awaitable[Delivered]:
        """Add mail and make the task claimable. With `node`, claim it if no node holds it. With `webhook`, `put` it.

        Raises `TaskNotFound`, and `TaskClosed` on a finished task.
        """
        ...

    async def seen(self, dedupe: str) -> Delivered | None:
        """What became of an earlier delivery with this key, in the last 24 hours."""
        ...

    def append(self, lease: Lease, records: Sequence[Record]) -> Awaitable[int]:
        """Add output, numbered without a gap, all or none; return the last number. Raises `LeaseLost`.

        If it is progress, this attempt is the first one again.
        """
        ...

    def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> Awaitable[Snapshot | None]:
        """`append`, and give the lease back: the task as it is then, or None if the store would have to read it.

        Raises `NewMail` (and writes nothing) if mail came after `mail`.
        """
        ...

    def read(
        self, task: str, *, after: int = 0, limit: int | None = None, max_bytes: int | None = None
    ) -> Awaitable[Sequence[Record]]:
        """The records after `after`, in order, at most `limit` of them. Raises `TaskNotFound`.

        With `max_bytes`, it stops after the append that reaches so many (`size_of`). Fewer records than `limit` and fewer
        bytes than `max_bytes` are all that there are: a reader waits then.
        """
        ...

    async def head(self, task: str) -> Head:
        """What is known of a task without reading its log. Raises `TaskNotFound`."""
        ...

    def load(self, task: str, *, wait_for_memory: WaitForMemory | None = None) -> Awaitable[Snapshot]:
        """The log folded to its end. Raises `TaskNotFound`.

        `wait_for_memory` is awaited, with the bytes of a large log, before that is read.
        """
        ...

    def find(self, query: ListTasks, *, limit: int) -> Awaitable[FoundTasks]:
        """Tasks by last status, newest first, ties by id. Raises `InvalidParams` for a cursor it did not make.

        A page ends early when the logs of its tasks exceed `PAGE_BYTES`; it holds at least one.
        """
        ...

    async def replies(
        self, context: str, *, after: tuple[str, str] | None, limit: int
    ) -> Sequence[tuple[str, str]]:
        """The exchanges of a context that were answered with a bare message: when they began, and their ids. Newest first, ties by
        id, the largest first. `after` is the last of the page before."""
        ...

    async def unfinished(self) -> int:
        """How many tasks that peers can see are not finished. It costs the same however many there are."""
        ...


class Push(Protocol):
    """Who sends notifications, as far as the engine needs to know."""

    async def check_config(self, call: Call, config: PushConfig) -> StoredPushConfig:
        """The webhook for a config somebody asks for. Raises `InvalidParams` if we would not send there."""
        ...

    def show_config(self, webhook: StoredPushConfig) -> PushConfig:
        """The config as its owner gave it, however it is kept. Raises `Unavailable`."""
        ...

    async def start(self) -> None: ...

    async def stop(self, drain: float) -> None:
        """Send what can be sent in `drain` seconds; the rest is sent after the next start."""
        ...


class QuotaStore(Protocol):
    """Small rows that nodes change together: what each holds of a quota (`observe/shared_quota.py`)."""

    @property
    def spans_machines(self) -> bool:
        """Nodes of several machines use the store, so that no memory could count for all of them."""
        ...

    async def change(self, key: str, change: Callable[[bytes, float], tuple[bytes, float, T]]) -> T:
        """Replace a row, in one transaction, and return the answer. Raises `Unavailable`.

        `change` gets the bytes of the row, empty if there is none, and the time by the clock of the store. It returns the new
        bytes, when the row may be forgotten, and the answer. It may run more than once.
        """
        ...


class Store(Protocol):
    """The system's view of every scope. Only runners use `claim`."""

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
        """A process begins as `node`, and is alive for `ttl` seconds. A lease belongs to a node, and lapses with it.

        What an earlier process of this name held can be claimed at once.
        """
        ...

    async def renew(self, node: str, *, ttl: float) -> Sequence[HeldLease]:
        """Stay alive for `ttl` seconds from now, and return what the node still holds."""
        ...

    async def leave(self, node: str) -> None:
        """The node is gone: whatever it held can be claimed at once."""
        ...

    async def claim(
        self,
        node: str,
        *,
        limit: int,
        fits: Callable[[Scope], bool] | None = None,
        takes_over: Callable[[], bool] | None = None,
    ) -> Sequence[Lease]:
        """Take up to `limit` tasks that have work and that no live node holds. The fence of each rises.

        What `node` holds it keeps, also if its own lease has lapsed: the transaction that claims renews that lease.
        `fits`: only those of such scopes. Others are left alone, however many they are.
        `takes_over` is asked inside the transaction: False leaves alone what nodes hold whose leases have lapsed. So does
        a `node` whose own lease has lapsed: it cannot tell whether the others stood still or the database did.
        """
        ...

    async def release(self, lease: Lease, *, failed: bool = False) -> None:
        """Give a task back unfinished; it can be claimed at once. Unless it `failed`, that was no attempt."""
        ...

    async def purge(self, before: str, *, limit: int, unfinished: bool = False) -> int:
        """Forget up to `limit` finished tasks whose last status is older than `before`; return how many.

        With `unfinished`, those that are not finished, and that no node runs. A task with a webhook that is still to be
        notified stays. Its log may go later, piece by piece (`tidy`).
        """
        ...

    async def purge_tenant(self, tenant: str, *, limit: int) -> tuple[int, bool]:
        """Forget up to `limit` tasks of a tenant that no node runs, finished or not, with their webhooks and idempotency keys.

        Returns how many, and whether there are tasks left. Logs may go later (`tidy`).
        """
        ...

    async def tidy(self) -> bool:
        """One bounded piece of housekeeping: expired idempotency keys and quotas, logs of purged tasks, unused space of a file.

        True if there is more to do.
        """
        ...

    def damage(self) -> str:
        """What of the database cannot be read because it is damaged, in a sentence; empty if nothing is known to be."""
        ...

    def waiting(self) -> int:
        """How many tasks have work that no node has taken up."""
        ...

    async def backlog(self, fits: Callable[[Scope], bool]) -> int:
        """`waiting`, of such scopes, and as it is now."""
        ...

    async def behind(self, cursors: Sequence[tuple[Scope, str, int]]) -> Sequence[int]:
        """Of readers of logs (whose task, which one, the last record they know), those for whom there is more, by their
        places. Those whose task is gone are among them; those that only this process could have news for need not be."""
        ...

    def time_commits(self, report: Callable[[float], None]) -> None:
        """Before `open`: call `report` with how long each transaction took, in seconds."""
        ...


Woken = Callable[[Sequence[Record]], None]


class Bus(Protocol):
    """Says *when* to look at a log, never *what* is in it.

    Delivery is best effort. Readers poll as well, so a bus that drops every message makes the system slower, not
    wrong. Records that ride along are a shortcut for readers in the same process.
    """

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None: ...

    def wake_all(self) -> None:
        """Something happened that we know no more about: wake all who listen here."""
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
    """Who did what to which task, and how it ended: `OK`, or the reason of the error."""

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
    """Of this entry and, through the one before it, of all that came before; in stores that outlive a process."""


class Audit(Protocol):
    """What was done, in order. Nothing is ever changed or taken out but by age."""

    def record(self, entry: AuditEntry) -> None:
        """Add an entry. It joins the next commit; nobody waits for it."""
        ...

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
        """Newest first; `before` an entry's id goes on from there."""
        ...

    async def forget(self, before: str, *, limit: int) -> Sequence[AuditEntry]:
        """Take out up to `limit` entries, oldest first, up to the first that is not older than `before`: what they were.

        The newest always stays: the next one follows from it.
        """
        ...


class TaskInfo(Struct, frozen=True, kw_only=True, gc=False):
    """The row of a task, and the beginning of its log: what a list of tasks shows."""

    scope: Scope
    id: str
    context: str
    key: int
    """The store's own name for the task."""
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
    """Which tasks of all scopes. None and an empty string filter nothing."""

    tenant: str | None = None
    """Of one tenant: and only what its peers can see."""
    agent: str | None = None
    owner: str | None = None
    states: frozenset[TaskState] = frozenset()
    context: str = ""
    since: str = ""
    """The oldest `updated` wanted."""
    until: str = ""
    """The first `updated` that is not wanted."""
    before: tuple[str, int] | None = None
    """`(updated, key)` after which a page goes on."""


class FoundInfos(Struct, frozen=True):
    tasks: Sequence[TaskInfo]
    next: tuple[str, int] | None
    """Where the next page goes on; None on the last."""


class NodeInfo(Struct, frozen=True, kw_only=True):
    id: str
    expires: float
    """When its leases end unless it renews them, in `time.time()` seconds."""
    leases: int


class TaskIndex(Protocol):
    """Tasks of every scope, for operators. What peers ask goes through `Log`, which knows one scope."""

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
        """The bytes of the logs of all tasks of a tenant."""
        ...

    async def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that are known, also those whose leases have lapsed."""
        ...


class RegisteredAgent(Struct, frozen=True, kw_only=True):
    """An agent elsewhere that the operator put into the catalogue."""

    tenant: str = ""
    """Who sees it on a hub; empty: every tenant."""
    name: str
    url: str
    due: float = 0.0
    """When it is looked at again, in `time.time()` seconds."""
    body: bytes = b"{}"
    """What the catalogue knows of it, as JSON."""


class SearchText(Struct, frozen=True, kw_only=True):
    """What of an agent is searched."""

    name: str = ""
    tags: str = ""
    skills: str = ""
    about: str = ""


class CatalogueStore(Protocol):
    """The agents that were registered, and the texts in which agents are searched.

    A text has a name that stands for its content (a hash). So a text never changes, nodes that share a store cannot disagree
    about it, and who may see an agent is for the caller to decide: it names the texts that are searched.
    """

    async def registered(self) -> Sequence[RegisteredAgent]:
        """All of them, by name."""
        ...

    async def register(self, agent: RegisteredAgent, *, limit: int) -> bool:
        """Add an agent. False, and nothing changes, if its name is taken or there are `limit` already."""
        ...

    async def unregister(self, tenant: str, name: str) -> bool:
        """False if there is none."""
        ...

    async def take_due(self, now: float, until: float, *, limit: int) -> Sequence[RegisteredAgent]:
        """Up to `limit` agents that are due, those first that wait longest; they are due again at `until`. Each is taken by one
        caller, whichever node asks."""
        ...

    async def update(self, agent: RegisteredAgent) -> bool:
        """Set `due` and `body` of an agent that still has this name and URL. False if it has not."""
        ...

    async def put_texts(self, texts: Mapping[str, SearchText], now: float) -> None:
        """Have these texts searchable, and remember that they are in use."""
        ...

    async def search(self, query: str, among: Sequence[str], *, limit: int) -> Sequence[tuple[str, float]]:
        """Of the texts `among` these, those with a word of the query, best first, each with its score from 0 to 1.

        Each word of the query counts by the heaviest member that has it (`SEARCH_WEIGHTS`); the score is the mean over the
        words. It depends on no other text. Words are compared by their stems, and by their beginnings.
        """
        ...

    async def forget_texts(self, before: float) -> int:
        """Delete the texts that were not in use since; return how many."""
        ...


SEARCH_WEIGHTS = {"name": 1.0, "tags": 0.8, "skills": 0.8, "about": 0.5}
"""How much a word of a query counts, by the member of `SearchText` that has it."""

HEAD_BYTES = 4 << 10
SCAN_TASKS = 10_000


PAGE_BYTES = 4 << 20
"""Bytes of the logs that a page of `Log.find` is made from. A single task may be larger."""

MAIL_TOPIC = "mail"
"""The topic on which runners hear that something can be claimed."""
