"""OpenAI Agents SDK: an `Agent`, with its tools and handoffs.

A tool that needs approval asks the caller. The state of a paused run (`RunState`) and the items of the conversation go to
the task's log. A run that the process did not survive continues after the last tools that answered, and after an answer of
the caller begins again with that answer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Unpack

from agents import (
    Agent,
    FunctionTool,
    InputGuardrailTripwireTriggered,
    ItemHelpers,
    OutputGuardrailTripwireTriggered,
    Runner,
    RunState,
)

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Start, ask_approval, convert_parts, read_json
from dragoman.adapters.events import AnyEvent
from dragoman.adapters.remote_agent import Outcome, RemoteAgent, run_scope
from dragoman.client.connection import ConnectOptions
from dragoman.model.content import Message, Part, plain
from dragoman.model.usage import TokenUsage

__all__ = ["agent_as_tool", "answer_to", "question_of"]


class OpenAIAgentsAdapter(Adapter):
    def default_input(self, message: Message) -> Any:
        return items_of(message)

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        options = dict(start.options)
        agent, given = self._objects.first, await self._given(start, options)
        if isinstance(given, events.Paused):
            yield given
            return
        if not start.answers:
            agent = _find(agent, state.get("agent", "")) or agent
        result = Runner.run_streamed(agent, given, **options)
        stream = result.stream_events()
        seen, holds = _Seen(), _holds_text(agent, options)
        items = _Items(given, agent.name) if isinstance(given, list) else None
        try:
            async for event in stream:
                for each in seen.event(event):
                    if not (holds and isinstance(each, events.Text)):
                        yield each
                if items is not None and items.add(event):  # what tools did need not be done again
                    yield events.Saved(state=items.state())
        except InputGuardrailTripwireTriggered as error:
            start.turn.reject(f"A guardrail refused the message: {_name(error)}.")
        except OutputGuardrailTripwireTriggered as error:
            yield events.Finished(
                state=start.state, failed=f"A guardrail withheld the answer: {_name(error)}."
            )
            return
        finally:
            if not result.is_complete:
                result.cancel()
            await stream.aclose()
        if result.interruptions:
            paused = result.to_state().to_json()
            asked = {
                _id(item): found
                for item in result.interruptions
                if (found := _asked.pop(_of_run(_id(item)), None)) is not None
            }
            questions = tuple(_question(item, asked) for item in result.interruptions)
            kept = {"run": paused, "remote": asked}
            yield events.Paused(questions=questions, state=kept)
            return
        output = result.final_output
        for each in self.answer(output, output, None if holds else seen.text):
            yield each
        yield events.Finished(state={"items": plain(result.to_input_list()), "agent": result.last_agent.name})

    async def _given(self, start: Start, options: dict[str, Any]) -> Any:
        """The input of a run: the conversation with the new message, or a paused run with its answers."""
        if start.message is not None:
            new = self._input(start.message)
            new = [{"role": "user", "content": new}] if isinstance(new, str) else list(new)
            return [*(start.state or {}).get("items", []), *new]
        if not start.answers:
            return start.state["items"]
        override = {"context_override": options.pop("context")} if "context" in options else {}
        run = await RunState.from_json(self._objects.first, start.state["run"], **override)
        decided, asked = dict(start.state.get("decided", {})), {}
        for item in run.get_interruptions():
            id = _id(item)
            if id not in decided:
                answer = start.answers[id]
                if (before := start.state["remote"].get(id)) is None:
                    decided[id] = {"approved": bool(answer.value), "reason": answer.reason}
                elif (outcome := await _send_answer(start, item, before, answer.text))["asks"]:
                    asked[id] = outcome
                else:
                    decided[id] = {"outcome": outcome}
        if asked:  # an agent elsewhere has another question: the run waits on
            questions = tuple(
                _question(item, asked) for item in run.get_interruptions() if _id(item) in asked
            )
            return events.Paused(
                questions=questions, state={**start.state, "remote": asked, "decided": decided}
            )
        for item in run.get_interruptions():
            decision = decided[_id(item)]
            if "outcome" in decision:
                _outcomes[_of_run(_id(item))] = decision["outcome"]
                run.approve(item)
            elif decision["approved"]:
                run.approve(item)
            else:
                run.reject(item, rejection_message=decision["reason"] or None)
        return run


make_adapter = OpenAIAgentsAdapter


class _Items:
    """The conversation as a run goes on: what the run began with, and what it added."""

    def __init__(self, begin: list[Any], agent: str) -> None:
        self._items, self._agent = list(begin), agent
        self._open: set[str] = set()
        """Calls of tools that have not answered."""
        self._new: list[Any] = []

    def add(self, event: Any) -> bool:
        """Add what an event tells. True if all tools of a response have answered."""
        if event.type == "agent_updated_stream_event":
            self._agent = event.new_agent.name
        if event.type != "run_item_stream_event":
            return False
        self._new.append(event.item.to_input_item())
        if event.name == "tool_called":
            self._open.add(event.item.call_id or "")
        elif event.name == "tool_output":
            self._open.discard(_get(event.item.raw_item, "call_id") or "")
            if not self._open:
                self._items += self._new
                self._new = []
                return True
        return False

    def state(self) -> Any:
        return {"items": plain(self._items), "agent": self._agent}


class _Seen:
    """Turns the events of a run into ours."""

    def __init__(self) -> None:
        self.text = ""
        """What the model said last."""
        self._response = 0

    def event(self, event: Any) -> Iterator[AnyEvent]:
        if event.type == "raw_response_event":
            yield from self._raw(event.data)
        elif event.type == "agent_updated_stream_event":
            if self._response:
                yield events.Progress(
                    text=f"Handing over to {event.new_agent.name}", metadata={"agent": event.new_agent.name}
                )
        elif event.name == "tool_called":
            raw = event.item.raw_item
            yield events.ToolCall(
                id=event.item.call_id or "",
                name=event.item.tool_name or _get(raw, "type") or "tool",
                arguments=read_json(_get(raw, "arguments")),
            )
        elif event.name == "tool_output":
            raw = event.item.raw_item
            output = event.item.output
            yield events.ToolResult(
                id=_get(raw, "call_id") or "", result=output if _is_json(output) else str(output)
            )
        elif event.name == "message_output_created":
            text = ItemHelpers.text_message_output(event.item)
            if text and text != self.text:  # a model that does not stream
                self.text = text
                yield events.Text(text=text, message=f"response-{self._response}/whole")

    def _raw(self, data: Any) -> Iterator[AnyEvent]:
        if data.type == "response.output_text.delta":
            message = f"response-{self._response + 1}"
            yield events.Text(text=data.delta, message=message)
            self.text = data.delta if self._message != message else self.text + data.delta
            self._message = message
        elif data.type == "response.completed":
            self._response += 1
            used = data.response.usage
            yield TokenUsage(
                input_tokens=used.input_tokens if used else 0,
                output_tokens=used.output_tokens if used else 0,
                cached_tokens=used.input_tokens_details.cached_tokens or 0 if used else 0,
                reasoning_tokens=used.output_tokens_details.reasoning_tokens or 0 if used else 0,
                model=str(data.response.model or ""),
            )

    _message = ""


def items_of(message: Message) -> Any:
    """A message as input: text, or an item with its files."""

    def file(part: Part, media_type: str) -> Any:
        url = part.url or f"data:{media_type};base64,{base64.b64encode(part.raw or b'').decode()}"
        if media_type.startswith("image/"):
            return {"type": "input_image", "image_url": url, "detail": "auto"}
        if part.url is not None:
            return {"type": "input_file", "file_url": url}
        return {"type": "input_file", "file_data": url, "filename": part.filename or "file"}

    content = convert_parts(message, lambda text: {"type": "input_text", "text": text}, file, file)
    if all(each["type"] == "input_text" for each in content):
        return "\n".join(each["text"] for each in content)
    return [{"role": "user", "content": content}]


def _team(agent: Any) -> list[Any]:
    """The agent, and all that it may hand over to."""
    found: list[Any] = []
    waiting = [agent]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.append(each)
            waiting += [other for other in each.handoffs if isinstance(other, Agent)]
    return found


def _find(agent: Any, name: str) -> Any:
    """The agent with this name among those that `agent` may hand over to."""
    return next((each for each in _team(agent) if each.name == name), None)


def _holds_text(agent: Any, options: Mapping[str, Any]) -> bool:
    """Whether text is sent only when the run has ended: a guardrail may refuse it until then, or it is the JSON of data."""
    config = options.get("run_config")
    return any(
        each.input_guardrails or each.output_guardrails or each.output_type not in (None, str)
        for each in _team(agent)
    ) or bool(getattr(config, "input_guardrails", None) or getattr(config, "output_guardrails", None))


def _question(item: Any, asked: dict[str, Outcome]) -> events.Question:
    if (found := asked.get(_id(item))) is not None:
        return events.Question(id=_id(item), text=found["text"], details={"tool": item.tool_name})
    return ask_approval(_id(item), item.tool_name, read_json(_get(item.raw_item, "arguments")))


def _id(item: Any) -> str:
    return str(_get(item.raw_item, "call_id") or _get(item.raw_item, "id") or "")


def _get(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | dict | list | None)


def _name(error: Any) -> str:
    return str(error.guardrail_result.guardrail.get_name())


# -- agents elsewhere as tools ----------------------------------------------------------------------------------------

_asked: dict[str, Outcome] = {}
"""Questions of agents elsewhere, by the tool call that waits for the answer (`_of_run`)."""
_REMOTE = "dragoman_remote_agent"
"""The attribute of a tool that is an agent elsewhere."""
_outcomes: dict[str, Outcome] = {}
"""What agents elsewhere said to calls that need no answer, until the tool returns it."""
_PARAMETERS = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "what to tell the agent"}},
    "required": ["message"],
    "additionalProperties": False,
}


def agent_as_tool(
    agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
) -> FunctionTool:
    """An agent elsewhere as a tool. If it asks, the run is interrupted as if the tool needed approval; `answer_to` gives the
    answer. `options` are those of `connect`.

    The SDK pauses before a tool runs and not after, so the message is sent when the SDK asks whether the call needs approval.
    """
    remote = RemoteAgent(agent, name, description, **options)

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        key = _of_run(call_id)
        if key not in _asked and key not in _outcomes:
            outcome = await remote.send(str(arguments.get("message", "")), call=call_id)
            (_asked if outcome["asks"] else _outcomes)[key] = outcome
        return key in _asked

    async def call(context: Any, arguments: str) -> str:
        outcome = _outcomes.pop(_of_run(context.tool_call_id), None)
        if outcome is None:
            outcome = await remote.send(str(json.loads(arguments)["message"]), call=context.tool_call_id)
        return f"{remote.name} asks: {outcome['text']}" if outcome["asks"] else outcome["text"]

    tool = FunctionTool(
        name=remote.name,
        description=remote.description,
        params_json_schema=_PARAMETERS,
        on_invoke_tool=call,
        needs_approval=needs_approval,
    )
    setattr(tool, _REMOTE, remote)
    return tool


def _of_run(call_id: str) -> str:
    """A tool call of this run: other runs may have calls with the same id."""
    return f"{run_scope.get()}/{call_id}"


def question_of(item: Any) -> str:
    """What the agent elsewhere asks whose call was interrupted; empty if it is no such call."""
    asked = _asked.get(_of_run(_id(item)))
    return asked["text"] if asked is not None else ""


async def answer_to(state: Any, item: Any, answer: str) -> str:
    """Send the answer to an agent elsewhere which asked. Returns its next question; empty if there is none: then the call is
    approved, and `state`, the `RunState`, can run."""
    key = _of_run(_id(item))
    outcome = await _remote_of(item).send(answer, task=_asked[key]["task"])
    if outcome["asks"]:
        _asked[key] = outcome
        return outcome["text"]
    del _asked[key]
    _outcomes[key] = outcome
    state.approve(item)
    return ""


async def _send_answer(start: Start, item: Any, asked: Outcome, answer: str) -> Outcome:
    """Send an answer once, also if the run begins again."""
    key = start.tools.begin(f"answer {_id(item)}", answer)
    if start.tools.has(key):
        found: Outcome = start.tools.get(key)
        return found
    outcome = await _remote_of(item).send(answer, task=asked["task"], call=key)
    await start.tools.put(key, outcome)
    return outcome


def _remote_of(item: Any) -> RemoteAgent:
    """The agent elsewhere whose tool was called."""
    tools = [tool for tool in item.agent.tools if tool.name == item.tool_name and hasattr(tool, _REMOTE)]
    found: RemoteAgent = getattr(tools[0], _REMOTE)
    return found
