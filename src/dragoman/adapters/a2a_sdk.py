"""An `AgentExecutor` of a2a-sdk (0.3 or 1.x) as it is, with the SDK's own types.

The executor gets the SDK's `RequestContext`, and what it puts on its queue is converted. An executor that was moved to
`dragoman.executor` needs no conversion and no SDK.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from dragoman.dialects.v0_3 import V0_3
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.executor.execution import AgentExecutor, Done, EventQueue, ExecutorAgent
from dragoman.executor.types import AgentCard, AgentSkill
from dragoman.model.content import Message
from dragoman.model.ops import STREAM
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task

_MODES = ("text/plain", "application/json", "*/*")
_EVENTS: dict[str, type[Any]] = {
    "Message": Message,
    "Task": Task,
    "TaskStatusUpdateEvent": StatusUpdate,
    "TaskArtifactUpdateEvent": ArtifactUpdate,
}


def make_agent(obj: Any, name: str, description: str, options: dict[str, Any]) -> ExecutorAgent:
    skill = AgentSkill(id=name, name=name, description=description or name, tags=[name])
    card = AgentCard(
        name=name,
        description=description or name,
        version=options.pop("version", "1.0.0"),
        default_input_modes=list(options.pop("input_modes", _MODES)),
        default_output_modes=list(options.pop("output_modes", _MODES)),
        skills=[skill],
    )
    uses_sdk = any(kind.__module__.partition(".")[0] == "a2a" for kind in type(obj).__mro__)
    if not uses_sdk and not isinstance(obj, AgentExecutor) and not inspect.iscoroutinefunction(obj.execute):
        raise TypeError(f"{type(obj).__name__} is not an AgentExecutor: its execute is not async")
    return (SdkExecutorAgent if uses_sdk else ExecutorAgent)(obj, card, **options)


class SdkExecutorAgent(ExecutorAgent):
    """Runs an executor whose values are those of the SDK."""

    def request_context(self, turn: Turn) -> Any:
        return make_context(turn)

    def event_queue(self, turn: Turn) -> EventQueue:
        return SdkEventQueue(turn)

    async def work(self, turn: Turn) -> None:
        try:
            await super().work(turn)
        except Exception as error:
            raise _our_error(error) or error from error


class SdkEventQueue(EventQueue):
    def enqueue_event(self, event: Any) -> Done:
        return super().enqueue_event(read_event(event))


def read_event(event: Any) -> Event:
    """An event of the SDK as one of Dragoman. Those of 1.x are protobuf messages, those of 0.3 pydantic models."""
    kind = _EVENTS.get(type(event).__name__)
    if kind is None:
        raise TypeError(f"{type(event).__module__}.{type(event).__name__} is not an event of A2A")
    if hasattr(event, "model_dump"):
        document = event.model_dump(mode="json", by_alias=True, exclude_none=True)
        read: Event = V0_3().read_result(STREAM, document)
        return read
    from google.protobuf.json_format import MessageToJson

    decoded: Event = msgspec.json.decode(MessageToJson(event), type=kind)
    return decoded


def make_context(turn: Turn) -> Any:
    """What the SDK tells an executor about a message."""
    from a2a import types
    from a2a.server.agent_execution import RequestContext
    from a2a.server.context import ServerCallContext

    call_context = ServerCallContext()
    call_context.requested_extensions = set(turn.mail.extensions)
    call_context.user = _user(turn.principal)
    task = turn.task if turn.n > 1 else None
    request: Any
    if hasattr(types, "MessageSendParams"):
        dialect = V0_3()
        message = types.Message.model_validate(dialect.write_event(turn.message, last=False))
        request = types.MessageSendParams(message=message, metadata=turn.mail.metadata or None)
        sdk_task = None if task is None else types.Task.model_validate(dialect.write_event(task, last=False))
    else:
        from google.protobuf.json_format import Parse

        call_context.tenant = turn.scope.tenant
        request = types.SendMessageRequest(
            message=Parse(msgspec.json.encode(turn.message), types.Message(), ignore_unknown_fields=True)
        )
        request.metadata.update(turn.mail.metadata)
        sdk_task = None
        if task is not None:
            sdk_task = Parse(msgspec.json.encode(task), types.Task(), ignore_unknown_fields=True)
    return RequestContext(
        request=request,
        task_id=turn.task_id,
        context_id=turn.context_id,
        task=sdk_task,
        call_context=call_context,
    )


def _user(name: str) -> Any:
    from a2a.auth.user import UnauthenticatedUser, User

    if not name:
        return UnauthenticatedUser()

    class Caller(User):  # type: ignore[misc]
        @property
        def is_authenticated(self) -> bool:
            return True

        @property
        def user_name(self) -> str:
            return name

    return Caller()


def _our_error(error: Exception) -> A2AError | None:
    """An error of the SDK as one of Dragoman, so that the caller reads its message; None for any other."""
    if type(error).__module__.partition(".")[0] != "a2a":
        return None
    inner = getattr(error, "error", None) or error
    return A2AError(getattr(inner, "message", None) or str(inner) or "Internal error")
