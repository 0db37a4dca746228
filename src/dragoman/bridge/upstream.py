"""The agent behind a route, as a `Service`: one server, or several of the same agent.

A server is connected when it is first needed, and again after a failure, so a bridge starts while its agents are down.

A call goes to the first server that is available. It goes to the next one only if nothing can run twice: if the connection was refused
before anything was sent, or if the operation only reads. A message that may have arrived is never sent to another server.

After `breaker` failures in a row a server is not called for a while (circuit breaker). In the background its card is read again, after
1 second, then 2, 4 and so on up to 30. When that succeeds, one call is let through. If it succeeds, too, all are. Servers that work are not
checked in the background.

`credentials.py` has the credentials of callers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, Literal, NoReturn, Protocol
from urllib.parse import urlsplit

from msgspec import Struct
from msgspec.structs import replace

from dragoman.bridge.answers import CancelCheck, check_same_task
from dragoman.bridge.credentials import NoCallerCredentials, RouteCredentials, with_credentials_of
from dragoman.bridge.settings import UpstreamSettings
from dragoman.client.client import Client, connect
from dragoman.client.discover import AgentCache
from dragoman.client.oauth import CannotExchange, SubjectRefused, TokenUnavailable
from dragoman.client.resumable_stream import ResumableStream
from dragoman.client.retry import Policy
from dragoman.client.routes import RoutedPeer
from dragoman.client.transport.http_exchange import UNARY
from dragoman.client.transport.transport import AnswerTooLarge, NotSent, RequestRejected
from dragoman.errors import A2AError, Unauthenticated, Unavailable, Unreachable, keep_going
from dragoman.model.card import AgentCard
from dragoman.model.ops import (
    EXTENSION,
    STREAM,
    SUBSCRIBE,
    Batch,
    Call,
    CancelTask,
    GetExtendedCard,
    GetPushConfig,
    GetTask,
    ListPushConfigs,
    ListTasks,
    Request,
    SendMessage,
    SubscribeToTask,
)
from dragoman.observe.shared_memory import SharedSecrets
from dragoman.push.guard import OutboundGuard

logger = logging.getLogger("dragoman.bridge")

_OPEN_SECONDS = 2.0
"""How long the start of a bridge waits for a card."""
_LONGEST_PAUSE_SECONDS = 10.0
"""The longest pause between two attempts to read the card."""
_READ_SECONDS = 60.0
"""How long an operation that only reads may take, unless the settings say otherwise."""
_CARD_SECONDS = 300.0
"""After this time a card is read again, in the background, with the next call."""
_SHORTEST_BREAK_SECONDS, _LONGEST_BREAK_SECONDS = 1.0, 30.0
_TRIAL_SECONDS = 5.0
"""How long other calls are refused while a trial call shows whether the server works. After that, another trial may begin."""
_QUEUE_SECONDS = 10.0
"""How long a call waits in the queue."""
_FAILOVER_RESUME_SECONDS = 2.0
"""How long a broken stream is resumed on its server, if there is another one."""
_READS = (GetTask, ListTasks, GetPushConfig, ListPushConfigs, GetExtendedCard)
"""Operations that change nothing."""
_BEFORE_SENDING = (NotSent, NoCallerCredentials, SubjectRefused, CannotExchange)
"""Errors of calls that were not sent, which say nothing about the server."""
MAX_MESSAGE_CHARS = 2000
"""Characters of an agent's error message that are passed on."""
_ABANDONED = "LEFT"
"""The outcome of a call whose caller did not wait for its end."""


class NotCalled(Unavailable, NotSent):
    """The agent was not called: too many calls wait, it is down, or there is no token for it."""


class CardSignature(Struct, frozen=True, kw_only=True):
    """What is known of the signature of a card."""

    state: Literal["verified", "unchecked", "unsigned", "unknown"] = "unknown"
    """`unchecked`: it is signed, and the settings do not say with which keys. `unknown`: the card was not read yet."""
    kid: str = ""
    algorithm: str = ""


class ServerHealth(Struct, frozen=True, kw_only=True):
    url: str
    host: str
    """Host and port."""
    state: Literal["up", "down", "unknown"] = "unknown"
    breaker: Literal["closed", "half-open", "open"] = "closed"
    failures: int = 0
    """Failures in a row."""
    error: str = ""


