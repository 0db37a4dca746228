"""Chat with an agent of this server, or with one elsewhere, through our own client.

The answer is a stream of server-sent events: how the agent is called and why (`chosen`), every request and response (`wire`), the events
of the agent (`event`), and how it ended (`end` or `error`). If the page disconnects, the task continues.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from msgspec import Struct

from dragoman.client import Client
from dragoman.client.content import build_request
from dragoman.client.discover import FoundCard
from dragoman.client.reply import Stream
from dragoman.client.routes import BINDINGS, AgentRoute
from dragoman.console.access import OPERATOR, Viewer
from dragoman.console.api import Console, ConsoleRequest, frame, stream
from dragoman.console.keys import key_of, read_key
from dragoman.console.login import Logins
from dragoman.console.outbound import CONSOLE, connect_elsewhere, connect_here
from dragoman.console.wire import Masker, WireView
from dragoman.dialects.cards import era_of
from dragoman.dialects.v1_0 import EVENT_MEMBERS
from dragoman.errors import A2AError, Forbidden, InvalidParams
from dragoman.model.content import Message
from dragoman.model.ids import new_id
from dragoman.model.ops import Batch, Principal, Scope
from dragoman.model.task import Task
from dragoman.observe.redact import redact_text
from dragoman.push.guard import OutboundGuard
from dragoman.server.mount import Mount
from dragoman.server.routes import Natural, Route, RouteList

QUEUE_BYTES = 4 << 20
"""Bytes that wait for a page that reads slowly. If there are more, the agent's answer is not read for a while."""


class _Target(Struct, kw_only=True, forbid_unknown_fields=True):
    """The agent to call: one of this server, or a URL."""

    agent: str = ""
    url: str = ""
    task: str | None = None
    key: str | None = None
    """The key of a task of this server, of any scope."""
    credentials: str | None = None
    """The handle of a login."""
    version: str | None = None
    binding: str | None = None
    tenant: str | None = None
    """For an operator of a hub: the tenant of the agent. It may be left out if there is only one tenant."""
    last_seq: Natural | None = None
    """For an answer to a task of this server: the last record when the question was shown. Then it does not answer a later question."""


class TalkRequest(_Target, kw_only=True, forbid_unknown_fields=True):
    message: dict[str, Any]
    context: str | None = None
    skill: str | None = None


class CancelRequest(_Target, kw_only=True, forbid_unknown_fields=True):
    pass


ActFor = Callable[[Viewer, str], Awaitable[tuple[Principal, str]]]
"""Returns the principal of a call for a viewer and a tenant, and the owner of its tasks. Raises `A2AError`."""


class ByteQueue:
    """Frames on their way to a page. `put` waits while too many bytes wait."""

    def __init__(self, limit: int = QUEUE_BYTES) -> None:
        self._limit, self._size = limit, 0
        self._frames: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    async def put(self, data: bytes) -> None:
        while self._frames and self._size + len(data) > self._limit and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:  # nobody reads any more
            return
        self._frames.append(data)
        self._size += len(data)
        self._changed.set()

    def close(self) -> None:
        self._closed = True
        self._changed.set()

    async def read(self) -> AsyncIterator[bytes]:
        """Everything that is ready, joined, until it is closed and empty."""
        while True:
            if self._frames:
                ready = b"".join(self._frames)
                self._frames.clear()
                self._size = 0
                self._changed.set()
                yield ready
            elif self._closed:
                return
            else:
                self._changed.clear()
                await self._changed.wait()


