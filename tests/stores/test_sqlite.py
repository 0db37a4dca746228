"""What is true of the SQLite store beyond the seam: death, disks, other processes, and what things cost."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from dragoman.engine.protocols import LeaseLost, Log
from dragoman.engine.snapshot import Snapshot
from dragoman.errors import Unavailable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores import UnsupportedSchema, open_store
from dragoman.stores.migrations import find_scripts
from dragoman.stores.sqlite import log_reads, purge
from dragoman.stores.sqlite.store import SqliteStore
from tests.conformance.records import chunk, mail, seq_of, status, turn

SCOPE = Scope("acme", "echo", "alice")
DONE = TaskState.COMPLETED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    await store.join("n1", ttl=60)
    yield store
    await store.close()


@pytest.fixture
def log(store: SqliteStore) -> Log:
    return store.scope(SCOPE)


async def finish(log: Log, task: str, chunks: int = 0) -> None:
    lease = (await log.create(task, "c", mail(), node="n1")).lease
    assert lease is not None
    for _ in range(chunks):
        await log.append(lease, [chunk()])
    await log.settle(lease, [turn(), status(DONE)], mail=1)


# Death

HOLDER = """
import asyncio, sys
from tests.conformance.records import chunk, mail, turn
from dragoman.model.ops import Scope
from dragoman.stores.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    await store.join("victim", ttl=3600)
    log = store.scope(Scope("acme", "echo", "alice"))
    lease = (await log.create("t", "c", mail("hold me"), node="victim")).lease
    await log.append(lease, [turn(), chunk("half")])
    print("holding", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_tasks_of_a_killed_process_are_taken_over_at_once(
    store: SqliteStore, log: Log, path: Path
) -> None:
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        HOLDER,
        str(path),
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    try:
        assert child.stdout is not None
        assert await child.stdout.readline() == b"holding\n"
        assert list(await store.claim("n1", limit=10)) == []  # alive
        assert (await log.deliver("t", mail("still there?"), node="n1")).lease is None
    finally:
        child.send_signal(signal.SIGKILL)
        await child.wait()
    (lease,) = await store.claim("n1", limit=10)
    assert (lease.task, lease.fence, lease.attempt) == ("t", 2, 2)
    snapshot = await log.load("t")
    assert snapshot.task.artifacts[0].text == "half"
    assert await log.append(lease, [chunk(" whole")]) == 5
    assert [file.name for file in Path(f"{path}-nodes").iterdir()] == ["n1.lock"]


async def test_a_store_that_was_closed_without_leaving_is_dead_too(path: Path) -> None:
    first, second = SqliteStore(path), SqliteStore(path)
    await first.open()
    await first.join("first", ttl=3600)
    await first.scope(SCOPE).create("t", "c", mail(), node="first")
    await first.close()
    await second.open()
    await second.join("second", ttl=60)
    (lease,) = await second.claim("second", limit=1)
    assert lease.task == "t"
    await second.close()
    assert not Path(f"{path}-nodes").exists()


async def test_two_processes_cannot_be_the_same_node(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(path)
    await other.open()
    with pytest.raises(RuntimeError, match="n1"):
        await other.join("n1", ttl=60)
    await other.close()


async def test_tasks_are_there_after_a_restart(path: Path) -> None:
    url = f"sqlite:///{path}"
    for round in range(3):
        store = open_store(url)
        await store.open()
        await store.join(f"r{round}", ttl=60)
        log = store.scope(SCOPE)
        for earlier in range(round):
            assert [m.text for m in (await log.load(f"t{earlier}")).history] == ["hello"]
        await log.create(f"t{round}", "c", mail())
        assert len(await store.claim(f"r{round}", limit=10)) == round + 1
        await store.close()


# What things cost


async def test_an_event_costs_the_same_in_a_long_task_as_in_a_short_one(
    store: SqliteStore, log: Log, path: Path
) -> None:
    async def grow(task: str, chunks: int) -> float:
        await finish(log, task, chunks)
        with sqlite3.connect(path) as db:
            size = db.execute(
                "select sum(length(body)) from log join tasks on place >> 28 = key where id = ?", (task,)
            )
            total: int = size.fetchone()[0]
        return total / chunks

    short, long = await grow("short", 20), await grow("long", 1000)
    assert long < short * 1.1


async def trace(store: SqliteStore) -> list[str]:
    """The statements that the store executes from now on."""
    statements: list[str] = []

    def job(db: sqlite3.Connection) -> Any:
        db.set_trace_callback(statements.append)
        return lambda: None

    await store.file.commits.submit(job)
    return statements


async def test_concurrent_writes_share_a_transaction(store: SqliteStore, log: Log) -> None:
    statements = await trace(store)
    await asyncio.gather(*(finish(log, f"t{i}") for i in range(64)))
    assert statements.count("commit") < 10
    assert (await log.find(ListTasks(), limit=1)).total == 64


async def test_a_task_that_may_end_at_once_waits_for_one_transaction_of_others_and_not_for_two(
    store: SqliteStore, log: Log
) -> None:
    begun = log.begin("t", "c", mail(), node="n1")
    assert begun is not None and begun.lease is not None and isinstance(begun.stored, asyncio.Future)
    for ended in (False, True):
        await log.create(f"other {ended}", "c", mail())
        assert begun.stored.done() is ended
    assert seq_of(await log.settle(begun.lease, [turn(), status(DONE)], mail=1)) == 3


async def test_a_task_that_ends_while_others_are_written_costs_one_write(
    store: SqliteStore, log: Log
) -> None:
    begun = log.begin("t", "c", mail(), node="n1")
    assert begun is not None and begun.lease is not None
    statements = await trace(store)
    assert seq_of(await log.settle(begun.lease, [turn(), status(DONE)], mail=1)) == 3
    assert [sql.split()[0] for sql in statements if " tasks " in sql] == ["insert"]


async def test_a_lease_that_is_released_before_its_task_is_written_is_free_afterwards(
    store: SqliteStore, log: Log
) -> None:
    begun = log.begin("t", "c", mail(), node="n1")
    assert begun is not None and begun.lease is not None
    await asyncio.gather(log.create("other", "c", mail()), store.release(begun.lease))
    assert {lease.task for lease in await store.claim("n2", limit=10)} == {"t", "other"}


async def test_an_acknowledged_write_is_in_the_file(log: Log, path: Path) -> None:
    with sqlite3.connect(path) as db:
        for i in range(20):
            await finish(log, f"t{i}")
            assert db.execute("select state, seq from tasks where id = ?", (f"t{i}",)).fetchone() == (
                DONE.value,
                3,
            )


async def test_a_small_memory_of_snapshots_is_still_a_right_one(path: Path) -> None:
    store = SqliteStore(path, cached_snapshots=2)
    await store.open()
    await store.join("n1", ttl=60)
    log = store.scope(SCOPE)
    leases = [(await log.create(f"t{i}", "c", mail(), node="n1")).lease for i in range(6)]
    for n in range(3):
        for lease in leases:
            assert lease is not None
            assert await log.append(lease, [chunk(f"{n}")]) == n + 2
    for i in (5, 0, 3, 0, 5):
        assert (await log.load(f"t{i}")).task.artifacts[0].text == "012"
    await store.close()


@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (log_reads._OLDER.format(match=log_reads._OF_STATE), "tasks_by_state"),
        (log_reads._OLDER.format(match=log_reads._OF_CONTEXT), "tasks_by_context"),
        (log_reads._TIES.format(match=log_reads._OF_STATE), "tasks_by_state"),
        (log_reads._COUNT.format(match=log_reads._OF_CONTEXT), "COVERING INDEX tasks_by_context"),
        (purge._FINISHED, "tasks_by_age"),
        (purge._UNFINISHED, "tasks_by_age"),
        ("select key from tasks where ready = 1 and node = 'n1'", "tasks_ready"),
    ],
)
async def test_every_search_uses_its_index(store: SqliteStore, path: Path, sql: str, index: str) -> None:
    with sqlite3.connect(path) as db:
        names = dict.fromkeys(("scope", "state", "context", "since", "before", "id", "limit"), "")
        values: Any = names if ":" in sql else [""] * sql.count("?")
        plan = str(db.execute(f"explain query plan {sql}", values).fetchall())
    assert index in plan and "SCAN" not in plan and "TEMP B-TREE" not in plan


