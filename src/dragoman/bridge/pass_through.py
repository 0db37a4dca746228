"""Mode `pass`: calls go to the agent unchanged, and its answers come back. Nothing is stored here.

Tasks, ids and event numbers are the agent's. Operations that it does not offer are refused in the caller's version. Events are passed on in
the batches in which they come, and the client resumes a broken connection to the agent.

What 1.0 promises to callers and an older agent does not do is done here: a stream begins with its task, and a blocking send is answered
when the task stops.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from dragoman.bridge.bridged_agent import BridgedAgent
from dragoman.bridge.upstream import MAX_MESSAGE_CHARS, NotCalled, Upstream
from dragoman.client.transport.transport import NotSent
from dragoman.engine.delegate import MAX_DEPTH
from dragoman.errors import (
    A2AError,
    ExtendedCardNotConfigured,
    Forbidden,
    InvalidAgentResponse,
    InvalidParams,
    TaskNotFound,
    Unauthenticated,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.ops import (
    Batch,
    Call,
    GetExtendedCard,
    GetOrigin,
    GetTask,
    Request,
    ResumeTask,
    SendMessage,
    StreamResponse,
    SubscribeToTask,
)
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task, TaskState, TaskStatus

logger = logging.getLogger("dragoman.bridge")

R = TypeVar("R", bound=Request)


class PassThroughService:
    """The `Service` of a route in mode `pass`."""

    def __init__(self, agent: BridgedAgent, upstream: Upstream) -> None:
        self._agent, self._upstream = agent, upstream

    async def call(self, call: Call, request: Request) -> Any:
        if isinstance(request, GetOrigin):
            return ""
        await self._admit(call, request)
        if isinstance(request, GetExtendedCard):
            return await self._extended_card(call)
        call, request = _outgoing(call, request)
        try:
            return await self._ask(call, request)
        except A2AError as error:
            if (unnamed := _without_task(call, request, error)) is None:
                raise for_callers(error, self._upstream) from error
        try:
            return await self._ask(call, unnamed)
        except A2AError as error:
            raise for_callers(error, self._upstream) from error

    async def _ask(self, call: Call, request: Request) -> Any:
        result = await self._upstream.call(call, request)
        if not isinstance(request, SendMessage) or not isinstance(result, Task):
            return result
        settings = request.configuration
        if result.state.settled or settings.return_immediately:
            return result
        # Some agents answer at once, even to a blocking send.
        with suppress(UnsupportedOperation):  # it stopped in between
            async for _ in self._upstream.stream(call, ResumeTask(id=result.id, known=result)):
                pass
        return await self._upstream.call(call, GetTask(id=result.id, history_length=settings.history_length))

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        await self._admit(call, request)
        call, request = _outgoing(call, request)
        again: SendMessage | SubscribeToTask | None = request
        while again is not None:
            try:
                async with aclosing(self._read(call, again)) as batches:
                    async for batch in batches:
                        yield batch
                return
            except A2AError as error:
                again = _without_task(call, again, error)
                if again is None:
                    raise for_callers(error, self._upstream) from error

    async def _read(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncGenerator[Batch, None]:
        """The stream, with its task first."""
        starts = isinstance(request, SendMessage) and not request.message.task_id
        begins = isinstance(request, SubscribeToTask) and call.after is None
        if isinstance(request, SubscribeToTask) and begins and not self._upstream.shows_task_first:
            task: Task = await self._upstream.call(call, GetTask(id=request.id))
            _check_not_finished(call, task)
            begins = False
            yield [StreamResponse(task)]
            if task.state.terminal:
                return
            request = ResumeTask(id=request.id, known=task)
        async with aclosing(self._upstream.stream(call, request)) as batches:  # type: ignore[type-var]
            async for batch in batches:
                if begins and batch:
                    # our client answers with the task if a subscription is refused because the task has finished
                    _check_not_finished(call, batch[0].event)
                    begins = False
                if starts and batch:
                    batch, starts = _task_first(batch), False
                yield batch

    async def _admit(self, call: Call, request: Request) -> None:
        if call.depth >= MAX_DEPTH:
            raise InvalidParams(
                "too many agents call one another in a row"
            )  # an error that clients do not retry
        if self._agent.authorize is not None:
            await self._agent.authorize(call, request)
        if isinstance(request, SendMessage):
            self._agent.check_message(request, call.principal)

    async def _extended_card(self, call: Call) -> Any:
        if not self._agent.card.capabilities.extended_agent_card:
            raise UnsupportedOperation("this operation is not supported: the agent has no extended card")
        if not call.principal.id:
            raise ExtendedCardNotConfigured("no extended card is configured")
        try:
            return await self._agent.extended_card(call.principal)
        except A2AError as error:
            raise for_callers(error, self._upstream) from error


def _check_not_finished(call: Call, event: Event) -> None:
    """Raise `UnsupportedOperation` for a subscription to a finished task, in versions in which that is an error."""
    if isinstance(event, Task) and event.state.terminal and not call.reads_finished:
        raise UnsupportedOperation(f"task {event.id!r} is {event.state.word}: nothing more will come")


def _outgoing(call: Call, request: R) -> tuple[Call, R]:
    """The call for the agent: one level deeper, and with an idempotency key that no other caller of ours can have."""
    key = call.idempotency_key
    if key and call.principal.id:
        identity = (call.principal.tenant, call.principal.id, key)
        key = sha256(msgspec.json.encode(identity)).hexdigest()[:32]
    call = replace(call, depth=call.depth + 1, idempotency_key=key)
    return call, replace(request, tenant="") if request.tenant else request


def _task_first(batch: Batch) -> Batch:
    """The first events of a new task, with the task before them: versions before 0.2 do not send it."""
    first, *rest = batch
    event = first.event
    if isinstance(event, StatusUpdate):
        task = Task(
            id=event.task_id, context_id=event.context_id, status=event.status, metadata=event.metadata
        )
        return [StreamResponse(task, first.seq), *rest]
    if isinstance(event, ArtifactUpdate):
        working = TaskStatus(state=TaskState.WORKING)
        task = Task(id=event.task_id, context_id=event.context_id, status=working)
        return [StreamResponse(task), *batch]
    return batch


def _without_task(call: Call, request: Request, error: A2AError) -> SendMessage | None:
    """The message for a new task, if its sender chose an id for it that the agent does not know (0.1). Later versions do
    not let callers choose: the answer has the agent's id."""
    if not call.names_tasks or not isinstance(error, TaskNotFound) or not isinstance(request, SendMessage):
        return None
    message = request.message
    return replace(request, message=replace(message, task_id="")) if message.task_id else None


def for_callers(error: A2AError, upstream: Upstream) -> A2AError:
    """The error for a caller of the bridge. It hides the agent's address, and that the agent refused the bridge's credentials. The
    agent's own errors about a request are passed on."""
    if isinstance(error, NotCalled):
        return Unavailable(error.message, retry_after=error.retry_after)
    if isinstance(error, NotSent):
        logger.warning("%s cannot be reached: %s", upstream.name, error.message)
        return Unavailable("the agent behind this address cannot be reached", retry_after=1)
    if isinstance(error, Unreachable):
        logger.warning("%s did not answer: %s", upstream.name, error.message)
        return Unreachable("the agent behind this address did not answer: it may have got the request")
    if isinstance(error, InvalidAgentResponse):
        logger.warning("%s sent an answer that cannot be read: %s", upstream.name, error.message)
        return InvalidAgentResponse("the agent behind this address sent an answer that cannot be read")
    if isinstance(error, Unauthenticated | Forbidden) and not upstream.shows_callers:
        logger.error("%s refuses the credentials of its route: %s", upstream.name, error.message)
        return Unavailable("the agent behind this address refuses this server")
    error.message = error.message[:MAX_MESSAGE_CHARS]
    return error