class Talk:
    """Talks to agents for the viewers of a console."""

    def __init__(
        self, console: Console, guard: OutboundGuard, logins: Logins, act_for: ActFor | None
    ) -> None:
        self._console, self._guard, self._logins, self._act_for = console, guard, logins, act_for

    async def client(
        self, target: _Target, viewer: Viewer, queue: ByteQueue | None = None
    ) -> tuple[Client, Scope | None]:
        """A client of the agent, and the scope of its tasks if it is one of ours. Raises `A2AError`."""
        if bool(target.agent) == bool(target.url):
            raise InvalidParams("give either an agent of this server or a url", fields=(("agent", "or url"),))
        options: dict[str, Any] = {"version": target.version or "", "binding": target.binding or ""}
        if target.agent:
            if queue is not None:
                options["tap"] = self._view(queue, Masker())
            return await self._connect_here(target, viewer, options)
        if viewer.role != OPERATOR:
            raise Forbidden("only operators may call agents elsewhere")
        login = self._logins.get(target.credentials, target.url) if target.credentials else None
        if queue is not None:
            options["tap"] = self._view(queue, Masker(login.secrets if login is not None else tuple))
        credential = login.credential if login is not None else None
        return connect_elsewhere(target.url, self._guard, credentials=credential, **options), None

    async def _connect_here(
        self, target: _Target, viewer: Viewer, options: dict[str, Any]
    ) -> tuple[Client, Scope]:
        scope, id = read_key(target.key, viewer) if target.key else (None, None)
        target.task = id or target.task
        if scope is not None and scope.agent != target.agent:
            raise InvalidParams("this task belongs to another agent", fields=(("key", "has another agent"),))
        server, principal, owner = self._console.server, CONSOLE, CONSOLE.id
        if self._act_for is not None:
            tenant = scope.tenant if scope is not None else target.tenant or ""
            principal, owner = await self._act_for(viewer, tenant)
        mounts: Sequence[Mount] = server.mounts if server is not None else ()
        if server is not None and server.find_mounts is not None:
            mounts = [*await server.find_mounts(principal.tenant), *await server.find_mounts("")]
        scope = scope or Scope(principal.tenant, target.agent, owner)
        return connect_here(mounts, scope, principal=principal, answers=target.last_seq, **options), scope

    def _view(self, queue: ByteQueue, masker: Masker) -> WireView:
        async def show(event: dict[str, Any]) -> None:
            await queue.put(frame(event, event="wire"))

        return WireView(show, masker)

    async def frames(self, body: TalkRequest, viewer: Viewer) -> AsyncIterator[bytes]:
        """The stream of one message and its answer."""
        queue = ByteQueue()
        message = read_message(body.message)
        client, scope = await self.client(body, viewer, queue)
        chat = asyncio.create_task(self._talk(client, scope, body, message, queue))
        chat.add_done_callback(lambda _: queue.close())
        try:
            async with aclosing(queue.read()) as ready:  # type: ignore[type-var]
                async for frames in ready:
                    yield frames
        finally:
            queue.close()
            chat.cancel()  # the page has disconnected: close the connection to the agent; the task continues
            with suppress(asyncio.CancelledError):
                await chat

    async def _talk(
        self, client: Client, scope: Scope | None, body: TalkRequest, message: Message, queue: ByteQueue
    ) -> None:
        async def send_event(event: str, data: Any) -> None:
            await queue.put(frame(data, event=event))

        try:
            async with client:
                first = client.link.peer.route
                await send_event("chosen", describe_choice(client, body))
                call, request = build_request(
                    (message,),
                    None,
                    task=body.task or "",
                    context=body.context or "",
                    skill=body.skill or "",
                )
                seqs: deque[int] = deque()
                batches = _collect_numbers(client.service.stream(call, request), seqs)
                async with Stream(client, batches, None, continues=bool(body.task)) as answer:
                    async for piece in answer:
                        if client.link.peer.route != first:
                            first = client.link.peer.route
                            await send_event("chosen", describe_choice(client, body, changed=True))
                        seq = seqs.popleft()
                        event = {EVENT_MEMBERS[type(piece.event)]: piece.event, "seq": seq or None}
                        await send_event("event", {**event, "replaces": piece.replaces})
                    reply = answer.reply
                await send_event("end", _end(reply.task, reply.message, scope))
        except A2AError as error:
            await send_event("error", {"code": error.reason, "message": redact_text(error.message)})
        except (ValueError, TypeError, OSError) as error:
            await send_event("error", {"code": "INVALID_REQUEST", "message": redact_text(str(error))})

    async def cancel(self, body: CancelRequest, viewer: Viewer) -> Task:
        client, _ = await self.client(body, viewer)
        if not body.task:
            raise InvalidParams("the task is missing", fields=(("task", "is missing"),))
        async with client:
            return await client.cancel(body.task, timeout=60)


