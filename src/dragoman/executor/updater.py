"""The usual events of a task, by name. With and without `await`, as older and newer programs have it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dragoman.executor import types
from dragoman.executor.execution import Done, EventQueue
from dragoman.executor.types import Artifact, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from dragoman.model.content import Role
from dragoman.model.task import TaskState


class TaskUpdater:
    def __init__(self, event_queue: EventQueue, task_id: str = "", context_id: str = "") -> None:
        self._queue, self.task_id, self.context_id = event_queue, task_id, context_id

    def update_status(
        self,
        state: TaskState,
        message: Any = None,
        final: bool = False,
        timestamp: Any = None,
        metadata: dict[str, Any] | None = None,
    ) -> Done:
        """`final` and the moment are the engine's to know."""
        return self._queue.enqueue_event(TaskStatusUpdateEvent(TaskStatus(state, message), metadata=metadata))

    def add_artifact(
        self,
        parts: Sequence[Any],
        artifact_id: str | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        append: bool | None = None,
        last_chunk: bool | None = None,
        extensions: Sequence[str] | None = None,
    ) -> Done:
        artifact = Artifact(
            parts,
            artifact_id=artifact_id or None,
            name=name,
            metadata=metadata,
            extensions=tuple(extensions or ()),
        )
        return self._queue.enqueue_event(
            TaskArtifactUpdateEvent(artifact, append=append, last_chunk=last_chunk)
        )

    def submit(self, message: Any = None) -> Done:
        return self.update_status(TaskState.SUBMITTED, message)

    def start_work(self, message: Any = None) -> Done:
        return self.update_status(TaskState.WORKING, message)

    def complete(self, message: Any = None) -> Done:
        return self.update_status(TaskState.COMPLETED, message)

    def failed(self, message: Any = None) -> Done:
        return self.update_status(TaskState.FAILED, message)

    def reject(self, message: Any = None) -> Done:
        return self.update_status(TaskState.REJECTED, message)

    def cancel(self, message: Any = None) -> Done:
        return self.update_status(TaskState.CANCELED, message)

    def requires_input(self, message: Any = None, final: bool = True) -> Done:
        return self.update_status(TaskState.INPUT_REQUIRED, message)

    def requires_auth(self, message: Any = None, final: bool = True) -> Done:
        return self.update_status(TaskState.AUTH_REQUIRED, message)

    def new_agent_message(self, parts: Sequence[Any], metadata: dict[str, Any] | None = None) -> Any:
        return types.Message(
            Role.AGENT, parts, context_id=self.context_id, task_id=self.task_id, metadata=metadata
        )
