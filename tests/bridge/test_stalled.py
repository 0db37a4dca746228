"""An agent that calls a task working, though nobody works on it, does not keep a durable task open for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dragoman.bridge.durable import STALLED
from dragoman.client import resumable_stream
from dragoman.model.task import TaskState
from tests.bridge.bridging import bridged, caller_of
from tests.bridge.liar import STREAM_HEAD, Liar, http
from tests.waiting import until

WORKING: dict[str, Any] = {
    "kind": "task",
    "id": "t1",
    "contextId": "c1",
    "status": {"state": "working", "timestamp": "2026-01-01T00:00:00Z"},
}
TICK = {
    "kind": "status-update",
    "taskId": "t1",
    "contextId": "c1",
    "final": False,
    "status": {"state": "working"},
}
COMPLETED = {**WORKING, "status": {"state": "completed"}}
KEEP_ALIVE = b": ping\r\n\r\n"


class StoppedWorker(Liar):
    """An agent whose tasks stop with the first stream, and that says `working` of them afterwards.

    A subscription is `kept` open without an event, `refused`, or `ended` at once.
    """

    def __init__(
        self, subscription: str, *, version: str = "0.2.6", streams: bool = True, news: int = 0
    ) -> None:
        super().__init__()
        self.subscription, self.version, self.streams = subscription, version, streams
        self.hold = asyncio.Event()
        """Until then the first stream stays open."""
        self.task = WORKING
        self.asked, self.news = 0, news
        """How often the task was asked for, and how often there is something new then, until it completes."""
        self.answer = self._answer

    async def __aenter__(self) -> StoppedWorker:
        await super().__aenter__()
        self.card = {
            "name": "Worker", "description": "Works", "version": "1", "url": f"{self.url}/rpc",
            "protocolVersion": self.version, "preferredTransport": "JSONRPC",
            "capabilities": {"streaming": self.streams},
            "defaultInputModes": ["text/plain"], "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "work", "name": "work", "description": "Works", "tags": []}],
        }  # fmt: skip
        return self

    def methods(self, name: str) -> int:
        return sum(each["method"] == name for each in self.calls)

    async def _answer(self, writer: asyncio.StreamWriter, request: dict[str, Any]) -> None:
        def document(**said: Any) -> bytes:
            return json.dumps({"jsonrpc": "2.0", "id": request["id"], **said}).encode()

        match request["method"]:
            case "message/send":
                writer.write(http(document(result=self.task)))
            case "message/stream":
                writer.write(STREAM_HEAD)
                for event in (WORKING, TICK):
                    writer.write(b"data: " + document(result=event) + b"\n\n")
                await writer.drain()
                await self.hold.wait()
            case "tasks/get":
                self.asked += 1
                if self.news:
                    status = {"state": "working", "timestamp": f"2026-01-01T00:00:{self.asked:02}Z"}
                    self.task = {**WORKING, "status": status} if self.asked < self.news else COMPLETED
                writer.write(http(document(result=self.task)))
            case "tasks/cancel":
                writer.write(http(document(result={**WORKING, "status": {"state": "canceled"}})))
            case "tasks/resubscribe" if self.subscription == "refused":
                writer.write(http(document(error={"code": -32001, "message": "Task not found"})))
            case "tasks/resubscribe":
                writer.write(STREAM_HEAD + KEEP_ALIVE)
                await writer.drain()
                if self.subscription == "kept":
                    await until(lambda: self.task["status"]["state"] == "completed")


@asynccontextmanager
async def stopped(worker: StoppedWorker, **settings: Any) -> AsyncIterator[str]:
    """The worker behind a bridge, after the stream of its task was lost."""
    async with worker, bridged(worker.url, wait=1, breaker=0, **settings) as (url, _):
        worker.hold.set()
        yield url


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_stream, "_QUIET_SECONDS", 0.05)


@pytest.mark.parametrize("worker", [
    StoppedWorker("kept"),
    StoppedWorker("refused"),
    StoppedWorker("refused", version="0.3.0"),
    StoppedWorker("ended", version="0.3.0"),
], ids=lambda worker: f"{worker.subscription}-{worker.version}")  # fmt: skip
async def test_a_task_on_which_nobody_works_fails_and_is_not_sent_again(worker: StoppedWorker) -> None:
    async with stopped(worker, stalled=0.3) as url, caller_of(url) as caller:
        reply = await caller.send("go")
        assert reply.state is TaskState.FAILED
        assert reply.text == STALLED
    assert worker.methods("message/stream") == 1 and worker.methods("message/send") == 0
    assert worker.methods("tasks/cancel") == 1, "somebody may be working on it after all"


async def test_a_task_that_stopped_with_the_bridge_fails_after_its_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'bridge.db'}"
    async with StoppedWorker("kept") as worker:
        async with (
            bridged(worker.url, store=store, server={"drain": 0.1}) as (url, _),
            caller_of(url) as caller,
        ):
            task = (await caller.send("go", wait=False)).task
            assert task is not None
            await until(lambda: worker.methods("message/stream"))
        async with bridged(worker.url, store=store, stalled=0.3) as (url, _), caller_of(url) as caller:
            ended = await until(lambda: caller.get(task.id), lambda found: found.state.terminal)
            assert ended.state is TaskState.FAILED and ended.text == STALLED
        assert worker.methods("message/stream") == 1


@pytest.mark.parametrize("worker", [
    StoppedWorker("kept", version="0.3.0"),
    StoppedWorker("refused", streams=False),
], ids=["a subscription that stays open", "an agent that is only polled"])  # fmt: skip
async def test_a_slow_task_is_waited_for(worker: StoppedWorker) -> None:
    async with stopped(worker, stalled=0.1) as url, caller_of(url) as caller:
        reply = asyncio.create_task(caller.send("go"))
        await until(lambda: worker.asked >= 5)
        worker.task = COMPLETED
        assert (await reply).state is TaskState.COMPLETED


async def test_news_of_a_task_begin_the_time_again() -> None:
    worker = StoppedWorker("refused", news=6)
    async with stopped(worker, stalled=0.1) as url, caller_of(url) as caller:
        assert (await caller.send("go")).state is TaskState.COMPLETED
