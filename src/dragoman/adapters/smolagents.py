"""smolagents: a `ToolCallingAgent` or a `CodeAgent`, or a function that makes one.

A run is a thread. The tool `ask` asks the caller: the thread ends, the memory of the agent goes to the task's log, and the
run goes on with the answer in another thread or process. The step that asked is done again with what the model had said; its
tools that have answered do not run again. An agent does one thing at a time, so tasks wait for each other unless `wrap` has a
function that makes agents.

Cancel ends the thread at the next piece of text of the model, or at the next step. Python cannot stop a thread that waits
for a response.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import io
import json
import re
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing, suppress
from contextvars import ContextVar, copy_context
from typing import Any

from PIL import Image
from smolagents import utils
from smolagents.agents import ToolOutput
from smolagents.memory import ActionStep, FinalAnswerStep, PlanningStep, TaskStep
from smolagents.memory import ToolCall as AgentToolCall
from smolagents.models import ChatMessage, ChatMessageStreamDelta
from smolagents.monitoring import LogLevel, Timing
from smolagents.monitoring import TokenUsage as StepUsage
from smolagents.tools import Tool

from dragoman.adapters import events
from dragoman.adapters.adapter import Adapter, Start, ToolResults, as_json
from dragoman.adapters.events import AnyEvent
from dragoman.errors import InvalidParams
from dragoman.model.content import Message, plain
from dragoman.model.usage import TokenUsage

__all__ = ["ask"]

_FINAL = "final_answer"
_CODE = "python_interpreter"
"""The tool that a CodeAgent runs its code with."""


class _QuestionAsked(BaseException):
    """A tool asks the caller. Not an `Exception`: smolagents shows those to the model."""


class _RunStopped(BaseException):
    """The run is over, and its thread still runs."""


_runs: ContextVar[_Run | None] = ContextVar("smolagents_run", default=None)


class Ask(Tool):  # type: ignore[misc]
    """Asks the caller of the agent. Give it to the agent as a tool, or call it in a tool of your own: `ask("Pay 300 EUR?")`."""

    name = "ask"
    description = "Asks the user a question, and returns the answer."
    inputs = {"question": {"type": "string", "description": "what to ask"}}
    output_type = "string"

    def forward(self, question: str) -> str:
        run = _runs.get()
        if run is None:
            raise RuntimeError("ask works in an agent that dragoman.wrap serves")
        return run.answer(question)


ask = Ask()


class SmolagentsAdapter(Adapter):
    async def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        async with self._objects.acquire() as agent:
            run = _Run(agent, start, None if start.message is None else self._input(start.message))
            async for event in run.events():
                yield event
        if run.questions:
            questions = tuple(
                events.Question(id=f"ask-{n}", text=text) for n, text in enumerate(run.questions, 1)
            )
            yield events.Paused(questions=questions, state=run.paused_state)
            return
        for event in self.finish(run.state(), run.output, run.output, run.text):
            yield event

    def default_input(self, message: Message) -> Any:
        return task_of(message)


make_adapter = SmolagentsAdapter


class _Run:
    """One run of an agent, in a thread."""

    def __init__(self, agent: Any, start: Start, run_input: Any) -> None:
        """`run_input`: the task, or arguments of `agent.run`. None if the run continues."""
        self._agent, self._start = agent, start
        self._run_input = {"task": run_input} if isinstance(run_input, str) else run_input
        self._tools: ToolResults = start.tools
        self.output: Any = None
        self.questions: list[str] = []
        """Questions that the caller has to answer."""
        self.paused_state: Any = None
        """The state, if there are questions."""
        self.text = ""
        """What was sent of the last message."""
        self.stopped = False
        self._lock = threading.Lock()
        state = start.state or {}
        self._answers = [list(each) for each in state.get("answered", ())]
        for id, answer in start.answers.items():
            number = int(id.removeprefix("ask-"))
            self._answers.append([state["asked"][number - 1], answer.text])
        if "tools" in state:
            self._tools.replay_from(state["tools"])
        self._unused_answers = [list(each) for each in self._answers]
        self._message = len(state.get("steps", ()))
        self._arguments = ""
        self._streamed = False

    async def events(self) -> AsyncGenerator[AnyEvent, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Any] = asyncio.Queue()

        def put(item: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody reads any more
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def work() -> None:
            error: BaseException | None = None
            try:
                self._work(put)
            except _QuestionAsked:
                pass
            except BaseException as raised:
                error = raised
            put(_ThreadEnd(error))

        # A thread of its own: one that does not end must not keep the process from ending.
        thread = threading.Thread(target=copy_context().run, args=(work,), daemon=True)
        thread.start()
        try:
            while not isinstance(item := await queue.get(), _ThreadEnd):
                yield item
            if item.error is not None:
                raise item.error
        finally:
            self.stopped = True
            self._agent.interrupt()

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _work(self, put: Callable[[Any], None]) -> None:
        _runs.set(self)
        agent, state = self._agent, self._start.state or {}
        if agent.logger.level == LogLevel.INFO:  # smolagents prints what happens
            agent.logger.level, agent.logger.console.quiet = LogLevel.ERROR, True
        before = agent.model, agent.tools, agent.stream_outputs
        agent.tools = {name: self._record_results(tool) for name, tool in before[1].items()}
        agent.model = _StoppableModel(before[0], self, state.get("pending"))
        if "pending" not in state:
            self.stream_outputs()
        else:  # what the model said was sent
            agent.stream_outputs = False
        try:
            agent.memory.steps = [_load_step(each) for each in state.get("steps", ())]
            agent.state = {**agent.state, **state.get("variables", {})}
            done = 0
            for step in agent.memory.steps:
                done = 0 if isinstance(step, TaskStep) else done + isinstance(step, ActionStep)
            options = dict(self._start.options)
            if self._run_input is None and done:
                options["max_steps"] = max(1, (options.get("max_steps") or agent.max_steps) - done)
            run_input = self._run_input or {"task": state["task"]}
            stream = agent.run(**{**run_input, **options, "stream": True, "reset": False})
            if self._run_input is None:  # the run continues: the task is in the memory
                agent.memory.steps.pop()
            if (executor := getattr(agent, "python_executor", None)) is not None:
                executor.send_variables(state.get("code", {}))
            with closing(_StepStream(stream)) as steps:
                for item in steps:
                    if self.stopped:
                        raise _RunStopped
                    for event in self._convert(item):
                        put(event)
        except _QuestionAsked:
            step = agent.memory.steps.pop()
            message = step.model_output_message
            self.paused_state = {
                **self.state(),
                "asked": self.questions,
                "answered": self._answers,
                "tools": self._tools.scope,
                "pending": _dump_message(message),
            }
            raise
        finally:
            agent.model, agent.tools, agent.stream_outputs = before

    def stream_outputs(self) -> None:
        self._agent.stream_outputs = self._agent.model.streams

    def state(self) -> Any:
        agent = self._agent
        executor = getattr(agent, "python_executor", None)
        return {
            "steps": [_dump_step(step) for step in agent.memory.steps],
            "task": agent.task,
            "variables": _storable(agent.state),
            "code": _storable(getattr(executor, "state", {})),
        }

    def answer(self, question: str) -> str:
        """The answer to a question, if it is known."""
        with self._lock:
            for n, (answered, answer) in enumerate(self._unused_answers):
                if answered == question:
                    del self._unused_answers[n]
                    return str(answer)
            self.questions.append(question)
        raise _QuestionAsked(question)

    def _record_results(self, tool: Any) -> Any:
        """The tool, which does not run again if its result is recorded."""
        if tool.name == _FINAL:
            return tool
        forward, name = tool.forward, tool.name

        def run_once(*args: Any, **kw: Any) -> Any:
            if self.stopped:
                raise _RunStopped
            token = _runs.set(self)  # code of a CodeAgent runs in yet another thread
            try:
                with self._lock:
                    key = self._tools.begin_call(name, [args, kw])
                if self._tools.has(key):
                    return self._tools.get(key)
                result = forward(*args, **kw)
            finally:
                _runs.reset(token)
            self._tools.put_from_thread(key, result)
            return result

        recorded = copy.copy(tool)
        recorded.forward = self.answer if isinstance(tool, Ask) else run_once
        return recorded

    def _convert(self, item: Any) -> Iterator[AnyEvent]:
        if isinstance(item, ChatMessageStreamDelta):
            yield from self._convert_delta(item)
        elif isinstance(item, AgentToolCall):
            if item.name != _FINAL:
                yield events.ToolCall(id=item.id, name=item.name, arguments=as_json(item.arguments))
        elif isinstance(item, ToolOutput):
            if not item.is_final_answer:
                yield events.ToolResult(id=item.id, name=item.tool_call.name, result=item.observation)
        elif isinstance(item, ActionStep | PlanningStep):
            self._message, self._arguments, self._streamed = self._message + 1, "", False
            if (used := item.token_usage) is not None:
                model = str(getattr(self._agent.model, "model_id", None) or "")
                yield TokenUsage(
                    input_tokens=used.input_tokens, output_tokens=used.output_tokens, model=model
                )
            if isinstance(item, ActionStep) and not self.questions:
                call = item.tool_calls[0] if item.tool_calls else None
                if call is not None and call.name == _CODE:
                    result, failed = item.error or item.observations, item.error is not None
                    yield events.ToolResult(id=call.id, name=call.name, result=str(result), failed=failed)
                if not item.is_final_answer:
                    self._tools.begin_segment()
                    yield events.Saved(state=self.state())
        elif isinstance(item, FinalAnswerStep):
            self.output = _value_of(item.output)

    def _convert_delta(self, delta: Any) -> Iterator[AnyEvent]:
        text = delta.content or ""
        for call in delta.tool_calls or ():
            function = call.function
            if function is not None and (function.name == _FINAL or (self._streamed and not function.name)):
                self._streamed = True
                if isinstance(function.arguments, str):
                    before = _answer_so_far(self._arguments)
                    self._arguments += function.arguments
                    text += _answer_so_far(self._arguments)[len(before) :]
        if text:
            message = f"message-{self._message}" + ("/answer" if self._streamed else "")
            self.text = text if message != self._sent_message else self.text + text
            self._sent_message = message
            yield events.Text(text=text, message=message)

    _sent_message = ""


class _ThreadEnd:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class _StepStream:
    """The items of a run. The generator of smolagents does not end when it is closed, and need not."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[Any]:
        return iter(self._stream)

    def close(self) -> None:
        with suppress(RuntimeError):
            self._stream.close()


