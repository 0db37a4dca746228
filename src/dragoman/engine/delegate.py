"""Calls of other agents. Each is a step in two records.

`child` says where the work went, as soon as the peer has named its task; `step` says what came of it. After a crash:
a result on record is returned, a child on record is subscribed to, and neither on record means sending again under the
same idempotency key, which a Dragoman peer knows. If our task is canceled, so is the child, also when nobody ran our task
at that moment (`cancel_children`). If only our process stops, the child goes on, and so shall we.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, TypedDict

import msgspec

from dragoman.engine.protocols import Peers
from dragoman.engine.recorded import Recorded, digest
from dragoman.engine.records import Child, Record, Snapshot
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    InvalidParams,
    RateLimited,
    Unavailable,
    Unreachable,
    UnsupportedOperation,
)
from dragoman.model.content import NOTHING, Message, Part, Role, parts_of
from dragoman.model.fold import Fold
from dragoman.model.ids import new_id
from dragoman.model.ops import (
    Call,
    CancelTask,
    Configuration,
    GetTask,
    Principal,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.model.task import Event, StatusUpdate, Task, TaskState
from dragoman.model.usage import usage_in

logger = logging.getLogger("dragoman.delegate")

PEER_SECONDS = 5.0
"""How long a peer may take to answer when a call is cancelled or looked for."""
WAIT_SECONDS = 30.0
"""How long a peer that may be restarting is waited for, unless the call says otherwise."""
MAX_DEPTH = 8
"""How many agents may call one another in a row; it ends circles."""


class Outcome(msgspec.Struct, omit_defaults=True):
    """The result of a call, as recorded."""

    task: Task | None = None
    message: Message | None = None


class RequestOptions(TypedDict, total=False):
    """What a call says about its message."""

    task: str
    """The peer's task to go on with."""
    context: str
    """The peer's context that a new task belongs to."""
    skill: str
    """The peer's skill that is asked for."""
    metadata: dict[str, Any]
    accept: Sequence[str]
    """Media types of the output."""


class CallOptions(RequestOptions, total=False):
    """Options of `turn.call` and `turn.stream`."""

    extensions: Sequence[str]
    """URIs of extensions to ask the peer for."""
    wait: float
    """Seconds to wait for a peer that accepts no connection, or is full. 30 unless given."""


def make_request(
    content: str | Part | Message | Sequence[Part] | Mapping[str, Any],
    *,
    task: str = "",
    context: str = "",
    skill: str = "",
    metadata: dict[str, Any] | None = None,
    accept: Sequence[str] = (),
) -> SendMessage:
    """The request that sends `content` to another agent."""
    if isinstance(content, Message):
        message = content.for_task(task, context)
        if not message.parts or any(part.contents != 1 for part in message.parts):
            raise InvalidParams("a message has parts, and each holds exactly one of text, raw, url and data")
    else:
        message = Message(
            message_id=new_id(), role=Role.USER, parts=parts_of(content), task_id=task, context_id=context
        )
    about = {**(metadata or {}), **({"skillId": skill} if skill else {})} or NOTHING
    return SendMessage(
        message=message, metadata=about, configuration=Configuration(accepted_output_modes=tuple(accept))
    )


