"""Microsoft Agent Framework: an `Agent`, a `Workflow` or a function that makes one, or a workflow as an agent
(`workflow.as_agent()`).

The session of an agent goes to the task's log. A tool with `approval_mode="always_require"` asks the caller. A run that the
process did not survive is run again from its last pause, and tools that have answered do not run again.

The checkpoints of a workflow go to the log, as the framework encodes them. A request for information asks the caller. A run
that the process did not survive continues after the last superstep. A workflow does one thing at a time, so tasks wait for
each other unless `wrap` has a function that makes workflows.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any, get_args

from agent_framework import (
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    Content,
    FunctionMiddleware,
    InMemoryCheckpointStorage,
    Workflow,
    WorkflowCheckpoint,
)
from agent_framework import Message as ChatMessage
from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
from msgspec.structs import replace

from dragoman.adapters import events
from dragoman.adapters.adapter import (
    Adapter,
    Convert,
    Instances,
    Start,
    ToolResults,
    ask_approval,
    convert_parts,
    read_json,
    text_in,
)
from dragoman.adapters.events import AnyEvent
from dragoman.model.content import Message, plain
from dragoman.model.questions import read_value
from dragoman.model.usage import TokenUsage


def make_adapter(objects: Instances, input: Convert, output: Convert) -> Adapter:
    if isinstance(objects.first, Workflow):
        return WorkflowAdapter(objects, input, output)
    if not callable(getattr(objects.first, "create_session", None)):
        raise TypeError(f"{type(objects.first).__name__} is neither an agent nor a workflow")
    return AgentFrameworkAdapter(objects, input, output)


class AgentFrameworkAdapter(Adapter):
    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state, agent = start.state or {}, self._objects.first
        if "session" in state:
            session = AgentSession.from_dict(state["session"])
        else:
            session = agent.create_session(session_id=start.turn.context_id)
        if start.message is not None:
            run_input: Any = self._input(start.message)
        else:
            requests = [Content.from_dict(each) for each in state["requests"]]
            answers = [
                each.to_function_approval_response(bool(start.answers[each.id].value)) for each in requests
            ]
            run_input = ChatMessage("user", answers)
        converter = _EventConverter()
        options = dict(start.options)
        if "middleware" in inspect.signature(agent.run).parameters:
            options["middleware"] = [*(options.get("middleware") or ()), _ToolRecorder(start.tools)]
        stream = agent.run(run_input, stream=True, session=session, **options)
        try:
            async for update in stream:
                for event in converter.convert(update):
                    yield event
            response = await stream.get_final_response()
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        if used := response.usage_details:
            yield _usage(used, converter.requests, str(getattr(response, "model", None) or ""))
        new_state: dict[str, Any] = {"session": session.to_dict()}
        if response.user_input_requests:
            new_state["requests"] = [each.to_dict() for each in response.user_input_requests]
            yield events.Paused(
                questions=tuple(map(_question, response.user_input_requests)), state=new_state
            )
            return
        for event in self.finish(new_state, response, getattr(response, "value", None)):
            yield event

    def default_input(self, message: Message) -> Any:
        return chat_message_of(message)


class WorkflowAdapter(Adapter):
    _first_checkpoint: Any = None
    """A workflow that has not run: each context begins with it."""

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        async with self._objects.acquire() as workflow:
            storage, state = _CheckpointStorage(workflow), start.state or {}
            if self._first_checkpoint is None:
                self._first_checkpoint = encode_checkpoint_value(
                    (await workflow._runner.build_checkpoint()).to_dict()
                )
            checkpoint = storage.decode(state.get("checkpoint", self._first_checkpoint))
            options: dict[str, Any] = {"checkpoint_storage": storage}
            if start.message is not None:
                await workflow._runner.restore_checkpoint(checkpoint)
                options["message"] = self._input(start.message)
            else:
                await storage.save(checkpoint)
                options["checkpoint_id"] = checkpoint.checkpoint_id
                if start.answers:
                    questions = checkpoint.pending_request_info_events
                    options["responses"] = {
                        id: _response(questions[id], answer) for id, answer in start.answers.items()
                    }
            last = storage.latest
            outputs: list[Any] = []
            converter = _EventConverter()
            stream = workflow.run(stream=True, **options, **start.options)
            async for event in stream:
                if event.type == "output":
                    for each in _output(event.data, converter, outputs):
                        yield each
                elif event.type == "executor_failed" or event.type == "failed":
                    raise RuntimeError(event.details.message)
                elif event.type == "superstep_started" and storage.latest is not last:
                    last = storage.latest
                    yield events.Saved(state={"checkpoint": storage.encode(last)})
            new_state = {"checkpoint": storage.encode(storage.latest)}
            requests = storage.latest.pending_request_info_events
        if requests:
            yield events.Paused(
                questions=tuple(_question_of(id, each.data) for id, each in requests.items()), state=new_state
            )
            return
        for event in self.finish(new_state, outputs):
            yield event

    def default_input(self, message: Message) -> Any:
        """What a workflow starts with: text, the data of a message, or a message of the framework."""
        kinds = self._objects.first.input_types
        if isinstance(message.data, dict):
            return message.data
        return message.text if str in kinds else [chat_message_of(message)]


class _CheckpointStorage(InMemoryCheckpointStorage):  # type: ignore[misc]
    """The checkpoints of one run. Only types that the workflow declares, and registered ones, are read from the log."""

    def __init__(self, workflow: Any) -> None:
        super().__init__()
        self.latest: Any = None
        kinds: set[Any] = set()
        for executor in workflow.executors.values():
            kinds.update(executor.input_types, executor.output_types, executor.workflow_output_types)
            for spec in getattr(executor, "_response_handler_specs", ()):
                kinds.update((spec["request_type"], spec["response_type"]))
        flat = {each for kind in kinds for each in (kind, *get_args(kind)) if isinstance(each, type)}
        self._allowed = frozenset(f"{kind.__module__}:{kind.__qualname__}" for kind in flat)

    async def save(self, checkpoint: Any) -> str:
        self.latest = checkpoint
        id: str = await super().save(checkpoint)
        return id

    def encode(self, checkpoint: Any) -> Any:
        encoded = encode_checkpoint_value(checkpoint.to_dict())
        self.decode(encoded)  # what cannot be read must not wait in the log
        return encoded

    def decode(self, encoded: Any) -> Any:
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(encoded, allowed_types=self._allowed))


def _output(data: Any, converter: _EventConverter, outputs: list[Any]) -> Iterator[AnyEvent]:
    """An output of a workflow: of an agent in it, or of a step."""
    outputs.append(data)
    if isinstance(data, AgentResponseUpdate):
        yield from converter.convert(data)
        for content in data.contents:
            if content.type == "usage":
                yield _usage(content.usage_details)
    elif isinstance(data, AgentResponse):
        if data.usage_details:
            yield _usage(data.usage_details)
        if data.text:
            yield events.Text(text=data.text, message=f"output-{len(outputs)}")
    elif isinstance(data, str):
        yield events.Text(text=data, message=f"output-{len(outputs)}")
    elif data is not None:
        yield events.Data(value=plain(data))


def _usage(used: Any, calls: int = 1, model: str = "") -> TokenUsage:
    return TokenUsage(
        input_tokens=used.get("input_token_count") or 0,
        output_tokens=used.get("output_token_count") or 0,
        calls=calls,
        model=model,
    )


def _question_of(id: str, data: Any) -> events.Question:
    """The question of an executor: an approval of a tool, text, or an object with a prompt."""
    if isinstance(data, Content):
        return replace(_question(data), id=id)
    if isinstance(data, str):
        return events.Question(id=id, text=data)
    details = plain(data)
    text = text_in(details, "prompt", "question", "message", "text")
    return events.Question(id=id, text=text or type(data).__name__, details=details)


def _response(request: Any, answer: events.Answer) -> Any:
    """An answer as the executor wants it."""
    if isinstance(request.data, Content):
        return request.data.to_function_approval_response(bool(answer.value))
    kind = request.response_type
    if kind is str:
        return answer.text or str(answer.value)
    value = answer.value
    if isinstance(value, str) and kind is not str:
        return read_value(kind, value)
    return value


class _ToolRecorder(FunctionMiddleware):  # type: ignore[misc]
    """Records what tools returned."""

    def __init__(self, results: ToolResults) -> None:
        self._results = results

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        key = self._results.begin_call(context.function.name, context.arguments)
        if self._results.has(key):
            found = self._results.get(key)
            context.result = found if isinstance(found, str) else [Content.from_dict(each) for each in found]
            return
        await call_next()
        result = context.result
        if isinstance(result, list) and all(isinstance(each, Content) for each in result):
            await self._results.put(key, [each.to_dict() for each in result])
        elif isinstance(result, str):
            await self._results.put(key, result)


class _EventConverter:
    """Turns the updates of a run into events."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, str]] = {}
        """Calls that came in pieces, and are not sent yet: name and arguments."""
        self._message = 0
        self.requests = 0

    def convert(self, update: Any) -> Iterator[AnyEvent]:
        for content in update.contents:
            kind = content.type
            if kind != "function_call" and kind != "usage":
                yield from self._send_calls()
            if kind == "text" and content.text:
                yield events.Text(text=content.text, message=f"message-{self._message}")
            elif kind == "function_call":
                name, arguments = self._calls.get(content.call_id, ("", ""))
                piece = content.arguments
                piece = piece if isinstance(piece, str) else json.dumps(piece) if piece is not None else ""
                self._calls[content.call_id] = (name or content.name or "", arguments + piece)
            elif kind == "function_result":
                self._message += 1
                yield events.ToolResult(
                    id=content.call_id,
                    result=content.result if isinstance(content.result, str) else str(content.result),
                    failed=bool(content.exception),
                )
            elif kind == "usage":  # each is the sum of all up to it
                self.requests += 1

    def _send_calls(self) -> Iterator[AnyEvent]:
        for id, (name, arguments) in self._calls.items():
            yield events.ToolCall(id=id, name=name, arguments=read_json(arguments or {}))
        self._calls = {}


def chat_message_of(message: Message) -> Any:
    contents = convert_parts(
        message,
        Content.from_text,
        lambda part, media_type: Content.from_data(part.raw, media_type),
        lambda part, media_type: Content.from_uri(part.url, media_type=media_type),
    )
    return ChatMessage("user", contents)


def _question(request: Any) -> events.Question:
    call = request.function_call
    return ask_approval(request.id, call.name, read_json(call.arguments or {}))
