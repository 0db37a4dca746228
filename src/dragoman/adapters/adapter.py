"""Run the agent of a framework inside a turn.

An adapter is a generator of events (`Runnable.run`): text as it comes, tool calls, usage, and in the end `Finished` or
`Paused` with the framework's state as JSON. `work` sends the events out and records them with the state as steps of the
turn, so the task's log holds all that the framework needs to continue:

* the turn runs again after a crash or an answer: recorded events are sent again (the record of the turn drops what
  peers have seen), and the framework continues with the last recorded state;
* a pause becomes `turn.ask`, one question after the other, and the answers go back by the id of their question;
* the next message of the context begins with the state that the last finished task of the context recorded.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from dragoman.adapters import events
from dragoman.adapters.events import AnyEvent, RecordedEvent
from dragoman.adapters.remote_agent import run_scope, run_turn
from dragoman.engine.recorded import digest
from dragoman.engine.records import Step
from dragoman.engine.turn import Turn, record_of
from dragoman.model.content import Message, Part, plain
from dragoman.model.ops import ListTasks
from dragoman.model.per_loop import PerLoop
from dragoman.model.questions import Approval, AskedQuestion, read_value, with_questions
from dragoman.model.task import TaskState
from dragoman.model.usage import TokenUsage
from dragoman.model.values import Unfit

logger = logging.getLogger("dragoman.adapters")

MAX_ARGUMENTS_CHARACTERS = 32_000
"""Characters of the arguments of a tool call in a status: whoever approves the call may read them there. Its question has all."""
MAX_SHOWN_CHARACTERS = 2000
"""Characters of a tool's result that peers see."""
_TASKS_PER_PAGE = 2
_LOG_BYTES = 1 << 20


_END = (events.Saved, events.Paused, events.Finished)


class ToolResults:
    """Results of tools that are recorded. A run that begins again, because the process died, does not run those tools again.

    For frameworks whose runs cannot continue after a tool: their hooks ask here before a tool runs, and record what it
    returned. A call is known by the tool, its arguments, and how many such calls came before it in the run.
    """

    def __init__(self, turn: Turn, run: str, segment: int = 0) -> None:
        self._record, self._run, self._segment = record_of(turn), run, segment
        self.scope = f"{run}/{segment}"
        """Where calls are counted from."""
        self._loop = asyncio.get_running_loop()
        self._calls_made: Counter[str] = Counter()

    def begin_segment(self) -> None:
        """The run can continue from here (`Saved`): what comes next is counted anew."""
        self._segment += 1
        self.replay_from(f"{self._run}/{self._segment}")

    def replay_from(self, scope: str) -> None:
        """Use the recorded results of the calls since `scope`, which are made again."""
        self.scope = scope
        self._calls_made.clear()

    def begin_call(self, name: str, arguments: Any) -> str:
        """Count a call that is made now, and return the key of its result."""
        call = f"tool/{self.scope}/{name}/{digest(_canonical(arguments))}"
        self._calls_made[call] += 1
        return f"{call}/{self._calls_made[call]}"

    def has(self, key: str) -> bool:
        return key in self._record.steps

    def get(self, key: str) -> Any:
        return msgspec.json.decode(self._record.steps[key].value)

    async def put(self, key: str, result: Any) -> None:
        """Record what a tool returned. What would not be the same after JSON is not recorded."""
        try:
            same = plain(result) == result
        except TypeError:
            same = False
        if same:
            await self._record.record_step(key, result)
        else:
            logger.debug("the result of a tool is not recorded: %s is not JSON", type(result).__name__)

    def put_from_thread(self, key: str, result: Any) -> None:
        """`put`, for tools that run in a thread, and for hooks that are not coroutines."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(self.put(key, result), self._loop).result()
        else:  # a hook in the event loop: the record is written while the framework goes on
            writing = self._loop.create_task(self.put(key, result))
            _writing.add(writing)
            writing.add_done_callback(_writing.discard)


_writing: set[asyncio.Task[None]] = set()


def _canonical(arguments: Any) -> bytes:
    try:
        return msgspec.json.encode(plain(arguments), order="sorted")
    except TypeError:
        return repr(arguments).encode()


@dataclass(frozen=True, slots=True)
class Start:
    """What a run begins with. One of three: a new `message`; `answers` to the questions of a pause; or neither, if a run
    that yielded `Saved` was interrupted."""

    turn: Turn
    state: Any
    tools: ToolResults
    message: Message | None = None
    answers: Mapping[str, events.Answer] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the user for the framework's own function."""


