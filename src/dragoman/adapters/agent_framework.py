"""Microsoft Agent Framework: an `Agent`, or a workflow as one (`workflow.as_agent()`).

The session goes to the task's log. A tool with `approval_mode="always_require"` asks the caller. A run that the process did
not survive is run again from its last pause.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

from agent_framework import AgentSession, Content, FunctionMiddleware
from agent_framework import Message as ChatMessage

from dragoman.adapters.adapter import (
    AnyEvent,
    Data,
    Finished,
    Paused,
    Question,
    Start,
    Text,
    ToolCall,
    ToolResult,
    ToolResults,
    Usage,
)
from dragoman.model.content import Message
from dragoman.model.values import plain


def make_adapter(
    obj: Any, input: Callable[[Any], Any] | None, output: Callable[[Any], Any] | None
) -> AgentFrameworkAdapter:
    if not callable(getattr(obj, "create_session", None)):
        raise TypeError(f"{type(obj).__name__} is no agent; of a workflow, wrap workflow.as_agent()")
    return AgentFrameworkAdapter(obj, input or chat_message_of, output)


class AgentFrameworkAdapter:
    def __init__(self, agent: Any, input: Callable[[Any], Any], output: Callable[[Any], Any] | None) -> None:
        self._agent, self._input, self._output = agent, input, output

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        if "session" in state:
            session = AgentSession.from_dict(state["session"])
        else:
            session = self._agent.create_session(session_id=start.turn.context_id)
        if start.message is not None:
            given = self._input(start.message)
        else:
            requests = [Content.from_dict(each) for each in state["requests"]]
            answers = [
                each.to_function_approval_response(bool(start.answers[each.id].value)) for each in requests
            ]
            given = ChatMessage("user", answers)
        seen = _Seen()
        options = dict(start.options)
        if "middleware" in inspect.signature(self._agent.run).parameters:
            options["middleware"] = [*(options.get("middleware") or ()), _Once(start.tools)]
        stream = self._agent.run(given, stream=True, session=session, **options)
        try:
            async for update in stream:
                for event in seen.update(update):
                    yield event
            response = await stream.get_final_response()
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        if used := response.usage_details:
            yield Usage(
                input_tokens=used.get("input_token_count") or 0,
                output_tokens=used.get("output_token_count") or 0,
                calls=seen.requests,
                model=str(getattr(response, "model", None) or ""),
            )
        kept: dict[str, Any] = {"session": session.to_dict()}
        if response.user_input_requests:
            kept["requests"] = [each.to_dict() for each in response.user_input_requests]
            yield Paused(questions=tuple(map(_question, response.user_input_requests)), state=kept)
            return
        if self._output is not None:
            found = self._output(response)
            yield Text(text=found, message="output") if isinstance(found, str) else Data(value=plain(found))
        elif getattr(response, "value", None) is not None:
            yield Data(value=plain(response.value))
        yield Finished(state=kept)


class _Once(FunctionMiddleware):  # type: ignore[misc]
    """Records what tools returned."""

    def __init__(self, results: ToolResults) -> None:
        self._results = results

    async def process(self, context: Any, call_next: Callable[[], Awaitable[None]]) -> None:
        key = self._results.begin(context.function.name, context.arguments)
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


class _Seen:
    """Turns the updates of a run into events."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, str]] = {}
        """Calls that came in pieces, and are not sent yet: name and arguments."""
        self._message = 0
        self.requests = 0

    def update(self, update: Any) -> Iterator[AnyEvent]:
        for content in update.contents:
            kind = content.type
            if kind != "function_call" and kind != "usage":
                yield from self._send_calls()
            if kind == "text" and content.text:
                yield Text(text=content.text, message=f"message-{self._message}")
            elif kind == "function_call":
                name, arguments = self._calls.get(content.call_id, ("", ""))
                given = content.arguments
                given = given if isinstance(given, str) else json.dumps(given) if given is not None else ""
                self._calls[content.call_id] = (name or content.name or "", arguments + given)
            elif kind == "function_result":
                self._message += 1
                yield ToolResult(
                    id=content.call_id,
                    result=content.result if isinstance(content.result, str) else str(content.result),
                    failed=bool(content.exception),
                )
            elif kind == "usage":  # each is the sum of all up to it
                self.requests += 1

    def _send_calls(self) -> Iterator[AnyEvent]:
        for id, (name, arguments) in self._calls.items():
            yield ToolCall(id=id, name=name, arguments=_parse(arguments))
        self._calls = {}


def chat_message_of(message: Message) -> Any:
    contents: list[Any] = []
    for part in message.parts:
        media_type = part.media_type or "application/octet-stream"
        if part.text is not None:
            contents.append(Content.from_text(part.text))
        elif part.raw is not None:
            contents.append(Content.from_data(part.raw, media_type))
        elif part.url is not None:
            contents.append(Content.from_uri(part.url, media_type=media_type))
        else:
            contents.append(Content.from_text(json.dumps(part.data, ensure_ascii=False)))
    return ChatMessage("user", contents)


def _question(request: Any) -> Question:
    call = request.function_call
    arguments = _parse(call.arguments) if isinstance(call.arguments, str) else call.arguments or {}
    given = arguments
    if isinstance(arguments, dict):
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return Question(
        id=request.id,
        text=f"Allow {call.name}({given})?",
        approval=True,
        details={"tool": call.name, "arguments": arguments},
    )


def _parse(arguments: str) -> Any:
    try:
        return json.loads(arguments) if arguments else {}
    except ValueError:
        return arguments
