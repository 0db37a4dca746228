"""For code written against the official SDK: the same names, on our engine.

    from dragoman.executor import AgentExecutor, EventQueue, RequestContext, new_agent_text_message

An executor gets a request and puts events on a queue. What it puts there goes to the task's log, so its tasks survive a
restart, stream, and answer every version of the protocol; when a turn is interrupted, `execute` runs again. The names
that the SDK's quickstart uses besides (`AgentCard`, `DefaultRequestHandler`, `A2AStarletteApplication`, ...) are here
too, so that it ports by changing its imports.
"""

from __future__ import annotations

from typing import NoReturn

from dragoman.executor.cards import (
    AgentAuthentication,
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
)
from dragoman.executor.context import RequestContext, ServerCallContext
from dragoman.executor.elsewhere import instead
from dragoman.executor.errors import (
    ContentTypeNotSupportedError,
    InternalError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    ServerError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from dragoman.executor.execution import AgentExecutor, EventQueue, ExecutorAgent
from dragoman.executor.new import (
    completed_task,
    get_artifact_text,
    get_data_parts,
    get_file_parts,
    get_message_text,
    get_raw_parts,
    get_text_parts,
    get_url_parts,
    new_agent_parts_message,
    new_agent_text_message,
    new_artifact,
    new_data_artifact,
    new_data_artifact_update_event,
    new_data_message,
    new_data_part,
    new_message,
    new_raw_artifact,
    new_raw_artifact_update_event,
    new_raw_message,
    new_raw_part,
    new_task,
    new_task_from_user_message,
    new_text_artifact,
    new_text_artifact_update_event,
    new_text_message,
    new_text_part,
    new_text_status_update_event,
    new_url_artifact,
    new_url_artifact_update_event,
    new_url_message,
    new_url_part,
)
from dragoman.executor.parts import DataPart, FilePart, FileWithBytes, FileWithUri, Part, TextPart
from dragoman.executor.server import (
    A2AFastAPIApplication,
    A2ARESTFastAPIApplication,
    A2AStarletteApplication,
    BasePushNotificationSender,
    DefaultRequestHandler,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
)
from dragoman.executor.types import (
    Artifact,
    Message,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from dragoman.executor.updater import TaskUpdater

__all__ = [
    "A2AFastAPIApplication",
    "A2ARESTFastAPIApplication",
    "A2AStarletteApplication",
    "AgentAuthentication",
    "AgentCapabilities",
    "AgentCard",
    "AgentExecutor",
    "AgentExtension",
    "AgentInterface",
    "AgentProvider",
    "AgentSkill",
    "Artifact",
    "BasePushNotificationSender",
    "ContentTypeNotSupportedError",
    "DataPart",
    "DefaultRequestHandler",
    "EventQueue",
    "ExecutorAgent",
    "FilePart",
    "FileWithBytes",
    "FileWithUri",
    "InMemoryPushNotificationConfigStore",
    "InMemoryTaskStore",
    "InternalError",
    "InvalidAgentResponseError",
    "InvalidParamsError",
    "InvalidRequestError",
    "Message",
    "MethodNotFoundError",
    "Part",
    "PushNotificationNotSupportedError",
    "RequestContext",
    "Role",
    "ServerCallContext",
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
    "get_artifact_text",
    "get_data_parts",
    "get_file_parts",
    "get_message_text",
    "get_raw_parts",
    "get_text_parts",
    "get_url_parts",
    "new_agent_parts_message",
    "new_agent_text_message",
    "new_artifact",
    "new_data_artifact",
    "new_data_artifact_update_event",
    "new_data_message",
    "new_data_part",
    "new_message",
    "new_raw_artifact",
    "new_raw_artifact_update_event",
    "new_raw_message",
    "new_raw_part",
    "new_task",
    "new_task_from_user_message",
    "new_text_artifact",
    "new_text_artifact_update_event",
    "new_text_message",
    "new_text_part",
    "new_text_status_update_event",
    "new_url_artifact",
    "new_url_artifact_update_event",
    "new_url_message",
    "new_url_part",
]


def __getattr__(name: str) -> NoReturn:
    raise instead(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
