"""The extensions of an agent at work, and those that come with Dragoman."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent, AgentExtension, Method, MethodCall
from dragoman.engine.turn import Turn, record_of
from dragoman.errors import InvalidParams, MethodNotFound
from dragoman.model.content import Message
from dragoman.model.ids import timestamp
from dragoman.model.ops import (
    Batch,
    Call,
    ExtensionCall,
    GetOrigin,
    GetTask,
    Request,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.questions import QUESTIONS
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task
from dragoman.model.usage import USAGE

TIMESTAMPS = "https://github.com/a2aproject/a2a-samples/samples/extensions/timestamp/v1"
TRACEABILITY = "https://github.com/a2aproject/a2a-samples/extensions/traceability/v1"


class ExtendedService:
    """A `Service` with the hooks and methods of the agents' extensions. `find` finds an agent by its scope."""

    def __init__(self, service: Service, find: Callable[[Scope], Agent | None]) -> None:
        self._service, self._find = service, find

    def _active(self, call: Call) -> list[AgentExtension]:
        agent = self._find(call.scope)
        asked = call.extensions
        if agent is None:
            return []
        return [each for each in agent.extensions if each.always or each.uri in asked]

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, ExtensionCall):
            return await self._call_method(call, request)
        if isinstance(request, GetOrigin):  # our own question, not the caller's
            return await self._service.call(call, request)
        active = self._active(call)
        for each in active:
            request = await each.on_request(call, request)
        response = await self._service.call(call, request)
        for each in reversed(active):
            response = await each.on_response(call, request, response)
        return response

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        for each in self._active(call):
            changed = await each.on_request(call, request)
            assert isinstance(changed, SendMessage | SubscribeToTask)
            request = changed
        async with aclosing(self._service.stream(call, request)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                yield batch

    async def _call_method(self, call: Call, request: ExtensionCall) -> Any:
        agent = self._find(call.scope)
        for each in agent.extensions if agent is not None else ():
            if (method := each.methods.get(request.method)) is not None:
                if agent is not None and agent.authorize is not None:
                    await agent.authorize(call, request)
                return await method(MethodCall(dict(request.params), call, self._service))
        raise MethodNotFound(f"there is no method {request.method[:80]!r}")


# -- extensions that come with Dragoman ----------------------------------------------------------------------------


class UsageExtension(AgentExtension):
    """Says on the card that tasks report what they used (`turn.usage`). `usage/get` returns it for one task."""

    uri = USAGE
    description = "Tokens and money that a task used"

    @property
    def methods(self) -> Mapping[str, Method]:
        return {"usage/get": self.get}

    async def get(self, given: MethodCall) -> Any:
        """`{"taskId": "..."}`: the usage of that task, or null."""
        id = given.params.get("taskId")
        if not isinstance(id, str) or not id:
            raise InvalidParams("taskId is missing", fields=(("taskId", "must name a task"),))
        task: Task = await given.service.call(given.call, GetTask(id=id, history_length=0))
        return task.metadata.get(USAGE)


class QuestionsExtension(AgentExtension):
    """Says on the card that questions have a schema (`turn.ask(question, Trip)`)."""

    uri = QUESTIONS
    description = "JSON Schemas of the answers that questions want"


class TimestampExtension(AgentExtension):
    """Adds to messages and artifacts when they were made: the timestamp extension of the A2A samples."""

    uri = TIMESTAMPS
    description = "When messages and artifacts were made"
    key = TIMESTAMPS.removeprefix("https://") + "/timestamp"

    def on_event(self, turn: Turn, event: Event) -> Event:
        return add_metadata(event, {self.key: timestamp()})


class TraceabilityExtension(AgentExtension):
    """Adds to the last message what the turn did: its steps and the agents it called. The traceability extension of the
    A2A samples."""

    uri = TRACEABILITY
    description = "The steps of a task, and the agents that it called"
    key = TRACEABILITY.removeprefix("https://") + "/traceability"

    def on_event(self, turn: Turn, event: Event) -> Event:
        if isinstance(event, StatusUpdate) and event.status.state.terminal:
            trace = {self.key: trace_of(turn)}
            if event.status.message is None:
                return replace(event, metadata={**event.metadata, **trace})
            return add_metadata(event, trace)
        return add_metadata(event, {self.key: trace_of(turn)}) if isinstance(event, Message) else event


def trace_of(turn: Turn) -> dict[str, Any]:
    """The recorded steps and calls of a turn, as a trace."""
    record = record_of(turn)
    pieces = turn.trace.get("traceparent", "").split("-")
    trace_id = pieces[1] if len(pieces) >= 4 else turn.task_id
    steps = []
    for step in record.steps.values():
        if step.mail:
            continue  # an answer to a question
        about: dict[str, Any] = {"step_id": step.key, "trace_id": trace_id, "parent_step_id": ""}
        if (child := record.children.get(step.key)) is not None:
            invoked = {"agent_invocation": {"agent_url": child.peer, "agent_name": child.peer}}
            about |= {"call_type": "AGENT", "step_action": invoked}
        else:
            tool = {"tool_invocation": {"tool_name": step.function or step.key, "parameters": {}}}
            about |= {"call_type": "TOOL", "step_action": tool}
        if step.took:
            about["latency"] = round(step.took * 1000)
        steps.append(about)
    return {"trace_id": trace_id, "steps": steps}


def add_metadata(event: Event, metadata: dict[str, Any]) -> Event:
    """The event with more metadata in its message or artifact."""
    if isinstance(event, ArtifactUpdate):
        artifact = event.artifact
        return replace(event, artifact=replace(artifact, metadata={**artifact.metadata, **metadata}))
    if isinstance(event, StatusUpdate):
        if (message := event.status.message) is None:
            return event
        status = replace(event.status, message=replace(message, metadata={**message.metadata, **metadata}))
        return replace(event, status=status)
    if isinstance(event, Message):
        return replace(event, metadata={**event.metadata, **metadata})
    return event