class _StoppableModel:
    """The model of an agent, which stops with the run. `pending`: what it said before the caller was asked."""

    def __init__(self, model: Any, run: _Run, pending: Any) -> None:
        self._model, self._run, self._pending = model, run, pending
        self.streams = hasattr(model, "generate_stream")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def generate(self, *args: Any, **more: Any) -> Any:
        if self._run.stopped:
            raise _RunStopped
        if self._pending is None:
            return self._model.generate(*args, **more)
        message, self._pending = ChatMessage.from_dict(dict(self._pending)), None
        self._run.stream_outputs()
        return message

    def generate_stream(self, *args: Any, **more: Any) -> Iterator[Any]:
        with closing(self._model.generate_stream(*args, **more)) as deltas:
            for delta in deltas:
                if self._run.stopped:
                    raise _RunStopped
                yield delta


def task_of(message: Message) -> dict[str, Any]:
    """A message as arguments of `agent.run`: its text, links and data, and its images."""
    texts, images = [], []
    for part in message.parts:
        if part.text is not None:
            texts.append(part.text)
        elif part.url is not None:
            texts.append(part.url)
        elif part.raw is None:
            texts.append(json.dumps(part.data, ensure_ascii=False))
        elif (part.media_type or "").startswith("image/"):
            images.append(_image_of(part.raw))
    return {"task": "\n".join(texts), "images": images or None}