class UpstreamHealth(Struct, frozen=True, kw_only=True):
    """The health of an upstream, for operators. It is up if one of its servers is."""

    state: Literal["up", "down", "unknown"] = "unknown"
    error: str = ""
    """Why it is down."""
    active: int = 0
    """Calls under way."""
    waiting: int = 0
    """Calls that wait for others to end."""
    servers: tuple[ServerHealth, ...] = ()


class ObservedCall(Protocol):
    """One call of a server, as it is observed."""

    call: Call
    """The call as it is to be sent: with the trace to pass on."""

    def end(self, outcome: str) -> None: ...


class UpstreamObserver(Protocol):
    """Who counts, traces and audits the calls of an upstream (`observe.instrument.InstrumentedUpstream`)."""

    def begin(self, upstream: str, call: Call, operation: str, request: Request) -> ObservedCall:
        """A call of the server `upstream` (its host and port) begins."""
        ...

    def refuse(self, call: Call, operation: str, reason: str) -> None:
        """No server was called: too many calls wait, or all servers are down."""
        ...


class Upstream:
    """An agent elsewhere. `name` is that of its route. Raises `ValueError` for settings that cannot be used."""

    def __init__(self, settings: UpstreamSettings, *, name: str) -> None:
        self.settings, self.name = settings, name
        self.observer: UpstreamObserver | None = None
        self._credentials = RouteCredentials(settings.credentials, settings.certificate)
        guard = None if settings.allow_private else OutboundGuard()
        for url in (*settings.addresses, settings.signed_by):
            if guard is not None:
                guard.allow(url)
        several = len(settings.addresses) > 1
        streams: set[ResumableStream] = set()
        self._servers = [
            _Server(url, settings, self._credentials.credential, guard, streams, name=name, several=several)
            for url in settings.addresses
        ]
        self._queue = _Queue(settings.concurrency)
        self._cancels = CancelCheck(name, self._ask)
        self._card_task: asyncio.Task[None] | None = None

    # -- the agent ---------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the card. If the agent is down, try again in the background: a bridge starts in any case."""
        tried = asyncio.Event()
        self._card_task = asyncio.create_task(self._read_card(tried), name=f"dragoman-upstream-{self.name}")
        self._card_task.add_done_callback(lambda _: tried.set())
        with suppress(TimeoutError):
            async with asyncio.timeout(_OPEN_SECONDS):
                await tried.wait()

    async def _read_card(self, tried: asyncio.Event) -> None:
        pause = 0.1
        while True:
            with keep_going(logger, f"reading the card of {self.name}", A2AError):
                await self.card()
                return
            tried.set()
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_SECONDS)

    async def close(self) -> None:
        if self._card_task is not None:
            self._card_task.cancel()
            await asyncio.gather(self._card_task, return_exceptions=True)
        await self._cancels.close()
        for server in self._servers:
            await server.close()
        await self._credentials.close()

    @property
    def known_card(self) -> AgentCard | None:
        """Its card, as it was last read; None until then."""
        return self._newest.known_card if self._newest is not None else None

    @property
    def signature(self) -> CardSignature:
        return self._newest.signature if self._newest is not None else CardSignature()

    @property
    def _newest(self) -> _Server | None:
        """The first server, in the order of the settings, that is available and whose card is known; else any whose card is known."""
        if len(self._servers) == 1:  # read for every answer
            (server,) = self._servers
            return server if server.known_card is not None else None
        known = [server for server in self._servers if server.known_card is not None]
        return next((server for server in known if not server.breaker_is_open), known[0] if known else None)

    async def card(self) -> AgentCard:
        """Its card. Raises `Unreachable`. A server that is not called for now is not asked for its card either."""
        first: A2AError | None = None
        for server in self._servers:
            if server.breaker_is_open and server.known_card is None:
                first = first or self._not_available()
                continue
            try:
                connection = await server.connect()
            except A2AError as error:
                first = first or error
            else:
                return connection.client.card
        assert first is not None
        raise first

    def health(self) -> UpstreamHealth:
        servers = tuple(server.health() for server in self._servers)
        states = {each.state for each in servers}
        state: Literal["up", "down", "unknown"] = (
            "up" if "up" in states else "down" if "down" in states else "unknown"
        )
        error = next((each.error for each in servers if each.error), "") if state == "down" else ""
        return UpstreamHealth(
            state=state,
            error=error,
            active=self._queue.active,
            waiting=self._queue.waiting,
            servers=servers,
        )

    @property
    def _peer(self) -> RoutedPeer | None:
        """How the newest server is called; None until one is connected."""
        return self._newest.peer if self._newest is not None else None

    @property
    def deduplicates(self) -> bool:
        """True if it recognises a repeated `Idempotency-Key` and numbers its events: it is a Dragoman server."""
        return self._peer is not None and self._peer.is_dragoman

    @property
    def names_tasks(self) -> bool:
        """True if whoever sends a message chooses the id of its task (0.1). A client uses the key of the call."""
        return self._peer is not None and self._peer.dialect.names_tasks

    @property
    def shows_task_first(self) -> bool:
        """True if a subscription to one of its tasks begins with the task, as 1.0 requires."""
        return self._peer is not None and self._peer.dialect.is_current

    @property
    def is_full(self) -> bool:
        """True if a call would have to wait for others to end."""
        return self._queue.is_full

    @property
    def shows_callers(self) -> bool:
        """True if the agent sees credentials of the caller, not only ours."""
        return self._credentials.per_caller

    def share_callers(self, secrets: SharedSecrets) -> None:
        """Share the credentials of callers with the other workers of this server."""
        self._credentials.share(secrets, self.name)

    def remember_caller(self, call: Call) -> None:
        """Store the credentials of an authenticated caller: a durable task may need them later."""
        self._credentials.remember(call)

    async def wait_for_caller(self, call: Call) -> None:
        """After `NoCallerCredentials`: wait until the caller sends a request with credentials."""
        await self._credentials.wait_for_caller(call)

    # -- Service -----------------------------------------------------------------------------------------------

    async def call(self, call: Call, request: Request) -> Any:
        result = await self._ask(call, request)
        if isinstance(request, CancelTask) and not self.deduplicates:
            self._cancels.begin(call, request, result)
        return self._cancels.correct(result) if isinstance(request, GetTask) else result

    async def _ask(self, call: Call, request: Request) -> Any:
        op = UNARY[type(request)].name if type(request) in UNARY else EXTENSION.name
        seconds = self.settings.timeout or (_READ_SECONDS if isinstance(request, _READS) else None)
        # A cancel does not wait for what it ends.
        if not self._queue.enter(at_once=isinstance(request, CancelTask)):
            await self._wait_in_queue(call, op)
        try:
            first: A2AError | None = None
            for server in self._servers_to_call(call, op):
                attempt = _Attempt(server, self.observer, call, op, request)
                try:
                    with attempt, with_credentials_of(attempt.call):
                        client = await attempt.connect()
                        async with _limit(seconds, f"{server.url} did not answer within"):
                            result = await client.service.call(attempt.call, request)
                        check_same_task(request, result)
                        return result
                except A2AError as error:
                    first = first or error
                    if attempt.sent and not _may_try_another(error, request):
                        break
            self._fail(call, first)
        finally:
            self._queue.leave()

    async def stream(self, call: Call, request: SendMessage | SubscribeToTask) -> AsyncIterator[Batch]:
        op = (SUBSCRIBE if isinstance(request, SubscribeToTask) else STREAM).name
        if not self._queue.enter():
            await self._wait_in_queue(call, op)
        try:
            first: A2AError | None = None
            for server in self._servers_to_call(call, op):
                attempt = _Attempt(server, self.observer, call, op, request)
                try:
                    with attempt:
                        with with_credentials_of(attempt.call):
                            client = await attempt.connect()
                        batches: Any = client.service.stream(attempt.call, request)
                        async with aclosing(batches):
                            while (batch := await self._next(batches, attempt.call)) is not None:
                                attempt.record_answer()
                                check_same_task(request, batch[0].event)
                                yield batch
                    return
                except A2AError as error:
                    first = first or error
                    if attempt.received or (attempt.sent and not _may_try_another(error, request)):
                        break
            self._fail(call, first)
        finally:
            self._queue.leave()

    async def _next(self, batches: Any, call: Call) -> Batch | None:
        """The next batch; None at the end. The context of the call is set for this step only."""
        with with_credentials_of(call):
            async with _limit(self.settings.timeout, f"nothing came from {self.name} for"):
                batch: Batch | None = await anext(batches, None)
                return batch

    # -- internal ----------------------------------------------------------------------------------------------

    async def _wait_in_queue(self, call: Call, operation: str) -> None:
        try:
            await self._queue.wait(call)
        except NotCalled as error:
            self._refuse(call, operation, error)
            raise

    def _servers_to_call(self, call: Call, operation: str) -> Sequence[_Server]:
        """The servers to call, in this order. Raises `NotCalled` if none may be called now."""
        available = [server for server in self._servers if server.admits]
        if not available:
            error = self._not_available()
            self._refuse(call, operation, error)
            raise error
        return available

    def _not_available(self) -> NotCalled:
        wait = max(1.0, round(min(server.seconds_left for server in self._servers), 1))
        return NotCalled("the agent behind this address is not available", retry_after=wait)

    def _refuse(self, call: Call, operation: str, error: A2AError) -> None:
        if self.observer is not None:
            self.observer.refuse(call, operation, error.reason)

    def _fail(self, call: Call, first: A2AError | None) -> NoReturn:
        """Raise the error of the first server that was called, as the caller may see it."""
        assert first is not None
        shown = self._explain(call, first)
        raise shown from (first if shown is not first else first.__cause__)

    def _explain(self, call: Call, error: A2AError) -> A2AError:
        """The error that the caller may see. Errors of tokens are logged."""
        if isinstance(error, CannotExchange):
            logger.error("%s: %s", self.name, error.message)
            return NotCalled("no token could be obtained for the agent behind this address")
        if isinstance(error, NoCallerCredentials) or not isinstance(error, Unauthenticated):
            return error
        if self._credentials.forget(call):
            logger.info("%s: %s", self.name, error.message)
            return NoCallerCredentials("your last credentials were refused: send a request with new ones")
        if isinstance(error, SubjectRefused):
            logger.info("%s: %s", self.name, error.message)
            return Unauthenticated("your token cannot be exchanged for one of the agent behind this address")
        return error


