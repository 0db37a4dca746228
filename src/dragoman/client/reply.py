"""Answers of an agent: a `Reply`, or a `Stream` of `Piece`s that becomes one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Protocol, TypedDict, TypeVar, Unpack

from dragoman.client.deduplicate import parts_after
from dragoman.errors import A2AError
from dragoman.model.content import Artifact, GrowingArtifact, Message, Part, files_of, text_of
from dragoman.model.fold import LazyFold
from dragoman.model.ops import Batch, PushConfig
from dragoman.model.questions import AskedQuestion, questions_in
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus
from dragoman.model.usage import TaskUsage, usage_in
from dragoman.model.values import convert, convert_text

T = TypeVar("T")


class AnswerOptions(TypedDict, total=False):
    """The options of `Reply.answer`, so that an editor knows them."""

    files: Any
    data: Any
    skill: str
    metadata: Mapping[str, Any] | None
    accept: str | Sequence[str]
    history: int | None
    wait: bool
    push: PushConfig | None
    key: str
    extensions: str | Sequence[str]


class ReplyClient(Protocol):
    """What a reply and a stream need of their `Client`."""

    async def __call__(
        self,
        *content: Any,
        task: str | Task = ...,
        context: str | Task = ...,
        timeout: float | None = None,
        **options: Unpack[AnswerOptions],
    ) -> Reply: ...

    async def wait(self, task: str | Task, *, timeout: float | None = None) -> Reply: ...

    async def cancel(self, task: str | Task, *, timeout: float | None = None) -> Task: ...

    def remember_question(self, task: Task) -> None:
        """A stream ended with a question."""
        ...

    def timeout_message(self, task: str = "") -> str: ...


class TaskFailed(A2AError):
    """The agent failed, rejected or canceled the task. The text is the agent's message; `task` is the task."""

    reason = "TASK_FAILED"

    def __init__(self, task: Task) -> None:
        text = task.status.message.text if task.status.message is not None else ""
        super().__init__(f"task {task.id} {describe_end(task.state)}" + (f": {text}" if text else ""))
        self.task = task


class Reply(str):
    """An agent's answer: a text with the task and its content as attributes.

    A reply that `asks` is a question: `await reply.answer("...")`. One whose task still runs: `await reply.wait()`.
    """

    _client: ReplyClient
    task: Task | None
    """None if the agent answered with a message and has no task."""
    message: Message | None

    @classmethod
    def of(cls, client: ReplyClient, result: Task | Message) -> Reply:
        reply = cls(answer_text(result))
        reply._client = client
        reply.task, reply.message = (result, None) if isinstance(result, Task) else (None, result)
        return reply

    @property
    def text(self) -> str:
        return str(self)

    @property
    def id(self) -> str:
        """The id of the task; empty when there is none."""
        return self.task.id if self.task is not None else ""

    @property
    def context_id(self) -> str:
        return (
            self.task.context_id if self.task is not None else self.message.context_id if self.message else ""
        )

    @property
    def state(self) -> TaskState:
        return self.task.state if self.task is not None else TaskState.COMPLETED

    @property
    def asks(self) -> bool:
        """The agent needs something before it continues: an answer, or (`AUTH_REQUIRED`) a permission."""
        return self.state.interrupted

    @property
    def questions(self) -> tuple[AskedQuestion, ...]:
        """What the agent asks, with the JSON Schema of each answer, if it says so. Several are answered with data by key."""
        message = self.task.status.message if self.task is not None else self.message
        return questions_in(message.metadata) if self.asks and message is not None else ()

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.task.artifacts if self.task is not None else ()

    @property
    def data(self) -> Any:
        """The first data value; None when there is none."""
        if self.message is not None:
            return self.message.data
        found = self.task.data if self.task is not None else None
        if found is None and self.task is not None and self.task.status.message is not None:
            found = self.task.status.message.data
        return found

    @property
    def usage(self) -> TaskUsage | None:
        """Tokens and money that the task used, if the agent reports them."""
        about = self.task or self.message
        return usage_in(about.metadata) if about is not None else None

    @property
    def files(self) -> tuple[Part, ...]:
        if self.message is not None:
            return self.message.files
        if self.task is None:
            return ()
        message = self.task.status.message
        return self.task.files + (files_of(message.parts) if message is not None else ())

    def to(self, kind: type[T]) -> T:
        """The answer as a type: a dataclass, a msgspec or pydantic one, `dict[str, int]`. Raises `ValueError`."""
        data = self.data
        answer: T = convert_text(str(self), kind) if data is None else convert(data, kind)
        return answer

    async def wait(self, timeout: float | None = None) -> Reply:
        """The reply once the task is over: finished, or asking."""
        return self if self.state.settled else await self._client.wait(self.id, timeout=timeout)

    async def cancel(self) -> Reply:
        return Reply.of(self._client, await self._client.cancel(self.id))

    async def answer(
        self, *content: Any, timeout: float | None = None, **options: Unpack[AnswerOptions]
    ) -> Reply:
        """Answer the agent's question, and wait for the reply. Options as for `Client.send`."""
        task = self if self.task is not None else ""
        return await self._client(*content, task=task, context=self.context_id, timeout=timeout, **options)


