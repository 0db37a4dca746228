"""Stopped politely: what runs gets its time, and what needs longer goes on in the next process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from tests import raw
from tests.crash.checks import check_log
from tests.crash.reader import insist, message
from tests.crash.stage import Stage
from tests.raw import StreamEvent
from tests.waiting import until


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """The tests themselves may have been started with nohup, and servers inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


async def first_words(stage: Stage, steps: int) -> tuple[str, AsyncIterator[StreamEvent]]:
    """A task that runs, as its stream says: it waits for its first step."""
    stream = raw.stream(stage.server.url, "SendStreamingMessage", message(str(steps)))
    task = (await anext(stream)).result["task"]["id"]
    async for event in stream:
        if event.result["statusUpdate"]["status"].get("message"):
            break
    return task, stream


async def test_a_running_task_may_finish_during_the_drain_time(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--drain", "15", PACE="0.1")
    async with stage.server:
        task, stream = await first_words(stage, 5)
        stage.server.signal(signal.SIGTERM)
        async for _ in stream:  # it ends when the server begins to drain
            pass
        assert await stage.server.ended() == 0
        assert stage.did(task) == ["began", *(f"wait/{i}" for i in range(5))]
        await stage.server.start()
        done = await raw.result(stage.server.url, "GetTask", {"id": task})
        assert done["status"]["state"] == "TASK_STATE_COMPLETED"
        assert stage.did(task) == ["began", *(f"wait/{i}" for i in range(5))]
        assert b"Traceback" not in stage.server.said


async def test_a_stopping_server_answers_a_blocking_send(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--drain", "15", PACE="0.1")
    async with stage.server:
        _, stream = await first_words(stage, 3)
        second = asyncio.create_task(raw.result(stage.server.url, "SendMessage", message("4")))
        async for event in stream:
            if "waited 1" in str(event.result):
                break
        stage.server.signal(signal.SIGTERM)
        answer = await second
        assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await stage.server.ended() == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_task_that_needs_longer_is_given_back_and_goes_on_in_the_next_process(
    how: signal.Signals, tmp_path: Path
) -> None:
    stage = Stage(tmp_path, "--drain", "0.05", PACE="0.1")
    async with stage.server:
        task, stream = await first_words(stage, 4)
        stage.server.signal(how)
        async for _ in stream:
            pass
        assert await stage.server.ended() == 0
        assert len(stage.did(task)) < 5
        await stage.server.start()
        heard = raw.stream(stage.server.url, "SubscribeToTask", {"id": task}, last_event_id="0")
        events = [event async for event in heard]
        assert "TASK_STATE_COMPLETED" in str(events[-1].result)
        assert sorted(stage.did(task)) == ["began", "began", *(f"wait/{i}" for i in range(4))]
        await check_log(stage.store, task)
        assert b"Traceback" not in stage.server.said


async def test_a_graceful_stop_does_not_count_as_an_attempt(tmp_path: Path) -> None:
    """A task may live through any number of releases of its server."""
    stage = Stage(tmp_path, "--drain", "0", PACE="0.02")
    async with stage.server:
        task, _ = await first_words(stage, 100)
        for _ in range(7):
            stage.server.signal(signal.SIGTERM)
            assert await stage.server.ended() == 0
            await stage.server.start()
            done = len(stage.did(task))
            async with aclosing(raw.stream(stage.server.url, "SubscribeToTask", {"id": task})) as stream:  # type: ignore[type-var]
                async for event in stream:
                    if "waited" in str(event.result.get("statusUpdate", "")):
                        break
            assert len(stage.did(task)) > done
        answer = await insist(stage.server, "GetTask", {"id": task})
        assert answer["result"]["status"]["state"] == "TASK_STATE_WORKING"


async def test_a_second_interrupt_ends_the_server_at_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "--drain", "600", PACE="600")
    async with stage.server:
        task, stream = await first_words(stage, 1)
        stage.server.signal(signal.SIGINT)
        async for _ in stream:  # the server ends its streams when it begins to drain
            pass
        assert stage.server.process is not None and stage.server.process.returncode is None
        stage.server.signal(signal.SIGINT)
        await stage.server.ended()
        stage.server.env["PACE"] = "0"
        await stage.server.start()
        events = [event async for event in raw.stream(stage.server.url, "SubscribeToTask", {"id": task})]
        assert "TASK_STATE_COMPLETED" in str(events[-1].result)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_sighup_stops_the_server_gracefully(tmp_path: Path, workers: str) -> None:
    stage = Stage(tmp_path, "--drain", "15", "--workers", workers, PACE="0.1")
    async with stage.server:
        sending = asyncio.create_task(raw.result(stage.server.url, "SendMessage", message("3")))
        await until(lambda: "began" in stage.steps.read_text())
        for _ in range(2):  # the terminal says so, and the shell as well
            stage.server.signal(signal.SIGHUP)
        assert (await sending)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
        assert await stage.server.ended() == 0


async def test_sighup_does_not_stop_a_server_started_with_nohup(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    try:
        await stage.server.start()
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        stage.server.signal(signal.SIGHUP)
        assert await raw.result(stage.server.url, "SendMessage", message("0"))
    finally:
        await stage.server.kill()