async def _collect_numbers(batches: AsyncIterator[Batch], seqs: deque[int]) -> AsyncIterator[Batch]:
    """The same batches. `seqs` gets the number of each event."""
    async with aclosing(batches):  # type: ignore[type-var]
        async for batch in batches:
            seqs.extend(response.seq for response in batch)
            yield batch


def _end(task: Task | None, message: Message | None, scope: Scope | None) -> dict[str, Any]:
    if task is None:
        context = message.context_id if message is not None else ""
        return {"task": None, "context": context or None, "state": "TASK_STATE_COMPLETED", "key": None}
    key = key_of(scope, task.id) if scope is not None else None
    return {"task": task.id, "context": task.context_id or None, "state": task.state.value, "key": key}


def read_message(document: dict[str, Any]) -> Message:
    """A message of 1.0; its id and its role may be missing. Raises `InvalidParams`."""
    complete = {"messageId": new_id(), "role": "ROLE_USER", **document}
    try:
        message = msgspec.json.decode(msgspec.json.encode(complete), type=Message)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidParams(
            f"the message cannot be read: {error}", fields=(("message", str(error)),)
        ) from None
    if not message.parts:
        raise InvalidParams("the message is empty", fields=(("message.parts", "are missing"),))
    return message


def describe_choice(client: Client, body: _Target | None = None, *, changed: bool = False) -> dict[str, Any]:
    """How the agent is called, and why so."""
    link = client.link
    route: AgentRoute = link.peer.route
    return {
        "version": client.version,
        "binding": route.binding,
        "url": route.url,
        "why": list(_reasons(link.found, route, body, changed=changed)),
    }


def _reasons(found: FoundCard, route: AgentRoute, body: _Target | None, *, changed: bool) -> list[str]:
    card, why = found.card, list[str]()
    era = era_of(found.document, found_at=found.url)
    why.append(f"The card {f'at {redact_text(found.url)} ' if found.url else ''}is written for A2A {era}.")
    offered = [f"{each.protocol_binding} {each.protocol_version}" for each in card.supported_interfaces[:10]]
    why.append(f"It offers {', '.join(offered) or 'no interface'}.")
    if body is not None and body.version:
        why.append(f"You asked for version {body.version}.")
    if body is not None and body.binding:
        why.append(f"You asked for the binding {body.binding}.")
    skipped = [
        each.protocol_binding
        for each in card.supported_interfaces
        if each.protocol_binding.upper() not in BINDINGS
    ]
    if skipped:
        why.append(f"This client does not speak {', '.join(dict.fromkeys(skipped))}.")
    if changed:
        why.append(
            f"The first choice did not work, so {route.binding} in A2A {route.dialect.name} was tried next."
        )
    elif route.dialect.name.removesuffix("-proto") != era and not (body and body.version):
        why.append(f"The interface is called in A2A {route.dialect.name}, the version that it promises.")
    elif not (body and (body.version or body.binding)):
        why.append(
            f"{route.binding} {route.dialect.name} is the first interface in the card that this client speaks."
        )
    if not card.capabilities.streaming:
        why.append("The card does not offer streaming, so the task is polled.")
    return why


def routes(
    console: Console, guard: OutboundGuard, logins: Logins, act_for: ActFor | None = None
) -> Sequence[Route]:
    api, talk = RouteList("talk"), Talk(console, guard, logins, act_for)

    @api.add(
        "POST", "/talk", "Send a message to an agent, and follow the answer.", body=TalkRequest, streams=True
    )
    async def post(request: ConsoleRequest) -> None:
        body = await request.json(TalkRequest)
        await stream(request.exchange, talk.frames(body, request.caller))

    @api.add("POST", "/talk/cancel", "Cancel a task of an agent.", body=CancelRequest)
    async def cancel(request: ConsoleRequest) -> Any:
        return {"task": await talk.cancel(await request.json(CancelRequest), request.caller)}

    return api