class Runnable(Protocol):
    """Runs an agent of one framework."""

    def run(self, start: Start) -> AsyncGenerator[AnyEvent, None]:
        """Run until the end or a pause. The last event is `Paused` or `Finished`. If it is closed or cancelled, the model
        call stops."""
        ...


class Instances:
    """The agents that runs use. An agent may hold the conversation itself, and then serves one run at a time."""

    def __init__(self, first: Any, make: Callable[[], Any] | None = None) -> None:
        self.first, self.make = first, make
        self._free = PerLoop(asyncio.Lock)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        """An agent for one run: a new one if there is a function that makes them, else the only one when it is free."""
        if self.make is not None:
            yield self.make()
            return
        async with self._free.get():
            yield self.first


Convert = Callable[[Any], Any] | None


class Adapter:
    """Runs the agents of one framework: a `Runnable`. `input` and `output` are functions of the user, if there are any."""

    def __init__(self, objects: Instances, input: Convert, output: Convert) -> None:
        self._objects, self._input, self._output = objects, input or self.default_input, output

    def default_input(self, message: Message) -> Any:
        """What the framework begins with, unless the user has a function for that."""
        raise NotImplementedError

    def finish(
        self, state: Any, result: Any, default: Any = None, sent_text: str | None = None
    ) -> Iterator[AnyEvent]:
        """The end of a run, with the answer: what the user's function makes of `result`, else `default`. `sent_text` is not sent
        again."""
        answer = default if self._output is None else self._output(result)
        if isinstance(answer, str):
            if answer != sent_text:
                yield events.Text(text=answer, message="output")
        elif answer is not None:
            yield events.Data(value=as_json(answer))
        yield events.Finished(state=state)


# -- values of frameworks --------------------------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """A value of a framework as JSON; what has no JSON form as its text."""
    if isinstance(value, dict):
        return {str(key): as_json(member) for key, member in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(member) for member in value]
    try:
        return plain(value)
    except TypeError:
        return str(value)


def read_json(value: Any) -> Any:
    """A text that is JSON, decoded. Any other text, and any other value, stays as it is."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def text_in(value: Any, *names: str) -> str:
    """The text of the first of these members of an object that is not empty."""
    members = value if isinstance(value, dict) else {}
    return next((str(members[name]).strip() for name in names if members.get(name)), "")


def describe_call(name: Any, arguments: Any) -> str:
    """A call of a tool as text: `book(city='Rome')`."""
    if isinstance(arguments, dict):
        arguments = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"{name}({arguments or ''})"


def ask_approval(id: str, tool: Any, arguments: Any, **more: Any) -> events.Question:
    """Whether a tool may be called."""
    details = {"tool": tool, "arguments": arguments, **more}
    return events.Question(
        id=id, text=f"Allow {describe_call(tool, arguments)}?", approval=True, details=details
    )


def convert_parts(
    message: Message,
    text: Callable[[str], Any],
    raw: Callable[[Part, str], Any],
    url: Callable[[Part, str], Any],
) -> list[Any]:
    """The parts of a message as a framework has them: texts and data, files with their bytes, and files elsewhere. The
    functions for files get the media type, too."""
    converted = []
    for part in message.parts:
        media_type = part.media_type or "application/octet-stream"
        if part.text is not None:
            converted.append(text(part.text))
        elif part.raw is not None:
            converted.append(raw(part, media_type))
        elif part.url is not None:
            converted.append(url(part, media_type))
        else:
            converted.append(text(json.dumps(part.data, ensure_ascii=False)))
    return converted


class _Segment(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is recorded at a time: events, up to one of `Saved`, `Paused` and `Finished`."""

    events: list[RecordedEvent]


RunOptions = Mapping[str, Any] | Callable[[Turn], Mapping[str, Any]]


async def work(adapter: Runnable, turn: Turn, *, options: RunOptions, show_tools: bool) -> None:
    """Answer the message of a turn with the framework's agent."""
    run_scope.set(f"{turn.task_id}/{turn.n}")
    run_turn.set(turn)
    output = _Output(turn, show_tools)
    start = Start(
        turn=turn,
        state=await _state_of_context(turn),
        tools=ToolResults(turn, "run/1"),
        message=turn.message,
        options=options(turn) if callable(options) else options,
    )
    for n in count(1):
        end = await _run_once(adapter, start, output, f"run/{n}")
        if isinstance(end, events.Finished):
            output.close(end)
            return
        answers = await _ask(turn, end.questions, f"run/{n}")
        start = Start(
            turn=turn,
            state=end.state,
            tools=ToolResults(turn, f"run/{n + 1}"),
            answers=answers,
            options=start.options,
        )


