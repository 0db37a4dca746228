"""A SQLite file is copied to PostgreSQL, and whoever comes there finds everything where it was."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dragoman.engine.protocols import AuditEntry, RegisteredAgent, Store
from dragoman.errors import Unavailable
from dragoman.model.ids import timestamp
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.stores import open_store
from dragoman.stores.audit_chain import check_chain
from dragoman.stores.sqlite.store import SqliteStore
from tests import postgres
from tests.conformance.records import chunk, folded, mail, reply, status, step, turn
from tests.conformance.test_push_queue import webhook

if not postgres.available():
    pytest.skip("there is no PostgreSQL here", allow_module_level=True)

from dragoman.cli import main
from dragoman.stores import copy_to_postgres
from dragoman.stores.copy_to_postgres import Copied, copy
from tests.buses.test_postgres import CUT
from tests.waiting import until

ADA, BOB = Scope("acme", "echo", "ada"), Scope("acme", "écho", "bøb")
DONE, ASKS = TaskState.COMPLETED, TaskState.INPUT_REQUIRED


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return postgres.server().fresh(tmp_path)


async def fill(store: Store) -> None:
    """Tasks of every kind, of two owners."""
    await store.join("n1", ttl=60)
    for scope in (ADA, BOB):
        log = store.scope(scope)
        for n in range(5):
            begun = await log.create(f"done{n}", "c", mail("x\0y"), node="n1", dedupe=f"k{n}")
            assert begun.lease is not None
            await log.append(begun.lease, [turn(), chunk("a"), chunk("b\0")])
            await log.settle(begun.lease, [status(DONE)], mail=1)
        waits = (await log.create("asks", "c2", mail(), node="n1", webhook=webhook(task="asks"))).lease
        works = (await log.create("works", "c2", mail(), node="n1")).lease
        bare = (await log.create("bare", "c3", mail(reply=True), node="n1")).lease
        assert waits is not None and works is not None and bare is not None
        await log.settle(waits, [turn(), status(ASKS, kind="ask")], mail=1)
        await log.append(works, [turn(), status(TaskState.WORKING), step()])
        await log.settle(bare, [turn(), reply()], mail=1)
        await log.create("new", "c4", mail())
    for n in range(20):
        entry = AuditEntry(
            at=timestamp(), operation="SendMessage", outcome="ok", principal=f"p{n}", task="new"
        )
        store.audit.record(entry)
    while len(await store.audit.entries(limit=100)) < 20:
        await asyncio.sleep(0)


async def opened(url: str) -> Store:
    store = open_store(url)
    await store.open()
    return store


async def test_everything_is_where_it_was_and_goes_on(path: Path, url: str) -> None:
    old = await opened(f"sqlite:///{path}")
    await fill(old)
    money = RegisteredAgent(tenant="acme", name="money", url="https://m.example", due=7.0, body=b'{"x":1}')
    assert await old.catalogue.register(money, limit=10)
    before = {
        (scope, s.task_id): (folded(s), list(await old.scope(scope).read(s.task_id)))
        for scope in (ADA, BOB)
        for s in (await old.scope(scope).find(ListTasks(), limit=100)).snapshots
    }
    last = (await old.audit.entries(limit=1))[0].hash
    await old.leave("n1")
    await old.close()

    assert await copy(path, url) == Copied(tasks=18, webhooks=2, entries=20)

    new = await opened(url)
    await new.join("n2", ttl=60)
    assert list(await new.catalogue.registered()) == [money]
    for (scope, task), (state, records) in before.items():
        log = new.scope(scope)
        assert folded(await log.load(task)) == state
        assert list(await log.read(task)) == records
    assert len(before) == 16  # bare answers are nobody's tasks
    for scope in (ADA, BOB):
        log = new.scope(scope)
        seen = await log.find_delivered("k3")
        assert seen is not None and seen.snapshot.task_id == "done3"
        assert (await log.create("again", "c", mail(), dedupe="k3")).duplicate
        assert [h.config.id for h in await new.push_configs.list(scope, "asks")] == ["h"]
        fresh = await log.create("fresh", "c", mail(), node="n2")
        assert fresh.lease is not None and fresh.lease.key > 18
    taken = await new.claim("n2", limit=100)
    assert sorted((lease.scope.owner, lease.task, lease.attempt) for lease in taken) == [
        ("ada", "new", 1), ("ada", "works", 2), ("bøb", "new", 1), ("bøb", "works", 2)
    ]  # fmt: skip
    for lease in taken:
        await new.scope(lease.scope).settle(lease, [status(DONE)], mail=1)
    assert len(await new.push_queue.claim_due("n2", limit=10)) == 2
    new.audit.record(AuditEntry(at=timestamp(), operation="CancelTask", outcome="ok"))
    await until(lambda: new.audit.entries(limit=100), lambda entries: len(entries) >= 21)
    examined = await check_chain(new.audit, last)
    assert (examined.entries, examined.breaks) == (21, [])
    await new.close()


async def test_a_file_that_a_server_works_on_is_not_copied(path: Path, url: str) -> None:
    old = await opened(f"sqlite:///{path}")
    await old.join("n1", ttl=60)
    with pytest.raises(Unavailable, match="a server uses"):
        await copy(path, url)
    await old.leave("n1")
    await old.close()
    assert await copy(path, url) == Copied()


async def test_a_database_that_has_tasks_is_not_copied_into(path: Path, url: str) -> None:
    old, new = await opened(f"sqlite:///{path}"), await opened(url)
    await old.scope(ADA).create("old", "c", mail())
    await old.close()
    await new.scope(ADA).create("new", "c", mail())
    with pytest.raises(Unavailable, match="use an empty one"):
        await copy(path, url)
    assert (await new.scope(ADA).find(ListTasks(), limit=10)).total == 1
    await new.close()


async def test_a_database_that_a_server_works_on_is_not_copied_into_though_it_is_empty(
    path: Path, url: str
) -> None:
    old, new = await opened(f"sqlite:///{path}"), await opened(url)
    await old.scope(BOB).create("secret", "c", mail())
    await old.close()
    await new.join("n2", ttl=60)
    begun = (await new.scope(ADA).create("t", "c", mail(), node="n2")).lease
    assert begun is not None
    await new.scope(ADA).settle(begun, [turn(), status(DONE)], mail=1)
    assert await new.purge("9", limit=10) == 1
    with pytest.raises(Unavailable, match="stop it first"):
        await copy(path, url)
    await new.leave("n2")
    await new.close()
    assert await copy(path, url) == Copied(tasks=1)


async def test_names_that_postgresql_does_not_take_stay_behind(path: Path, url: str) -> None:
    old = await opened(f"sqlite:///{path}")
    await old.scope(ADA).create("t", "c", mail())
    await old.scope(ADA).create("odd", "c\0", mail())
    await old.scope(Scope("", "echo", "o\0")).create("t", "c", mail())
    await old.scope(Scope("", "echo", "o" * 3000)).create("t", "c", mail())
    await old.close()
    assert await copy(path, url) == Copied(tasks=1, left=3)


async def test_a_copy_that_breaks_off_leaves_nothing(
    path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = copy_to_postgres._put

    async def cut(db: Any, table: str, *rest: Any) -> None:
        if table == "seen":
            await asyncio.to_thread(postgres.server().execute, CUT)
        await put(db, table, *rest)

    monkeypatch.setattr(copy_to_postgres, "_put", cut)
    old = await opened(f"sqlite:///{path}")
    for n in range(3):
        await old.scope(ADA).create(f"t{n}", "c", mail())
    await old.close()
    with pytest.raises(Unavailable, match="cannot be written to"):
        await copy(path, url)
    new = await opened(url)
    assert (await new.scope(ADA).find(ListTasks(), limit=10)).total == 0
    await new.close()


def test_the_command_says_what_it_did(path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    async def begin() -> None:
        old = SqliteStore(path)
        await old.open()
        await old.scope(ADA).create("t", "c", mail())
        await old.close()

    asyncio.run(begin())
    assert main(["copy", f"sqlite:///{path}", url]) == 0
    assert capsys.readouterr().out == "copied: tasks 1, webhooks 0, audit entries 0\n"
    assert main(["copy", f"sqlite:///{path}", url]) == 1
    assert "use an empty one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("sqlite:///nothing.db", "postgresql://h/d", "no SQLite store"),
        ("memory:", "postgresql://h/d", "no SQLite store"),
        ("sqlite:///{path}", "sqlite:///other.db", "postgresql://HOST/DATABASE"),
        ("sqlite:///{path}", "postgresql://me:secret@h:abc/d", "dragoman: a database is postgresql://"),
    ],
)
def test_a_store_that_cannot_be_copied_is_refused_with_a_reason(
    path: Path, source: str, target: str, sentence: str
) -> None:
    path.touch()
    with pytest.raises(SystemExit, match=sentence):
        main(["copy", source.format(path=path), target])