@asynccontextmanager
async def _limit(seconds: float | None, late: str) -> AsyncIterator[None]:
    """Raise `Unreachable` if the block takes longer than `seconds`; None: no limit."""
    if seconds is None:
        yield
        return
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise Unreachable(f"{late} {seconds:g} s") from None


def _may_try_another(error: A2AError, request: Request) -> bool:
    """True if another server may get the request: this server has not got it, or it only reads."""
    if isinstance(error, TokenUnavailable):
        return False  # it is the same for all servers
    if isinstance(error, NotSent):
        return True
    return isinstance(request, (*_READS, SubscribeToTask)) and _is_failure(error)


def _is_failure(error: A2AError) -> bool:
    """True if the error means that the server does not work. Errors of the agent itself are answers."""
    if isinstance(error, Unreachable):
        return not isinstance(error, RequestRejected | AnswerTooLarge | TokenUnavailable)
    return isinstance(error, Unavailable) and error.retry_after is None


class _Attempt:
    """One call of one server: it is observed, uses the connection, and shows whether the server works."""

    __slots__ = ("_connection", "_observed", "_server", "_is_trial", "call", "received")

    def __init__(
        self, server: _Server, observer: UpstreamObserver | None, call: Call, operation: str, request: Request
    ) -> None:
        self._server = server
        self._observed = None if observer is None else observer.begin(server.host, call, operation, request)
        self.call = call if self._observed is None else self._observed.call
        """The call to send."""
        self._connection: _Connection | None = None
        self._is_trial = server.begin_trial()
        self.received = False
        """The server has answered."""

    @property
    def sent(self) -> bool:
        """Something may have been sent."""
        return self._connection is not None

    async def connect(self) -> Client:
        connection = await self._server.connect()
        connection.users += 1
        self._connection = connection
        return connection.client

    def record_answer(self) -> None:
        if not self.received:
            self.received = True
            self._server.record_success()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        server, outcome = self._server, "OK"
        if isinstance(error, A2AError):
            outcome = error.reason
        elif error is not None:
            outcome = _ABANDONED
        if self._connection is not None:
            self._connection.leave()
            if error is None:
                server.record_success()
            elif isinstance(error, A2AError):
                server.record_error(error)
        if self._is_trial:
            server.end_trial()
        if self._observed is not None:
            self._observed.end(outcome)


