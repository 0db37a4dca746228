"""`/a2a`: remote agents that the agents of this hub may call, from `a2a_agents.json`.

    {"agents": {"weather": {"url": "https://weather.example.com/a2a", "auth": {"type": "bearer", "token_env": "WEATHER"},
                            "timeout": 60, "allow_private": false}}}

Their cards are fetched concurrently in the background, and again after a while. `lines` never waits, so a remote that is down
delays no other; it is listed as unavailable. `RemoteAgents` implements the engine's `Peers`: a call is a delegation with
streaming, resume after a crash, and cancel. Only the text of the message is sent.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.client.client import Client, connect
from dragoman.client.credentials import Bearer
from dragoman.client.discover import AgentCache
from dragoman.client.transport.network import AddressGuard
from dragoman.client.transport.transport import MAX_BODY_BYTES
from dragoman.engine.protocols import Peers
from dragoman.engine.records import Child, Record
from dragoman.engine.turn import record_of
from dragoman.errors import A2AError, InvalidParams, Unavailable, Unreachable, keep_going
from dragoman.hub.periodic import PeriodicWork
from dragoman.hub.quote import flatten
from dragoman.hub.store.catalogue import Catalogue
from dragoman.hub.store.policies import Policies
from dragoman.hub.tools import Command, Session, Tool
from dragoman.hub.tools.registry_file import check_url, read_entries, refuse_unknown
from dragoman.model.card import AgentCard
from dragoman.model.content import Message, Part, Role
from dragoman.model.fold import Fold
from dragoman.model.ops import (
    Batch,
    Call,
    CancelTask,
    Principal,
    Request,
    Scope,
    SendMessage,
    Service,
    SubscribeToTask,
)
from dragoman.observe.redact import redact_url

logger = logging.getLogger("dragoman.remotes")

REMOTE_PREFIX = "a2a:"
"""Prefix of a remote's name where agents are called by name; no agent of a tenant has such an id."""
CARD_SECONDS = 15.0
DESCRIPTION_CHARACTERS = 2000
"""Characters of a card's description in `/a2a card`."""
MAX_ANSWER_BYTES = MAX_BODY_BYTES
"""Bytes of all events of a call together: as many as an answer without a stream may have."""
CARD_TTL_SECONDS = 300.0
_RETRY_SECONDS = 30.0
"""Seconds until an unavailable remote is tried again."""
_MAX_SEARCHED_TASKS, _PAGE_TASKS, _HISTORY_MESSAGES = 500, 50, 50
"""How many of a remote's newest tasks are searched, by page, and messages of each."""


class Auth(Struct, frozen=True, kw_only=True):
    type: str = "bearer"
    token: str = ""
    token_env: str = ""


class RemoteAgent(Struct, frozen=True, kw_only=True):
    url: str
    auth: Auth | None = None
    timeout: Annotated[float, Meta(gt=0)] = 60.0
    """Seconds for a whole call."""
    allow_private: bool = False
    """Allow loopback and private addresses."""


def read_registry(path: Path) -> dict[str, RemoteAgent]:
    """The agents of a file; none if there is no such file. Raises `InvalidParams`."""
    agents, written = read_entries(path, "agents", RemoteAgent, "agents")
    for name, remote in agents.items():
        where = f"{path.name}: agent {name!r}"
        check_url(remote.url, where)
        if remote.auth is not None:
            refuse_unknown(written[name]["auth"], Auth.__struct_fields__, f"{where}: auth")
            if remote.auth.type != "bearer":
                raise InvalidParams(f"{where}: auth.type {remote.auth.type!r} is not known; it is 'bearer'")
    return agents


class _CardState(Struct, frozen=True):
    """A remote's card, or the error."""

    card: AgentCard | None
    error: str
    until: float


