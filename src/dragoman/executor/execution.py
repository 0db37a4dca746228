"""An executor: its request (`RequestContext`), the queue for its events (`EventQueue`, `TaskUpdater`), and the agent that runs it
(`ExecutorAgent`)."""

from __future__ import annotations

import asyncio
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.engine.journal import Journal
from dragoman.engine.records import Mail
from dragoman.engine.turn import Turn, record_of
from dragoman.errors import A2AError
from dragoman.executor import types
from dragoman.executor.missing import find_in_package
from dragoman.executor.sdk_aliases import SdkType, SdkValue, to_model, to_sdk
from dragoman.executor.types import AgentCard
from dragoman.model.card import AgentCard as Card
from dragoman.model.content import Artifact, Message, Role
from dragoman.model.ops import Principal, SendMessage
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.executor")

_RANDOM = re.compile(r"[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}\Z")


class Configuration(SdkValue):
    """The configuration of the request; executors read only the accepted output modes."""

    def __init__(self, accepted_output_modes: Sequence[str]) -> None:
        self.accepted_output_modes = list(accepted_output_modes)


class User:
    def __init__(self, name: str) -> None:
        self.is_authenticated, self.user_name = bool(name), name


class ServerCallContext:
    """Who is calling. `state` is for the executor, and lasts for one message."""

    def __init__(
        self, user: User | None = None, *, tenant: str = "", requested_extensions: Sequence[str] = ()
    ) -> None:
        self.user = user or User("")
        self.tenant = tenant
        self.requested_extensions = set(requested_extensions)
        self.activated_extensions: set[str] = set()
        self.state: dict[str, Any] = {}


class RequestContext:
    """The request. Messages and tasks are typed `Any`, because they have their members in the spelling of every SDK.

    They are copies: changing them does not change the log.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.call_context = ServerCallContext(
            User(turn.principal), tenant=turn.scope.tenant, requested_extensions=turn.mail.extensions
        )
        self.configuration = Configuration(turn.mail.accepted_output_modes)
        self.related_tasks: list[Any] = []
        self.metadata: dict[str, Any] = turn.metadata

    @cached_property
    def message(self) -> Any:
        return to_sdk(self._turn.message)

    @cached_property
    def current_task(self) -> Any:
        """The task that this message continues; None for the first message."""
        return to_sdk(self._turn.task) if self._turn.n > 1 else None

    @property
    def task_id(self) -> str:
        return self._turn.task_id

    @property
    def context_id(self) -> str:
        return self._turn.context_id

    @property
    def tenant(self) -> str:
        return self.call_context.tenant

    @property
    def requested_extensions(self) -> set[str]:
        return self.call_context.requested_extensions

    def add_activated_extension(self, uri: str) -> None:
        """Only stored in `call_context`: the server decides which extensions an answer names."""
        self.call_context.activated_extensions.add(uri)

    def attach_related_task(self, task: Any) -> None:
        self.related_tasks.append(task)

    def get_user_input(self, delimiter: str = "\n") -> str:
        return delimiter.join(part.text for part in self.message.parts if part.text is not None)


class AgentExecutor(ABC):
    """Your agent. `execute` does the work; `cancel` cleans up after a canceled task."""

    @abstractmethod
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None: ...

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:  # noqa: B027
        """The task is canceled also if this fails."""


class Done:
    """The result of `enqueue_event`, which newer SDKs await and older ones do not. Awaiting it lets other coroutines run, and
    waits until the events are written if many are not."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def __await__(self) -> Generator[Any, Any, None]:
        waits = self._journal.commit() if self._journal.full else asyncio.sleep(0)
        yield from waits.__await__()