class _Connection:
    """A client of a server. One that was replaced is closed after its last use."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.since = time.monotonic()
        self.users, self._replaced = 0, False
        self._closing: asyncio.Task[None] | None = None

    def leave(self) -> None:
        self.users -= 1
        if self._replaced and not self.users:
            self._closing = asyncio.create_task(self.client.close())

    def replace(self) -> None:
        self._replaced = True
        if not self.users:
            self._closing = asyncio.create_task(self.client.close())


class _Server:
    """One server of an agent: its connection, and whether it is available."""

    def __init__(
        self,
        url: str,
        settings: UpstreamSettings,
        credentials: Any,
        guard: OutboundGuard | None,
        streams: set[ResumableStream],
        *,
        name: str,
        several: bool,
    ) -> None:
        self.url, self.name = url, name
        self.host = urlsplit(url).netloc
        self.known_card: AgentCard | None = None
        self.signature = CardSignature()
        self._settings, self._credentials, self._guard = settings, credentials, guard
        self._streams = streams
        """The open streams of all connections to all servers of the agent."""
        attempts = 1 if several else settings.retries + 1
        silence = min(Policy().silence, settings.timeout or Policy().silence)
        self._policy = Policy(attempts=attempts, silence=silence, stalled=settings.stalled)
        if several:
            self._policy = replace(self._policy, patience=_FAILOVER_RESUME_SECONDS)
        self._connection: _Connection | None = None
        self._opening: asyncio.Task[_Connection] | None = None
        """Opens the connection, for all calls that wait for it."""
        self._refreshing: asyncio.Task[None] | None = None
        """Reads the card again, because it is old."""
        self._checking: asyncio.Task[None] | None = None
        """Reads the card again, because the server was not well."""
        self._failures = 0
        self._error = ""
        self._breaker: Literal["closed", "half-open", "open"] = "closed"
        self._break_seconds = _SHORTEST_BREAK_SECONDS
        self._retry_at = 0.0
        self._trial_ends = 0.0
        """While the breaker is half open, one call is let through. Until this time no other is."""

    # -- connection --------------------------------------------------------------------------------------------

    async def connect(self) -> _Connection:
        """The connection; opens it if there is none. Raises `A2AError`: then nothing was sent but a request for the card."""
        while (connection := self._connection) is None:
            if begins := self._opening is None:
                self._opening = asyncio.create_task(self._open_first())
                self._opening.add_done_callback(self._forget_opening)
            assert self._opening is not None
            try:
                return await asyncio.shield(self._opening)
            except Unauthenticated:  # a private card may be read with the credentials of who comes first
                if begins:
                    raise
        if time.monotonic() - connection.since > _CARD_SECONDS and (
            self._refreshing is None or self._refreshing.done()
        ):
            self._refreshing = asyncio.create_task(self._refresh(connection))
        return connection

    async def _open_first(self) -> _Connection:
        try:
            connection = await self._open()
        except A2AError as error:
            if not isinstance(error, TokenUnavailable):
                self._record_failure(error)
            raise
        self.record_success()
        return connection

    def _forget_opening(self, opening: asyncio.Task[_Connection]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # those who waited for it know

    async def _open(self) -> _Connection:
        settings = self._settings
        client = connect(
            self.url,
            credentials=self._credentials,
            headers=settings.headers,
            version=settings.version,
            binding=settings.binding,
            signed_by=settings.signed_by or None,
            policy=self._policy,
            guard=self._guard,
            agents={},
            cache=AgentCache(),
        )
        try:
            await client.open()
        except (ValueError, OSError) as error:  # a file of keys that cannot be read
            raise NotSent(f"{self.url}: {error}") from error
        client.link.service.open_streams = self._streams
        found, before = client.link.found, self._connection
        self._connection = _Connection(client)
        if before is not None:
            before.replace()
        self.known_card = found.card
        if found.verified is not None:
            self.signature = CardSignature(
                state="verified", kid=found.verified.kid, algorithm=found.verified.algorithm
            )
        else:
            self.signature = CardSignature(
                state="unchecked" if found.document.get("signatures") else "unsigned"
            )
        return self._connection

    async def _refresh(self, connection: _Connection) -> None:
        connection.since = time.monotonic()  # the next attempt is as far away, also if this one fails
        with keep_going(logger, f"reading the card of {self.name} again", A2AError):
            await self._open()

    async def close(self) -> None:
        for task in (self._opening, self._refreshing, self._checking):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.client.close()

    @property
    def peer(self) -> RoutedPeer | None:
        return self._connection.client.link.peer if self._connection is not None else None

    # -- health ------------------------------------------------------------------------------------------------

    @property
    def breaker_is_open(self) -> bool:
        return self._breaker == "open"

    @property
    def admits(self) -> bool:
        """True if it may be called now."""
        return self._breaker == "closed" or (
            self._breaker == "half-open" and time.monotonic() >= self._trial_ends
        )

    @property
    def seconds_left(self) -> float:
        """Until it may be called again, as far as we know."""
        return max(0.0, self._retry_at - time.monotonic())

    def health(self) -> ServerHealth:
        down = self._error or self._breaker == "open"
        state: Literal["up", "down", "unknown"] = (
            "down" if down else "up" if self._connection is not None else "unknown"
        )
        return ServerHealth(
            url=self.url,
            host=self.host,
            state=state,
            breaker=self._breaker,
            failures=self._failures,
            error=self._error,
        )

    def begin_trial(self) -> bool:
        """True if the breaker is half open, and this call is the trial; call `end_trial` after it."""
        if self._breaker != "half-open":
            return False
        self._trial_ends = time.monotonic() + _TRIAL_SECONDS
        return True

    def end_trial(self) -> None:
        self._trial_ends = 0.0

    def record_error(self, error: A2AError) -> None:
        """Count an error of a call: as a failure of the server, or as an answer."""
        if _is_failure(error):
            self._record_failure(error)
        elif not isinstance(error, _BEFORE_SENDING):
            self.record_success()

    def record_success(self) -> None:
        if self._breaker == "closed" and not self._error:
            return
        if self._breaker != "closed":
            logger.info("%s: %s works again", self.name, self.host)
        self._failures, self._error, self._breaker = 0, "", "closed"
        self._break_seconds = _SHORTEST_BREAK_SECONDS

    def _record_failure(self, error: A2AError) -> None:
        self._failures += 1
        self._error = error.message
        limit = self._settings.breaker
        if limit and (self._breaker == "half-open" or self._failures >= limit):
            self._open_breaker()

    def _open_breaker(self) -> None:
        if self._breaker != "open":
            logger.warning(
                "%s: %s failed %d times in a row and is not called for now: %s",
                self.name, self.host, self._failures, self._error,
            )  # fmt: skip
        self._breaker = "open"
        self._retry_at = time.monotonic() + self._break_seconds
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_until_available())

    async def _check_until_available(self) -> None:
        """Read the card again until that succeeds. Then the breaker is half open."""
        while self._breaker == "open":
            await asyncio.sleep(self.seconds_left)
            self._break_seconds = min(self._break_seconds * 2, _LONGEST_BREAK_SECONDS)
            try:
                await self._open()
            except A2AError as error:
                self._error = error.message
                self._retry_at = time.monotonic() + self._break_seconds
            else:
                self._breaker, self._error = "half-open", ""


class _Queue:
    """At most `limit` calls run at a time, and as many wait. None: no limit."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self.active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def enter(self, *, at_once: bool = False) -> bool:
        """Take a place if one is free, or in any case with `at_once`. Call `leave` after it."""
        if self.is_full and not at_once:
            return False
        self.active += 1
        return True

    @property
    def is_full(self) -> bool:
        return self._limit is not None and (self.active >= self._limit or bool(self._waiting))

    async def wait(self, call: Call) -> None:
        """Wait for a place, and take it. Raises `NotCalled` if too many calls wait, or it takes too long."""
        full = NotCalled("the agent behind this address is busy: too many calls are running", retry_after=1)
        if len(self._waiting) >= (self._limit or 0):
            raise full
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        left = _QUEUE_SECONDS if call.deadline is None else min(_QUEUE_SECONDS, call.deadline - time.time())
        try:
            async with asyncio.timeout(max(0.0, left)):
                await place
        except TimeoutError:
            self._give_up(place)
            raise full from None
        except asyncio.CancelledError:
            self._give_up(place)
            raise

    def _give_up(self, place: asyncio.Future[None]) -> None:
        if place.done() and not place.cancelled():
            self.leave()  # this call had just got the place
        else:
            self._waiting.remove(place)

    def leave(self) -> None:
        self.active -= 1
        while self._waiting and self.active < (self._limit or 0):
            place = self._waiting.popleft()
            if not place.done():
                self.active += 1
                place.set_result(None)
                return
