"""Fold the events of a task into the task."""

from __future__ import annotations

from typing import Any

from dragoman.model.content import NOTHING, GrowingArtifact, Message
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus


class Fold:
    """A task as its events tell it. A bare Message is an answer without a task."""

    def __init__(self) -> None:
        self.task_id = ""
        self.context_id = ""
        self.status: TaskStatus | None = None
        self.message: Message | None = None
        self.artifacts: dict[str, GrowingArtifact] = {}
        self._task: Task | None = None
        """The last snapshot a peer sent: history and metadata come from it."""
        self._earlier_messages: list[Message] = []
        self._metadata: dict[str, Any] | None = None
        """The metadata of the statuses since that snapshot."""

    @property
    def state(self) -> TaskState:
        return self.status.state if self.status is not None else TaskState.UNSPECIFIED

    @property
    def settled(self) -> bool:
        return self.message is not None or self.state.settled

    @property
    def task(self) -> Task | None:
        if not self.task_id:
            return None
        base = self._task
        return Task(
            id=self.task_id,
            context_id=self.context_id,
            status=self.status or TaskStatus(state=TaskState.UNSPECIFIED),
            artifacts=tuple(growing.artifact() for growing in self.artifacts.values()),
            history=(*base.history, *self._earlier_messages) if base else tuple(self._earlier_messages),
            metadata=self._all_metadata(base.metadata if base else NOTHING),
        )

    def _all_metadata(self, base: dict[str, Any]) -> dict[str, Any]:
        return {**base, **self._metadata} if self._metadata else base

    def apply(self, event: Event) -> None:
        if isinstance(event, ArtifactUpdate):
            self._take_names(event.task_id, event.context_id)
            artifact = event.artifact
            growing = self.artifacts.get(artifact.artifact_id)
            if event.append and growing is not None:
                growing.extend(artifact)
            else:
                self.artifacts[artifact.artifact_id] = GrowingArtifact(artifact)
        elif isinstance(event, StatusUpdate):
            self._take_names(event.task_id, event.context_id)
            if self.status is not None and self.status.message is not None:
                self._earlier_messages.append(self.status.message)
            self.status = event.status
            if event.metadata:
                if self._metadata is None:
                    self._metadata = {}
                self._metadata.update(event.metadata)
        elif isinstance(event, Task):
            self._take_names(event.id, event.context_id)
            self._task, self._earlier_messages, self.status = event, [], event.status
            self._metadata = None
            self.artifacts = {artifact.artifact_id: GrowingArtifact(artifact) for artifact in event.artifacts}
        else:
            self.message = event
            self._take_names(event.task_id, event.context_id)

    def _take_names(self, task: str, context: str) -> None:
        self.task_id = task or self.task_id
        self.context_id = context or self.context_id


class LazyFold:
    """Collects events and folds them only when `fold` is read: most streams end without that."""

    def __init__(self, task_id: str = "") -> None:
        self._fold = Fold()
        self._fold.task_id = task_id
        self._pending: list[Event] = []
        self.add = self._pending.append

    @property
    def fold(self) -> Fold:
        if self._pending:
            for event in self._pending:
                self._fold.apply(event)
            self._pending.clear()
        return self._fold
