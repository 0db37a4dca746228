"""A damaged file and a read-only one: the log names the task, `/readyz` says so, and stopping is no traceback."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.agent import Agent
from dragoman.buses.local import LocalBus
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Log
from dragoman.errors import TaskUnreadable
from dragoman.model.ops import ListTasks, Scope
from dragoman.model.task import TaskState
from dragoman.server.application import application
from dragoman.stores.sqlite.store import SqliteStore
from tests import postgres
from tests.conformance.records import chunk, mail, status, turn

SCOPE = Scope("", "a", "")
PAGE = 4096


async def fill(log: Log) -> None:
    """Three tasks, each large enough to have pages of its own."""
    for name in ("one", "two", "three"):
        lease = (await log.create(name, "c", mail(), node="n1")).lease
        assert lease is not None
        await log.append(lease, [chunk(f"{name} " * 5000)])
        await log.settle(lease, [turn(), status(TaskState.COMPLETED)], mail=1)


def break_page(path: Path, text: bytes) -> None:
    """Overwrite a page of a database in which only `text` is, again and again: not the first, which others share."""
    data = bytearray(path.read_bytes())
    at = data.index(text, data.index(text) + 2 * PAGE) // PAGE * PAGE
    data[at : at + PAGE] = b"\xff" * PAGE
    path.write_bytes(data)


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path / "tasks.db")
    await store.open()
    await store.join("n1", ttl=60)
    await fill(store.scope(SCOPE))
    await store.close()
    return tmp_path / "tasks.db"


async def check(store: Any, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """`two` is damaged, and nothing else is."""
    assert store.damage() == ""
    for _ in range(2):
        with pytest.raises(TaskUnreadable, match="two"):
            await log.load("two")
        with pytest.raises(TaskUnreadable, match="two"):
            await log.read("two")
    assert [line.getMessage() for line in caplog.records if "two" in line.getMessage()] == [
        line.getMessage() for line in caplog.records[:1]
    ]
    assert "two" in store.damage()
    assert (await log.load("one")).terminal and (await log.load("three")).terminal
    listed = await log.find(ListTasks(), limit=10)
    assert sorted(snapshot.task_id for snapshot in listed.snapshots) == ["one", "three"]


async def test_a_damaged_page_is_named_by_its_task_and_others_go_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    break_page(path, b"two two two two two")
    store = SqliteStore(path)
    await store.open()
    await check(store, store.scope(SCOPE), caplog)
    await store.close()


async def test_bytes_that_are_no_records_are_damage_too(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(path) as db:
        db.execute("update log set body = x'00ff' where instr(body, cast('two two' as blob))")
    db.close()
    store = SqliteStore(path)
    await store.open()
    await check(store, store.scope(SCOPE), caplog)
    await store.close()


@pytest.mark.skipif(not postgres.available(), reason="no PostgreSQL")
async def test_postgres_names_a_damaged_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from dragoman.stores.postgres.store import PostgresStore

    url = postgres.server().fresh(tmp_path)
    store = PostgresStore(url, cached_snapshots=0)
    await store.open()
    await store.join("n1", ttl=60)
    await fill(store.scope(SCOPE))
    key = "(select key from dragoman.tasks where id = 'two')"
    postgres.server().execute(f"update dragoman.log set body = '\\x00ff' where key = {key} and seq = 2")
    await check(store, store.scope(SCOPE), caplog)
    await store.close()


async def test_readyz_says_damaged_once_a_task_could_not_be_read(path: Path) -> None:
    agent = Agent("a")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    break_page(path, b"two two two two two")
    transport = AsgiTransport(application(agent, store=f"sqlite:///{path}"))

    async def get(path: str) -> tuple[int, bytes]:
        response = await transport.request("GET", f"http://here{path}", {"A2A-Version": "1.0"})
        return response.status, await response.read()

    try:
        assert await get("/readyz") == (200, b'{"status":"ok"}')
        assert (await get("/tasks/two"))[0] == 500
        assert await get("/readyz") == (503, b'{"status":"damaged"}')
        assert (await get("/tasks/one"))[0] == 200
    finally:
        await transport.close()


async def test_a_store_that_became_read_only_is_left_without_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "tasks.db")
    engine = Engine(store, LocalBus(), lambda scope: None)
    await engine.start()

    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "unlink", refuse)
    monkeypatch.setattr(Path, "rmdir", refuse)
    assert store.file._db is not None
    store.file._db.execute("pragma query_only = on")
    await engine.stop(0)