def describe_end(state: TaskState) -> str:
    """How a task that did not complete ended, for a sentence."""
    return state.word if state is TaskState.FAILED else f"was {state.word}"


def answer_text(result: Task | Message) -> str:
    if isinstance(result, Message):
        return result.text
    status_text = result.status.message.text if result.status.message is not None else ""
    if result.state.interrupted:
        return status_text or result.text
    return result.text or status_text


class Piece:
    """One event of a stream, and what it adds to the answer."""

    __slots__ = ("_events", "_parts", "_text", "event", "replaces", "state")

    def __init__(
        self,
        event: Event,
        text: str | None,
        state: TaskState,
        events: LazyFold,
        *,
        parts: tuple[Part, ...] | None = None,
        replaces: bool = False,
    ) -> None:
        self.event = event
        self._text, self._parts = text, parts
        self.state = state
        """The state of the task by now."""
        self.replaces = replaces
        """`text` replaces what came before of this artifact (`piece.artifact.artifact_id`).

        It happens when an agent that was interrupted writes something else the second time. If the event is a `Task`, it
        replaces the whole answer. Programs that cannot take back what they printed begin a new line.
        """
        self._events = events

    @property
    def text(self) -> str:
        """What this event adds to the answer; empty for a status of the task."""
        if self._text is None:
            self._text = self.event.artifact.text if isinstance(self.event, ArtifactUpdate) else ""
        return self._text

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of artifacts (or of a message) that this event adds to the answer: text, data and files."""
        if self._parts is not None:
            return self._parts
        event = self.event
        return event.artifact.parts if isinstance(event, ArtifactUpdate) else ()

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Piece({self.event!r})"

    @property
    def status(self) -> str:
        """What the agent says it is doing, if this event is a status."""
        if isinstance(self.event, StatusUpdate) and self.event.status.message is not None:
            return self.event.status.message.text
        return ""

    @property
    def artifact(self) -> Artifact | None:
        """The chunk of an artifact, if this event is one."""
        return self.event.artifact if isinstance(self.event, ArtifactUpdate) else None

    @property
    def task(self) -> Task | None:
        """The task as far as the stream was read."""
        return self._events.fold.task


class Stream:
    """The pieces of an answer, each once, also if the connection breaks. At the end, `reply` is the whole answer.

    `known`: the task as the caller already has it; its content is not repeated. `continues`: the message goes to a task
    that exists, so what the stream's first `Task` shows was there before.
    """

    def __init__(
        self,
        client: ReplyClient,
        batches: AsyncIterator[Batch],
        deadline: float | None,
        *,
        known: Task | None = None,
        continues: bool = False,
    ) -> None:
        self._client = client
        self._events = LazyFold()
        self._before = known
        self._continues = continues
        self._artifacts: set[str] = set()
        """Ids of artifacts of which something was passed on, here or before."""
        for artifact in known.artifacts if known is not None else ():
            self._events.fold.artifacts[artifact.artifact_id] = GrowingArtifact(artifact)
            self._artifacts.add(artifact.artifact_id)
        self._state = TaskState.UNSPECIFIED
        self._deadline = deadline
        self._has_text = False
        self._pieces = self._read(batches)

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._pieces

    async def __anext__(self) -> Piece:
        return await anext(self._pieces)

    async def aclose(self) -> None:
        """Stop reading. The task goes on."""
        await self._pieces.aclose()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def task(self) -> Task | None:
        return self._events.fold.task

    @property
    def reply(self) -> Reply:
        """Everything that was received so far."""
        fold = self._events.fold
        result = fold.message or fold.task
        if result is None:
            raise RuntimeError("nothing was received yet: read the stream first")
        return Reply.of(self._client, result)

    async def _read(self, batches: AsyncIterator[Batch]) -> AsyncGenerator[Piece]:
        events = self._events
        async with aclosing(batches):  # type: ignore[type-var]
            while (batch := await self._batch(batches)) is not None:
                for response in batch:
                    event = response.event
                    if type(event) is not ArtifactUpdate:
                        piece = self._read_status(event)
                    elif event.artifact.artifact_id in self._artifacts and not event.append:
                        piece = self._read_restarted(event)
                    else:
                        self._continues = False
                        self._artifacts.add(event.artifact.artifact_id)
                        self._has_text = self._has_text or bool(event.artifact.text)
                        piece = Piece(event, None, self._state, events)
                    events.add(event)
                    yield piece
        if self._state.interrupted and (task := events.fold.task) is not None:
            self._client.remember_question(task)

    async def _batch(self, batches: AsyncIterator[Batch]) -> Batch | None:
        if self._deadline is None:
            return await anext(batches, None)
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.time())):
                return await anext(batches, None)
        except TimeoutError:
            raise TimeoutError(self._client.timeout_message(self._events.fold.task_id)) from None

    def _read_restarted(self, event: ArtifactUpdate) -> Piece:
        """The piece of an artifact that starts again: it continues the text before, or replaces it."""
        new = self._new_parts(event.artifact)
        parts = event.artifact.parts if new is None else new
        text = text_of(parts)
        self._has_text = self._has_text or bool(text)
        return Piece(event, text, self._state, self._events, parts=parts, replaces=new is None)

    def _new_parts(self, artifact: Artifact) -> tuple[Part, ...] | None:
        """What an artifact has beyond what was passed on. None if it does not begin with that."""
        known = self._events.fold.artifacts.get(artifact.artifact_id)
        return artifact.parts if known is None else parts_after(artifact.parts, known.parts)

    def _read_status(self, event: Event) -> Piece:
        """The piece of a status, a task or a message."""
        assert not isinstance(event, ArtifactUpdate)
        first, self._continues = self._continues, False
        parts: tuple[Part, ...] = ()
        text, replaces = "", False
        if isinstance(event, Message):
            text, parts, self._state = event.text, event.parts, TaskState.COMPLETED
        else:
            state, message = event.status.state, event.status.message
            self._state = state
            if isinstance(event, Task):
                text, parts, replaces = self._read_task(event, first=first)
                if self._was_asked_before(event.status):
                    message = None
            if message is not None and (
                state.interrupted or (state.terminal and not self._has_text and not text)
            ):
                text = message.text  # agents without artifacts put the answer into the last status
        self._has_text = self._has_text or bool(text)
        return Piece(event, text, self._state, self._events, parts=parts, replaces=replaces)

    def _read_task(self, task: Task, *, first: bool) -> tuple[str, tuple[Part, ...], bool]:
        """What a whole task adds: text, parts, and whether they replace all that was passed on."""
        news = [self._new_parts(artifact) for artifact in task.artifacts]
        self._artifacts |= {artifact.artifact_id for artifact in task.artifacts}
        if first and self._before is None and not task.state.settled:
            return "", (), False
        replaces = any(new is None for new in news)
        parts_of_each = [each.parts for each in task.artifacts] if replaces else [new for new in news if new]
        text = "\n".join(filter(None, map(text_of, parts_of_each)))
        return text, tuple(part for parts in parts_of_each for part in parts), replaces

    def _was_asked_before(self, status: TaskStatus) -> bool:
        """True if the question was asked before this stream."""
        before, now = self._before, status.message
        asked = before.status.message if before is not None else None
        return (
            before is not None
            and now is not None
            and asked is not None
            and before.state is status.state
            and (now.message_id, now.parts) == (asked.message_id, asked.parts)
        )
