"""Check that an answer is about the task that was asked for, and that nothing comes after the end of a task.

A peer that mixes up its tasks, or a proxy that mixes up its callers, would otherwise show one caller the task of another, and
an event of another task would end a stream.
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
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, Task


class AnotherTask(InvalidAgentResponse):
    """The agent answered about another task than the one that was asked for."""


MAX_BATCHES_AFTER_END = 16
"""A stream that goes on for longer after the end of its task is closed."""


def check_answer(request: Request, result: Any) -> None:
    """Raises `AnotherTask`, or `InvalidAgentResponse` for a task without an id.

    The answer to a message may be about any task: some agents begin another one for each message.
    """
    if isinstance(result, Task):
        if not result.id:
            raise InvalidAgentResponse("the agent sent a task without an id")
        asked = _task_of(request)
        if asked and result.id != asked:
            raise AnotherTask("the agent sent another task than the one it was asked for")
    elif isinstance(result, PushConfig):
        asked = request.config.task_id if isinstance(request, CreatePushConfig) else ""
        asked = request.task_id if isinstance(request, GetPushConfig) else asked
        if result.task_id and asked and result.task_id != asked:
            raise AnotherTask("the agent sent the push config of another task")


class StreamCheck:
    """The events of one stream: of one task, and none after its end."""

    def __init__(self, request: Request) -> None:
        self._task_id = _task_of(request)
        self._ended = False
        self._late_batches = 0

    @property
    def is_over(self) -> bool:
        """The stream should have ended long ago."""
        return self._late_batches > MAX_BATCHES_AFTER_END

    def read(self, batch: Batch) -> tuple[Batch, AnotherTask | None]:
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
                if not id or self._task_id not in ("", id):
                    return batch[:n], AnotherTask("the agent sent an event of another task")
                self._task_id = id
                self._ended = kind is not ArtifactUpdate and event.status.state.terminal  # type: ignore[union-attr]
            if self._ended:
                return (batch if n + 1 == len(batch) else batch[: n + 1]), None
        return batch, None


def _task_of(request: Request) -> str:
    """The task that an answer has to be about; empty if the agent may name one."""
    return request.id if isinstance(request, GetTask | CancelTask | SubscribeToTask) else ""
