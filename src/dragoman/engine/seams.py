"""The seams of the engine: what a store, a bus and an agent promise. Each has one conformance suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from dragoman.engine.log import Cancel, Mail, Record, Snapshot
from dragoman.model.card import AgentCard
from dragoman.model.ops import ListTasks, Principal, Scope, SendMessage, Service

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn


class LeaseLost(Exception):
    """Somebody else runs this task now. Write nothing more."""


class NewMail(Exception):
    """Something arrived that the turn has not read."""


class TaskExists(Exception):
    """The id is taken in this scope."""


class Lease(Struct, frozen=True):
    """The right to write a task's output, until somebody with a higher `fence` has it."""

    scope: Scope
    task: str
    key: int
    """The store's own name for the task: one number, the same for all leases of a task."""
    fence: int
    attempt: int
    """How often the task was claimed since it last settled; 1 the first time."""


class Held(Struct, frozen=True):
    """A lease that is still ours, and the last mail of its task."""

    key: int
    fence: int
    mail: int


class Delivered(Struct, frozen=True):
    """Mail is on disk. `lease` is there if the node that delivered it also runs it."""

    snapshot: Snapshot
    seq: int
    """Where the mail is in the log."""
    lease: Lease | None = None
    duplicate: bool = False
    """The same key was delivered before; this is what became of that one."""


class Found(Struct, frozen=True):
    snapshots: Sequence[Snapshot]
    next: str
    """The cursor of the next page; empty on the last."""
    total: int


class Log(Protocol):
    """One scope's tasks. A task outside it cannot be named: it is `TaskNotFound`.

    What these methods return is on disk. A returned `Snapshot` is shared and moves on as the log does: read what you
    need from it before the next `await`.
    """

    async def create(
        self, task: str, context: str, mail: Mail, *, dedupe: str = "", node: str = ""
    ) -> Delivered:
        """Begin a task. With `node`, that node holds its lease from the start. Raises `TaskExists`."""
        ...

    async def deliver(self, task: str, mail: Mail | Cancel, *, dedupe: str = "", node: str = "") -> Delivered:
        """Add mail and make the task claimable. With `node`, claim it if no live node holds it.

        Raises `TaskNotFound`, and `TaskClosed` on a finished task.
        """
        ...

    async def seen(self, dedupe: str) -> Delivered | None:
        """What became of an earlier delivery with this key, in the last 24 hours."""
        ...

    async def append(self, lease: Lease, records: Sequence[Record]) -> int:
        """Add output, numbered without a gap, all or none; return the last number. Raises `LeaseLost`."""
        ...

    async def settle(self, lease: Lease, records: Sequence[Record], *, mail: int) -> int:
        """`append`, and give the lease back. Raises `NewMail` (and writes nothing) if mail came after `mail`."""
        ...

    async def read(self, task: str, *, after: int = 0) -> Sequence[Record]:
        """The records after `after`, in order. Raises `TaskNotFound`."""
        ...

    async def load(self, task: str) -> Snapshot:
        """The log folded to its end. Raises `TaskNotFound`."""
        ...

    async def find(self, query: ListTasks, *, limit: int) -> Found:
        """Tasks by last status, newest first, ties by id. Raises `InvalidParams` for a cursor it did not make."""
        ...


class Store(Protocol):
    """The system's view of every scope. Only runners use `claim`."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def scope(self, scope: Scope) -> Log: ...

    async def join(self, node: str, *, ttl: float) -> None:
        """Say that `node` is alive for `ttl` seconds. A lease belongs to a node, and lapses with it."""
        ...

    async def renew(self, node: str, *, ttl: float) -> Sequence[Held]:
        """`join` again, and return what the node still holds."""
        ...

    async def leave(self, node: str) -> None:
        """The node is gone: whatever it held can be claimed at once."""
        ...

    async def claim(self, node: str, *, limit: int) -> Sequence[Lease]:
        """Take up to `limit` tasks that have work and that no live node holds. The fence of each rises."""
        ...

    async def release(self, lease: Lease) -> None:
        """Give a task back unfinished; it can be claimed at once."""
        ...

    async def purge(self, before: str, *, limit: int) -> int:
        """Forget up to `limit` finished tasks whose last status is older than `before`; return how many."""
        ...


Woken = Callable[[Sequence[Record]], None]


class Bus(Protocol):
    """Says *when* to look at a log, never *what* is in it.

    Delivery is best effort. Readers poll as well, so a bus that drops every message makes the system slower, not
    wrong. Records that ride along are a shortcut for readers in the same process.
    """

    def wake(self, topic: str, records: Sequence[Record] = ()) -> None: ...

    def listen(self, topic: str, woken: Woken) -> AbstractContextManager[None]:
        """Call `woken` at each wake-up of `topic`, until the context ends."""
        ...

    async def open(self) -> None: ...

    async def close(self) -> None: ...


class Program(Protocol):
    """What the engine runs: an agent, as far as the engine needs to know one."""

    @property
    def card(self) -> AgentCard: ...

    def admit(self, request: SendMessage, principal: Principal) -> bool:
        """Check a message before it is accepted; raises the `A2AError` to answer with. True: the answer may be a bare
        Message."""
        ...

    async def work(self, turn: Turn) -> Any:
        """Do the work of one turn, writing through `turn`. Returning completes the task."""
        ...


class Peers(Protocol):
    """The agents that agents here may call."""

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        """Who `name` is, and in which scope to call it for a task in `scope`. Raises `A2AError`."""
        ...

    async def close(self) -> None: ...


def topic(scope: Scope, task: str) -> str:
    """The bus topic of a task; it begins with the tenant."""
    return f"{scope.tenant}/{scope.agent}/{scope.owner}/{task}"


MAIL = "mail"
"""The topic on which runners hear that something can be claimed."""
