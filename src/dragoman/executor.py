"""For code written against the official SDK: the same names, on our engine.

    from dragoman.executor import AgentExecutor, EventQueue, RequestContext, new_agent_text_message

An executor gets a request and puts events on a queue. What it puts there goes to the task's log, so its tasks survive a
restart, stream, and answer every version of the protocol; when a turn is interrupted, `execute` runs again. The names
that the SDK's quickstart uses besides (`AgentCard`, `DefaultRequestHandler`, `A2AStarletteApplication`, ...) are here
too, so that it ports by changing its imports.
"""

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
from dragoman.model.card import AgentCard as Card
from dragoman.model.card import Capabilities, Provider, Skill
from dragoman.model.content import Artifact, Message, Part, Role
from dragoman.model.ids import new_id, timestamp
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
        return self._turn.message

    @property
    def task_id(self) -> str:
        return self._turn.task_id

    @property
    def context_id(self) -> str:
        return self._turn.context_id

    @property
    def current_task(self) -> Task | None:
        """The task this message continues; None for the first message."""
        return self._turn.task if self._turn.n > 1 or self._turn.attempt > 1 else None

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
        self._names: dict[str, str] = {}

    def enqueue_event(self, event: Event) -> _Done:
        """Put a Message, a Task, a status update or an artifact update on record."""
        match event:
            case Message():
                self._message(event)
            case Task():
                self._turn.show()
                self._status(event.status, {})
            case StatusUpdate():
                self._status(event.status, event.metadata)
            case ArtifactUpdate():
                self._artifact(event)
            case _:
                raise TypeError(f"{type(event).__name__} is not an event")
        return _Done()

    def _message(self, message: Message) -> None:
        if self._turn.shown:
            self._turn.say(message)
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
        key = artifact.artifact_id
        if _RANDOM.match(key):  # made anew at each run: name it by its place, so that a replay finds it again
            key = self._names.setdefault(key, f"artifact-{len(self._names) + 1}")
        writer = self._turn.artifact(
            artifact.name,
            id=key,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
        )
        if not update.append:
            writer.restart()
        for i, part in enumerate(artifact.parts, 1):
            writer.put(part, last=update.last_chunk and i == len(artifact.parts))


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
                status=TaskStatus(state=state, message=message), metadata=metadata or {}, final=final
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
            metadata=metadata or {},
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


def new_agent_text_message(text: str, context_id: str = "", task_id: str = "") -> Message:
    return new_agent_parts_message((Part(text=text),), context_id, task_id)


def new_agent_parts_message(parts: Sequence[Part], context_id: str = "", task_id: str = "") -> Message:
    return Message(
        message_id=new_id(), role=Role.AGENT, parts=tuple(parts), context_id=context_id, task_id=task_id
    )


def new_text_artifact(name: str, text: str, description: str = "") -> Artifact:
    return Artifact(artifact_id=new_id(), name=name, description=description, parts=(Part(text=text),))


def new_task(request: Message) -> Task:
    """A fresh task for a message, as the SDK's samples put it on the queue first."""
    status = TaskStatus(state=TaskState.SUBMITTED, timestamp=timestamp())
    return Task(
        id=request.task_id or new_id(), context_id=request.context_id, status=status, history=(request,)
    )


def TaskStatusUpdateEvent(
    status: TaskStatus, *, metadata: dict[str, Any] | None = None, final: bool = False, **ids: str
) -> StatusUpdate:
    """The SDK's constructor. The ids of task and context, and `final`, are the engine's to know."""
    return StatusUpdate(task_id="", context_id="", status=status, metadata=metadata or {})


def TaskArtifactUpdateEvent(
    artifact: Artifact,
    *,
    append: bool = False,
    lastChunk: bool = False,
    last_chunk: bool = False,
    metadata: dict[str, Any] | None = None,
    **ids: str,
) -> ArtifactUpdate:
    """The SDK's constructor, in both spellings."""
    return ArtifactUpdate(
        task_id="",
        context_id="",
        artifact=artifact,
        append=append,
        last_chunk=lastChunk or last_chunk,
        metadata=metadata or {},
    )


def TextPart(text: str, **more: Any) -> Part:
    return Part(text=text, **more)


def AgentSkill(
    id: str,
    name: str,
    description: str = "",
    tags: Sequence[str] = (),
    examples: Sequence[str] = (),
    inputModes: Sequence[str] = (),
    outputModes: Sequence[str] = (),
    input_modes: Sequence[str] = (),
    output_modes: Sequence[str] = (),
) -> Skill:
    return Skill(
        id=id,
        name=name,
        description=description,
        tags=tuple(tags),
        examples=tuple(examples),
        input_modes=tuple(inputModes or input_modes),
        output_modes=tuple(outputModes or output_modes),
    )


def AgentCapabilities(
    streaming: bool = True, pushNotifications: bool = False, stateTransitionHistory: bool = False, **more: Any
) -> Capabilities:
    return Capabilities(streaming=streaming, push_notifications=pushNotifications)


def AgentAuthentication(schemes: Sequence[str] = (), credentials: str = "") -> tuple[str, ...]:
    """0.1's list of scheme names. `public` means none."""
    return tuple(scheme for scheme in schemes if scheme != "public")


def AgentCard(
    name: str,
    description: str = "",
    url: str = "",
    version: str = "1.0.0",
    capabilities: Capabilities | None = None,
    skills: Sequence[Skill] = (),
    defaultInputModes: Sequence[str] = (),
    defaultOutputModes: Sequence[str] = (),
    default_input_modes: Sequence[str] = (),
    default_output_modes: Sequence[str] = (),
    authentication: Sequence[str] = (),
    provider: Provider | None = None,
    **more: Any,
) -> Card:
    """The SDK's constructor, in both spellings. `url` is ignored: the server knows where it is reached."""
    if authentication:
        raise TypeError("a card does not authenticate anybody: declare `auth=` on the agent instead")
    return Card(
        name=name,
        description=description,
        version=version,
        provider=provider,
        capabilities=capabilities or Capabilities(streaming=True),
        skills=tuple(skills),
        default_input_modes=_modes(defaultInputModes or default_input_modes),
        default_output_modes=_modes(defaultOutputModes or default_output_modes),
    )


def _modes(modes: Sequence[str]) -> tuple[str, ...]:
    return tuple("text/plain" if mode == "text" else mode for mode in modes) or ("text/plain",)


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
        except asyncio.CancelledError:
            if turn.cancelled:
                try:
                    await self._executor.cancel(context, queue)
                except A2AError as error:
                    logger.info("task %s: %s", turn.task_id, error)
                except Exception:
                    logger.info("task %s: the executor's cancel raised", turn.task_id, exc_info=True)
            raise


class InMemoryTaskStore:
    """Here so that the quickstart ports; it says `memory:` where a store is named."""

    url = "memory:"


class DefaultRequestHandler:
    def __init__(
        self, agent_executor: AgentExecutor, task_store: InMemoryTaskStore | None = None, **more: Any
    ) -> None:
        self.agent_executor = agent_executor
        self.store = task_store.url if task_store is not None else ""


class A2AStarletteApplication:
    """`build()` gives the ASGI app. `auth` is as for `Agent`."""

    def __init__(
        self, agent_card: Card, http_handler: DefaultRequestHandler, *, auth: Sequence[Any] = (), **more: Any
    ) -> None:
        self._agent = ExecutorAgent(http_handler.agent_executor, agent_card, auth=auth)
        self._options = {"store": http_handler.store} if http_handler.store else {}

    def build(self, **more: Any) -> Any:
        return self._agent.app(**self._options)
