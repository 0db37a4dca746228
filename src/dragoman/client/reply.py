"""What comes back: a `Reply`, or a `Stream` of `Piece`s that becomes one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from dragoman.client.heard import Heard
from dragoman.errors import A2AError
from dragoman.model.content import Artifact, Message, Part, files_of
from dragoman.model.ops import Batch
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState
from dragoman.model.values import convert, spoken

if TYPE_CHECKING:
    from dragoman.client.client import Client

T = TypeVar("T")


class TaskFailed(A2AError):
    """The agent failed, refused or canceled the task. What it said about it is the message; the task is `task`."""

    reason = "TASK_FAILED"

    def __init__(self, task: Task) -> None:
        said = task.status.message.text if task.status.message is not None else ""
        super().__init__(f"task {task.id} {ended(task.state)}" + (f": {said}" if said else ""))
        self.task = task


class Reply(str):
    """An agent's answer. It is the text, and knows the rest.

    A reply that `asks` is a question: `await reply.answer("...")`. One whose task still runs: `await reply.wait()`.
    """

    _client: Client
    task: Task | None
    """None when the agent answered with a message and keeps no task."""
    message: Message | None

    @classmethod
    def of(cls, client: Client, result: Task | Message) -> Reply:
        reply = cls(text_of(result))
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
        """The agent needs something from us before it goes on: words, or (`AUTH_REQUIRED`) a permission."""
        return self.state.interrupted

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
    def files(self) -> tuple[Part, ...]:
        if self.message is not None:
            return self.message.files
        if self.task is None:
            return ()
        said = self.task.status.message
        return self.task.files + (files_of(said.parts) if said is not None else ())

    def to(self, kind: type[T]) -> T:
        """The answer as a type: a dataclass, a msgspec or pydantic one, `dict[str, int]`. Raises `ValueError`."""
        data = self.data
        answer: T = spoken(str(self), kind) if data is None else convert(data, kind)
        return answer

    async def wait(self, timeout: float | None = None) -> Reply:
        """The reply once the task is over: finished, or asking."""
        return self if self.state.over else await self._client.wait(self.id, timeout=timeout)

    async def cancel(self) -> Reply:
        return Reply.of(self._client, await self._client.cancel(self.id))

    async def answer(self, *content: Any, **options: Any) -> Reply:
        """Say what the agent asked for, and wait for what it makes of it. Options as for `Client.send`."""
        if self.task is None:
            return await self._client(*content, context=self.context_id, **options)
        return await self._client(*content, task=self.id, context=self.context_id, **options)


def ended(state: TaskState) -> str:
    """How a task did not complete, for a sentence."""
    return state.word if state is TaskState.FAILED else f"was {state.word}"


def text_of(result: Task | Message) -> str:
    if isinstance(result, Message):
        return result.text
    said = result.status.message.text if result.status.message is not None else ""
    if result.state.interrupted:
        return said or result.text
    return result.text or said


class Piece:
    """One event of a stream, and the text it adds."""

    __slots__ = ("_heard", "_text", "event", "state")

    def __init__(self, event: Event, text: str | None, state: TaskState, heard: Heard) -> None:
        self.event = event
        self._text = text
        self.state = state
        """The state of the task by now."""
        self._heard = heard

    @property
    def text(self) -> str:
        """What this event adds to the answer; empty for news about the task."""
        if self._text is None:
            self._text = self.event.artifact.text if isinstance(self.event, ArtifactUpdate) else ""
        return self._text

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Piece({self.event!r})"

    @property
    def status(self) -> str:
        """What the agent says it is doing, if this event is about that."""
        if isinstance(self.event, StatusUpdate) and self.event.status.message is not None:
            return self.event.status.message.text
        return ""

    @property
    def artifact(self) -> Artifact | None:
        """The chunk of an artifact, if this event is one."""
        return self.event.artifact if isinstance(self.event, ArtifactUpdate) else None

    @property
    def task(self) -> Task | None:
        """The task, as far as the stream has been read."""
        return self._heard.fold.task


class Stream:
    """The pieces of an answer, each once, whatever happens to the connection. When it has ended, `reply` is whole."""

    def __init__(self, client: Client, batches: AsyncIterator[Batch], deadline: float | None) -> None:
        self._client = client
        self._heard = Heard()
        self._state = TaskState.UNSPECIFIED
        self._deadline = deadline
        self._told = False
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
        return self._heard.fold.task

    @property
    def reply(self) -> Reply:
        """All that was heard so far."""
        fold = self._heard.fold
        result = fold.message or fold.task
        if result is None:
            raise RuntimeError("nothing was heard yet: read the stream first")
        return Reply.of(self._client, result)

    async def _read(self, batches: AsyncIterator[Batch]) -> AsyncGenerator[Piece]:
        heard = self._heard
        async with aclosing(batches):  # type: ignore[type-var]
            while (batch := await self._batch(batches)) is not None:
                for response in batch:
                    event = response.event
                    heard.add(event)
                    if type(event) is ArtifactUpdate:
                        self._told = self._told or bool(event.artifact.text)
                        yield Piece(event, None, self._state, heard)
                    else:
                        text = self._text(event)
                        yield Piece(event, text, self._state, heard)

    async def _batch(self, batches: AsyncIterator[Batch]) -> Batch | None:
        if self._deadline is None:
            return await anext(batches, None)
        try:
            async with asyncio.timeout(max(0.0, self._deadline - time.time())):
                return await anext(batches, None)
        except TimeoutError:
            raise TimeoutError(self._client.too_late(self._heard.fold.task_id)) from None

    def _text(self, event: Event) -> str:
        """What an event says about the task, or instead of one; and keep its state."""
        assert not isinstance(event, ArtifactUpdate)
        if isinstance(event, Message):
            text, self._state = event.text, TaskState.COMPLETED
        else:
            state, said = event.status.state, event.status.message
            self._state = state
            text = event.text if isinstance(event, Task) and event.artifacts else ""
            if said is not None and (state.interrupted or (state.terminal and not self._told and not text)):
                text = said.text  # agents without artifacts say their answer last
        self._told = self._told or bool(text)
        return text