def _image_of(raw: bytes) -> Any:
    try:
        return Image.open(io.BytesIO(raw))
    except OSError as error:
        raise InvalidParams("an image cannot be read") from error


def _answer_so_far(arguments: str) -> str:
    """The text of the answer in the arguments of a call of `final_answer` that is not complete yet."""
    found = re.match(r'\s*\{\s*"answer"\s*:\s*"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)', arguments)
    if found is None:
        return ""
    whole = re.sub(r"(?:\\u[dD][89abAB][0-9a-fA-F]{2})$", "", found[1])  # half of a character
    try:
        return str(json.loads(f'"{whole}"', strict=False))
    except ValueError:
        return ""


def _value_of(output: Any) -> Any:
    """The answer of an agent: smolagents wraps text, images and sound."""
    return str(output) if isinstance(output, str) else output


# -- state ---------------------------------------------------------------------------------------------------------


def _storable(variables: dict[str, Any]) -> dict[str, Any]:
    """The variables that are the same after JSON."""
    storable = {}
    for name, value in variables.items():
        try:
            if not name.startswith("_") and plain(value) == value:
                storable[name] = value
        except (TypeError, ValueError):
            continue
    return storable


def _dump_image(image: Any) -> str:
    png = io.BytesIO()
    image.save(png, "PNG")
    return base64.b64encode(png.getvalue()).decode()