class _RemoteConnection:
    """A client of a remote. A replaced one is closed after its last use."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._users, self._replaced = 0, False

    @asynccontextmanager
    async def used(self) -> AsyncIterator[Service]:
        self._users += 1
        try:
            yield self.client.service
        finally:
            self._users -= 1
            if self._replaced and not self._users:
                await self.client.close()

    async def replace(self) -> None:
        self._replaced = True
        if not self._users:
            await self.client.close()


class _RemoteService:
    """A `Service` of the remote. It sends neither the caller nor the trace."""

    def __init__(
        self, connection: Callable[[], Awaitable[_RemoteConnection]], unreachable: Callable[[A2AError], None]
    ) -> None:
        self._connection, self._unreachable = connection, unreachable

    async def call(self, call: Call, request: Request) -> Any:
        async with (await self._connection()).used() as service:
            try:
                return await service.call(_anonymous(call), request)
            except Unreachable as error:
                self._unreachable(error)
                raise

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        async with (await self._connection()).used() as service:
            try:
                async for batch in service.stream(_anonymous(call), request):
                    yield batch
            except Unreachable as error:
                self._unreachable(error)
                raise


class RemoteAgents:
    """`guard` checks the addresses of remotes that must be public, for every binding. `policies` say which remotes a tenant sees
    (None: all); for it, the others do not exist."""

    def __init__(
        self,
        agents: Mapping[str, RemoteAgent],
        *,
        guard: AddressGuard,
        environ: Mapping[str, str] | None = None,
        policies: Policies | None = None,
        ttl: float = CARD_TTL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agents = dict(agents)
        self._guard, self._environ, self._ttl, self._clock = guard, environ or {}, ttl, clock
        self._cache = AgentCache()
        self._cards: dict[str, _CardState] = {}
        self._connections: dict[str, asyncio.Task[_RemoteConnection]] = {}
        self._fetching: dict[str, asyncio.Task[_CardState]] = {}
        self._policies = policies
        self.periodic = PeriodicWork(
            "fetching the cards of remote agents", self._refresh_cards, retry=min(_RETRY_SECONDS, ttl)
        )
        """Cards are fetched again also when nobody asks, so a remote that is down is listed as unavailable."""
        self._discarded_fetches: set[asyncio.Task[_CardState]] = set()
        """Fetches of agents that are not in the registry any more, or have changed there."""

    async def change(self, agents: Mapping[str, RemoteAgent]) -> None:
        """Replace the registry. Calls that run go on; agents that are gone or different are forgotten."""
        before, self.agents = self.agents, dict(agents)
        gone = [name for name, remote in before.items() if self.agents.get(name) != remote]
        for name in gone:
            self._cards.pop(name, None)
            if (fetching := self._fetching.pop(name, None)) is not None:
                self._discarded_fetches.add(fetching)
                fetching.add_done_callback(self._discarded_fetches.discard)
            self._cache.expire(before[name].url)
            if (connecting := self._connections.pop(name, None)) is not None:
                with suppress(A2AError):
                    await (await asyncio.shield(connecting)).replace()
        self.refresh()

    async def visible(self, tenant: str) -> list[str]:
        """The remotes that a tenant sees."""
        return [name for name in self.agents if await self.allows(tenant, name)]

    async def allows(self, tenant: str, name: str) -> bool:
        """True if a tenant sees the remote with this name."""
        return self._policies is None or (await self._policies.of(tenant)).allows_remote(name)

    # -- cards ------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Start to fetch missing and expired cards."""
        for name in self.agents:
            known = self._cards.get(name)
            fetching = self._fetching.get(name)
            if (known is None or known.until < self._clock()) and (fetching is None or fetching.done()):
                self._fetching[name] = asyncio.create_task(self._fetch(name))

    async def _refresh_cards(self) -> None:
        self.refresh()

    def lines(self, names: Iterable[str] | None = None) -> list[str]:
        """A line for each remote, or each of `names`, for the roster. It does not wait for cards."""
        self.refresh()
        return [
            _remote_line(name, self._cards.get(name)) for name in (self.agents if names is None else names)
        ]

    async def fetch_lines(self, names: Iterable[str] | None = None) -> list[str]:
        """A line for each remote, or each of `names`; waits for running fetches."""
        self.refresh()
        if self._fetching:
            await asyncio.wait(list(self._fetching.values()))
        return self.lines(names)

    async def card(self, name: str) -> AgentCard:
        """Raises `A2AError`."""
        self._remote(name)
        self.refresh()
        known = self._cards.get(name)
        if (fetching := self._fetching.get(name)) is not None and not fetching.done():
            known = await asyncio.shield(fetching)
        if known is None or known.card is None:
            raise Unreachable(f"card fetch failed: {known.error if known else 'unknown'}")
        return known.card

    # -- Peers -------------------------------------------------------------------------------------------------

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        if not name.startswith(REMOTE_PREFIX):
            raise Unavailable(f"there is no agent {name[:80]!r} here")
        name = name.removeprefix(REMOTE_PREFIX)
        if scope.tenant and not await self.allows(scope.tenant, name):
            raise _unknown_remote(name)
        await self._connection(name)
        return _RemoteService(partial(self._connection, name), partial(self._mark_unreachable, name)), Scope()

    async def deduplicates(self, name: str) -> bool:
        """True if the remote deduplicates messages by key. Raises `A2AError`."""
        return (await self._connection(name)).client.link.peer.is_dragoman

    async def find_task(self, name: str, message: str) -> str:
        """The id of the remote's task for a message of ours, searched in its task list; empty if it is not found."""
        searched = 0
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(min(CARD_SECONDS, self._remote(name).timeout)):
                connection = await self._connection(name)
                async with connection.used():
                    listed = connection.client.list(history=_HISTORY_MESSAGES, page_size=_PAGE_TASKS)
                    async with aclosing(listed) as tasks:  # type: ignore[type-var]
                        async for task in tasks:
                            if any(each.message_id == message for each in task.history):
                                return task.id
                            searched += 1
                            if searched == _MAX_SEARCHED_TASKS:
                                break
        return ""

    async def close(self) -> None:
        await self.periodic.stop()
        for fetching in (*self._fetching.values(), *self._discarded_fetches):
            fetching.cancel()
        opened, self._connections = list(self._connections.values()), {}
        for connecting in opened:
            if not connecting.done():
                connecting.cancel()
            elif not connecting.cancelled() and connecting.exception() is None:
                await connecting.result().client.close()

    # -- connections-------------------------------------------------------------------------------------------

    def _remote(self, name: str) -> RemoteAgent:
        remote = self.agents.get(name)
        if remote is None:
            raise _unknown_remote(name)
        return remote

    async def _connection(self, name: str) -> _RemoteConnection:
        remote = self._remote(name)
        connecting = self._connections.get(name)
        if connecting is None or (connecting.done() and (connecting.cancelled() or connecting.exception())):
            connecting = self._connections[name] = asyncio.create_task(self._connect(remote))
        return await asyncio.shield(connecting)

    async def _reconnect(self, name: str) -> _RemoteConnection:
        """A new connection with a fresh card. Raises `A2AError`; then the old one stays."""
        before = self._connections.get(name)
        if before is None or not before.done() or before.cancelled() or before.exception() is not None:
            return await self._connection(name)
        remote = self._remote(name)
        self._cache.expire(remote.url)
        fresh = asyncio.create_task(self._connect(remote))
        try:
            connection = await asyncio.shield(fresh)
        except asyncio.CancelledError:
            fresh.cancel()
            raise
        if self._connections.get(name) is before:
            self._connections[name] = fresh
            await before.result().replace()
        else:  # the registry changed meanwhile
            await connection.replace()
        return connection

    def _mark_unreachable(self, name: str, error: A2AError) -> None:
        """A call could not reach the remote: expire its card."""
        self._cards[name] = _CardState(None, error.message, 0.0)

    async def _connect(self, remote: RemoteAgent) -> _RemoteConnection:
        options: dict[str, Any] = {}
        if token := self._token(remote):
            options["credentials"] = Bearer(token)
        guard = None if remote.allow_private else self._guard
        client = connect(
            remote.url, guard=guard, timeout=remote.timeout, agents={}, cache=self._cache, **options
        )
        try:
            async with asyncio.timeout(min(CARD_SECONDS, remote.timeout)):
                await client.open()
        except TimeoutError:
            raise Unreachable("it did not answer in time") from None
        return _RemoteConnection(client)

    def _token(self, remote: RemoteAgent) -> str:
        auth = remote.auth
        if auth is None:
            return ""
        if not auth.token and auth.token_env and auth.token_env not in self._environ:
            logger.warning("%s is not set: calls to %s go without a token", auth.token_env, remote.url)
        return auth.token or self._environ.get(auth.token_env, "")

    async def _fetch(self, name: str) -> _CardState:
        card, error, remote = None, "the fetch failed", self.agents.get(name)
        with keep_going(logger, f"fetching the card of {name}"):
            try:
                card = (await self._reconnect(name)).client.card
            except A2AError as failure:
                error = failure.message
        before = self._cards.get(name)
        if card is None and (before is None or before.card is not None):
            logger.warning("the card of the remote agent %s cannot be fetched: %s", name, error)
        until = self._clock() + (self._ttl if card else min(_RETRY_SECONDS, self._ttl))
        known = _CardState(card, "" if card else error, until)
        if self.agents.get(name) == remote:
            self._cards[name] = known
        return known


