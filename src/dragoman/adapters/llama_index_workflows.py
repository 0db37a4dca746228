"""LlamaIndex workflows: a `Workflow`, and agents of LlamaIndex (`FunctionAgent`, `AgentWorkflow`), which are workflows.

The context of a workflow goes to the task's log. An `InputRequiredEvent` asks the caller, and the answer comes back as a
`HumanResponseEvent` with the fields of the request and `response`. A run that the process did not survive continues after the
last step that ended.

Of the events that steps write to the stream, one with `delta` is text, one with `tool_name` and `tool_kwargs` is a tool
call (with `tool_output` its result), one with `input_tokens` and `output_tokens` is usage. All others are status updates.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from types import MethodType
from typing import Any

from workflows import Context
from workflows.context.serializers import JsonSerializer
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    InternalDispatchEvent,
    StopEvent,
    WorkflowIdleEvent,
)

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Convert, Instances, Start, as_json, text_in
from dragoman.adapters.events import AnyEvent
from dragoman.errors import InvalidParams
from dragoman.model.content import Message, plain
from dragoman.model.usage import TokenUsage

logger = logging.getLogger("dragoman.adapters")

_AGENTS = "llama_index.core.agent"
"""The package of agents, which are workflows."""
_MEMORY = "llama_index.core.memory"
_REPEATED_EVENTS = ("AgentInput", "AgentSetup", "AgentOutput")
"""Events of agents that repeat the conversation."""


class WorkflowAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        workflow = self._workflow = objects.first
        for name, function in workflow._get_steps().items():
            plain_function = getattr(function, "__func__", None)
            step = (
                MethodType(_after_saving(plain_function), workflow)
                if plain_function is not None
                else _after_saving(function)
            )
            object.__setattr__(workflow, name, step)  # an agent is a model of pydantic

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        context = (
            Context.from_dict(self._workflow, state["context"], serializer=_Serializer())
            if state
            else Context(self._workflow)
        )
        run_input = self._input(start.message) if start.message is not None else {}
        steps = _Steps()
        token = _steps.set(steps)
        handler = self._workflow.run(ctx=context, **run_input, **start.options)
        _steps.reset(token)
        steps.context = handler.ctx
        answered_requests: list[dict[str, Any]] = []
        answers = []
        for id, answer in start.answers.items():
            fields = state["requests"][id]
            answered_requests.append(fields)
            answers.append(self._response(fields, answer.value))
        steps.expect(answers)
        if not (answers and _has_requirements(state["context"])):
            for event in answers:
                handler.ctx.send_event(event)
            answers = []
        open_requests: list[Any] = []
        converter = _EventConverter()
        result: Any = None
        reading = asyncio.create_task(steps.read(handler))
        try:
            while (event := await steps.queue.get()) is not None:
                if isinstance(event, _SaveRequest):
                    if not open_requests:
                        yield events.Saved(state={"context": event.context})
                    event.done.set()  # it is on disk
                elif isinstance(event, WorkflowIdleEvent):
                    if open_requests:
                        break
                    for response in answers:  # each step that waits has asked again
                        handler.ctx.send_event(response)
                    answers = []
                elif isinstance(event, InputRequiredEvent):
                    if _fields(event) in answered_requests:
                        answered_requests.remove(_fields(event))  # a step that continues asks again
                    else:
                        open_requests.append(event)
                elif not isinstance(event, InternalDispatchEvent | StopEvent):
                    for each in converter.convert(event):
                        yield each
            if open_requests:
                requests = {f"{type(event).__name__}-{n}": event for n, event in enumerate(open_requests, 1)}
                new_state = {
                    "context": _dump_context(handler.ctx),
                    "requests": {id: _fields(event) for id, event in requests.items()},
                }
                questions = tuple(_question(id, event) for id, event in requests.items())
                yield events.Paused(questions=questions, state=new_state)
                return
            result = await handler
        finally:
            reading.cancel()
            if not handler.is_done():
                await handler.cancel_run()
        for each in self.finish(
            {"context": _dump_context(handler.ctx)}, result, _content_of(result), converter.text
        ):
            yield each

    def default_input(self, message: Message) -> dict[str, Any]:
        """What the workflow starts with: the data of a message, or its text as the only field of text."""
        if isinstance(message.data, dict):
            return message.data
        if any(kind.__module__.startswith(_AGENTS) for kind in type(self._workflow).__mro__):
            return {"user_msg": message.text}
        fields = self._workflow.start_event_class.model_fields
        texts = [name for name, field in fields.items() if field.annotation is str]
        if fields and len(texts) != 1:
            raise InvalidParams(f"send data with {', '.join(fields)}")
        return {texts[0] if texts else "input": message.text}

    def _response(self, fields: dict[str, Any], value: Any) -> Any:
        """The event that answers a request. A workflow that waits for an event of its own gets that one."""
        kinds = {
            event
            for step in self._workflow._get_steps().values()
            for event in step._step_config.accepted_events
            if issubclass(event, HumanResponseEvent)
        }
        kind = kinds.pop() if len(kinds) == 1 else HumanResponseEvent
        more = value if isinstance(value, dict) else {}
        return kind(**{**fields, "response": value, **more})


make_adapter = WorkflowAdapter


def _content_of(result: Any) -> Any:
    """The answer in the result of a workflow."""
    if type(result).__name__ == "AgentOutput":
        structured = getattr(result, "structured_response", None)
        return structured if structured is not None else str(result.response.content or "")
    return _fields(result) if isinstance(result, Event) else result


# -- after a crash: a run continues after the last step that ended ------------------------------------------------


class _SaveRequest:
    """The context of a workflow, to be recorded before the next step begins."""

    def __init__(self, context: Any) -> None:
        self.context, self.done = context, asyncio.Event()


class _Steps:
    """The steps of one run.

    The context is recorded before a step begins, if no other step is running: a step changes the context while it runs, and one
    that is interrupted runs again. So what has ended is not done again, and nothing is done twice to the context.
    """

    def __init__(self) -> None:
        self.context: Any = None
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        """Events of the workflow, `_SaveRequest`, and None at the end."""
        self.loop = asyncio.get_running_loop()
        self._running = 0
        self._lock = asyncio.Lock()
        self._expected: set[str] = set()

    def expect(self, answers: list[Any]) -> None:
        """Record nothing until these events are in the context: they would be lost."""
        self._expected = {_Serializer().serialize(event) for event in answers}

    async def read(self, handler: Any) -> None:
        """Put the events of the workflow into the queue."""
        try:
            async with aclosing(handler.stream_events(expose_internal=True)) as stream:
                async for event in stream:
                    self.queue.put_nowait(event)
        finally:
            self.queue.put_nowait(None)

    async def begin(self) -> None:
        async with self._lock:
            if (
                self._running == 0
                and self.context is not None
                and (dumped := _try_dump_context(self.context)) is not None
            ):
                self._expected -= _texts_in(dumped)
                if not self._expected:
                    saving = _SaveRequest(dumped)
                    self.queue.put_nowait(saving)
                    await saving.done.wait()
            self._running += 1

    def end(self) -> None:
        self._running -= 1


_steps: ContextVar[_Steps | None] = ContextVar("workflow_steps", default=None)


def _after_saving(function: Any) -> Any:
    """A step that begins when the context is recorded. Outside of `wrap` it is the step as it was."""
    if asyncio.iscoroutinefunction(function):

        @functools.wraps(function)
        async def begin(*args: Any, **kw: Any) -> Any:
            if (steps := _steps.get()) is None:
                return await function(*args, **kw)
            await steps.begin()
            try:
                return await function(*args, **kw)
            finally:
                steps.end()

        return begin

    @functools.wraps(function)
    def begin_in_thread(*args: Any, **kw: Any) -> Any:
        if (steps := _steps.get()) is None:
            return function(*args, **kw)
        asyncio.run_coroutine_threadsafe(steps.begin(), steps.loop).result()
        try:
            return function(*args, **kw)
        finally:
            steps.loop.call_soon_threadsafe(steps.end)

    return begin_in_thread


def _texts_in(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    members = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(_texts_in, members))


class _Serializer(JsonSerializer):  # type: ignore[misc]
    """JSON, also for the memory of an agent: its messages. The framework leaves it out."""

    def serialize_value(self, value: Any) -> Any:
        if type(value).__module__.startswith(_MEMORY) and hasattr(value, "get_all"):
            messages = [message.model_dump(mode="json") for message in value.get_all()]
            return {_MEMORY: messages, "token_limit": getattr(value, "token_limit", None)}
        return super().serialize_value(value)

    def deserialize_value(self, data: Any) -> Any:
        if isinstance(data, dict) and _MEMORY in data:
            from llama_index.core.llms import ChatMessage
            from llama_index.core.memory import ChatMemoryBuffer

            messages = [ChatMessage.model_validate(each) for each in data[_MEMORY]]
            return ChatMemoryBuffer.from_defaults(chat_history=messages, token_limit=data["token_limit"])
        return super().deserialize_value(data)


def _dump_context(context: Any) -> Any:
    return plain(context.to_dict(serializer=_Serializer()))


def _has_requirements(context: Any) -> bool:
    """Whether a step waits for an event with certain fields. They are not stored: until the step has run again up to its
    wait, it takes any event of the kind, and so the answer to another question."""
    if isinstance(context, dict):
        return bool(context.get("has_requirements")) or any(map(_has_requirements, context.values()))
    return isinstance(context, list) and any(map(_has_requirements, context))


def _try_dump_context(context: Any) -> Any:
    """The context as JSON while the workflow runs; None if it has no JSON form: then the run begins again after a crash."""
    try:
        return _dump_context(context)
    except Exception as error:
        logger.debug("the context of a workflow is not recorded: %s", error)
        return None


class _EventConverter:
    """Turns the events that steps write to the stream into those of adapters."""

    def __init__(self) -> None:
        self.text = ""
        self._message = 0

    def convert(self, event: Any) -> Iterator[AnyEvent]:
        if type(event).__module__.startswith(_AGENTS) and type(event).__name__ in _REPEATED_EVENTS:
            if used := _usage(getattr(event, "raw", None)):
                yield used
            return
        fields = _fields(event)
        if isinstance(fields.get("delta"), str):
            self.text += fields["delta"]
            if fields["delta"]:
                yield events.Text(text=fields["delta"], message=f"message-{self._message}")
        elif "tool_name" in fields:
            id = str(fields.get("tool_id") or fields["tool_name"])
            if "tool_output" in fields:
                output = fields["tool_output"]
                content = _text_of(output) if isinstance(output, dict) else output
                failed = isinstance(output, dict) and bool(output.get("is_error"))
                yield events.ToolResult(id=id, name=fields["tool_name"], result=content, failed=failed)
            else:
                self._message, self.text = self._message + 1, ""
                yield events.ToolCall(id=id, name=fields["tool_name"], arguments=fields.get("tool_kwargs"))
        elif "input_tokens" in fields and "output_tokens" in fields:
            yield TokenUsage(
                input_tokens=int(fields["input_tokens"] or 0),
                output_tokens=int(fields["output_tokens"] or 0),
                model=str(fields.get("model") or ""),
            )
        else:
            text_field = next((fields[key] for key in ("msg", "message", "text") if key in fields), "")
            text = text_field if isinstance(text_field, str) else ""
            yield events.Progress(text=text, metadata={"event": type(event).__name__, "fields": fields})


def _text_of(output: dict[str, Any]) -> Any:
    """What a tool of an agent returned."""
    if "content" in output:
        return output["content"]
    texts = [block["text"] for block in output.get("blocks") or () if isinstance(block.get("text"), str)]
    return "\n".join(texts)


def _usage(raw: Any) -> TokenUsage | None:
    """What a model says that an answer of an agent cost."""
    raw = raw if isinstance(raw, dict) else {}
    used = raw.get("usage") or raw.get("usage_metadata")
    if not isinstance(used, dict):
        return None
    return TokenUsage(
        input_tokens=int(used.get("prompt_tokens") or used.get("input_tokens") or 0),
        output_tokens=int(used.get("completion_tokens") or used.get("output_tokens") or 0),
        model=str(raw.get("model") or ""),
    )


def _fields(event: Any) -> dict[str, Any]:
    """The fields of an event as JSON."""
    declared = {name: getattr(event, name) for name in type(event).model_fields}
    out = {}
    for name, value in {**declared, **event.to_dict()}.items():
        if not name.startswith("_"):
            out[name] = as_json(value)
    return out


def _question(id: str, event: Any) -> events.Question:
    fields = _fields(event)
    text = text_in(fields, "prefix", "question", "prompt", "message", "msg")
    return events.Question(id=id, text=text or type(event).__name__, details=fields)
