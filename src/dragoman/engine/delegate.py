"""An agent that calls another: a step in two records.

`child` says where the work went, as soon as the peer has named its task; `step` says what came of it. After a crash:
a result on record is returned, a child on record is subscribed to, and neither on record means sending again under the
same idempotency key, which a Dragoman peer knows. If our task is canceled, so is the child, also when nobody ran our task
at that moment (`abandon`). If only our process stops, the child goes on, and so shall we.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from dragoman.engine.ask import counted, digest
from dragoman.engine.protocols import Peers
from dragoman.engine.records import Child, Record, Snapshot
from dragoman.errors import A2AError, InvalidAgentResponse, Unavailable, UnsupportedOperation
from dragoman.model.content import NOTHING, Message, Part, Role
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
from dragoman.model.task import Event, Task
from dragoman.model.values import parts_of

if TYPE_CHECKING:
    from dragoman.engine.turn import Turn

logger = logging.getLogger("dragoman.delegate")

GRACE = 5.0
MAX_DEPTH = 8
"""How many agents may stand behind one another; it ends circles."""


class Outcome(msgspec.Struct, omit_defaults=True):
    """What came of it, as recorded."""

    task: Task | None = None
    message: Message | None = None

    @property
    def value(self) -> Task | Message:
        value = self.task or self.message
        assert value is not None
        return value


def on_behalf(turn: Turn, scope: Scope, key: str) -> Call:
    """A call of ours for whoever began the turn. Raises `Unavailable` where too many stand behind one another."""
    mail = turn.mail
    if mail.depth >= MAX_DEPTH:
        raise Unavailable("too many agents call one another in a row")
    return Call(
        scope=scope,
        principal=Principal(
            id=turn.principal,
            tenant=scope.tenant,
            scopes=frozenset(mail.scopes),
            generation=mail.generation,
        ),
        idempotency_key=_idempotency_key(turn, key),
        deadline=mail.deadline,
        trace=turn.trace,
        depth=mail.depth + 1,
    )


def _idempotency_key(turn: Turn, key: str) -> str:
    """The same after a crash, and nobody else's. It leaves in a header: whose task it is for, and which, is not to be read
    from it. A task's id alone would not do: callers may choose it, and two of them the same one."""
    scope = turn.scope
    parts = (scope.tenant, scope.agent, scope.owner, turn.task_id, turn.n, key)
    return sha256(msgspec.json.encode(parts)).hexdigest()[:32]


def request_of(
    content: str | Part | Message | Sequence[Part],
    *,
    task: str = "",
    context: str = "",
    skill: str = "",
    metadata: dict[str, Any] | None = None,
    accept: Sequence[str] = (),
) -> SendMessage:
    """What to send to another agent."""
    if isinstance(content, Message):
        message = content.for_task(task, context)
    else:
        message = Message(
            message_id=new_id(), role=Role.USER, parts=parts_of(content), task_id=task, context_id=context
        )
    about = {**(metadata or {}), **({"skillId": skill} if skill else {})} or NOTHING
    return SendMessage(
        message=message, metadata=about, configuration=Configuration(accepted_output_modes=tuple(accept))
    )


def key_of_call(peer: str, request: SendMessage, key: str, used: dict[str, int]) -> str:
    """What a delegation is recorded under: its key, else the peer and what it is told, counted in `used`."""
    if key:
        return f"call/{key}"
    said = msgspec.structs.replace(request, message=msgspec.structs.replace(request.message, message_id=""))
    return counted(f"call/{digest(peer.encode() + b' ' + msgspec.json.encode(said))}", used)


async def delegate(
    turn: Turn, service: Service, call: Call, request: SendMessage, *, key: str, peer: str
) -> AsyncGenerator[Event, None]:
    """Yield what the peer reports. The last of it is on record when this ends."""
    if (step := turn.recorded(key)) is not None:
        outcome = msgspec.json.decode(step.value, type=Outcome)
        yield outcome.value
        return
    fold = Fold()
    child = turn.children.get(key)
    try:
        if child is not None:
            fold.task_id = child.task
            events = _resume(service, call, child.task)
        else:
            await turn.may_begin()  # again: finding the peer may have taken a while
            events = _flat(service, call, request)
        async for event in events:
            fold.apply(event)
            if child is None and fold.task_id:
                child = Child(key=key, peer=peer, task=fold.task_id)
                await turn.put(Record("child", child))
            yield event
    except (asyncio.CancelledError, GeneratorExit):
        if child is not None and turn.cancelled:
            await _cancel(service, call, child)
        raise
    outcome = Outcome(message=fold.message) if fold.message is not None else Outcome(task=fold.task)
    if outcome.task is None and outcome.message is None:
        raise InvalidAgentResponse(f"{peer} closed the stream without an event")
    await turn.record(key, outcome)


async def _flat(service: Service, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Event]:
    try:
        async for batch in service.stream(call, request):
            for response in batch:
                yield response.event
    except UnsupportedOperation:
        if not isinstance(request, SendMessage):
            raise
        yield await service.call(call, request)


async def _resume(service: Service, call: Call, task: str) -> AsyncIterator[Event]:
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


async def abandon(peers: Peers, snapshot: Snapshot) -> None:
    """Cancel what a task had others do, and what was not finished when nobody ran it any more."""

    async def one(child: Child) -> None:
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(GRACE):
                service, scope = await peers.find(child.peer, snapshot.scope)
                mail = snapshot.canceling or snapshot.mails[0][1]
                who = mail.principal
                call = Call(scope=scope, principal=Principal(id=who, tenant=scope.tenant))
                await _cancel(service, call, child)

    await asyncio.gather(*(one(child) for child in _unfinished(snapshot)))


async def at_work(peers: Peers, snapshot: Snapshot) -> list[Child]:
    """Whom a task waits for: those that it has asked and that are working."""

    async def working(child: Child) -> bool:
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(GRACE):
                service, scope = await peers.find(child.peer, snapshot.scope)
                who = Principal(id=snapshot.mails[0][1].principal, tenant=scope.tenant)
                known: Task = await service.call(Call(scope=scope, principal=who), GetTask(id=child.task))
                return not known.state.over
        return False

    children = _unfinished(snapshot)
    return [c for c, w in zip(children, await asyncio.gather(*map(working, children)), strict=True) if w]


def _unfinished(snapshot: Snapshot) -> list[Child]:
    return [child for key, child in snapshot.children.items() if key not in snapshot.steps]


async def _cancel(service: Service, call: Call, child: Child) -> None:
    """Tell the peer that nobody waits any more; bounded, because we are being cancelled ourselves."""
    with suppress(A2AError, TimeoutError):
        async with asyncio.timeout(GRACE):
            await service.call(call, CancelTask(id=child.task))
