"""CrewAI: a `Flow`, or a `Crew`.

A method of a flow with `@human_feedback` asks the caller, and so does `Flow.ask`. The state of a flow, and what it needs to
continue after a question, go to the task's log: a flow has no other persistence here. Each run has a flow or a crew of its
own. A run that the process did not survive begins again at the message or at the last answer, and tools that have answered
do not run again.

The asynchronous methods are cancelled. Methods and tools that are not coroutines run in threads: they end at their next call
of a model or of a tool, or at the next piece of text of a model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any

from crewai import Flow
from crewai.crews.utils import enable_agent_streaming
from crewai.events.stream_context import add_stream_sink
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMStreamChunkEvent
from crewai.events.types.tool_usage_events import (
    ToolUsageErrorEvent,
    ToolUsageFinishedEvent,
    ToolUsageStartedEvent,
)
from crewai.flow.async_feedback import HumanFeedbackPending, PendingFeedbackContext
from crewai.flow.flow_config import flow_config
from crewai.flow.human_feedback import HumanFeedbackResult
from crewai.flow.persistence.base import FlowPersistence
from crewai.hooks.dispatch import HookAborted, InterceptionPoint, scoped_hooks
from crewai.types.usage_metrics import UsageMetrics
from crewai_core.printer import set_suppress_console_output
from pydantic import BaseModel, PrivateAttr

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Convert, Instances, Start, ToolResults, read_json
from dragoman.adapters.events import AnyEvent
from dragoman.errors import InvalidParams
from dragoman.model.content import Message, plain
from dragoman.model.usage import TokenUsage

_TEXTS = ("message", "input", "question", "query", "prompt", "request", "text", "topic")
"""Names of the field that takes the text of a message, if there are several."""
_CONVERSATION = "conversation"
"""The placeholder of a crew that takes the earlier messages."""
_ASK = "ask"
_FEEDBACK = "feedback"


def make_adapter(objects: Instances, input: Convert, output: Convert) -> Adapter:
    if isinstance(objects.first, Flow):
        if flow_config.hitl_provider is None:
            flow_config.hitl_provider = _CallerProvider()
        if flow_config.input_provider is None:
            flow_config.input_provider = _CallerProvider()
        return FlowAdapter(objects, input, output)
    return CrewAdapter(objects, input, output)


class FlowAdapter(Adapter):
    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        state = start.state or {}
        persistence = _LogPersistence()
        persistence.set(state)
        answers = list(state.get("answered", ()))
        if _ASK in start.answers:
            answers.append([state["asked"], start.answers[_ASK].text])
            start.tools.replay_from(state["tools"])
        run_start: dict[str, Any] = {"tools": start.tools.scope}
        work: Callable[[], Awaitable[Any]]
        if start.message is None and "pending" in state:
            run_start["feedback"] = feedback = (
                start.answers[_FEEDBACK].text if _FEEDBACK in start.answers else state["feedback"]
            )
            flow = self._resumed_flow(state, persistence)
            work = partial(flow.resume_async, feedback)
        else:
            run_input = state["inputs"] if start.message is None else self._input(start.message)
            run_start["inputs"] = run_input
            flow = self._new_flow(persistence)
            inputs = {**run_input, "id": state["id"]} if "id" in state else run_input
            work = partial(flow.akickoff, inputs=inputs, **start.options)
        run = _Run(start.tools, work, answers)
        async for event in run.events():
            yield event
        if run.question is not None:  # the run begins again with the answer
            new_state = {**state, **run_start, "asked": run.question, "answered": answers}
            yield events.Paused(questions=(events.Question(id=_ASK, text=run.question),), state=new_state)
            return
        new_state = {"id": flow.flow_id, "state": _state_of(flow)}
        result = run.result
        if isinstance(result, HumanFeedbackPending):
            context = result.context.to_dict()
            history = [_feedback_as_json(each) for each in flow.human_feedback_history]
            yield events.Paused(
                questions=(_question(result.context),),
                state={**new_state, "pending": context, "history": history},
            )
            return
        for event in self.finish(new_state, result, _content_of(result), run.text):
            yield event

    def _new_flow(self, persistence: Any) -> Any:
        """A flow for one run."""
        if self._objects.make is not None:
            flow = self._objects.make()
            flow.persistence = persistence
            flow._instance_persistence = True
            return flow
        return self._copied_flow(persistence)

    def _copied_flow(self, persistence: Any) -> Any:
        """A flow like the one that was wrapped."""
        first = self._objects.first
        fields = {name: getattr(first, name) for name in first.model_fields_set if name != "persistence"}
        if type(first) is Flow:  # made of a declaration
            return Flow.from_declaration(contents=first._definition, persistence=persistence, **fields)
        return type(first)(persistence=persistence, **fields)

    def _resumed_flow(self, state: dict[str, Any], persistence: Any) -> Any:
        """A flow that waits for feedback."""
        first = self._objects.first
        if self._objects.make is not None:
            flow = self._new_flow(persistence)
            flow._initialize_state(state["state"])
            flow._pending_feedback_context = PendingFeedbackContext.from_dict(state["pending"])
            flow._is_execution_resuming = True
            flow._flow_match_id = flow.flow_id
        else:
            fields = {name: getattr(first, name) for name in first.model_fields_set if name != "persistence"}
            more = {"definition": first._definition} if type(first) is Flow else {}
            flow = type(first).from_pending(state["id"], persistence, **more, **fields)
        context = flow.pending_feedback
        feedback_config = flow._definition.methods[context.method_name].human_feedback
        if feedback_config is not None and feedback_config.llm is not None:
            context.llm = feedback_config.llm  # the model itself, not what could be stored of it
        flow.human_feedback_history = [_feedback_of(each) for each in state.get("history", ())]
        return flow

    def default_input(self, message: Message) -> dict[str, Any]:
        """What a flow starts with: the data of a message, or its text as a field of the state."""
        if isinstance(message.data, dict):
            return message.data
        known = self._objects.first.state
        if not isinstance(known, BaseModel):
            return {"message": message.text}
        fields = {name: field for name, field in type(known).model_fields.items() if name != "id"}
        return {_field_for_text([name for name, f in fields.items() if f.annotation is str]): message.text}


class CrewAdapter(Adapter):
    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        super().__init__(objects, input, output)
        for task in objects.first.tasks:
            if task.human_input:
                raise TypeError(
                    "a task with human_input=True asks on the console: put the crew into a Flow, and the question into a"
                    " method with @human_feedback"
                )

    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        crews = self._objects
        crew = crews.make() if crews.make is not None else crews.first.copy()
        crew.stream = False
        enable_agent_streaming(crew.agents)
        inputs = self._input(start.turn.message)
        if _CONVERSATION in crews.first.fetch_inputs() and self._input == self.default_input:
            messages = await start.turn.conversation()
            lines = [f"{'User' if each.by_user else 'Agent'}: {each.text}" for each in messages[:-1]]
            inputs = {_CONVERSATION: "\n".join(lines) or "(nothing was said before)", **inputs}
        run = _Run(start.tools, partial(crew.akickoff, inputs=inputs, **start.options))
        async for event in run.events():
            yield event
        for event in self.finish(None, run.result, _content_of(run.result), run.text):
            yield event

    def default_input(self, message: Message) -> dict[str, Any]:
        """The placeholders of the crew: from the data of a message, or one of them from its text."""
        if isinstance(message.data, dict):
            return message.data
        placeholders = sorted(self._objects.first.fetch_inputs() - {_CONVERSATION})
        return {_field_for_text(placeholders) if placeholders else "message": message.text}


def _field_for_text(names: list[str]) -> str:
    """Which of several fields of text takes the text of a message."""
    if len(names) == 1:
        return names[0]
    found = next((name for name in _TEXTS if name in names), None)
    if found is None:
        raise InvalidParams(f"send data with {', '.join(names) or 'the fields of the state'}")
    return found


class _QuestionAsked(BaseException):
    """`Flow.ask` has a question. Not an `Exception`: CrewAI takes those for a provider that has no answer."""


class _RunStopped(BaseException):
    """The run is over, and a thread of it goes on."""


_runs: ContextVar[_Run] = ContextVar("crewai_run")


class _Run:
    """One run of a flow or a crew: its events, and its result."""

    def __init__(
        self, tools: ToolResults, work: Callable[[], Awaitable[Any]], answers: list[list[str]] | None = None
    ) -> None:
        self._tools, self._work = tools, work
        self._answers = list(answers or ())
        self.result: Any = None
        self.question: str | None = None
        self.text = ""
        """What the model said last."""
        self._message = ""
        self._calls: dict[str, str] = {}
        self._stopped = False
        self._call_keys: dict[int, str] = {}

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()

        def sink(source: Any, event: Any) -> None:
            if self._stopped:
                raise _RunStopped
            if isinstance(event, _SHOWN_EVENTS):
                loop.call_soon_threadsafe(queue.put_nowait, event)

        async def work() -> Any:
            set_suppress_console_output(True)  # CrewAI prints what happens
            add_stream_sink(sink)
            _runs.set(self)
            hooks = {
                InterceptionPoint.PRE_MODEL_CALL: [self._before_model],
                InterceptionPoint.PRE_TOOL_CALL: [self._before_tool],
                InterceptionPoint.POST_TOOL_CALL: [self._after_tool],
            }
            with scoped_hooks(hooks):
                try:
                    return await self._work()
                except _QuestionAsked as question:
                    self.question = str(question)
                finally:
                    loop.call_soon(queue.put_nowait, None)

        working = asyncio.create_task(work())
        try:
            while (event := await queue.get()) is not None:
                for each in self._convert(event):
                    yield each
            self.result = await working
            while not queue.empty():  # of threads, after the end
                for each in self._convert(queue.get_nowait()):
                    yield each
        finally:
            self._stopped = True
            if not working.done():
                working.cancel()
                await asyncio.wait([working])

    def _convert(self, event: Any) -> Iterator[AnyEvent]:
        if isinstance(event, LLMStreamChunkEvent):
            if event.chunk and event.tool_call is None:
                self.text = event.chunk if event.call_id != self._message else self.text + event.chunk
                self._message = event.call_id
                yield events.Text(text=event.chunk, message=event.call_id)
        elif isinstance(event, LLMCallCompletedEvent):
            used = UsageMetrics.from_provider_dict(event.usage) or UsageMetrics()
            yield TokenUsage(
                input_tokens=used.prompt_tokens,
                output_tokens=used.completion_tokens,
                cached_tokens=used.cached_prompt_tokens,
                reasoning_tokens=used.reasoning_tokens,
                model=event.model or "",
            )
        elif isinstance(event, ToolUsageStartedEvent):
            id = self._calls[event.event_id] = f"{event.tool_name}-{len(self._calls) + 1}"
            yield events.ToolCall(id=id, name=event.tool_name, arguments=read_json(event.tool_args))
        else:
            id = self._calls.get(event.started_event_id or "", event.tool_name)
            failed = isinstance(event, ToolUsageErrorEvent) or event.failure is not None
            result = str(event.error if isinstance(event, ToolUsageErrorEvent) else event.output)
            yield events.ToolResult(id=id, name=event.tool_name, result=result, failed=failed)

    def _before_model(self, context: Any) -> None:
        if self._stopped:
            raise _RunStopped

    def _before_tool(self, context: Any) -> None:
        """Called before a tool runs. Raises if its result is recorded: `_after_tool` returns it."""
        if self._stopped:
            raise _RunStopped
        key = self._tools.begin_call(context.tool_name, context.tool_input)
        self._call_keys[id(context.tool_input)] = key
        if self._tools.has(key):
            raise HookAborted("the result of this call is recorded")

    def _after_tool(self, context: Any) -> str | None:
        key = self._call_keys.pop(id(context.tool_input), None)
        if key is None:
            return None
        if self._tools.has(key):
            return str(self._tools.get(key))
        self._tools.put_from_thread(key, str(context.tool_result))
        return None

    def answer(self, message: str) -> str:
        """The answer to a question of `Flow.ask`, if it is known."""
        for n, (question, answer) in enumerate(self._answers):
            if question == message:
                del self._answers[n]
                return answer
        raise _QuestionAsked(message)


_SHOWN_EVENTS = (
    LLMStreamChunkEvent,
    LLMCallCompletedEvent,
    ToolUsageStartedEvent,
    ToolUsageFinishedEvent,
    ToolUsageErrorEvent,
)


# -- questions and state -------------------------------------------------------------------------------------------


class _CallerProvider:
    """Asks the caller where CrewAI would ask on the console."""

    def request_feedback(self, context: Any, flow: Any) -> str:
        raise HumanFeedbackPending(context)

    def request_input(self, message: str, flow: Any, metadata: dict[str, Any] | None = None) -> str:
        return _runs.get().answer(message)


class _LogPersistence(FlowPersistence):  # type: ignore[misc]
    """The stored state of a flow, for one run. The adapter reads it from the log and writes it there."""

    persistence_type: str = "dragoman"
    _saved: dict[str, Any] = PrivateAttr(default_factory=dict)

    def set(self, saved: dict[str, Any]) -> None:
        self._saved = saved

    def init_db(self) -> None:
        pass

    def save_state(self, flow_uuid: str, method_name: str, state_data: Any) -> None:
        pass

    def load_state(self, flow_uuid: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._saved.get("state")
        return found

    def save_pending_feedback(self, flow_uuid: str, context: Any, state_data: Any) -> None:
        pass

    def load_pending_feedback(self, flow_uuid: str) -> tuple[dict[str, Any], Any] | None:
        return self._saved["state"], PendingFeedbackContext.from_dict(self._saved["pending"])

    def clear_pending_feedback(self, flow_uuid: str) -> None:
        pass


def _state_of(flow: Any) -> Any:
    return plain(flow._copy_and_serialize_state())


def _question(context: Any) -> events.Question:
    """What a method with `@human_feedback` asks: its message, and what the method returned."""
    output = context.method_output
    text = context.message
    if isinstance(output, str) and output:
        text = f"{text}\n\n{output}"
    details: dict[str, Any] = {"method": context.method_name, "output": context._make_json_safe(output)}
    if context.emit:
        details["outcomes"] = list(context.emit)
    return events.Question(id=_FEEDBACK, text=text, details=details)


def _feedback_as_json(result: Any) -> dict[str, Any]:
    safe = PendingFeedbackContext._make_json_safe
    return {
        "output": safe(result.output),
        "feedback": result.feedback,
        "outcome": result.outcome,
        "timestamp": result.timestamp.isoformat(),
        "method_name": str(result.method_name),
        "metadata": safe(result.metadata),
    }


def _feedback_of(saved: dict[str, Any]) -> Any:
    return HumanFeedbackResult(**{**saved, "timestamp": datetime.fromisoformat(saved["timestamp"])})


def _content_of(result: Any) -> Any:
    """The answer in a result."""
    if isinstance(result, HumanFeedbackResult):
        return result.output
    if hasattr(result, "raw"):  # of a crew, or of an agent
        structured = getattr(result, "pydantic", None) or getattr(result, "json_dict", None)
        return structured if structured is not None else result.raw
    return result
