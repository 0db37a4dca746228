"""An executor, what it is asked, and the queue on which it says what happens."""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.engine.log import Mail
from dragoman.engine.turn import Turn
from dragoman.errors import A2AError
from dragoman.executor.spoken import as_plain, as_spoken
from dragoman.executor.types import TaskStatusUpdateEvent, new_agent_parts_message
from dragoman.model.card import AgentCard as Card
from dragoman.model.content import NOTHING, Artifact, Message, Part
from dragoman.model.ids import new_id
from dragoman.model.ops import Principal, SendMessage
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.executor")

_RANDOM = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\Z")


class AgentExecutor(ABC):
    """Your agent. `execute` does the work; `cancel` tidies up after a canceled task."""

    @abstractmethod
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None: ...

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:  # noqa: B027
        """The task is canceled whatever happens here."""


class RequestContext:
    """What was asked."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    @property
    def message(self) -> Message:
        return as_spoken(self._turn.message)

    @property
    def task_id(self) -> str:
        return self._turn.task_id

    @property
    def context_id(self) -> str:
        return self._turn.context_id

    @property
    def current_task(self) -> Task | None:
        """The task this message continues; None for the first message."""
        return as_spoken(self._turn.task) if self._turn.n > 1 else None

    @property
    def metadata(self) -> dict[str, Any]:
        return self._turn.metadata

    def get_user_input(self, delimiter: str = "\n") -> str:
        return delimiter.join(part.text for part in self.message.parts if part.text is not None)


class _Done:
    """Lets `enqueue_event` be called with and without `await`, as older and newer SDKs do."""

    def __await__(self) -> Generator[None, None, None]:
        yield from asyncio.sleep(0).__await__()


class EventQueue:
    """Where an executor says what happens."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._again = [
            id
            for id, known in turn.snapshot.artifacts.items()
            if known.turn == turn.n and not known.before and _RANDOM.match(id)
        ]
        """Ids that an interrupted run of this turn made up, and this one has not yet made up anew."""
        self._names: dict[str, str] = {}
        """What this run makes up, and what is on record in its place."""
        self._last: Message | None = None
        """A message said about a task that peers see already. If it was the last word, it is how the task ends."""

    def enqueue_event(self, event: Event) -> _Done:
        """Put a Message, a Task, a status update or an artifact update on record."""
        if self._last is not None:
            self._turn.say(self._last)
            self._last = None
        event = as_plain(event)
        match event:
            case Message():
                self._message(event)
            case Task():
                self._turn.show()
                for artifact in event.artifacts:
                    self._standing(artifact)
                self._status(event.status, {})
            case StatusUpdate():
                self._status(event.status, event.metadata)
            case ArtifactUpdate():
                self._artifact(event)
            case _:
                raise TypeError(f"{type(event).__name__} is not an event")
        return _Done()

    def close(self) -> None:
        """Nothing more comes."""
        if self._last is not None and self._turn.final == (TaskState.COMPLETED, None, {}):
            self._turn.finish(TaskState.COMPLETED, self._last)
        elif self._last is not None:
            self._turn.say(self._last)

    def _message(self, message: Message) -> None:
        if self._turn.shown:
            self._last = message
        else:
            self._turn.reply(message)

    def _status(self, status: TaskStatus, metadata: dict[str, Any]) -> None:
        turn = self._turn
        if status.state.over:
            turn.show()
            turn.finish(status.state, status.message, metadata)
        elif status.message is not None or metadata:
            turn.say(status.message or (), metadata)
        else:
            turn.show()

    def _artifact(self, update: ArtifactUpdate) -> None:
        artifact = update.artifact
        writer = self._turn.artifact(
            artifact.name,
            id=self._id(artifact.artifact_id),
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
            append=update.append,
        )
        if not update.append:
            writer.restart()
        writer.put_together(artifact.parts, last=update.last_chunk)

    def _standing(self, artifact: Artifact) -> None:
        """An artifact of a whole task: new, or as it is on record."""
        known = self._turn.snapshot.artifacts.get(artifact.artifact_id)
        if known is None or known.artifact() != artifact:
            self._artifact(ArtifactUpdate(task_id="", context_id="", artifact=artifact, last_chunk=True))

    def _id(self, id: str) -> str:
        """The id to record an artifact by. One made up anew at each run is matched with that of the run before."""
        if id in self._again:
            self._again.remove(id)
        elif self._again and id not in self._names and _RANDOM.match(id):
            self._names[id] = self._again.pop(0)
        return self._names.get(id, id)


