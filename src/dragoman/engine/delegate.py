"""Calls of other agents. Each is a step with two records.

`child` is written as soon as the peer has named its task; `step` has the result. After a crash, a recorded result is
returned, and a recorded child is subscribed to. If neither is recorded, the message is sent again with the same idempotency key,
by which a Dragoman server recognises it. If the task is canceled, so is the child, also if no node ran the task at that moment
(`cancel_children`). If only this process stops, the child goes on.
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
from dragoman.engine.records import Child, Record
from dragoman.engine.snapshot import Snapshot
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
"""How long a call waits for a peer that may be restarting, unless it has `wait=`."""
MAX_DEPTH = 8
"""How many agents may call one another in a row. It ends circles."""


class CallResult(msgspec.Struct, omit_defaults=True):
    """The result of a call, as recorded."""

    task: Task | None = None
    message: Message | None = None


class RequestOptions(TypedDict, total=False):
    """Options of a call for its message."""

    task: str
    """The peer's task that the message continues."""
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
    """The metadata of an answer for another agent, without the skill that it names for this one."""
    return {name: value for name, value in metadata.items() if name != "skillId"} or NOTHING


def key_of_call(recorded: Recorded, peer: str, request: SendMessage, key: str) -> str:
    """The key under which a call is recorded: its own, or a hash of the peer and the content."""
    if key:
        return f"call/{key}"
    content = msgspec.structs.replace(
        request, message=msgspec.structs.replace(request.message, message_id="")
    )
    return recorded.count_key(f"call/{digest(peer.encode() + b' ' + msgspec.json.encode(content))}")


async def delegate(
    recorded: Recorded,
    peers: Peers,
    peer: str,
    request: SendMessage,
    key: str,
    trace: dict[str, str],
    wait: float = WAIT_SECONDS,
    extensions: Sequence[str] = (),
) -> AsyncGenerator[Event, None]:
    """Call `peer`, and yield its events. When this ends, the result is recorded under `key`.

    If the peer accepts no connection, or is full, this waits for it: `wait` seconds, and not after the caller's deadline.
    """
    recorded.note_call(key)
    await recorded.may_begin()
    attempt, since = 0, time.monotonic()
    while True:
        try:
            service, scope = await peers.find(peer, recorded.scope)
            call = make_call(recorded, scope, key, trace, extensions)
            async with aclosing(_run_call(recorded, service, call, request, key, peer)) as events:
                async for event in events:
                    attempt, since = 0, time.monotonic()
                    yield event
            return
        except A2AError as error:
            attempt += 1
            seconds = seconds_to_wait(error, attempt)
            left = wait - (time.monotonic() - since)
            if (deadline := recorded.mail.deadline) is not None:
                left = min(left, deadline - time.time())
            if seconds is None or seconds > left:
                logger.warning("task %s: the call of %s failed: %s", recorded.task_id, peer, error.message)
                error.delegated = True
                raise
            if attempt == 1:
                logger.warning(
                    "task %s: waiting up to %.0f s for %s: %s", recorded.task_id, left, peer, error.message
                )
            await asyncio.sleep(seconds)


def seconds_to_wait(error: A2AError, attempt: int) -> float | None:
    """Seconds to wait for a peer that may be restarting, or is full. None: do not wait."""
    if isinstance(error, Unreachable) and error.may_be_restarting:
        seconds: float = min(0.1 * 2 ** (attempt - 1), 2.0)
        return seconds
    return error.retry_after if isinstance(error, Unavailable | RateLimited) else None


def make_call(
    recorded: Recorded, scope: Scope, key: str, trace: dict[str, str], extensions: Sequence[str] = ()
) -> Call:
    """A call on behalf of the caller of the turn. Raises `Unavailable` if too many agents call one another in a row.

    Its idempotency key is the same after a crash, and different from that of any other call. It is a hash, because peers see it
    and must not read from it which task it is for. The id of a task would not be enough: two callers may choose the same.
    """
    mail, own = recorded.mail, recorded.scope
    if mail.depth >= MAX_DEPTH:
        raise Unavailable("too many agents call one another in a row")
    identity = (own.tenant, own.agent, own.owner, recorded.task_id, recorded.n, key)
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
        inside=True,
    )


