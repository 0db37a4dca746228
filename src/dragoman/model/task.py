"""A task, its states, and what is reported while it runs."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

from dragoman.model.content import NOTHING, Artifact, Message, Part, Wire


class TaskState(str, Enum):
    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    word: str
    """As the versions before 1.0 spell it: `input-required`."""
    terminal: bool
    interrupted: bool
    settled: bool
    """Terminal or interrupted: nothing more happens until a caller sends something."""


TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})
INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
for _state in TaskState:
    _state.word = _state.value[11:].lower().replace("_", "-")
    _state.terminal, _state.interrupted = _state in TERMINAL, _state in INTERRUPTED
    _state.settled = _state.terminal or _state.interrupted


class TaskStatus(Wire, frozen=True, kw_only=True):
    state: TaskState
    message: Message | None = None
    timestamp: str = ""
    """`2026-11-15T14:40:54.123Z`: always UTC, always milliseconds, so that text order is time order."""


class Task(Wire, frozen=True, kw_only=True):
    id: str
    context_id: str = ""
    status: TaskStatus
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: dict[str, Any] = NOTHING

    @property
    def state(self) -> TaskState:
        return self.status.state

    @property
    def text(self) -> str:
        """The text of the artifacts; when there are none, what the status says."""
        if self.artifacts:
            return "\n".join(text for text in (artifact.text for artifact in self.artifacts) if text)
        return self.status.message.text if self.status.message else ""

    @property
    def data(self) -> Any:
        """The first data value among the artifacts; None when there is none."""
        return next((a.data for a in self.artifacts if a.data is not None), None)

    @property
    def files(self) -> tuple[Part, ...]:
        return tuple(part for artifact in self.artifacts for part in artifact.files)


class StatusUpdate(Wire, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    status: TaskStatus
    metadata: dict[str, Any] = NOTHING


class ArtifactUpdate(Wire, frozen=True, kw_only=True):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: dict[str, Any] = NOTHING


Event: TypeAlias = Task | Message | StatusUpdate | ArtifactUpdate