async def _run_once(
    adapter: Runnable, start: Start, output: _Output, key: str
) -> events.Paused | events.Finished:
    """One run, up to a pause or the end: what is recorded of it, then the rest."""
    record = record_of(start.turn)
    n = 0
    while (step := record.steps.get(f"{key}/{n}")) is not None:
        segment = msgspec.json.decode(step.value, type=_Segment)
        output.segment = f"{key}/{n}"
        for event in segment.events:
            await output.put(event)
        end = segment.events[-1]
        if isinstance(end, events.Paused | events.Finished):
            return end
        assert isinstance(end, events.Saved)
        n += 1
        tools = ToolResults(start.turn, key, n)
        start = Start(turn=start.turn, state=end.state, tools=tools, options=start.options)
    unrecorded: list[RecordedEvent] = []
    output.segment = f"{key}/{n}"
    await record.may_begin()
    async with aclosing(adapter.run(start)) as run:
        async for each in run:
            event = events.Used(usage=each) if isinstance(each, TokenUsage) else each
            await output.put(event)
            last = unrecorded[-1] if unrecorded else None
            if (
                isinstance(event, events.Text)
                and isinstance(last, events.Text)
                and last.message == event.message
            ):
                unrecorded[-1] = events.Text(text=last.text + event.text, message=event.message)
                continue
            unrecorded.append(event)
            if isinstance(event, _END):
                await record.record_step(f"{key}/{n}", msgspec.to_builtins(_Segment(events=unrecorded)))
                if isinstance(event, events.Paused | events.Finished):
                    return event
                unrecorded, n = [], n + 1
                output.segment = f"{key}/{n}"
                await record.may_begin()
    raise RuntimeError(f"{type(adapter).__name__} ended without Paused or Finished")


# -- what peers see ------------------------------------------------------------------------------------------------


class _Output:
    """Sends events out: text as chunks of the artifact `result`, tool calls and progress as status, files as artifacts."""

    def __init__(self, turn: Turn, show_tools: bool) -> None:
        self._turn, self._show_tools = turn, show_tools
        self.segment = ""
        """What is being sent: ids of messages differ within a segment, and need not beyond it."""
        self._message: tuple[str, str] | None = None
        self._text = ""
        """What is in `result` now."""
        self._tools: dict[str, str] = {}
        """Names of tools, by the id of the call."""
        self._running: set[str] = set()
        """Calls that were reported and have no result yet."""
        self._files = 0

    async def put(self, event: RecordedEvent) -> None:
        turn = self._turn
        match event:
            case events.Text():
                await self._put_text(event)
            case events.ToolCall():
                reported = event.id in self._running  # a framework that resumes reports a call again
                self._running.add(event.id)
                self._tools[event.id] = event.name
                if self._show_tools and not reported:
                    call = {
                        "id": event.id,
                        "name": event.name,
                        "arguments": _short(event.arguments, MAX_ARGUMENTS_CHARACTERS),
                    }
                    await turn.status(f"Calling {event.name}", {"toolCall": call})
            case events.ToolResult():
                self._running.discard(event.id)
                if not self._show_tools:
                    return
                name = event.name or self._tools.get(event.id, "")
                result = {
                    "id": event.id,
                    "name": name,
                    "result": _short(event.result),
                    "failed": event.failed,
                }
                text = f"{name or 'A tool'} {'failed' if event.failed else 'answered'}"
                await turn.status(text, {"toolResult": result})
            case events.Progress():
                await turn.status(event.text or (), event.metadata)
            case events.File():
                self._files += 1
                name = event.name or f"file-{self._files}"
                source = event.raw if event.raw is not None else event.url
                await turn.file(source, name, event.media_type)
            case events.Data():
                await turn.artifact("data").write(Part(data=event.value), last=True)
            case events.Used():
                record_of(turn).add_usage(event.usage)

    async def _put_text(self, event: events.Text) -> None:
        result = self._turn.artifact("result")
        message = (self.segment, event.message)
        if self._message is not None and message != self._message and self._text:
            # What the model said before it called a tool is progress, not the answer.
            await self._turn.status(self._text)
            result.restart()
            self._text = ""
        self._message = message
        if event.text:
            self._text += event.text
            await result.write(event.text)

    def close(self, end: events.Finished) -> None:
        if self._text:
            self._turn.artifact("result").close()
        if end.failed:
            self._turn.finish(TaskState.FAILED, end.failed)


