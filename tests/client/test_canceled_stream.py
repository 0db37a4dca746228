"""A stream that its server leaves open after a cancel: the client polls the task instead of waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dragoman.client.resumable_stream import ResumableStream
from dragoman.client.retry import Policy, RetryingCalls
from dragoman.dialects import select
from dragoman.model.content import Message
from dragoman.model.ops import Batch, Call, Request, SendMessage, StreamResponse
from dragoman.model.task import StatusUpdate, Task, TaskState, TaskStatus
from tests.waiting import forever


class LeavesStreamsOpen:
    """A peer whose stream sends one event, and then nothing more. Its task is canceled."""

    dialect = select.by_name("0.2")
    is_dragoman = False

    async def call(self, call: Call, request: Request) -> Any:
        return Task(id="t", context_id="c", status=TaskStatus(state=TaskState.CANCELED))

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
