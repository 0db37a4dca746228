"""What is true of the PostgreSQL store beyond the seam: a database that goes away, lost answers, and what things cost."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import buses, stores
from dragoman.buses import open_bus
from dragoman.engine.protocols import AuditEntry, Lease, Log, Store, TaskExists
from dragoman.errors import InvalidParams, StoreUnavailable, TaskNotFound, Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.server.runtime import check_store
from dragoman.stores import UnsupportedSchema, open_store
from dragoman.stores.audit_chain import check_chain
from dragoman.stores.pages import read_filters
from tests import postgres
from tests.conformance.records import chunk, mail, seq_of, status, turn

if not postgres.available():
    pytest.skip("there is no PostgreSQL here", allow_module_level=True)

import asyncpg

from dragoman.stores.postgres import database, log_reads, pool
from dragoman.stores.postgres import store as postgres_store
from dragoman.stores.postgres.store import PostgresStore
from tests.waiting import elapse, until

SCOPE = Scope("acme", "echo", "alice")
DONE = TaskState.COMPLETED
CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = 'dragoman' and (pid + extract(milliseconds from clock_timestamp())::integer) % 3 = 0
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres.server().fresh(tmp_path)


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.open()
    await store.join("n1", ttl=60)
    yield store
    await store.close()


@pytest.fixture
def log(store: PostgresStore) -> Log:
    return store.scope(SCOPE)


async def begun(log: Log, task: str = "t", **more: Any) -> Lease:
    lease = (await log.create(task, "c", mail(), node="n1", **more)).lease
    assert lease is not None
    return lease


async def finish(log: Log, task: str, chunks: int = 0) -> None:
    lease = await begun(log, task)
    for _ in range(chunks):
        await log.append(lease, [chunk()])
    await log.settle(lease, [turn(), status(DONE)], mail=1)


def look(sql: str) -> list[Any]:
    return postgres.server().execute(sql)[0]


# What things cost


async def test_an_event_costs_the_same_in_a_long_task_as_in_a_short_one(log: Log) -> None:
    async def grow(task: str, chunks: int) -> float:
        await finish(log, task, chunks)
        ((size,),) = look(
            f"select sum(length(body)) from dragoman.log join dragoman.tasks using (key) where id = '{task}'"
        )
        return float(size) / chunks

    short, long = await grow("short", 20), await grow("long", 500)
    assert long < short * 1.1


async def test_concurrent_writes_share_a_transaction(url: str) -> None:
    store, took = PostgresStore(url), list[float]()
    store.time_commits(took.append)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    await asyncio.gather(*(finish(log, f"t{i}") for i in range(64)))
    assert 0 < len(took) < 20
    assert (await log.find(ListTasks(), limit=1)).total == 64
    await store.close()


async def test_an_acknowledged_write_is_in_the_database(log: Log) -> None:
    for i in range(10):
        await finish(log, f"t{i}")
        assert look(f"select state, seq from dragoman.tasks where id = 't{i}'") == [(DONE.value, 3)]


async def test_a_small_memory_of_snapshots_is_still_a_right_one(url: str) -> None:
    store = PostgresStore(url, cached_snapshots=2)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    leases = [await begun(log, f"t{i}") for i in range(6)]
    for n in range(3):
        for lease in leases:
            assert await log.append(lease, [chunk(f"{n}")]) == n + 2
    for i in (5, 0, 3, 0, 5):
        assert (await log.load(f"t{i}")).task.artifacts[0].text == "012"
    found = await log.find(ListTasks(), limit=10)
    assert [snapshot.task.artifacts[0].text for snapshot in found.snapshots] == ["012"] * 6
    await store.close()


def filled(sql: str) -> str:
    """A search with values in it."""
    for n, value in enumerate(("1", "'TASK_STATE_FAILED'", "'2026'", "'2025'", "50", "'c'"), 1):
        sql = sql.replace(f"${n}", value)
    return sql


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (filled(log_reads._OF_STATE[0]), "tasks_by_state"),
        (filled(log_reads._OF_STATE[1]), "tasks_by_state"),
        (filled(log_reads._OF_CONTEXT[1]), "tasks_by_context"),
        (
            "select key from dragoman.tasks where done and updated < '2026' order by updated limit 50",
            "tasks_by_age",
        ),
        (
            "select key from dragoman.tasks where ready and node is null order by key limit 10",
            "tasks_waiting",
        ),
        ("select key from dragoman.tasks where ready and node = 'n1' order by key", "tasks_held"),
        ("select seq from dragoman.log where key = 1 and seq > 5 order by seq", "log_pkey"),
        (
            "select webhook from dragoman.webhooks where cursor < last and not dead and at <= 1",
            "webhooks_due",
        ),
    ],
)
async def test_every_search_uses_its_index(store: PostgresStore, sql: str, index: str) -> None:
    small = "set enable_seqscan = off", "set enable_bitmapscan = off"  # what a small table would do
    plan = str(postgres.server().execute(*small, f"explain {sql}")[-1])
    assert index in plan and "Sort" not in plan


# What can go wrong


async def test_a_job_that_fails_takes_no_other_with_it(log: Log) -> None:
    first, second = await begun(log, "t1"), await begun(log, "t2")
    results = await asyncio.gather(
        log.append(first, [status(TaskState.WORKING)]),
        log.append(second, [status(TaskState.WORKING, at="no time has a \0")]),
        log.create("t3", "c", mail()),
        log.create("t3", "c", mail()),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["int", "Unavailable", "Delivered", "TaskExists"]
    assert [(await log.load(task)).seq for task in ("t1", "t2", "t3")] == [2, 1, 1]
    assert await log.append(second, [chunk()]) == 2


async def test_while_the_database_is_away_everything_is_unavailable_and_then_goes_on(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = PostgresStore(url, outage_timeout=0.2)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    lease = await begun(log)
    await asyncio.to_thread(postgres.server().stop)
    try:
        for attempt in (
            log.append(lease, [chunk()]),
            log.create("t2", "c", mail()),
            log.load("t"),
            log.find(ListTasks(), limit=1),
            store.claim("n1", limit=1),
            store.renew("n1", ttl=60),
            store.push_queue.next_due(),
            store.audit.entries(),
            PostgresStore(url, outage_timeout=0.1).open(),
        ):
            with pytest.raises(Unavailable) as refused:
                await attempt
            assert str(postgres.server().folder) not in str(refused.value) or "opened" in str(refused.value)
    finally:
        await asyncio.to_thread(postgres.server().start)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
    assert await log.append(lease, [chunk()]) == 2
    assert (await log.load("t")).seq == 2
    await store.close()


async def test_no_node_is_replaced_because_the_database_was_unavailable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_OUTAGE_SECONDS", 0)
    one, two = PostgresStore(url, outage_timeout=0.1), PostgresStore(url, outage_timeout=0.1)
    for node, store in (("n1", one), ("n2", two)):
        await store.open()
        await store.join(node, ttl=60)
    lease = await begun(one.scope(SCOPE))
    await asyncio.to_thread(postgres.server().stop)
    for store in (one, two):
        with pytest.raises(Unavailable):
            await store.renew("n", ttl=60)
    await asyncio.to_thread(postgres.server().start)
    await asyncio.to_thread(postgres.server().forward, 3600)
    await two.renew("n2", ttl=60)
    assert list(await two.claim("n2", limit=1)) == []
    assert [held.key for held in await one.renew("n1", ttl=60)] == [lease.key]
    await asyncio.to_thread(postgres.server().forward, 3600)  # this time it is the node that is gone
    monkeypatch.setattr(database, "_RECOVERY_SECONDS", 0)
    await two.renew("n2", ttl=60)
    assert [lease.task for lease in await two.claim("n2", limit=1)] == ["t"]
    for store in (one, two):
        await store.close()


async def test_writers_and_readers_wait_for_a_database_that_restarts(url: str) -> None:
    store = PostgresStore(url, outage_timeout=60)  # a busy machine takes a while to start a database
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    lease = await begun(log)

    async def restart() -> None:
        await asyncio.to_thread(postgres.server().stop, "immediate")
        await asyncio.to_thread(postgres.server().start)

    restarting, written = asyncio.ensure_future(restart()), [1]
    while not restarting.done():
        written.append(await log.append(lease, [chunk()]))
        assert (await log.load("t")).seq == written[-1]
    await restarting
    written.append(await log.append(lease, [chunk()]))
    assert written == list(range(1, len(written) + 1))
    assert [record.seq for record in await log.read("t")] == written
    await store.close()


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not-committed"])
@pytest.mark.parametrize("what", ["append", "create", "claim", "settle"])
async def test_a_commit_whose_answer_is_lost_is_neither_lost_nor_repeated(
    store: PostgresStore, log: Log, monkeypatch: pytest.MonkeyPatch, what: str, committed: bool
) -> None:
    lease = await begun(log)
    await log.create("free", "c", mail())
    with breaking(monkeypatch, committed):
        if what == "append":
            assert await log.append(lease, [chunk("a"), chunk("b")]) == 3
        elif what == "settle":
            assert seq_of(await log.settle(lease, [turn(), status(DONE)], mail=1)) == 3
        elif what == "create":
            assert (await log.create("t2", "c", mail(), node="n1", dedupe="k")).lease is not None
        else:
            assert [each.task for each in await store.claim("n1", limit=5)] == ["free"]
    assert [len(await log.read(task)) for task in ("t", "free")] == [
        1 if what in ("create", "claim") else 3,
        1,
    ]
    held = {h.key for h in await store.renew("n1", ttl=60)}
    assert len(held) == {"append": 1, "settle": 0, "create": 2, "claim": 2}[what]


async def test_a_doubt_is_resolved_when_the_database_is_back_however_long_that_takes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(url, outage_timeout=0.1)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    lease = await begun(log)
    with breaking(monkeypatch, committed=True) as connection:
        connection.breaks.clear()
        doubtful = asyncio.ensure_future(log.append(lease, [chunk("a")]))
        await connection.reached.wait()
        await asyncio.to_thread(postgres.server().stop, "immediate")
        connection.breaks.set()
        with pytest.raises(Unavailable):
            await log.load("t")  # the timeout of other calls is over
        assert not doubtful.done()
        await asyncio.to_thread(postgres.server().start)
        assert await doubtful == 2
    assert [record.seq for record in await log.read("t")] == [1, 2]
    await store.close()


async def test_a_write_undone_by_a_crash_is_not_confused_with_a_later_one(
    store: PostgresStore, log: Log
) -> None:
    """After a crash, PostgreSQL gives the numbers of lost transactions to others."""
    tried: list[str] = []

    async def work(db: Any) -> tuple[str, str]:
        await db.execute("insert into dragoman.nodes values ($1, 0)", f"try {len(tried)}")
        tried.append(await db.fetchval("select pg_current_xact_id()::text"))
        if len(tried) == 1:
            await asyncio.to_thread(postgres.server().stop, "immediate")
            await asyncio.to_thread(postgres.server().start)
            for n in range(3):
                await store.scope(SCOPE).create(f"other {n}", "c", mail())
            said = await asyncio.to_thread(
                postgres.server().execute, f"select pg_xact_status('{tried[0]}'::text::xid8)"
            )
            # Which it was not: another transaction has its number. If the number was on disk before the crash, it is not reused.
            assert said in ([[("committed",)]], [[("aborted",)]])
        return "done", tried[-1]

    assert await store._database.transact(work) == "done"
    assert len(tried) == 2
    rows = postgres.server().execute("select node from dragoman.nodes where node like 'try%'")
    assert rows == [[("try 1",)]]


class breaking:
    """The connection breaks at the next commit: before it comes to the database, or before the answer comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, committed: bool) -> None:
        self._patch, self._committed = monkeypatch, committed
        self._begun = False
        self.reached, self.breaks = asyncio.Event(), asyncio.Event()
        self.breaks.set()

    def __enter__(self) -> breaking:
        real: Callable[..., Any] = asyncpg.Connection.execute

        async def execute(db: Any, query: str, *args: Any, **options: Any) -> Any:
            if not query.endswith("commit") or self._begun:
                return await real(db, query, *args, **options)
            self._begun = True
            if self._committed:
                await real(db, query)
            self.reached.set()
            await self.breaks.wait()
            db.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")

        self._patch.setattr(asyncpg.Connection, "execute", execute)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.reached.is_set()
        self._patch.undo()