def _dump_message(message: Any) -> Any:
    if message is None:
        return None
    calls = [call.dict() if hasattr(call, "dict") else vars(call) for call in message.tool_calls or ()]
    return as_json({"role": message.role, "content": message.content, "tool_calls": _calls(calls)})


def _calls(calls: list[Any]) -> Any:
    return [
        {"id": call["id"], "type": call["type"], "function": {"name": f["name"], "arguments": f["arguments"]}}
        for call in calls
        for f in [call["function"] if isinstance(call["function"], dict) else vars(call["function"])]
    ] or None


def _dump_step(step: Any) -> Any:
    """A step of the memory as JSON: what the model is shown of it, and what it cost."""
    used, timing = getattr(step, "token_usage", None), getattr(step, "timing", None)
    out: dict[str, Any] = {"kind": type(step).__name__}
    if used is not None:
        out["usage"] = [used.input_tokens, used.output_tokens]
    if timing is not None:
        out["timing"] = [timing.start_time, timing.end_time]
    if isinstance(step, TaskStep):
        return {**out, "task": step.task, "images": [_dump_image(each) for each in step.task_images or ()]}
    out["message"] = _dump_message(step.model_output_message)
    if isinstance(step, PlanningStep):
        return {**out, "plan": step.plan}
    return {
        **out,
        "number": step.step_number,
        "calls": [[call.name, as_json(call.arguments), call.id] for call in step.tool_calls or ()],
        "error": step.error and [type(step.error).__name__, str(step.error.message)],
        "output": as_json(step.model_output),
        "code": step.code_action,
        "observations": step.observations,
        "result": as_json(step.action_output),
        "final": step.is_final_answer,
    }


def _load_step(saved: dict[str, Any]) -> Any:
    if saved["kind"] == "TaskStep":
        images = [_image_of(base64.b64decode(each)) for each in saved["images"]]
        return TaskStep(task=saved["task"], task_images=images or None)
    message = saved["message"] and ChatMessage.from_dict(dict(saved["message"]))
    more = {
        "timing": Timing(*saved["timing"]),
        "token_usage": StepUsage(*saved["usage"]) if "usage" in saved else None,
        "model_output_message": message,
    }
    if saved["kind"] == "PlanningStep":
        return PlanningStep(model_input_messages=[], plan=saved["plan"], **more)
    return ActionStep(
        step_number=saved["number"],
        tool_calls=[AgentToolCall(*each) for each in saved["calls"]] or None,
        error=saved["error"] and _error_of(*saved["error"]),
        model_output=saved["output"],
        code_action=saved["code"],
        observations=saved["observations"],
        action_output=saved["result"],
        is_final_answer=saved["final"],
        **more,
    )


def _error_of(kind: str, message: str) -> Any:
    """The error of a step. Its constructor would print it again."""
    error_type = getattr(utils, kind, utils.AgentError)
    error = error_type.__new__(error_type, message)
    error.message = message
    return error
