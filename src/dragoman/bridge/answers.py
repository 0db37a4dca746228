"""Check what an agent answers, before anybody is told.

A bridge passes on what an agent says, whatever that is. What it says about another task than the one it was asked about is not
passed on: a caller would take it for its own. Nor is anything that comes after the end of a task.

Some servers (a2a-sdk 0.3) store a late update of the work over the end of a canceled task. The agent answered that the task is canceled,
nobody works on it, and from then on it is called working for ever. So a while after a cancel the task is asked for, and canceled
again if it was undone (`CancelCheck`). In between, callers of this process are told what the answer to the cancel was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec.structs import replace

from dragoman.errors import A2AError, InvalidAgentResponse, keep_going
from dragoman.model.content import Message
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    CreatePushConfig,
    GetPushConfig,
    GetTask,
    PushConfig,
    Request,
    SendMessage,
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.bridge")

MAX_BATCHES_AFTER_END = 16
"""A stream that goes on for longer after the end of its task is closed."""
_CHECK_SECONDS = (1.0, 2.0, 4.0)
"""When the task is asked for, each after the one before. Late updates have come by then."""
_MAX_CHECKED = 1000
"""Cancels that are checked at a time. More are not."""

Ask = Callable[[Call, Request], Awaitable[Any]]


def check_answer(request: Request, result: Any) -> None:
    """Raises `InvalidAgentResponse`."""
    if isinstance(result, Task):
        if not result.id:
            raise InvalidAgentResponse("the agent sent a task without an id")
        asked = _task_of(request)
        if asked and result.id != asked:
            raise InvalidAgentResponse("the agent sent another task than the one it was asked for")
    elif isinstance(result, PushConfig):
        asked = request.config.task_id if isinstance(request, CreatePushConfig) else ""
        asked = request.task_id if isinstance(request, GetPushConfig) else asked
        if result.task_id and asked and result.task_id != asked:
            raise InvalidAgentResponse("the agent sent the push config of another task")


class StreamCheck:
    """The events of one stream: of one task, and none after its end."""

    def __init__(self, request: SendMessage | SubscribeToTask) -> None:
        self._task_id = _task_of(request)
        self._ended = False
        self._late_batches = 0

    @property
    def is_over(self) -> bool:
        """The stream should have ended long ago."""
        return self._late_batches > MAX_BATCHES_AFTER_END

    def read(self, batch: Batch) -> tuple[Batch, InvalidAgentResponse | None]:
        """The events to pass on, and the error after them, if there is one."""
        if self._ended:
            self._late_batches += 1
            return (), None
        for n, response in enumerate(batch):
            event = response.event
            kind = type(event)
            if kind is Message:
                self._ended = True
            else:
                id = event.id if kind is Task else event.task_id  # type: ignore[union-attr]
                if id != self._task_id:
                    if self._task_id or not id:
                        return batch[:n], InvalidAgentResponse("the agent sent an event of another task")
                    self._task_id = id
                self._ended = kind is not ArtifactUpdate and event.status.state.terminal  # type: ignore[union-attr]
            if self._ended:
                return (batch if n + 1 == len(batch) else batch[: n + 1]), None
        return batch, None


def _task_of(request: Request) -> str:
    """The task that an answer has to be about; empty if the agent may name one."""
    if isinstance(request, SendMessage):
        return request.message.task_id
    return request.id if isinstance(request, GetTask | CancelTask | SubscribeToTask) else ""


class CancelCheck:
    """`ask` calls the agent. Only for agents that may undo cancels: a Dragoman server does not."""

    def __init__(self, name: str, ask: Ask) -> None:
        self._name, self._ask = name, ask
        self._canceled: dict[str, TaskStatus] = {}
        self._checks: set[asyncio.Task[None]] = set()

    def begin(self, call: Call, request: CancelTask, answer: Any) -> None:
        """The agent answered a cancel."""
        if not isinstance(answer, Task) or answer.state is not TaskState.CANCELED:
            return
        if request.id in self._canceled or len(self._checks) >= _MAX_CHECKED:
            return
        self._canceled[request.id] = answer.status
        check = asyncio.create_task(self._check(replace(call, deadline=None), request))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    def correct(self, result: Any) -> Any:
        """What callers are told of a task: one that was canceled a moment ago is canceled, whatever the agent says."""
        if isinstance(result, Task) and not result.state.terminal and result.id in self._canceled:
            return replace(result, status=self._canceled[result.id])
        return result

    async def close(self) -> None:
        for check in self._checks:
            check.cancel()
        await asyncio.gather(*self._checks, return_exceptions=True)

    async def _check(self, call: Call, request: CancelTask) -> None:
        try:
            with keep_going(logger, f"checking a cancel of {self._name}", A2AError):
                for seconds in _CHECK_SECONDS:
                    await asyncio.sleep(seconds)
                    now: Task = await self._ask(call, GetTask(id=request.id, history_length=0))
                    if now.state.terminal:
                        return
                    await self._ask(call, request)
                logger.warning("%s undoes the cancel of a task again and again", self._name)
        finally:
            del self._canceled[request.id]