class TaskUpdater:
    """The usual events of a task, by name."""

    def __init__(self, event_queue: EventQueue, task_id: str = "", context_id: str = "") -> None:
        self._queue, self.task_id, self.context_id = event_queue, task_id, context_id

    async def update_status(
        self,
        state: TaskState,
        message: Message | None = None,
        final: bool = False,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        await self._queue.enqueue_event(
            TaskStatusUpdateEvent(
                status=TaskStatus(state=state, message=message), metadata=metadata or NOTHING, final=final
            )
        )

    async def add_artifact(
        self,
        parts: Sequence[Part],
        artifact_id: str = "",
        name: str = "",
        metadata: dict[str, Any] | None = None,
        append: bool = False,
        last_chunk: bool = False,
        extensions: Sequence[str] = (),
    ) -> None:
        artifact = Artifact(
            artifact_id=artifact_id or new_id(),
            parts=tuple(parts),
            name=name,
            metadata=metadata or NOTHING,
            extensions=tuple(extensions),
        )
        await self._queue.enqueue_event(
            ArtifactUpdate(task_id="", context_id="", artifact=artifact, append=append, last_chunk=last_chunk)
        )

    async def submit(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.SUBMITTED, message)

    async def start_work(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.WORKING, message)

    async def complete(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.COMPLETED, message)

    async def failed(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.FAILED, message)

    async def reject(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.REJECTED, message)

    async def cancel(self, message: Message | None = None) -> None:
        await self.update_status(TaskState.CANCELED, message)

    async def requires_input(self, message: Message | None = None, final: bool = True) -> None:
        await self.update_status(TaskState.INPUT_REQUIRED, message)

    async def requires_auth(self, message: Message | None = None, final: bool = True) -> None:
        await self.update_status(TaskState.AUTH_REQUIRED, message)

    def new_agent_message(self, parts: Sequence[Part], metadata: dict[str, Any] | None = None) -> Message:
        return new_agent_parts_message(parts, self.context_id, self.task_id)


class ExecutorAgent(Agent):
    """An `AgentExecutor` and its card, as an agent."""

    def __init__(self, executor: AgentExecutor, card: Card, **options: Any) -> None:
        super().__init__(card.name, card.description, version=card.version, **options)
        self._executor = executor
        streaming = card.capabilities.streaming is not False
        card = replace(card, capabilities=replace(card.capabilities, streaming=streaming))
        if self.auth:
            card = replace(
                card, security_schemes=self.auth.schemes, security_requirements=self.auth.needing()
            )
        elif card.security_schemes:
            logger.warning("the card of %s asks for credentials that nobody checks: give auth=", card.name)
        self._card = card

    def admit(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        return True  # it decides while it runs whether it answers with a Message or a Task

    async def work(self, turn: Turn) -> None:
        context, queue = RequestContext(turn), EventQueue(turn)
        try:
            await self._executor.execute(context, queue)
            queue.close()
        except asyncio.CancelledError:
            if turn.cancelled:
                try:
                    await self._executor.cancel(context, queue)
                except A2AError as error:
                    logger.info("task %s: %s", turn.task_id, error)
                except Exception:
                    logger.info("task %s: the executor's cancel raised", turn.task_id, exc_info=True)
            raise