async def test_a_read_only_database_is_an_error_before_the_server_starts(
    store: PostgresStore, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = PostgresStore.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(PostgresStore.__init__, "__kwdefaults__", {**defaults, "outage_timeout": 0.05})
    with pytest.raises(SystemExit, match="dragoman: the task store"):
        await check_store(f"{url}&default_transaction_read_only=on")
    await check_store(url)


async def test_a_row_locked_by_another_program_blocks_only_its_task(
    store: PostgresStore, log: Log, url: str
) -> None:
    leases = [await begun(log, f"t{n}") for n in range(6)]
    db = await asyncpg.connect(url)
    async with asyncio.timeout(20), db.transaction():
        await db.execute("select 1 from dragoman.tasks where id in ('t0', 't3') for update")
        results = await asyncio.gather(
            *(log.append(lease, [chunk()]) for lease in leases), return_exceptions=True
        )
        assert [type(r) for r in results] == [Unavailable, int, int, Unavailable, int, int]
    await db.close()
    assert await log.append(leases[0], [chunk()]) == 2


async def test_a_paused_transaction_blocks_a_task_only_until_its_timeout(
    store: PostgresStore, log: Log, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_IDLE_MILLISECONDS", 300)
    await log.create("t", "c", mail())
    stalled, still, closed = PostgresStore(url, outage_timeout=0.1), asyncio.Event(), asyncio.Event()
    await stalled.open()

    async def lock(db: Any) -> None:
        await db.execute("select 1 from dragoman.tasks for update")
        still.set()
        await closed.wait()
        await db.execute("select 1")

    frozen = asyncio.ensure_future(stalled._database.write(lock))
    await still.wait()
    assert list(await store.claim("n1", limit=1)) == []
    assert (await log.deliver("t", mail())).seq == 2
    assert [lease.task for lease in await store.claim("n1", limit=1)] == ["t"]
    closed.set()
    with pytest.raises(Unavailable):
        await frozen
    await stalled.close()


async def test_no_record_is_lost_when_connections_break_repeatedly(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    await other.open()
    here, there = store.scope(SCOPE), other.scope(SCOPE)
    leases = [await begun(here, f"t{n}") for n in range(8)]

    async def write(lease: Lease) -> None:
        for n in range(25):
            await here.append(lease, [chunk(f"{n},")])
            await elapse(0.005)

    async def send(task: str) -> None:
        for n in range(25):
            await there.deliver(task, mail(f"{n},"))
            await elapse(0.005)

    async def cut() -> None:
        while True:
            await asyncio.to_thread(postgres.server().execute, CUT)
            await elapse(0.1)

    cutting = asyncio.ensure_future(cut())
    await asyncio.gather(*(write(lease) for lease in leases), *(send(lease.task) for lease in leases))
    cutting.cancel()
    everything = "".join(f"{n}," for n in range(25))
    for lease in leases:
        snapshot = await there.load(lease.task)
        assert snapshot.task.artifacts[0].text == everything
        assert "".join(sent.message.text for _, sent in snapshot.mails[1:]) == everything
        assert [record.seq for record in await here.read(lease.task)] == list(range(1, 52))
    await other.close()


async def test_two_who_lock_each_others_tasks_both_get_on(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    await other.open()
    logs = store.scope(SCOPE), other.scope(SCOPE)
    names = [f"t{n}" for n in range(20)]
    for name in names:
        await logs[0].create(name, "c", mail())

    async def write(log: Log, order: list[str]) -> None:
        for _ in range(10):
            await asyncio.gather(*(log.deliver(name, mail()) for name in order))

    await asyncio.gather(write(logs[0], names), write(logs[1], names[::-1]))
    assert {(await logs[0].load(name)).seq for name in names} == {21}
    await other.close()


async def test_a_caller_that_leaves_gives_back_the_lease_it_was_given(store: PostgresStore, log: Log) -> None:
    given = 0
    for n in range(40):
        leaving = asyncio.ensure_future(log.create(f"t{n}", "c", mail(), node="n1"))
        await elapse(n * 0.0005)
        leaving.cancel()
        (outcome,) = await asyncio.gather(leaving, return_exceptions=True)
        given += not isinstance(outcome, BaseException)
    assert 0 < given < 40
    await store.close()
    await store.open()
    assert len(await store.renew("n1", ttl=60)) == given


async def test_an_unused_lease_is_released_also_after_a_failed_attempt(
    store: PostgresStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begun(log, "first")
    transact, release, away = store._database.transact, store.state.release, [True]

    async def leave_when_it_is_done(work: Any, **options: Any) -> Any:
        result = await transact(work, **options)
        leaving.cancel()
        await asyncio.sleep(0)
        return result

    async def moody(lease: Lease, *, failed: bool) -> None:
        if away:
            away.clear()
            raise Unavailable("not now")
        await release(lease, failed=failed)

    monkeypatch.setattr(store._database, "transact", leave_when_it_is_done)
    monkeypatch.setattr(store.state, "release", moody)
    leaving = asyncio.ensure_future(log.create("t", "c", mail(), node="n1"))
    await asyncio.wait([leaving])
    assert leaving.cancelled()
    async with asyncio.timeout(20):
        while not (taken := await store.claim("n2", limit=1)):
            await asyncio.sleep(0)
    assert not away and (taken[0].task, taken[0].attempt) == ("t", 1)


async def test_a_node_that_left_is_not_back_with_a_claim_that_it_had_begun(
    store: PostgresStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.create("t", "c", mail())
    transact, begun, released = store._database.transact, list[object](), asyncio.Event()

    async def hold_the_first(work: Any, **options: Any) -> Any:
        begun.append(work)
        if len(begun) == 1:
            await released.wait()
        return await transact(work, **options)

    monkeypatch.setattr(store._database, "transact", hold_the_first)
    claiming = asyncio.create_task(store.claim("n1", limit=9))
    await until(lambda: len(begun) == 1)
    claiming.cancel()
    leaving = asyncio.create_task(store.leave("n1"))
    for _ in range(10):
        await asyncio.sleep(0)
    released.set()
    await leaving
    await store._database.finish_writes()
    (node,) = await store.index.nodes()
    assert node.leases == 0 and node.expires < time.time() + 30  # and not the 60 seconds of a claim
    assert [lease.task for lease in await store.claim("n2", limit=9)] == ["t"]


async def test_closing_finishes_what_was_begun_and_refuses_the_rest(store: PostgresStore) -> None:
    log = store.scope(SCOPE)
    await log.create("t", "c", mail())
    begun = [asyncio.ensure_future(log.create(f"t{i}", "c", mail())) for i in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert [d.seq for d in await asyncio.gather(*begun)] == [1] * 20
    for late in (log.create("late", "c", mail()), log.load("t1"), log.find(ListTasks(), limit=1)):
        with pytest.raises(Unavailable):
            await late
    await store.close()


async def test_a_store_closes_though_its_database_is_away(url: str) -> None:
    store = PostgresStore(url)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    lease = await begun(log)
    await asyncio.to_thread(postgres.server().stop)
    try:
        writing = asyncio.ensure_future(log.append(lease, [chunk()]))
        store.audit.record(AuditEntry(at="1", operation="SendMessage", outcome="OK"))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(Unavailable):
            await writing
    finally:
        await asyncio.to_thread(postgres.server().start)


async def test_a_store_closes_though_its_database_does_not_answer(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CLOSE_CONNECTION_SECONDS", 0.2)
    monkeypatch.setattr(postgres_store, "LEAVE_SECONDS", 0.1)
    store = PostgresStore(url)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    lease = await begun(log)
    with postgres.server().frozen():
        waiting = [asyncio.ensure_future(log.append(lease, [chunk()])) for _ in range(2)]
        waiting += [asyncio.ensure_future(log.load("t")) for _ in range(10)]  # type: ignore[arg-type]
        store.audit.record(AuditEntry(at="1", operation="SendMessage", outcome="OK"))
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            with pytest.raises(Unavailable):
                await store.leave("n1")
            await store.close()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(end, Unavailable) for end in ended)


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, opens in ((stores, open_store), (buses, open_bus)):
        monkeypatch.setattr(package, "find_spec", lambda name: None)
        with pytest.raises(ValueError, match=r"dragoman\[postgres\]"):
            opens("postgresql://localhost/x")


async def test_values_that_the_database_cannot_store_are_refused_and_not_found(
    store: PostgresStore, log: Log
) -> None:
    await log.create("t", "c", mail("\0 is fine in a message"))
    for bad in ("t\0", "t\ud800"):
        for refused in (log.create(bad, "c", mail()), log.create("x", bad, mail())):
            with pytest.raises(InvalidParams):
                await refused
        for missing in (log.load(bad), log.read(bad), log.deliver(bad, mail())):
            with pytest.raises(TaskNotFound):
                await missing
        assert await log.find_delivered(bad) is None
        with pytest.raises(TaskNotFound):
            await store.scope(Scope(bad)).load("t")
        store.audit.record(AuditEntry(at="1", operation=bad, outcome="OK"))
    assert (await log.find(ListTasks(context_id="c\0"), limit=1)).total == 0
    await store.close()
    await store.open()
    assert (await log.load("t")).history[0].text == "\0 is fine in a message"
    found = await check_chain(store.audit)
    assert (found.entries, found.breaks) == (2, [])


async def test_a_value_too_long_for_the_index_is_refused_and_does_not_block_the_audit(
    store: PostgresStore,
) -> None:
    dice = random.Random(1)
    long, other = ("".join(chr(dice.randrange(0x4E00, 0x9FFF)) for _ in range(3000)) for _ in range(2))
    with pytest.raises(InvalidParams, match="too long"):
        await store.scope(Scope("acme", "echo", long)).create("t", "c", mail())
    for principal in (long, other, "ada"):
        store.audit.record(AuditEntry(at="1", operation="SendMessage", outcome="OK", principal=principal))
    await store.audit.close()
    for principal in (long, other, "ada"):
        (entry,) = await store.audit.entries(principal=principal)
        assert entry.principal[:3] == principal[:3]
    assert (await check_chain(store.audit)).breaks == []


@pytest.mark.parametrize("place", [("2026", "t\0"), ("2026\0", "t")])
async def test_an_invalid_page_token_is_refused(log: Log, place: tuple[str, str]) -> None:
    await finish(log, "t")
    query = ListTasks()
    made_up = read_filters(SCOPE, query).cursor(*place)
    with pytest.raises(InvalidParams, match="pageToken"):
        await log.find(replace(query, page_token=made_up), limit=1)


# The audit


async def test_nodes_that_write_at_the_same_time_write_one_chain(store: PostgresStore, url: str) -> None:
    other = PostgresStore(url)
    await other.open()
    for n in range(60):
        (store, other)[n % 2].audit.record(
            AuditEntry(at="", operation="SendMessage", outcome="OK", task=f"{n}")
        )
        await asyncio.sleep(0)
    await other.close()
    await store.audit.close()
    found = await check_chain(store.audit)
    assert (found.entries, found.breaks) == (60, [])
    postgres.server().execute("update dragoman.audit set principal = 'eve' where id = 30")
    assert (await check_chain(store.audit)).breaks == ["entry 30 does not follow from entry 29"]


# Schemas


async def test_a_database_from_a_newer_version_is_refused(store: PostgresStore, url: str) -> None:
    postgres.server().execute(
        "insert into dragoman.migrations (number, name) values (900, 'from the future')"
    )
    with pytest.raises(UnsupportedSchema, match="900"):
        await PostgresStore(url).open()


async def test_several_processes_may_open_a_new_database_at_once(url: str) -> None:
    postgres.server().execute("drop schema if exists dragoman cascade")
    stores = [PostgresStore(url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].scope(SCOPE).create("t", "c", mail())
    for store in stores:
        assert (await store.scope(SCOPE).load("t")).seq == 1
        await store.close()


async def test_a_user_that_may_only_read_and_write_is_enough_once_the_tables_are_there(
    store: PostgresStore, url: str
) -> None:
    postgres.server().execute(
        "drop role if exists clerk",
        "create role clerk login",
        "revoke create on database postgres from public",
        "grant usage on schema dragoman to clerk",
        "grant select, insert, update, delete on all tables in schema dragoman to clerk",
    )
    clerk = PostgresStore(url.replace("postgres@", "clerk@"))
    await clerk.open()
    await clerk.join("n1", ttl=60)
    log = clerk.scope(Scope("another"))
    await finish(log, "t", 3)
    clerk.audit.record(AuditEntry(at="1", operation="SendMessage", outcome="OK"))
    assert await clerk.purge("2999", limit=10) == 1
    await clerk.close()
    assert [entry.at for entry in await store.audit.entries()] == ["1"]
    postgres.server().execute("drop owned by clerk", "drop role clerk")


async def test_one_connection_is_enough_if_there_are_no_more(store: PostgresStore, url: str) -> None:
    postgres.server().execute(
        "drop role if exists hermit",
        "create role hermit login connection limit 1",
        "grant usage on schema dragoman to hermit",
        "grant select, insert, update, delete on all tables in schema dragoman to hermit",
    )
    hermit = PostgresStore(url.replace("postgres@", "hermit@"))
    await hermit.open()
    await hermit.join("n1", ttl=60)
    log = hermit.scope(SCOPE)
    for n in range(3):
        await finish(log, f"t{n}")
        assert (await log.find(ListTasks(), limit=1)).total == n + 1
    await hermit.close()
    postgres.server().execute("drop owned by hermit", "drop role hermit")


# Urls


async def test_the_url_can_turn_prepared_statements_off(url: str) -> None:
    store: Store = open_store(f"{url}&statement_cache_size=0")
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    await finish(log, "t", 3)
    assert (await log.find(ListTasks(), limit=1)).total == 1
    with pytest.raises(TaskExists):
        await log.create("t", "c", mail())
    await store.close()


async def test_a_store_waits_for_a_database_that_is_being_started(url: str) -> None:
    store = open_store(url)
    await asyncio.to_thread(postgres.server().stop)
    opening = asyncio.create_task(store.open())
    await asyncio.to_thread(postgres.server().start)
    await opening
    await store.close()


async def test_an_unreachable_database_is_reported_without_its_password() -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/x", "postgres://me:secret@127.0.0.1:1/x"):
        with pytest.raises(Unavailable, match=r"cannot be opened: .*127\.0\.0\.1") as refused:
            await PostgresStore(url, outage_timeout=0.1).open()
        assert "secret" not in str(refused.value)


def test_an_invalid_value_in_a_url_is_refused() -> None:
    with pytest.raises(ValueError, match="statement_cache_size"):
        open_store("postgresql://localhost/x?statement_cache_size=none")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:secret@h:abc/x", "postgresql://me:secret@h:99999/x", "postgresql://me:secret@a:1,b:x/x",
        "postgresql://me:secret@[h/x", "postgresql://me:secret\u2100@h/x", "postgresql://me:sec#ret@h/x",
        "postgresql://me:sec/ret@h/x", "postgresql://me:secret@h:0/x",
    ],
)  # fmt: skip
def test_a_url_that_names_no_database_is_refused_without_a_word_of_its_password(url: str) -> None:
    for opens in (open_store, open_bus):
        with pytest.raises(ValueError, match="a database is postgresql://") as refused:
            opens(url)
        assert "sec" not in str(refused.value)


@pytest.mark.parametrize("words", ["port=abc", "host=127.0.0.1&port=99999"])
async def test_unknown_parameters_of_a_url_are_reported(words: str) -> None:
    for opened in (PostgresStore(f"postgresql:///x?{words}"), open_bus(f"postgresql:///x?{words}")):
        with pytest.raises(Unavailable, match="a database is postgresql://"):
            await opened.open()


# -- nodes of one machine -------------------------------------------------------------------------------------------------

NODE = """
import asyncio, sys
from pathlib import Path
from dragoman.stores.postgres.store import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], folder=Path(sys.argv[2]))
    await store.open()
    await store.join("killed", ttl=600)
    print("joined", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def held_by_a_process(url: str, folder: Path) -> asyncio.subprocess.Process:
    """A process whose node `killed` has a lease of ten minutes for a task."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", NODE, url, str(folder), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and await process.stdout.readline() == b"joined\n"
    opened = PostgresStore(url)
    await opened.open()
    assert (await opened.scope(SCOPE).create("t", "c", mail(), node="killed")).lease is not None
    await opened.close()
    return process


async def test_what_a_killed_node_of_this_machine_held_is_free_when_the_next_one_joins(
    url: str, tmp_path: Path
) -> None:
    process = await held_by_a_process(url, tmp_path)
    process.kill()
    await process.wait()
    (lock,) = tmp_path.rglob("*.lock")
    store = PostgresStore(url, folder=tmp_path)
    await store.open()
    try:
        await store.join("n2", ttl=60)
        (lease,) = await store.claim("n2", limit=10)
        assert (lease.task, lease.fence, lease.attempt) == ("t", 2, 2), "the attempt that died counts"
        assert not lock.exists()
        await store.leave("n2")
        assert list(tmp_path.rglob("*.lock")) == []
    finally:
        await store.close()


async def test_a_node_that_only_stands_still_keeps_what_it_holds(url: str, tmp_path: Path) -> None:
    process = await held_by_a_process(url, tmp_path)
    store = PostgresStore(url, folder=tmp_path)
    try:
        process.send_signal(signal.SIGSTOP)
        await store.open()
        await store.join("n2", ttl=60)
        assert await store.claim("n2", limit=10) == ()
    finally:
        process.kill()
        await process.wait()
        await store.close()


async def test_a_node_of_another_machine_or_without_a_folder_is_alive_until_its_lease_ends(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = await held_by_a_process(url, tmp_path)
    process.kill()
    await process.wait()
    monkeypatch.setattr(postgres_store, "machine_name", lambda: "another")
    for folder in (None, tmp_path):
        store = PostgresStore(url, folder=folder)
        await store.open()
        await store.join("n2", ttl=60)
        assert await store.claim("n2", limit=10) == ()
        await store.close()


async def test_a_folder_without_locks_does_not_keep_a_node_from_joining(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = PostgresStore(url, folder=tmp_path / "file")
    await store.open()
    await store.join("n2", ttl=60)
    await store.close()


@pytest.mark.parametrize("kind", ["read", "write"])
async def test_who_waits_too_long_for_a_connection_that_others_have_is_told_so(url: str, kind: str) -> None:
    """They may wait for an answer that never comes, because the network swallows everything."""
    opened, begun, go_on = (
        database.Database(url, outage_timeout=0.1, readers=1, writers=1),
        0,
        asyncio.Event(),
    )
    await opened.open()

    async def hold(db: Any) -> None:
        nonlocal begun
        begun += 1
        await go_on.wait()

    first = asyncio.ensure_future(getattr(opened, kind)(hold))
    await until(lambda: begun)
    async with asyncio.timeout(10):
        with pytest.raises(StoreUnavailable, match="does not answer in time"):
            await getattr(opened, kind)(hold)
    go_on.set()
    await first
    await getattr(opened, kind)(hold)
    assert begun == 2
    await opened.close()


@asynccontextmanager
async def forgetful_firewall(url: str) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A way to the database, and a function after which nothing comes through its connections any more, and nobody is told."""
    forgotten, sent, work = 0, 0, set[asyncio.Task[None]]()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        while data := await reader.read(1 << 16):
            if number > forgotten:
                writer.write(data)
        writer.close()

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        sent += 1
        there = await asyncio.open_unix_connection(f"{postgres.server().folder}/.s.PGSQL.5432")
        for one, other in ((reader, there[1]), (there[0], writer)):
            work.add(asyncio.create_task(forward(one, other, sent)))

    def forget() -> None:
        nonlocal forgotten
        forgotten = sent

    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield url.partition("?")[0].replace("@/", f"@{host}:{port}/"), forget
    finally:
        server.close()
        for each in work:
            each.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def test_a_connection_that_was_idle_for_long_is_not_used_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A firewall may have forgotten it."""
    monkeypatch.setattr(pool, "MAX_IDLE_SECONDS", 0.0)
    async with forgetful_firewall(url) as (through, forget):
        opened = database.Database(through, outage_timeout=5.0, readers=1, writers=1)
        await opened.open()
        for ask in (opened.read, opened.write):
            assert await ask(lambda db: db.fetchval("select 1")) == 1
            forget()
        async with asyncio.timeout(10):
            assert await opened.read(lambda db: db.fetchval("select 2")) == 2
        await opened.close()


async def test_a_connection_that_was_used_just_now_is_used_again(url: str) -> None:
    opened = database.Database(url, outage_timeout=5.0, readers=1, writers=1)
    await opened.open()
    used = {await opened.read(lambda db: db.fetchval("select pg_backend_pid()")) for _ in range(3)}
    assert len(used) == 1
    await opened.close()


async def test_a_connection_that_is_cut_while_tables_are_made_is_made_again(url: str) -> None:
    cuts = 0

    async def cut(db: Any) -> None:
        nonlocal cuts
        async with db.transaction():
            if not cuts:
                cuts += 1
                with pytest.raises(asyncpg.PostgresError):
                    await db.execute("select pg_terminate_backend(pg_backend_pid())")

    opened = database.Database(url, outage_timeout=10.0, readers=1, writers=1, migrations=[cut])
    await opened.open()
    assert cuts == 1
    await opened.close()
