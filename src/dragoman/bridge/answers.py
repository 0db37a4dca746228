"""Check that an agent answers what it was asked: about the task that was named, and with nothing after its end.

A bridge passes on what an agent says, whatever that is. What it says about another task than the one it was asked about is not
passed on: a caller would take it for its own.
"""

from __future__ import annotations

from typing import Any

from dragoman.errors import InvalidAgentResponse
from dragoman.model.content import Message
from dragoman.model.ops import (
    Batch,
    CancelTask,
    CreatePushConfig,
    GetPushConfig,
    GetTask,
    PushConfig,
    Request,
    SendMessage,
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, Task

MAX_BATCHES_AFTER_END = 16
"""A stream that goes on for longer after the end of its task is closed."""


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
