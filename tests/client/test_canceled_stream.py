"""A stream that its server leaves open after a cancel: the client polls the task instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.client import resumable_stream
from dragoman.client.resumable_stream import ResumableStream, RetryingService
from dragoman.client.retry import Policy, RetryingCalls
from dragoman.dialects import select
from dragoman.model.content import Message
from dragoman.model.ops import Batch, Call, CancelTask, GetTask, Request, SendMessage, StreamResponse
from dragoman.model.task import StatusUpdate, Task, TaskState, TaskStatus
from tests.waiting import forever


class LeavesStreamsOpen:
    """A peer whose stream sends one event, and then nothing more. Its task is canceled, unless an update came too late."""

    dialect = select.DIALECTS["0.2"]
    is_dragoman = False

    def __init__(self, *, undoes_cancel: bool = False) -> None:
        self._undoes_cancel = undoes_cancel

    async def call(self, call: Call, request: Request) -> Any:
        undone = self._undoes_cancel and isinstance(request, GetTask)
        state = TaskState.WORKING if undone else TaskState.CANCELED
        return Task(id="t", context_id="c", status=TaskStatus(state=state))

    async def stream(self, call: Call, request: Any) -> AsyncIterator[Batch]:
        working = TaskStatus(state=TaskState.WORKING)
        yield [StreamResponse(StatusUpdate(task_id="t", context_id="c", status=working))]
        await forever()


@pytest.mark.parametrize("waits", [True, False], ids=["while it waits", "between two events"])
async def test_a_stream_that_is_left_open_after_a_cancel_is_polled(waits: bool) -> None:
    peer: Any = LeavesStreamsOpen()
    calls = RetryingCalls(peer, Policy())
    stream = ResumableStream(calls, Call(), SendMessage(message=Message("hi")), streams=True)
    batches = stream.read()
    await anext(batches)
    if waits:
        coming = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        stream.stop_waiting()
    else:  # whoever reads the stream has not asked for the next event yet
        stream.stop_waiting()
        coming = asyncio.ensure_future(anext(batches))
    async with asyncio.timeout(20):
        (response, *_) = await coming
    assert response.event.status.state is TaskState.CANCELED  # type: ignore[union-attr]
    await batches.aclose()


async def test_a_stream_ends_after_a_cancel_though_a_late_update_undoes_it_on_the_server() -> None:
    """As on a2a-sdk 0.2.16 and 0.3.26, if they are busy: the cancel is answered, and the task says `working` for ever."""
    peer: Any = LeavesStreamsOpen(undoes_cancel=True)
    service = RetryingService(peer)
    batches = aiter(service.stream(Call(), SendMessage(message=Message("hi"))))
    await anext(batches)
    await service.call(Call(), CancelTask(id="t"))
    async with asyncio.timeout(10):
        (response, *_) = await anext(batches)
        assert response.event.status.state is TaskState.CANCELED  # type: ignore[union-attr]
        assert await anext(batches, None) is None


async def test_a_quiet_stream_ends_if_its_task_was_canceled_by_somebody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By another process of a bridge, for example. The server leaves the stream open."""
    monkeypatch.setattr(resumable_stream, "_QUIET_SECONDS", 0.0)
    peer: Any = LeavesStreamsOpen()
    batches = aiter(RetryingService(peer).stream(Call(), SendMessage(message=Message("hi"))))
    await anext(batches)
    async with asyncio.timeout(10):
        (response, *_) = await anext(batches)
        assert response.event.status.state is TaskState.CANCELED  # type: ignore[union-attr]
        assert await anext(batches, None) is None


async def test_a_quiet_stream_stays_open_while_its_task_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_stream, "_QUIET_SECONDS", 0.0)
    asked = asyncio.Event()

    class Works(LeavesStreamsOpen):
        async def call(self, call: Call, request: Request) -> Any:
            asked.set()
            return Task(id="t", context_id="c", status=TaskStatus(state=TaskState.WORKING))

        async def stream(self, call: Call, request: Any) -> AsyncIterator[Batch]:
            for state in (TaskState.WORKING, TaskState.COMPLETED):
                yield [
                    StreamResponse(StatusUpdate(task_id="t", context_id="c", status=TaskStatus(state=state)))
                ]
                await asked.wait()

    peer: Any = Works()
    stream = RetryingService(peer).stream(Call(), SendMessage(message=Message("hi")))
    async with asyncio.timeout(10):
        states = [response.event.status.state async for batch in stream for response in batch]  # type: ignore[union-attr]
    assert states == [TaskState.WORKING, TaskState.COMPLETED]