def _unknown_remote(name: str) -> InvalidParams:
    return InvalidParams(f"no remote agent named {name[:80]!r} (try /a2a list)")


def _anonymous(call: Call) -> Call:
    return replace(call, scope=Scope(), principal=Principal(), trace={})


def _remote_line(name: str, known: _CardState | None) -> str:
    if known is None:
        return f"{name}  (card not read yet)"
    if known.card is None:
        return f"{name}  (card unavailable: {flatten(known.error)})"
    skills = flatten(", ".join(flatten(skill.name, 80) for skill in known.card.skills[:5]))
    return f"{name} — {flatten(known.card.description)}" + (f" (skills: {skills})" if skills else "")


class HubPeers:
    """Remote agents: registered ones for every agent, any address for agents that are code.

    Text of a model never becomes an address.
    """

    def __init__(self, remotes: Peers, peers: Peers, catalogue: Catalogue) -> None:
        self._remotes, self._peers, self._catalogue = remotes, peers, catalogue

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        code = scope.agent in self._catalogue.code and not name.startswith(REMOTE_PREFIX)
        return await (self._peers if code else self._remotes).find(name, scope)

    async def close(self) -> None:
        await self._remotes.close()
        await self._peers.close()


class A2ATool(Tool):
    names = ("/a2a",)
    usage = "/a2a list | /a2a card <name> | /a2a call <name> <message>   agents elsewhere; they see only the message you write"

    def __init__(self, remotes: RemoteAgents) -> None:
        self._remotes = remotes

    def label(self, command: Command) -> str:
        return "a2a:" + ".".join(command.args.split()[:2])

    async def repeatable(self, command: Command, session: Session) -> bool:
        """True for a call if the remote's task is known, or if the remote deduplicates messages."""
        verb, _, rest = command.args.partition(" ")
        key, turn, name = f"call/{session.key}", session.turn, rest.strip().partition(" ")[0]
        if key in record_of(turn).children or record_of(turn).steps.get(key) is not None:
            return True
        if verb != "call" or not await self._remotes.allows(session.tenant, name):
            return True
        if session.was_interrupted:
            task = await self._remotes.find_task(name, _message_id(session))
            if task:  # continue with it
                record_of(turn).children[key] = child = Child(key=key, peer=REMOTE_PREFIX + name, task=task)
                await record_of(turn).commit(Record("child", child))
            return bool(task)
        try:
            return await self._remotes.deduplicates(name)
        except A2AError:
            return False

    async def check(self, command: Command, session: Session) -> None:
        seen = await self._remotes.visible(session.tenant)
        if not seen:
            raise Unavailable("A2A unavailable: this hub has no remote agents")
        verb, _, rest = command.args.partition(" ")
        name = rest.strip().partition(" ")[0]
        if verb in ("card", "call") and name and name not in seen:
            raise _unknown_remote(name)

    async def run(self, command: Command, session: Session) -> str:
        await self.check(command, session)
        remotes = self._remotes
        verb, _, rest = command.args.partition(" ")
        name, _, text = rest.strip().partition(" ")
        if verb == "list":
            return "\n".join(await remotes.fetch_lines(await remotes.visible(session.tenant)))
        if verb == "card" and name:
            return await self._card(name)
        if verb == "call" and name and text.strip():
            return await self._call(name, text.strip(), session)
        return f"ERR: usage: {self.usage}"

    async def _card(self, name: str) -> str:
        card = await self._remotes.card(name)
        lines = [
            f"name: {flatten(card.name)}",
            f"url: {redact_url(self._remotes.agents[name].url)}",
            f"version: {flatten(card.version)}",
        ]
        lines += [
            f"protocol: {flatten(i.protocol_version, 20)} ({flatten(i.protocol_binding, 20)})"
            for i in card.supported_interfaces
        ]
        lines += [f"description: {flatten(card.description, DESCRIPTION_CHARACTERS)}", "skills:"]
        lines += [f"  {flatten(skill.name)} — {flatten(skill.description)}" for skill in card.skills]
        return "\n".join(lines)

    async def _call(self, name: str, text: str, session: Session) -> str:
        turn, fold, limit = session.turn, Fold(), self._remotes.agents[name].timeout
        message = Message(message_id=_message_id(session), role=Role.USER, parts=(Part(text=text),))
        size = 0
        try:
            async with asyncio.timeout(limit):
                async with aclosing(
                    turn.stream(REMOTE_PREFIX + name, message, key=session.key, wait=0)
                ) as events:
                    async for event in events:
                        fold.apply(event)
                        if (size := size + len(msgspec.json.encode(event))) > MAX_ANSWER_BYTES:
                            break
        except TimeoutError:
            await self._cancel_remote(name, fold.task_id)
            raise Unreachable(f"{name} did not finish within {limit:g} s") from None
        if size > MAX_ANSWER_BYTES:
            await self._cancel_remote(name, fold.task_id)
            raise Unreachable(f"{name} answered with more than {MAX_ANSWER_BYTES >> 20} MB")
        if fold.message is not None:
            return fold.message.text or "(remote agent returned no text)"
        task = fold.task
        assert task is not None
        text = task.status.message.text if task.status.message is not None else ""
        text = text or task.text or f"(remote agent returned no text; state={task.state.word})"
        return f"ERR: {name} ended {task.state.word}: {text}" if task.state.word in _FAILED_STATES else text

    async def _cancel_remote(self, name: str, task: str) -> None:
        """Cancel the remote's task."""
        if not task:
            return
        with suppress(A2AError, TimeoutError):
            async with asyncio.timeout(5):
                service, _ = await self._remotes.find(REMOTE_PREFIX + name, Scope())
                await service.call(Call(), CancelTask(id=task))


def _message_id(session: Session) -> str:
    """The id of the message to the remote. It is the same if the message is sent again."""
    return hashlib.sha256(session.write_key.encode()).hexdigest()[:32]


_FAILED_STATES = ("failed", "rejected", "canceled")
