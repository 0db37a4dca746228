"""Viewers of the console share readers, and one that does not read costs the others nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

from dragoman import Agent, Turn
from dragoman.console import feeds
from dragoman.console.keys import key_of
from dragoman.model.ops import Scope
from dragoman.model.task import TaskState
from dragoman.stores import open_store
from dragoman.stores.sqlite.log import SqliteLog
from tests.conformance.records import chunk, mail, status, turn
from tests.console.conftest import Operator, console_app
from tests.waiting import until


class Streaming:
    """An agent that says a word when it is told to."""

    def __init__(self) -> None:
        self.agent = Agent("Stream")
        self.words: asyncio.Queue[str] = asyncio.Queue()
        agent = self.agent

        @agent.skill
        async def stream(turn: Turn) -> AsyncIterator[str]:
            while word := await self.words.get():
                yield word


def _has(live: Any, text: bytes) -> bool:
    return bool(live.status == 200 and text in live.body)


def numbers(live: Any) -> list[int]:
    return [int(frame.id) for frame in live.frames() if frame.id]


async def test_ten_viewers_share_one_reader_and_one_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    it, encoded = Streaming(), list[int]()
    real = feeds.encode_records

    def count(records: Any, attempts: Any) -> bytes:
        encoded.extend(record.seq for record in records)
        return real(records, attempts)

    async with console_app(it.agent) as (app, _):
        operator = Operator(app)
        sending = asyncio.create_task(operator.send("go"))
        it.words.put_nowait("first ")
        (row,) = await until(lambda: _rows(operator))
        await until(lambda: _records(operator, row["key"]), lambda found: "artifact" in found)
        known = (await operator.get(f"/tasks/{row['key']}"))["records"]
        live = [operator.open("GET", f"/tasks/{row['key']}/events?after={known}") for _ in range(10)]
        for each in live:
            await each.until(partial(_has, each, b""))
        monkeypatch.setattr(feeds, "encode_records", count)
        for n in range(5):
            it.words.put_nowait(f"word {n} ")
            for each in live:
                await each.until(partial(_has, each, f"word {n}".encode()))
        it.words.put_nowait("")
        for each in live:
            await each.until(partial(_has, each, b"TASK_STATE_COMPLETED"))
        await sending
        assert len(encoded) == len(set(encoded)), "each record is encoded once for all viewers"
        assert len({each.body for each in live}) == 1
        assert numbers(live[0]) == list(range(known + 1, known + 1 + len(numbers(live[0]))))
        for each in live:
            each.gone.set()
            await each.end()


async def _rows(operator: Operator) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await operator.get("/tasks"))["tasks"]
    return found


async def _records(operator: Operator, key: str) -> list[str]:
    return [record["kind"] for record in (await operator.get(f"/tasks/{key}/records"))["records"]]


async def test_a_viewer_that_does_not_read_gets_everything_once_when_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(feeds, "MAX_WAITING_BYTES", 2000)
    it = Streaming()
    async with console_app(it.agent) as (app, _):
        operator = Operator(app)
        sending = asyncio.create_task(operator.send("go"))
        (row,) = await until(lambda: _rows(operator))
        slow, fast = (operator.open("GET", f"/tasks/{row['key']}/events") for _ in range(2))
        await slow.until(lambda: slow.status == 200)
        slow.blocked = asyncio.Event()
        for n in range(50):
            it.words.put_nowait(f"word {n} " + "x" * 200)
            await fast.until(partial(_has, fast, f"word {n} ".encode()))
        it.words.put_nowait("")
        await sending
        await fast.until(lambda: b"TASK_STATE_COMPLETED" in fast.body)
        slow.blocked.set()
        await slow.until(lambda: len(numbers(slow)) >= len(numbers(fast)))
        assert numbers(slow) == numbers(fast) == list(range(1, len(numbers(fast)) + 1))
        for each in (slow, fast):
            each.gone.set()
            await each.end()


@pytest.fixture(scope="module")
def long_log(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with a log of 20,000 records."""
    url = f"sqlite:///{tmp_path_factory.mktemp('long')}/tasks.db"

    async def fill() -> None:
        store = open_store(url)
        await store.open()
        await store.join("n", ttl=60)
        log = store.scope(Scope("", "hello", ""))
        lease = (await log.create("t", "c", mail(), node="n")).lease
        assert lease is not None
        await log.append(lease, [turn()])
        for n in range(20):
            await log.append(lease, [chunk(f"{n} {m}") for m in range(1000)])
        await log.settle(lease, [status(TaskState.COMPLETED)], mail=1)
        await store.close()

    asyncio.run(fill())
    return url


async def test_a_long_log_is_paged_and_streamed_without_reading_it_whole(long_log: str) -> None:
    async with console_app(store=long_log) as (app, _):
        operator, key = Operator(app), key_of(Scope("", "hello", ""), "t")
        seen, after = 0, 0
        while True:
            page = await operator.get(f"/tasks/{key}/records?after={after}&limit=2000")
            assert len(page["records"]) <= 2000
            seen, after = seen + len(page["records"]), page["last"]
            if not page["more"]:
                break
        assert seen == after == 20_003
        live = operator.open("GET", f"/tasks/{key}/events?after=15000")
        await live.until(lambda: live.body.endswith(b"\n\n") and b"id: 20003\n" in live.body)
        live.gone.set()
        await live.end()
        assert numbers(live) == list(range(15_001, 20_004))
        assert len(live.sends) > 5, "it comes in pieces"


async def test_a_record_with_a_huge_string_is_cut_in_lists_and_whole_by_itself() -> None:
    async with console_app() as (app, _):
        operator = Operator(app)
        await operator.send("x" * 300_000)
        (row,) = await _rows(operator)
        assert row["text"].startswith("xxx") and len(row["text"]) <= 160 and row["created"]
        page = await operator("GET", f"/tasks/{row['key']}/records?limit=1")
        (record,) = page.json["records"]
        assert record["cut"] == 300_000 - 65_536 and len(page.body) < 100_000
        whole = await operator.get(f"/tasks/{row['key']}/records/1")
        assert "cut" not in whole and len(whole["data"]["message"]["parts"][0]["text"]) == 300_000


async def test_the_moments_of_a_long_log_are_folded_from_the_nearest_kept_one(
    long_log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with console_app(store=long_log) as (app, _):
        operator, key = Operator(app), key_of(Scope("", "hello", ""), "t")

        def parts(task: Any) -> int:
            return len(task["artifacts"][0]["parts"])

        assert parts(await operator.get(f"/tasks/{key}/at/20000")) == 19_998
        read: list[int] = []
        real = SqliteLog.read

        async def count(self: SqliteLog, task: str, **how: Any) -> Any:
            records = await real(self, task, **how)
            read.append(len(records))
            return records

        monkeypatch.setattr(SqliteLog, "read", count)
        for n in (15_000, 12_345, 19_999, 4_999):
            read.clear()
            assert parts(await operator.get(f"/tasks/{key}/at/{n}")) == n - 2
            assert sum(read) <= 5000
