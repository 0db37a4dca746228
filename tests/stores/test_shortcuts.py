"""The shortcuts of the SQLite log (`_try_append`, `_try_settle`) write what `decide` would.

Two handles on one file take turns, as two processes would, so a cached snapshot may be older than the row.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dragoman.engine.protocols import Delivered, Lease, LeaseLost, NewMail
from dragoman.engine.push_configs import StoredPushConfig
from dragoman.engine.records import Cancel, Record, unpack
from dragoman.engine.snapshot import Snapshot
from dragoman.engine.transition import Append, Settle, TaskRow, decide
from dragoman.model.ops import PushConfig, Scope
from dragoman.model.task import TaskState
from dragoman.stores.rows import read_task_row
from dragoman.stores.sqlite.commits import SEQ_BITS, Finish
from dragoman.stores.sqlite.log import SqliteLog
from dragoman.stores.sqlite.store import SqliteStore
from tests.conformance.records import child, chunk, folded, mail, reply, seq_of, status, step, turn

SCOPE = Scope("acme", "echo", "alice")
HANDLES, NODES = st.sampled_from([0, 0, 0, 1]), st.sampled_from(["n1", "n2"])
RECENT = st.sampled_from([0, 0, 0, 0, 1, 2])
"""Which lease, counted from the last one. Earlier ones are lost."""
OTHERS: dict[str, Callable[[], Record]] = {
    "turn": turn,
    "chunk": chunk,
    "step": step,
    "child": child,
    "reply": reply,
}
STATES = ["working", "input-required", "completed", "failed"]
OUTPUT = st.lists(st.sampled_from([*OTHERS, "ask", *STATES]), max_size=3)
WAYS = st.sampled_from(["append", "append", "settle", "settle after the first message"])
WRITES = st.lists(st.tuples(RECENT, OUTPUT, WAYS), min_size=1, max_size=3)
Write = tuple[int, list[str], str]

_ROW = (
    "select seq, mail, state, updated, done, ready, node, fence, attempt, webhooks from tasks where key = ?"
)
_LOG = f"select place & {(1 << SEQ_BITS) - 1}, body from log where place >> {SEQ_BITS} = ? order by place"
_DUE = "select last from webhooks where key = ?"
_COUNTED = "select state, n from counts where n <> 0"
_COUNT = "select state, count(*) from tasks where reply = 0 or state <> 'TASK_STATE_SUBMITTED' group by state"


class WatchedLog(SqliteLog):
    """Counts the writes for which the shortcuts asked `decide`."""

    decided = 0

    def _append_job(self, lease: Lease, records: Sequence[Record], db: Connection) -> Finish[int]:
        self.decided += 1
        return super()._append_job(lease, records, db)

    def _settle_job(
        self, lease: Lease, records: Sequence[Record], mail: int, db: Connection
    ) -> Finish[Snapshot | None]:
        self.decided += 1
        return super()._settle_job(lease, records, mail, db)


async def outcome(written: Awaitable[int | Snapshot | None]) -> Any:
    """The last record, or the kind of the error; None if the store would have to read it."""
    try:
        result = await written
    except (LeaseLost, NewMail) as error:
        return type(error)
    return seq_of(result) if isinstance(result, Snapshot) else result


class Shortcuts(RuleBasedStateMachine):
    """Tasks one after the other. All that others may do happens between the writes of the holder."""

    short = 0
    """Writes that a shortcut made, in all runs."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "tasks.db"
        self.stores = [SqliteStore(path, synchronous="off") for _ in "12"]
        self.clock = self.key = 0
        self.runner.run(self.open())
        self.logs = [WatchedLog(store.file, SCOPE, store.push_configs) for store in self.stores]
        self.db = sqlite3.connect(path)

    async def open(self) -> None:
        for store, node in zip(self.stores, ("n1", "n2"), strict=True):
            await store.open()
            await store.join(node, ttl=1e6)

    def teardown(self) -> None:
        async def close() -> None:
            for store in self.stores:
                await store.close()

        self.db.close()
        self.runner.run(close())
        self.runner.close()
        self.folder.cleanup()

    def now(self) -> str:
        self.clock += 1
        return f"2026-01-01T00:00:{self.clock:09}Z"

    def record(self, kind: str) -> Record:
        if kind in OTHERS:
            return OTHERS[kind]()
        if kind == "ask":
            return status(TaskState.INPUT_REQUIRED, at=self.now(), kind=kind)
        return status(TaskState(f"TASK_STATE_{kind.upper().replace('-', '_')}"), at=self.now())

    @property
    def task(self) -> str:
        return f"t{self.key}"

    @property
    def row(self) -> TaskRow:
        return read_task_row(self.db.execute(_ROW, (self.key,)).fetchone())

    @property
    def records(self) -> list[Record]:
        rows = self.db.execute(_LOG, (self.key,)).fetchall()
        return [record for last, body in rows for record in unpack(body, last - body.count(b"\n"))]

    @property
    def due(self) -> list[int]:
        """The last record that each webhook is to be notified of."""
        return [last for (last,) in self.db.execute(_DUE, (self.key,))]

    def keep(self, delivery: Awaitable[Delivered]) -> None:
        async def wait() -> Delivered:
            return await delivery

        if lease := self.runner.run(wait()).lease:
            self.leases.append(lease)

    @initialize(bare=st.booleans())
    def begin(self, bare: bool) -> None:
        self.key += 1
        self.leases: list[Lease] = []
        self.keep(self.logs[0].create(self.task, "c", mail(at=self.now(), reply=bare), node="n1"))

    @precondition(lambda self: not self.row.done)
    @rule(handle=HANDLES, node=NODES | st.just(""), cancel=st.booleans())
    def deliver(self, handle: int, node: str, cancel: bool) -> None:
        sent = Cancel() if cancel else mail(at=self.now())
        self.keep(self.logs[handle].deliver(self.task, sent, node=node))

    @rule(handle=HANDLES, recent=RECENT, node=NODES, failed=st.booleans())
    def release_and_claim(self, handle: int, recent: int, node: str, failed: bool) -> None:
        lease = self.leases[-1 - recent % len(self.leases)]
        self.runner.run(self.stores[handle].release(lease, failed=failed))
        self.leases += self.runner.run(self.stores[handle].claim(node, limit=1))

    @rule(handle=HANDLES, read=st.booleans())
    def forget(self, handle: int, read: bool) -> None:
        """Drop the cached snapshot, and perhaps read it again."""
        self.stores[handle].file.reads.snapshots.drop(self.key)
        if read:
            self.runner.run(self.logs[handle].load(self.task))

    @rule(handle=HANDLES, webhook=st.booleans(), writes=WRITES)
    def write_late(self, handle: int, webhook: bool, writes: list[Write]) -> None:
        """Perhaps nobody has the lease, or there is a webhook."""
        queue = self.stores[handle].push_configs
        if webhook:
            config = StoredPushConfig(config=PushConfig(id="w", url="http://localhost/"), uid="u")
            self.runner.run(queue.put(SCOPE, self.task, config))
        self.check(handle, writes)
        self.runner.run(queue.delete(SCOPE, self.task, "w"))

    @rule(handle=HANDLES, bare=st.booleans(), writes=WRITES)
    def write(self, handle: int, bare: bool, writes: list[Write]) -> None:
        self.hold(handle, bare)
        self.check(handle, writes)

    @rule(handle=HANDLES, bare=st.booleans(), end=st.sampled_from(["working", "ask", "completed"]))
    def run_a_turn(self, handle: int, bare: bool, end: str) -> None:
        self.hold(handle, bare)
        self.check(handle, [(0, ["turn", "chunk"], "append")])
        self.check(handle, [(0, ["step"], "append")])
        self.check(handle, [(0, ["chunk", end], "settle")])

    def hold(self, handle: int, bare: bool) -> None:
        """Somebody gets the lease: of a new task if this one is over."""
        if not self.row.node and self.row.done:
            self.begin(bare)
        elif not self.row.node:
            self.deliver(handle, "n1", False)

    def check(self, handle: int, writes: list[Write]) -> None:
        """Submit all `writes` at once, and compare what is stored then with what `decide` says."""
        log, row, records, due = self.logs[handle], self.row, self.records, self.due
        decided = log.decided
        expected: list[Any] = []
        calls: list[Callable[[], Awaitable[Any]]] = []
        for recent, kinds, way in writes:
            lease = self.leases[-1 - recent % len(self.leases)]
            output = [self.record(kind) for kind in kinds]
            copies = [Record(record.kind, record.body) for record in output]
            read = row.mail if way == "settle" else 1
            job: Append | Settle
            if way == "append":
                job = Append(self.task, lease.fence, copies)
                calls.append(partial(log.append, lease, output))
            else:
                job = Settle(self.task, lease.fence, copies, read)
                calls.append(partial(log.settle, lease, output, mail=read))
            try:
                decision = decide(row, job)
            except (LeaseLost, NewMail) as error:
                expected.append(type(error))
            else:
                row = decision.row
                expected.append(row.seq)
                records += copies
                due = [decision.notify or last for last in due]

        async def submit() -> list[Any]:
            return await asyncio.gather(*[outcome(call()) for call in calls])

        answers = zip(self.runner.run(submit()), expected, strict=True)
        assert [seq if answer is None else answer for answer, seq in answers] == expected
        Shortcuts.short += len(calls) - (log.decided - decided)
        assert self.row == row
        assert self.records == records
        assert self.due == due
        assert dict(self.db.execute(_COUNTED)) == dict(self.db.execute(_COUNT)), "each task is counted"
        told = [folded(self.runner.run(log.load(self.task))) for log in self.logs]
        assert told == [folded(Snapshot(SCOPE, self.task, "c").after(self.records))] * 2


Shortcuts.TestCase.settings = settings(max_examples=60, stateful_step_count=30)


class TestShortcuts(Shortcuts.TestCase):  # type: ignore[misc, valid-type]
    @classmethod
    def tearDownClass(cls) -> None:
        assert Shortcuts.short, "the shortcuts were not used"
