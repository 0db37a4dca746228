"""For code written against the official SDK: the same names, on our engine.

    from dragoman.executor import AgentExecutor, EventQueue, RequestContext, new_agent_text_message

An executor gets a request and puts events on a queue. What it puts there goes to the task's log, so its tasks survive a
restart, stream, and answer every version of the protocol; when a turn is interrupted, `execute` runs again. The names
that the SDK's quickstart uses besides (`AgentCard`, `DefaultRequestHandler`, `A2AStarletteApplication`, ...) are here
too, so that it ports by changing its imports.
"""

from __future__ import annotations

from dragoman.executor.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    ServerError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from dragoman.executor.execution import AgentExecutor, EventQueue, ExecutorAgent, RequestContext, TaskUpdater
from dragoman.executor.server import A2AStarletteApplication, DefaultRequestHandler, InMemoryTaskStore
from dragoman.executor.spoken import DataPart, FilePart, FileWithBytes, FileWithUri, Part, TextPart
from dragoman.executor.types import (
    AgentAuthentication,
    AgentCapabilities,
    AgentCard,
    AgentProvider,
    AgentSkill,
    Artifact,
    Message,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
    completed_task,
    get_message_text,
    new_agent_parts_message,
    new_agent_text_message,
    new_artifact,
    new_data_artifact,
    new_task,
    new_text_artifact,
)
from dragoman.model.task import Task

__all__ = [
    "A2AStarletteApplication",
    "AgentAuthentication",
    "AgentCapabilities",
    "AgentCard",
    "AgentExecutor",
    "AgentProvider",
    "AgentSkill",
    "Artifact",
    "ContentTypeNotSupportedError",
    "DataPart",
    "DefaultRequestHandler",
    "EventQueue",
    "ExecutorAgent",
    "FilePart",
    "FileWithBytes",
    "FileWithUri",
    "InMemoryTaskStore",
    "InternalError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "InvalidRequestError",
    "Message",
    "Part",
    "RequestContext",
    "Role",
    "ServerError",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "TaskUpdater",
    "TextPart",
    "UnsupportedOperationError",
    "completed_task",
    "get_message_text",
    "new_agent_parts_message",
    "new_agent_text_message",
    "new_artifact",
    "new_data_artifact",
    "new_task",
    "new_text_artifact",
]