# What can go wrong


async def test_a_job_that_fails_takes_no_other_with_it(store: SqliteStore, log: Log) -> None:
    def broken(db: sqlite3.Connection) -> Any:
        db.execute("delete from tasks")
        raise ZeroDivisionError

    async def fail() -> None:
        await store.file.commits.submit(broken)

    results = await asyncio.gather(
        log.create("t1", "c", mail()),
        fail(),
        log.create("t2", "c", mail()),
        log.create("t2", "c", mail()),
        return_exceptions=True,
    )
    assert [type(r).__name__ for r in results] == [
        "Delivered",
        "ZeroDivisionError",
        "Delivered",
        "TaskExists",
    ]
    assert (await log.find(ListTasks(), limit=10)).total == 2


def _shrink(db: sqlite3.Connection) -> Any:
    pages = db.execute("pragma page_count").fetchone()[0]
    db.execute(f"pragma max_page_count = {pages}")
    return lambda: None


def _grow(db: sqlite3.Connection) -> Any:
    db.execute("pragma max_page_count = 1000000")
    return lambda: None


async def test_a_full_disk_is_unavailable_and_logged_once_and_passes(
    store: SqliteStore, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    await store.file.commits.submit(_shrink)
    results = await asyncio.gather(
        *(log.create(f"t{i}", "c", mail("x" * 100_000)) for i in range(5)), return_exceptions=True
    )
    assert [type(r) for r in results] == [Unavailable] * 5
    assert "full" not in str(results[0])  # a peer learns nothing about our disk
    assert [r.message for r in caplog.records].count(
        "cannot write to the database: database or disk is full"
    ) == 1
    assert (await log.find(ListTasks(), limit=10)).total == 0
    await store.file.commits.submit(_grow)
    await log.create("t", "c", mail("x" * 100_000))
    assert (await log.load("t")).seq == 1


async def test_a_task_that_began_and_could_not_be_stored_leaves_no_lease_that_fits_another(
    store: SqliteStore, log: Log
) -> None:
    for i in range(2):
        await store.file.commits.submit(_shrink)
        begun = log.begin(f"lost{i}", "c", mail("x" * 100_000), node="n1")
        assert begun is not None and begun.lease is not None and begun.stored is not None
        with pytest.raises(Unavailable):
            await begun.stored
        assert log.begin("late", "c", mail(), node="n1") is None  # once is enough
        await store.file.commits.submit(_grow)
        kept = (await log.create(f"kept{i}", "c", mail(), node="n1")).lease
        assert kept is not None
        begun.lease.key = kept.key  # as it is when a key comes again
        for write in (
            log.append(begun.lease, [chunk()]),
            log.settle(begun.lease, [turn(), status(DONE)], mail=1),
        ):
            with pytest.raises(LeaseLost):
                await write
        await store.release(begun.lease)
        assert seq_of(await log.settle(kept, [turn(), status(DONE)], mail=1)) == 3


async def test_a_task_that_began_and_ended_is_stored_although_its_transaction_failed(
    store: SqliteStore, log: Log
) -> None:
    begun = log.begin("t", "c", mail(), node="n1")
    assert begun is not None and begun.lease is not None
    settling = asyncio.ensure_future(log.settle(begun.lease, [turn(), chunk(), status(DONE)], mail=1))

    def fail(db: sqlite3.Connection) -> Any:
        db.execute("delete from tasks")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.file.commits.submit(fail)
    assert seq_of(await settling) == 4
    assert [(r.seq, r.kind) for r in await log.read("t")] == [
        (1, "message"), (2, "turn"), (3, "artifact"), (4, "status")
    ]  # fmt: skip


async def test_opening_a_file_waits_for_a_writer_that_needs_the_same_loop(path: Path) -> None:
    first = SqliteStore(path)
    await first.open()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("begin immediate")
    asyncio.get_running_loop().call_later(0.05, writer.rollback)  # runs only if opening leaves the loop free
    second = SqliteStore(path, busy_timeout=1)
    try:
        await second.open()
        assert not writer.in_transaction
    finally:
        await second.close()
        await first.close()
        writer.close()


async def test_a_database_that_stays_locked_is_unavailable(path: Path) -> None:
    store = SqliteStore(path, busy_timeout=0.05)
    await store.open()
    log = store.scope(SCOPE)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    results = await asyncio.gather(
        *(log.create(f"t{i}", "c", mail()) for i in range(3)), return_exceptions=True
    )
    assert [type(r) for r in results] == [Unavailable] * 3
    other.execute("rollback")
    await log.create("t", "c", mail())
    other.close()
    await store.close()


async def test_an_unused_lease_is_released_also_after_a_failed_attempt(
    store: SqliteStore, log: Log, path: Path
) -> None:
    store.file.commits._busy_timeout = 0.01
    other = sqlite3.connect(path, isolation_level=None)
    creating = asyncio.ensure_future(log.create("t", "c", mail(), node="n1"))
    while store.file.reads.one("select 1 from tasks", ()) is None:
        await asyncio.sleep(0)
    creating.cancel()
    other.execute("begin immediate")
    while not store.file.commits.failing:
        await asyncio.sleep(0)
    other.execute("rollback")
    other.close()
    assert creating.cancelled()
    async with asyncio.timeout(20):
        while not (taken := await store.claim("n2", limit=1)):
            await asyncio.sleep(0)
    assert (taken[0].task, taken[0].attempt) == ("t", 1)


async def test_a_lease_goes_back_if_its_task_cannot_be_read(
    store: SqliteStore, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.create("t", "c", mail())
    store.file.reads.snapshots.drop(1)

    async def away(key: int) -> Snapshot:
        raise Unavailable("not now")

    monkeypatch.setattr(log, "_load_key", away)
    with pytest.raises(Unavailable):
        await log.deliver("t", mail(), node="n1")
    (taken,) = await store.claim("n2", limit=1)
    assert (taken.task, taken.attempt) == ("t", 1)


async def test_a_writer_waits_for_another_without_stopping_the_loop(
    store: SqliteStore, log: Log, path: Path
) -> None:
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    waiting = asyncio.ensure_future(log.create("t", "c", mail()))
    assert await log.find_delivered("k") is None  # reading goes on
    assert (await log.find(ListTasks(), limit=1)).total == 0
    assert not waiting.done()
    other.execute("rollback")
    other.close()
    assert (await waiting).seq == 1


async def test_closing_finishes_what_was_begun_and_refuses_the_rest(store: SqliteStore, path: Path) -> None:
    log = store.scope(SCOPE)
    begun = [asyncio.ensure_future(log.create(f"t{i}", "c", mail())) for i in range(20)]
    await asyncio.sleep(0)
    await asyncio.gather(store.close(), store.close())
    assert [d.seq for d in await asyncio.gather(*begun)] == [1] * 20
    with pytest.raises(Unavailable):
        await log.create("late", "c", mail())
    with pytest.raises(Unavailable):
        await log.load("t1")
    with pytest.raises(Unavailable):
        await log.find(ListTasks(), limit=1)
    await store.close()
    assert not Path(f"{path}-wal").exists()  # all of it is in the file


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"certainly not a database" * 100)
    with pytest.raises(Unavailable, match=r"tasks\.db cannot be opened"):
        await SqliteStore(path).open()


# Schemas


async def test_a_database_from_a_newer_version_is_refused(store: SqliteStore, path: Path) -> None:
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("insert into migrations (number, name) values (900, 'from the future')")
    with pytest.raises(UnsupportedSchema, match="900"):
        await SqliteStore(path).open()


async def test_a_database_of_an_earlier_version_keeps_its_tasks(
    store: SqliteStore, log: Log, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log.create("t", "c", mail("hello"))
    await store.close()
    change = "alter table tasks add column later integer not null default 7;"
    known = find_scripts("sqlite")
    known |= {len(known) + 1: ("999_later.sqlite.sql", change)}
    monkeypatch.setattr("dragoman.stores.sqlite.migrations.find_scripts", lambda *_: known)
    again = SqliteStore(path)
    await again.open()
    assert (await again.scope(SCOPE).load("t")).mails[0][1].message.text == "hello"
    assert again.file.reads.one("select later from tasks", ()) == (7,)
    await again.close()


async def test_several_processes_may_open_a_new_file_at_once(path: Path) -> None:
    stores = [SqliteStore(path) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    await stores[0].scope(SCOPE).create("t", "c", mail())
    for store in stores:
        assert (await store.scope(SCOPE).load("t")).seq == 1
        await store.close()


# Noticing others


async def test_a_change_by_another_process_is_noticed_once_and_our_own_never(
    store: SqliteStore, path: Path
) -> None:
    other = SqliteStore(path)
    await other.open()
    store.file.commits.changed()
    await store.scope(SCOPE).create("t1", "c", mail())
    assert not store.file.commits.changed()
    assert other.file.commits.changed()
    assert not other.file.commits.changed()
    await other.scope(SCOPE).create("t2", "c", mail())
    assert store.file.commits.changed()
    assert not store.file.commits.changed()
    await other.close()


async def test_a_change_by_another_process_is_noticed_while_we_write(store: SqliteStore, path: Path) -> None:
    other = SqliteStore(path)
    await other.open()
    store.file.commits.changed()
    await other.scope(SCOPE).create("t1", "c", mail())
    noticed: list[bool] = []

    def write(db: sqlite3.Connection) -> Callable[[], None]:
        noticed.append(store.file.commits.changed())
        return lambda: None

    await store.file.commits.submit(write)
    assert noticed == [True]
    assert not store.file.commits.changed()
    await other.close()


# Urls


def test_a_url_names_a_store(tmp_path: Path) -> None:
    assert type(open_store("memory:")).__name__ == "MemoryStore"
    store = open_store(f"sqlite:///{tmp_path}/x.db")
    assert isinstance(store, SqliteStore) and store.file.path == tmp_path / "x.db"
    relative = open_store("sqlite:///x.db")
    assert isinstance(relative, SqliteStore) and relative.file.path == Path("x.db")
    for wrong in ("", "sqlite:", "sqlite:///", "mysql://x", "memory"):
        with pytest.raises(ValueError, match="memory:, sqlite"):
            open_store(wrong)


def test_sqlites_own_memory_is_refused_because_only_one_connection_could_see_it() -> None:
    with pytest.raises(ValueError, match="MemoryStore"):
        open_store("sqlite:///:memory:")


def test_durability_is_one_of_sqlites_words() -> None:
    with pytest.raises(ValueError, match="synchronous"):
        SqliteStore("x.db", synchronous="maybe; drop table tasks")


async def test_a_store_closes_though_a_caller_left_while_its_task_was_put_on_disk(path: Path) -> None:
    for n in range(16):
        store = SqliteStore(path)
        await store.open()
        await store.join("n1", ttl=60)
        log = store.scope(SCOPE)
        leaving = asyncio.ensure_future(log.create(f"leaves-{n}", "c", mail(), node="n1"))
        stays = asyncio.ensure_future(log.create(f"stays-{n}", "c", mail(), node="n1"))
        for _ in range(n):
            await asyncio.sleep(0)
        leaving.cancel()
        async with asyncio.timeout(10):
            if n:
                closing = asyncio.create_task(store.close())
                assert (await stays).seq == 1
                await closing
            else:  # neither has begun
                stays.cancel()
                await store.close()
