"""OpenAI Agents SDK: an `Agent`, with its tools and handoffs.

A tool that needs approval asks the caller. The state of a paused run (`RunState`) and the items of the conversation go to
the task's log. A run that the process did not survive continues after the last tools that answered, and after an answer of
the caller begins again with that answer.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextvars import ContextVar
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
from dragoman.adapters.remote_agent import Outcome, RemoteAgent
from dragoman.client.connection import ConnectOptions
from dragoman.model.content import Message, Part, plain
from dragoman.model.usage import TokenUsage

__all__ = ["agent_as_tool", "answer_to", "question_of"]


class OpenAIAgentsAdapter(Adapter):
    def default_input(self, message: Message) -> Any:
        return items_of(message)

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        _calls_of_run.set(OpenCalls())
        state = start.state or {}
        options = dict(start.options)
        agent, run_input = self._objects.first, await self._run_input(start, options)
        if isinstance(run_input, events.Paused):
            yield run_input
            return
        if not start.answers:
            agent = _find(agent, state.get("agent", "")) or agent
        result = Runner.run_streamed(agent, run_input, **options)
        stream = result.stream_events()
        converter, hold_text = _EventConverter(), _holds_text(agent, options)
        conversation = _Conversation(run_input, agent.name) if isinstance(run_input, list) else None
        try:
            async for event in stream:
                for each in converter.convert(event):
                    if not (hold_text and isinstance(each, events.Text)):
                        yield each
                if conversation is not None and conversation.add(event):
                    yield events.Saved(state=conversation.state())  # what tools did need not be done again
        except InputGuardrailTripwireTriggered as error:
            start.turn.reject(f"A guardrail refused the message: {_guardrail_name(error)}.")
        except OutputGuardrailTripwireTriggered as error:
            yield events.Finished(
                state=start.state, failed=f"A guardrail withheld the answer: {_guardrail_name(error)}."
            )
            return
        finally:
            if not result.is_complete:
                result.cancel()
            await stream.aclose()
        if result.interruptions:
            run_state = result.to_state().to_json()
            remote_questions = {
                _id(item): found
                for item in result.interruptions
                if (found := _open_calls().take(_id(item), asks=True)) is not None
            }
            questions = tuple(_question(item, remote_questions) for item in result.interruptions)
            new_state = {"run": run_state, "remote": remote_questions}
            yield events.Paused(questions=questions, state=new_state)
            return
        output = result.final_output
        new_state = {"items": plain(result.to_input_list()), "agent": result.last_agent.name}
        for each in self.finish(new_state, output, output, None if hold_text else converter.text):
            yield each

    async def _run_input(self, start: Start, options: dict[str, Any]) -> Any:
        """The input of a run: the conversation with the new message, or a paused run with its answers."""
        if start.message is not None:
            new = self._input(start.message)
            new = [{"role": "user", "content": new}] if isinstance(new, str) else list(new)
            return [*(start.state or {}).get("items", []), *new]
        if not start.answers:
            return start.state["items"]
        override = {"context_override": options.pop("context")} if "context" in options else {}
        run = await RunState.from_json(self._objects.first, start.state["run"], **override)
        decisions, remote_questions = dict(start.state.get("decided", {})), {}
        for item in run.get_interruptions():
            id = _id(item)
            if id not in decisions:
                answer = start.answers[id]
                if (remote_question := start.state["remote"].get(id)) is None:
                    decisions[id] = {"approved": bool(answer.value), "reason": answer.reason}
                elif (outcome := await _send_answer(start, item, remote_question, answer.text))["asks"]:
                    remote_questions[id] = outcome
                else:
                    decisions[id] = {"outcome": outcome}
        if remote_questions:  # an agent elsewhere has another question: the run still waits
            questions = tuple(
                _question(item, remote_questions)
                for item in run.get_interruptions()
                if _id(item) in remote_questions
            )
            return events.Paused(
                questions=questions, state={**start.state, "remote": remote_questions, "decided": decisions}
            )
        for item in run.get_interruptions():
            decision = decisions[_id(item)]
            if "outcome" in decision:
                _open_calls().put(_id(item), decision["outcome"])
                run.approve(item)
            elif decision["approved"]:
                run.approve(item)
            else:
                run.reject(item, rejection_message=decision["reason"] or None)
        return run


make_adapter = OpenAIAgentsAdapter


class _Conversation:
    """The conversation during a run: what the run began with, and what it added."""

    def __init__(self, begin: list[Any], agent: str) -> None:
        self._items, self._agent = list(begin), agent
        self._open: set[str] = set()
        """Calls of tools that have not answered."""
        self._new: list[Any] = []

    def add(self, event: Any) -> bool:
        """Add the item of an event. True if all tools of a response have answered."""
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


class _EventConverter:
    """Turns the events of the SDK into those of adapters."""

    def __init__(self) -> None:
        self.text = ""
        """What the model said last."""
        self._response = 0

    def convert(self, event: Any) -> Iterator[AnyEvent]:
        if event.type == "raw_response_event":
            yield from self._convert_raw(event.data)
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

    def _convert_raw(self, data: Any) -> Iterator[AnyEvent]:
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


def _reachable_agents(agent: Any) -> list[Any]:
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
    return next((each for each in _reachable_agents(agent) if each.name == name), None)


def _holds_text(agent: Any, options: Mapping[str, Any]) -> bool:
    """Whether text is sent only when the run has ended: a guardrail may refuse it until then, or it is the JSON of data."""
    config = options.get("run_config")
    return any(
        each.input_guardrails or each.output_guardrails or each.output_type not in (None, str)
        for each in _reachable_agents(agent)
    ) or bool(getattr(config, "input_guardrails", None) or getattr(config, "output_guardrails", None))


def _question(item: Any, remote_questions: dict[str, Outcome]) -> events.Question:
    if (found := remote_questions.get(_id(item))) is not None:
        return events.Question(id=_id(item), text=found["text"], details={"tool": item.tool_name})
    return ask_approval(_id(item), item.tool_name, read_json(_get(item.raw_item, "arguments")))


def _id(item: Any) -> str:
    return str(_get(item.raw_item, "call_id") or _get(item.raw_item, "id") or "")


def _get(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, dict) else getattr(raw, name, None)


def _is_json(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | dict | list | None)


def _guardrail_name(error: Any) -> str:
    return str(error.guardrail_result.guardrail.get_name())


# -- agents elsewhere as tools ----------------------------------------------------------------------------------------

MAX_OPEN_CALLS = 1000
"""Calls of agents elsewhere that are open outside of `wrap`. Of more, the oldest are forgotten: their runs have ended."""
_REMOTE = "dragoman_remote_agent"
"""The attribute of a tool that is an agent elsewhere."""
_PARAMETERS = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "what to tell the agent"}},
    "required": ["message"],
    "additionalProperties": False,
}


class OpenCalls:
    """What agents elsewhere said to tool calls that have not returned: questions, and what the tool is going to return."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        """By the id of the call, oldest first."""

    def has(self, call_id: str) -> bool:
        return call_id in self._outcomes

    def put(self, call_id: str, outcome: Outcome) -> None:
        self._outcomes.pop(call_id, None)
        self._outcomes[call_id] = outcome
        if len(self._outcomes) > MAX_OPEN_CALLS:
            del self._outcomes[next(iter(self._outcomes))]

    def question(self, call_id: str) -> Outcome | None:
        """The question that waits for an answer, if there is one."""
        outcome = self._outcomes.get(call_id)
        return outcome if outcome is not None and outcome["asks"] else None

    def take(self, call_id: str, *, asks: bool) -> Outcome | None:
        """Remove and return the outcome of a call: a question if `asks`, else one that needs no answer. None if there is none."""
        outcome = self._outcomes.get(call_id)
        return self._outcomes.pop(call_id) if outcome is not None and outcome["asks"] is asks else None


_calls_of_run: ContextVar[OpenCalls | None] = ContextVar("open_calls", default=None)
_calls_of_process = OpenCalls()
"""The open calls of all runs outside of `wrap`."""


def _open_calls() -> OpenCalls:
    return _calls_of_run.get() or _calls_of_process


def agent_as_tool(
    agent: Any, name: str = "", description: str = "", **options: Unpack[ConnectOptions]
) -> FunctionTool:
    """An agent elsewhere as a tool. If it asks, the run is interrupted as if the tool needed approval; `answer_to` gives the
    answer. `options` are those of `connect`.

    The SDK pauses before a tool runs and not after, so the message is sent when the SDK asks whether the call needs approval.
    """
    remote = RemoteAgent(agent, name, description, **options)

    async def needs_approval(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        calls = _open_calls()
        if not calls.has(call_id):
            calls.put(call_id, await remote.send(str(arguments.get("message", "")), call=call_id))
        return calls.question(call_id) is not None

    async def call(context: Any, arguments: str) -> str:
        outcome = _open_calls().take(context.tool_call_id, asks=False)
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


def question_of(item: Any) -> str:
    """The question of the agent elsewhere whose call was interrupted; empty if it is another tool's call."""
    outcome = _open_calls().question(_id(item))
    return outcome["text"] if outcome is not None else ""


async def answer_to(state: Any, item: Any, answer: str) -> str:
    """Send the answer to an agent elsewhere which asked. Returns its next question; empty if there is none: then the call is
    approved, and `state`, the `RunState`, can run."""
    calls, id = _open_calls(), _id(item)
    if (asked := calls.question(id)) is None:
        raise LookupError(f"no agent has an open question for the call {id!r}")
    outcome = await _remote_of(item).send(answer, task=asked["task"])
    calls.put(id, outcome)
    if outcome["asks"]:
        return outcome["text"]
    state.approve(item)
    return ""


async def _send_answer(start: Start, item: Any, asked: Outcome, answer: str) -> Outcome:
    """Send an answer once, also if the run begins again."""
    key = start.tools.begin_call(f"answer {_id(item)}", answer)
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