def without_skill(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata of an answer that is passed on: the skill it names is not one of the peer's."""
    return {name: value for name, value in metadata.items() if name != "skillId"} or NOTHING


def key_of_call(record: Recorded, peer: str, request: SendMessage, key: str) -> str:
    """What a call is recorded under: its key, else the peer and the content."""
    if key:
        return f"call/{key}"
    content = msgspec.structs.replace(
        request, message=msgspec.structs.replace(request.message, message_id="")
    )
    return record.count_key(f"call/{digest(peer.encode() + b' ' + msgspec.json.encode(content))}")


async def delegate(
    record: Recorded,
    peers: Peers,
    peer: str,
    request: SendMessage,
    key: str,
    trace: dict[str, str],
    wait: float = WAIT_SECONDS,
    extensions: Sequence[str] = (),
) -> AsyncGenerator[Event, None]:
    """Call `peer`, and yield what it reports. The result is on record under `key` when this ends.

    A peer that accepts no connection, or is full, is waited for: `wait` seconds, and not after the caller's deadline.
    """
    record.call_made(key)
    await record.may_begin()
    attempt, since = 0, time.monotonic()
    while True:
        try:
            service, scope = await peers.find(peer, record.scope)
            call = make_call(record, scope, key, trace, extensions)
            async with aclosing(_events(record, service, call, request, key, peer)) as events:
                async for event in events:
                    attempt, since = 0, time.monotonic()
                    yield event
            return
        except A2AError as error:
            attempt += 1
            seconds = seconds_to_wait(error, attempt)
            left = wait - (time.monotonic() - since)
            if (deadline := record.mail.deadline) is not None:
                left = min(left, deadline - time.time())
            if seconds is None or seconds > left:
                logger.warning("task %s: the call of %s failed: %s", record.task_id, peer, error.message)
                error.delegated = True
                raise
            if attempt == 1:
                logger.warning(
                    "task %s: waiting up to %.0f s for %s: %s", record.task_id, left, peer, error.message
                )
            await asyncio.sleep(seconds)


def seconds_to_wait(error: A2AError, attempt: int) -> float | None:
    """How long to wait for a peer that may be restarting, or is full. None: do not wait."""
    if isinstance(error, Unreachable) and error.may_be_restarting:
        seconds: float = min(0.1 * 2 ** (attempt - 1), 2.0)
        return seconds
    return error.retry_after if isinstance(error, Unavailable | RateLimited) else None


def make_call(
    record: Recorded, scope: Scope, key: str, trace: dict[str, str], extensions: Sequence[str] = ()
) -> Call:
    """A call on behalf of whoever began the turn. Raises `Unavailable` if too many agents call one another in a row.

    Its idempotency key is the same after a crash, and no other call has it. It leaves in a header, so that nobody may
    read from it which task it is for. A task's id alone would not do: callers may choose it, and two of them the same.
    """
    mail, own = record.mail, record.scope
    if mail.depth >= MAX_DEPTH:
        raise Unavailable("too many agents call one another in a row")
    identity = (own.tenant, own.agent, own.owner, record.task_id, record.n, key)
    return Call(
        scope=scope,
        principal=Principal(
            id=mail.principal,
            tenant=scope.tenant,
            scopes=frozenset(mail.scopes),
            generation=mail.generation,
        ),
        idempotency_key=sha256(msgspec.json.encode(identity)).hexdigest()[:32],
        deadline=mail.deadline,
        trace=trace,
        extensions=tuple(extensions),
        depth=mail.depth + 1,
    )


async def _events(
    record: Recorded, service: Service, call: Call, request: SendMessage, key: str, peer: str
) -> AsyncGenerator[Event, None]:
    if (step := record.steps.get(key)) is not None:
        recorded = msgspec.json.decode(step.value, type=Outcome)
        if (answer := recorded.task or recorded.message) is not None:
            yield answer
        return
    fold = Fold()
    child = record.children.get(key)
    try:
        if child is not None:
            fold.task_id = child.task
            stream = _resume(service, call, child.task)
        else:
            await record.may_begin()  # again: finding the peer may have taken a while
            stream = _flat(service, call, request)
        async with aclosing(stream) as events:
            async for event in events:
                fold.apply(event)
                if child is None and fold.task_id:
                    child = record.children[key] = Child(key=key, peer=peer, task=fold.task_id)
                    await record.commit(Record("child", child))
                yield event
                if isinstance(event, StatusUpdate) and event.status.state is TaskState.AUTH_REQUIRED:
                    break  # the stream may stay open until somebody grants it
    except (asyncio.CancelledError, GeneratorExit):
        if child is not None and record.cancelled:
            await cancel_child(service, call, child)
        raise
    outcome = Outcome(message=fold.message) if fold.message is not None else Outcome(task=fold.task)
    if outcome.task is None and outcome.message is None:
        raise InvalidAgentResponse(f"{peer} closed the stream without an event")
    answer = outcome.task or outcome.message
    if answer is not None:
        of = outcome.task.id if outcome.task is not None else key
        record.add_usage_of_called(f"{peer} {of}", usage_in(answer.metadata))
    await record.record(key, outcome)


async def _flat(
    service: Service, call: Call, request: SendMessage | SubscribeToTask
) -> AsyncGenerator[Event, None]:
    try:
        async for batch in service.stream(call, request):
            for response in batch:
                yield response.event
    except UnsupportedOperation:
        if not isinstance(request, SendMessage):
            raise
        yield await service.call(call, request)


async def _resume(service: Service, call: Call, task: str) -> AsyncGenerator[Event, None]:
    """Go on with a task that the peer is working on, or has finished."""
    known: Task = await service.call(call, GetTask(id=task))
    if known.state.over:
        yield known
        return
    try:
        async for event in _flat(service, call, SubscribeToTask(id=task)):
            yield event
            if getattr(event, "status", None) is not None and event.status.state.over:  # type: ignore[union-attr]
                return
    except UnsupportedOperation:  # it finished between the two questions
        yield await service.call(call, GetTask(id=task))


async def cancel_children(peers: Peers, snapshot: Snapshot) -> None:
    """Cancel the unfinished calls of a task."""

    async def one(child: Child) -> None:
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(PEER_SECONDS):
                service, scope = await peers.find(child.peer, snapshot.scope)
                mail = snapshot.canceling or snapshot.mails[0][1]
                who = mail.principal
                call = Call(scope=scope, principal=Principal(id=who, tenant=scope.tenant))
                await cancel_child(service, call, child)

    await asyncio.gather(*(one(child) for child in _unfinished(snapshot)))


async def unfinished_children(peers: Peers, snapshot: Snapshot) -> list[Child]:
    """The calls of a task that peers are working on."""

    async def working(child: Child) -> bool:
        with suppress(A2AError, TimeoutError):
            return not (await get_child(peers, snapshot, child)).state.over
        return False

    children = _unfinished(snapshot)
    return [c for c, w in zip(children, await asyncio.gather(*map(working, children)), strict=True) if w]


async def get_child(peers: Peers, snapshot: Snapshot, child: Child) -> Task:
    """The task of a peer that a task began. Raises `A2AError` and `TimeoutError`."""
    async with asyncio.timeout(PEER_SECONDS):
        service, scope = await peers.find(child.peer, snapshot.scope)
        who = Principal(id=snapshot.mails[0][1].principal, tenant=scope.tenant)
        task: Task = await service.call(Call(scope=scope, principal=who), GetTask(id=child.task))
        return task


def _unfinished(snapshot: Snapshot) -> list[Child]:
    """The calls without a result, and those whose last result was a question."""
    last: dict[tuple[str, str], tuple[str, Child]] = {}
    for key, child in snapshot.children.items():
        last[child.peer, child.task] = key, child
    return [child for key, child in last.values() if not _is_finished(snapshot, key)]


def _is_finished(snapshot: Snapshot, key: str) -> bool:
    if (step := snapshot.steps.get(key)) is None:
        return False
    result = msgspec.json.decode(step.value, type=Outcome)
    return result.task is None or not result.task.state.interrupted


async def cancel_child(service: Service, call: Call, child: Child) -> None:
    """Cancel the peer's task; bounded in time, because we are being cancelled ourselves."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(PEER_SECONDS):
            await service.call(call, CancelTask(id=child.task))
