"""LlamaIndex workflows: a `Workflow`.

The context of a workflow goes to the task's log. An `InputRequiredEvent` asks the caller, and the answer comes back as a
`HumanResponseEvent` with the fields of the request and `response`. A run that the process did not survive continues after the
last step that ended.

Of the events that steps write to the stream, one with `delta` is text, one with `tool_name` and `tool_kwargs` is a tool
call (with `tool_output` its result), one with `input_tokens` and `output_tokens` is usage. All others are status updates.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Any

from workflows import Context
from workflows.events import (
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    InternalDispatchEvent,
    StepState,
    StepStateChanged,
    StopEvent,
    WorkflowIdleEvent,
)

from dragoman.adapters.adapter import (
    AnyEvent,
    Data,
    Finished,
    Paused,
    Progress,
    Question,
    Saved,
    Start,
    Text,
    ToolCall,
    ToolResult,
    Usage,
)
from dragoman.errors import InvalidParams
from dragoman.model.content import Message
from dragoman.model.values import plain

logger = logging.getLogger("dragoman.adapters")


def make_adapter(
    obj: Any, input: Callable[[Any], Any] | None, output: Callable[[Any], Any] | None
) -> WorkflowAdapter:
    return WorkflowAdapter(obj, input, output)


class WorkflowAdapter:
    def __init__(
        self, workflow: Any, input: Callable[[Any], Any] | None, output: Callable[[Any], Any] | None
    ) -> None:
        self._workflow, self._input, self._output = workflow, input or self._default_input, output

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        context = Context.from_dict(self._workflow, state["context"]) if state else Context(self._workflow)
        given = self._input(start.message) if start.message is not None else {}
        handler = self._workflow.run(ctx=context, **given, **start.options)
        answered: list[dict[str, Any]] = []
        for id, answer in start.answers.items():
            fields = state["requests"][id]
            answered.append(fields)
            handler.ctx.send_event(self._response(fields, answer.value))
        asked: list[Any] = []
        seen = _Seen()
        result: Any = None
        try:
            async with aclosing(handler.stream_events(expose_internal=True)) as stream:
                async for event in stream:
                    if isinstance(event, WorkflowIdleEvent):
                        if asked:
                            break
                    elif isinstance(event, InputRequiredEvent):
                        if _fields(event) in answered:
                            answered.remove(_fields(event))  # a step that continues asks again
                        else:
                            asked.append(event)
                    elif isinstance(event, StepStateChanged):
                        ended = event.step_state is StepState.NOT_RUNNING and not handler.is_done()
                        if ended and not asked and (now := _dump(handler.ctx)) is not None:
                            yield Saved(state={"context": now})
                    elif not isinstance(event, InternalDispatchEvent | StopEvent):
                        for each in seen.event(event):
                            yield each
            if asked:
                requests = {f"{type(event).__name__}-{n}": event for n, event in enumerate(asked, 1)}
                kept = {
                    "context": handler.ctx.to_dict(),
                    "requests": {id: _fields(event) for id, event in requests.items()},
                }
                questions = tuple(_question(id, event) for id, event in requests.items())
                yield Paused(questions=questions, state=kept)
                return
            result = await handler
        finally:
            if not handler.is_done():
                await handler.cancel_run()
        if self._output is not None:
            result = self._output(result)
        elif isinstance(result, Event):
            result = _fields(result)
        if isinstance(result, str):
            if result != seen.text:
                yield Text(text=result, message="output")
        elif result is not None:
            yield Data(value=plain(result))
        yield Finished(state={"context": handler.ctx.to_dict()})

    def _default_input(self, message: Message) -> dict[str, Any]:
        """What the workflow starts with: the data of a message, or its text as the only field of text."""
        if isinstance(message.data, dict):
            return message.data
        if "user_msg" in inspect.signature(self._workflow.run).parameters:  # an agent of LlamaIndex
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


def _dump(context: Any) -> Any:
    """The context as JSON while the workflow runs; None if it has no JSON form: then the run begins again after a crash."""
    try:
        return plain(context.to_dict())
    except Exception as error:
        logger.debug("the context of a workflow is not recorded: %s", error)
        return None


class _Seen:
    """Turns the events that steps write to the stream into ours."""

    def __init__(self) -> None:
        self.text = ""
        self._message = 0

    def event(self, event: Any) -> Iterator[AnyEvent]:
        fields = _fields(event)
        if isinstance(fields.get("delta"), str):
            self.text += fields["delta"]
            if fields["delta"]:
                yield Text(text=fields["delta"], message=f"message-{self._message}")
        elif "tool_name" in fields:
            id = str(fields.get("tool_id") or fields["tool_name"])
            if "tool_output" in fields:
                output = fields["tool_output"]
                content = output.get("content") if isinstance(output, dict) else output
                failed = isinstance(output, dict) and bool(output.get("is_error"))
                yield ToolResult(id=id, name=fields["tool_name"], result=content, failed=failed)
            else:
                self._message, self.text = self._message + 1, ""
                yield ToolCall(id=id, name=fields["tool_name"], arguments=fields.get("tool_kwargs"))
        elif "input_tokens" in fields and "output_tokens" in fields:
            yield Usage(
                input_tokens=int(fields["input_tokens"] or 0),
                output_tokens=int(fields["output_tokens"] or 0),
                model=str(fields.get("model") or ""),
            )
        else:
            said = next((fields[key] for key in ("msg", "message", "text") if key in fields), "")
            text = said if isinstance(said, str) else ""
            yield Progress(text=text, metadata={"event": type(event).__name__, "fields": fields})


def _fields(event: Any) -> dict[str, Any]:
    """The fields of an event as JSON."""
    declared = {name: getattr(event, name) for name in type(event).model_fields}
    out = {}
    for name, value in {**declared, **event.to_dict()}.items():
        if name.startswith("_"):
            continue
        try:
            out[name] = plain(value)
        except TypeError:
            out[name] = str(value)
    return out


def _question(id: str, event: Any) -> Question:
    fields = _fields(event)
    keys = ("prefix", "question", "prompt", "message", "msg")
    text = next((str(fields[key]).strip() for key in keys if fields.get(key)), "")
    return Question(id=id, text=text or type(event).__name__, details=fields)