class EventQueue:
    """Writes the events of an executor to the log of its task."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._again = [
            id
            for id, known in record_of(turn).journal.snapshot.artifacts.items()
            if known.turn == turn.n and not known.before and _RANDOM.match(id)
        ]
        """Random ids of artifacts of an interrupted run of this turn that are not matched with one of this run yet."""
        self._names: dict[str, str] = {}
        """The recorded id for each random id of this run."""
        self._heads: dict[str, Artifact] = {}
        """The metadata of each artifact, without its parts."""
        self._last: Message | None = None
        """A message of a task that callers see already. If no other output follows, it is the message of the final status."""

    def enqueue_event(self, event: Event | SdkType) -> Done:
        """Record a Message, a Task, a status update or an artifact update."""
        if self._last is not None:
            self._turn.say(self._last)
            self._last = None
        event = to_model(event)
        match event:
            case Message():
                self._message(event)
            case Task():
                self._turn.show()
                for artifact in event.artifacts:
                    self._whole_artifact(artifact)
                self._status(event.status, event.metadata)
            case StatusUpdate():
                self._status(event.status, event.metadata)
            case ArtifactUpdate():
                self._artifact(event)
            case _:
                kind = type(event)
                raise TypeError(f"{kind.__module__}.{kind.__name__} is no event of dragoman.executor")
        return Done(record_of(self._turn).journal)

    def close(self, immediate: bool = False) -> Done:
        """Record the end of the turn: no event follows."""
        last, self._last = self._last, None
        if last is not None and record_of(self._turn).final == (TaskState.COMPLETED, None, {}):
            self._turn.finish(TaskState.COMPLETED, last)
        elif last is not None:
            self._turn.say(last)
        return Done(record_of(self._turn).journal)

    def _message(self, message: Message) -> None:
        if record_of(self._turn).visible:
            self._last = message
        else:
            self._turn.reply(message)

    def _status(self, status: TaskStatus, metadata: dict[str, Any]) -> None:
        turn = self._turn
        if status.state.settled:
            turn.show()
            turn.finish(status.state, status.message, metadata)
        elif status.message is not None or metadata:
            turn.say(status.message or (), metadata)
        else:
            turn.show()

    def _artifact(self, update: ArtifactUpdate) -> None:
        artifact = replace(update.artifact, artifact_id=self._id(update.artifact.artifact_id))
        writer = self._turn.artifact(
            artifact.name,
            id=artifact.artifact_id,
            description=artifact.description,
            metadata=artifact.metadata,
            extensions=artifact.extensions,
            append=update.append,
        )
        if not update.append:
            writer.restart()
        head = replace(artifact, parts=())
        known = self._heads.get(head.artifact_id) if update.append else None
        whole = self._heads[head.artifact_id] = head if known is None else known.extended_by(head)
        writer.amend = lambda body: _with_details(body, update, head, whole)
        try:
            writer.put_together(artifact.parts, last=update.last_chunk)
            if not artifact.parts and update.last_chunk:
                writer.close()
        finally:
            writer.amend = None

    def _whole_artifact(self, artifact: Artifact) -> None:
        """Record an artifact of a whole task, unless it is recorded already."""
        known = record_of(self._turn).journal.snapshot.artifacts.get(artifact.artifact_id)
        if known is None or known.artifact() != artifact:
            self._artifact(ArtifactUpdate(task_id="", context_id="", artifact=artifact, last_chunk=True))

    def _id(self, id: str) -> str:
        """The id under which an artifact is recorded. A random id, which differs in each run, is matched with one of the run before."""
        if id in self._again:
            self._again.remove(id)
        elif self._again and id not in self._names and _RANDOM.match(id):
            self._names[id] = self._again.pop(0)
        return self._names.get(id, id)


def _with_details(
    body: ArtifactUpdate, update: ArtifactUpdate, head: Artifact, whole: Artifact
) -> ArtifactUpdate:
    """A chunk with the metadata of the update that it comes from. `head`: that of the update's artifact; `whole`: together with that of
    earlier updates. (A run that differs from the one before it writes the artifact again.)"""
    written = body.artifact
    artifact = (
        written.extended_by(head if body.append else whole)
        if update.append
        else replace(head, parts=written.parts)
    )
    return replace(body, artifact=artifact, metadata=update.metadata)


class TaskUpdater:
    def __init__(self, event_queue: EventQueue, task_id: str = "", context_id: str = "") -> None:
        self._queue, self.task_id, self.context_id = event_queue, task_id, context_id

    def update_status(
        self,
        state: TaskState,
        message: Any = None,
        final: bool = False,
        timestamp: Any = None,
        metadata: dict[str, Any] | None = None,
    ) -> Done:
        """`final` and `timestamp` are ignored: the engine knows them."""
        return self._queue.enqueue_event(
            types.TaskStatusUpdateEvent(types.TaskStatus(state, message), metadata=metadata)
        )

    def add_artifact(
        self,
        parts: Sequence[Any],
        artifact_id: str | None = None,
        name: str | None = None,
        metadata: dict[str, Any] | None = None,
        append: bool | None = None,
        last_chunk: bool | None = None,
        extensions: Sequence[str] | None = None,
    ) -> Done:
        artifact = types.Artifact(
            parts,
            artifact_id=artifact_id or None,
            name=name,
            metadata=metadata,
            extensions=tuple(extensions or ()),
        )
        return self._queue.enqueue_event(
            types.TaskArtifactUpdateEvent(artifact, append=append, last_chunk=last_chunk)
        )

    def submit(self, message: Any = None) -> Done:
        return self.update_status(TaskState.SUBMITTED, message)

    def start_work(self, message: Any = None) -> Done:
        return self.update_status(TaskState.WORKING, message)

    def complete(self, message: Any = None) -> Done:
        return self.update_status(TaskState.COMPLETED, message)

    def failed(self, message: Any = None) -> Done:
        return self.update_status(TaskState.FAILED, message)

    def reject(self, message: Any = None) -> Done:
        return self.update_status(TaskState.REJECTED, message)

    def cancel(self, message: Any = None) -> Done:
        return self.update_status(TaskState.CANCELED, message)

    def requires_input(self, message: Any = None, final: bool = True) -> Done:
        return self.update_status(TaskState.INPUT_REQUIRED, message)

    def requires_auth(self, message: Any = None, final: bool = True) -> Done:
        return self.update_status(TaskState.AUTH_REQUIRED, message)

    def new_agent_message(self, parts: Sequence[Any], metadata: dict[str, Any] | None = None) -> Any:
        return types.Message(
            Role.AGENT, parts, context_id=self.context_id, task_id=self.task_id, metadata=metadata
        )


class ExecutorAgent(Agent):
    """An `AgentExecutor` and its card, as an agent."""

    def __init__(self, executor: AgentExecutor, card: Card | AgentCard, **options: Any) -> None:
        if not isinstance(card, Card):
            raise TypeError(f"a card is an AgentCard of dragoman.executor, not {type(card).__name__}")
        card = replace(to_model(card), supported_interfaces=())  # the server knows where it is
        super().__init__(card.name, card.description, version=card.version, **options)
        self.executor = executor
        about = replace(
            card.capabilities,
            streaming=card.capabilities.streaming is not False,
            extended_agent_card=self._about.capabilities.extended_agent_card,
            extensions=(*card.capabilities.extensions, *(each.on_card(self) for each in self.extensions)),
        )
        card = replace(card, capabilities=about)
        if self.auth:
            card = replace(
                card, security_schemes=self.auth.schemes, security_requirements=self.auth.needing()
            )
        elif card.security_schemes:
            logger.warning("the card of %s asks for credentials that nobody checks: give auth=", card.name)
        self.card = card

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        return True  # it decides while it runs whether it answers with a Message or a Task

    def request_context(self, turn: Turn) -> Any:
        """The request for `execute`. For subclasses."""
        return RequestContext(turn)

    def event_queue(self, turn: Turn) -> EventQueue:
        """The queue for `execute`. For subclasses."""
        return EventQueue(turn)

    async def work(self, turn: Turn) -> None:
        context, queue = self.request_context(turn), self.event_queue(turn)
        try:
            await self.executor.execute(context, queue)
            queue.close()
        except asyncio.CancelledError:
            if turn.cancelled:
                await self._cancel(turn, context, queue)
            raise

    async def _cancel(self, turn: Turn, context: Any, queue: EventQueue) -> None:
        """Call `cancel` of the executor. Its events are the last output; the engine cancels the task."""
        turn.finish(TaskState.CANCELED)
        try:
            await self.executor.cancel(context, queue)
            queue.close()
        except A2AError as error:
            logger.info("task %s: %s", turn.task_id, error)
        except Exception:
            logger.info("task %s: the executor's cancel raised", turn.task_id, exc_info=True)
        _, message, metadata = record_of(turn).final
        if message is not None or metadata:
            turn.say(message or (), metadata)


__getattr__ = find_in_package