async def _run_call(
    recorded: Recorded, service: Service, call: Call, request: SendMessage, key: str, peer: str
) -> AsyncGenerator[Event, None]:
    if (step := recorded.steps.get(key)) is not None:
        known = msgspec.json.decode(step.value, type=CallResult)
        if (answer := known.task or known.message) is not None:
            yield answer
        return
    fold = Fold()
    child = recorded.children.get(key)
    try:
        if child is not None:
            fold.task_id = child.task
            stream = _resume(service, call, child.task)
        else:
            await recorded.may_begin()  # again, because finding the peer may have taken long
            stream = _stream_events(service, call, request)
        async with aclosing(stream) as events:
            async for event in events:
                fold.apply(event)
                if child is None and fold.task_id:
                    child = recorded.children[key] = Child(key=key, peer=peer, task=fold.task_id)
                    await recorded.commit(Record("child", child))
                yield event
                if isinstance(event, StatusUpdate) and event.status.state is TaskState.AUTH_REQUIRED:
                    break  # the stream may stay open until the authorisation is given
    except (asyncio.CancelledError, GeneratorExit):
        if child is not None and recorded.cancelled:
            await cancel_child(service, call, child)
        raise
    outcome = CallResult(message=fold.message) if fold.message is not None else CallResult(task=fold.task)
    if outcome.task is None and outcome.message is None:
        raise InvalidAgentResponse(f"{peer} closed the stream without an event")
    answer = outcome.task or outcome.message
    if answer is not None:
        of = outcome.task.id if outcome.task is not None else key
        recorded.add_usage_of_called(f"{peer} {of}", usage_in(answer.metadata))
    await recorded.record_step(key, outcome)


async def _stream_events(
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
    """Continue with a task that the peer is working on, or has finished."""
    known: Task = await service.call(call, GetTask(id=task))
    if known.state.settled:
        yield known
        return
    try:
        async for event in _stream_events(service, call, SubscribeToTask(id=task)):
            yield event
            if getattr(event, "status", None) is not None and event.status.state.settled:  # type: ignore[union-attr]
                return
    except UnsupportedOperation:  # it finished between the two requests
        yield await service.call(call, GetTask(id=task))


async def cancel_children(peers: Peers, snapshot: Snapshot) -> None:
    """Cancel the unfinished calls of a task."""

    async def cancel(child: Child) -> None:
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(PEER_SECONDS):
                service, scope = await peers.find(child.peer, snapshot.scope)
                mail = snapshot.canceling or snapshot.mails[0][1]
                who = mail.principal
                call = Call(scope=scope, principal=Principal(id=who, tenant=scope.tenant))
                await cancel_child(service, call, child)

    await asyncio.gather(*(cancel(child) for child in _unfinished(snapshot)))


async def unfinished_children(peers: Peers, snapshot: Snapshot) -> list[Child]:
    """The calls of a task that peers are working on."""

    async def is_working(child: Child) -> bool:
        with suppress(A2AError, TimeoutError):
            return not (await get_child(peers, snapshot, child)).state.settled
        return False

    children = _unfinished(snapshot)
    working = await asyncio.gather(*map(is_working, children))
    return [child for child, works in zip(children, working, strict=True) if works]


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
    result = msgspec.json.decode(step.value, type=CallResult)
    return result.task is None or not result.task.state.interrupted


async def cancel_child(service: Service, call: Call, child: Child) -> None:
    """Cancel the peer's task, within `PEER_SECONDS`: the caller is being cancelled itself."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(PEER_SECONDS):
            await service.call(call, CancelTask(id=child.task))