def _short(value: Any, most: int = MAX_SHOWN_CHARACTERS) -> Any:
    """A value to show to peers: as it is if it is small, else the beginning of its text."""
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except (TypeError, ValueError):
        value = text = str(value)
    return value if len(text) <= most else text[:most] + "…"


# -- questions -----------------------------------------------------------------------------------------------------


async def _ask(turn: Turn, questions: Sequence[events.Question], key: str) -> dict[str, events.Answer]:
    """Ask one question after the other. A data part that maps ids of questions to answers answers several at once."""
    answers: dict[str, events.Answer] = {}
    for place, question in enumerate(questions):
        if question.id in answers:
            continue
        unanswered = [each for each in questions[place:] if each.id not in answers]
        text, attempt = question.text, 1
        while True:
            question_key = f"{key}/{question.id}" if attempt == 1 else f"{key}/{question.id}/{attempt}"
            request = _question_message(turn, text, unanswered, question_key)
            if question.auth:
                message = await turn.need_auth(request, key=question_key)
            else:
                message = await turn.ask(request, Message, key=question_key)
            data = message.data
            if isinstance(data, dict) and data and data.keys() <= {each.id for each in unanswered}:
                found = {
                    each.id: _read_answer(each, "", data[each.id]) for each in unanswered if each.id in data
                }
            else:
                found = {question.id: _read_answer(question, message.text, data)}
            answers |= {id: answer for id, answer in found.items() if answer is not None}
            if question.id in answers:
                break
            text, attempt = f"{question.text} (Please answer yes or no.)", attempt + 1
    return {each.id: answers[each.id] for each in questions}


def _question_message(turn: Turn, text: str, unanswered: Sequence[events.Question], key: str) -> Message:
    """The message that asks: the first of the unanswered questions as text, all of them as data."""
    message = Message(message_id=f"{turn.task_id}-{turn.n}-{key.replace('/', '-')}", parts=(Part(text=text),))
    first = unanswered[0]
    if len(unanswered) == 1 and not (first.approval or first.schema or first.details):
        return message
    described = [
        AskedQuestion(
            key=each.id,
            text=each.text,
            schema={"type": "boolean"} if each.approval else each.schema,
            approval=each.approval,
            details=each.details,
        )
        for each in unanswered
    ]
    return with_questions(message, described)


def _read_answer(question: events.Question, text: str, data: Any) -> events.Answer | None:
    """An answer as the question wants it; None if it does not fit."""
    if not question.approval:
        value = data if data is not None else read_json(text) if question.schema is not None else text
        return events.Answer(text=text or (data if isinstance(data, str) else ""), value=value)
    try:
        approval: Approval = read_value(Approval, text if data is None else data)
    except Unfit:
        return None
    return events.Answer(text=text, value=approval.approved, reason=approval.comment)


# -- the state of the context --------------------------------------------------------------------------------------


async def _state_of_context(turn: Turn) -> Any:
    """The state that the last finished run of this context recorded; None if there is none."""
    record = record_of(turn)
    if turn.n > 1:
        found = await _state_before_turn(turn)
        if found is not None:
            return found.state
    token = ""
    while True:
        query = ListTasks(context_id=turn.context_id, page_token=token)
        page = await record.journal.log.find(query, limit=_TASKS_PER_PAGE)
        for snapshot in page.snapshots:
            other = snapshot.task_id != turn.task_id and snapshot.terminal
            if other and (end := _end_of(snapshot.steps)) is not None:
                return end.state
        token = page.next
        if not token:
            return None


async def _state_before_turn(turn: Turn) -> events.Finished | None:
    """What an earlier turn of this task recorded last. (A message that comes during a turn begins another.)"""
    log, after = record_of(turn).journal.log, 0
    found: events.Finished | None = None
    steps: dict[str, Step] = {}
    turns = 0
    while records := await log.read(turn.task_id, after=after, max_bytes=_LOG_BYTES):
        after = records[-1].seq
        for each in records:
            if each.kind == "turn":
                found = _end_of(steps) or found
                steps, turns = {}, turns + 1
                if turns == turn.n:
                    return found
            elif isinstance(each.body, Step):
                steps[each.body.key] = each.body
    return _end_of(steps) or found


def _end_of(steps: Mapping[str, Step]) -> events.Finished | None:
    """How the run ended whose steps these are, if it finished."""
    for key in reversed(list(steps)):
        if key.startswith("run/"):
            found = msgspec.json.decode(steps[key].value, type=_Segment).events
            if found and isinstance(found[-1], events.Finished):
                return found[-1]
    return None
