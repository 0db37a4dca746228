"""The agent behind a route: timeouts, limits, the breaker, failover, addresses, and whose credentials it sees."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from dragoman import Agent, Turn
from dragoman.bridge import upstream as module
from dragoman.bridge.application import make_bridge
from dragoman.bridge.credentials import NoCallerCredentials
from dragoman.bridge.settings import BridgeSettings, RouteSettings
from dragoman.bridge.upstream import NotCalled, Upstream, UpstreamHealth
from dragoman.client.transport.transport import AddressBlocked, NotSent
from dragoman.errors import A2AError, TaskNotFound, Unauthenticated, Unavailable, Unreachable
from dragoman.model.content import Message
from dragoman.model.ops import (
    Call,
    CancelTask,
    GetTask,
    ListTasks,
    Principal,
    Request,
    Scope,
    SendMessage,
)
from dragoman.observe.shared_memory import SharedSecrets
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.bridge.oauth_server import OAuthServer
from tests.bridge.test_token_exchange import BRIDGE, UPSTREAM, Crew, exchange_settings
from tests.ports import free_port
from tests.waiting import until, until_works

FAST: dict[str, Any] = {"retries": 0}
GET = GetTask(id="none")


def say(text: str = "hello") -> SendMessage:
    return SendMessage(message=Message(text))


def settings(*urls: str, **more: Any) -> RouteSettings:
    return RouteSettings(**{**FAST, "urls": urls, **more})


@asynccontextmanager
async def opened(*urls: str, **more: Any) -> AsyncIterator[Upstream]:
    upstream = Upstream(settings(*urls, **more), name="crew")
    await upstream.open()
    try:
        yield upstream
    finally:
        await upstream.close()


class Site:
    """A server on loopback that answers with what a test wants: a card, and `answer` to everything else."""

    def __init__(self, *, port: int = 0) -> None:
        self.port = port
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.status, self.headers, self.body = 200, "", b""
        self.card: dict[str, Any] = {}
        self.hangs: asyncio.Event | None = None
        self.arrived = asyncio.Event()
        self.breaks = False
        """Close the connection after a request, without an answer."""
        self.waits_for_requests = 0
        """The card is not sent before so many have come."""
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def calls(self) -> list[tuple[str, str, dict[str, str]]]:
        return [each for each in self.requests if "well-known" not in each[1]]

    async def __aenter__(self) -> Site:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self.card = self.card or card(f"{self.url}/rpc")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            method, path, _ = first.split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            self.requests.append((method, path, headers))
            if "well-known" in path:
                await until(lambda: len(self.requests) >= self.waits_for_requests)
                await self._answer(writer, 200, "", json.dumps(self.card).encode())
                return
            self.arrived.set()
            if self.hangs is not None:
                await self.hangs.wait()
            if self.breaks:
                writer.close()
                return
            sent = (
                self.body
                or json.dumps(
                    {"jsonrpc": "2.0", "id": json.loads(body)["id"], "result": {"task": TASK}}
                ).encode()
            )
            await self._answer(writer, self.status, self.headers, sent)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, status: int, headers: str, body: bytes) -> None:
        type_ = "" if "Content-Type" in headers else "Content-Type: application/json\r\n"
        head = (
            f"HTTP/1.1 {status} X\r\n{type_}{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()


TASK = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}


def card(*urls: str, binding: str = "JSONRPC") -> dict[str, Any]:
    return {
        "name": "site",
        "description": "a site",
        "version": "1",
        "supportedInterfaces": [
            {"url": url, "protocolBinding": binding, "protocolVersion": "1.0"} for url in urls
        ],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [],
    }


# -- timeouts ----------------------------------------------------------------------------------------------------------


async def test_a_call_that_takes_too_long_ends_and_is_not_sent_again() -> None:
    async with Site() as site, opened(site.url, timeout=0.2, retries=3) as upstream:
        site.hangs = asyncio.Event()
        with pytest.raises(Unreachable, match=r"within 0\.2 s"):
            await upstream.call(Call(), say())
        assert len(site.calls) == 1


async def test_a_stream_in_which_nothing_comes_for_too_long_ends() -> None:
    agent, go = Agent("waits"), asyncio.Event()

    @agent.skill
    async def wait(turn: Turn) -> str:
        await turn.status("here")
        await go.wait()
        return "done"

    async with running(application(agent, store="memory:")) as url, opened(url, timeout=0.3) as upstream:
        received = 0
        with pytest.raises(Unreachable, match="nothing came from crew for"):
            async for batch in upstream.stream(Call(), say()):
                received += len(batch)
        assert received
        go.set()


# -- concurrency -------------------------------------------------------------------------------------------------------


async def test_a_full_upstream_lets_as_many_wait_as_run_and_refuses_the_rest() -> None:
    async with Site() as site, opened(site.url, concurrency=2) as upstream:
        site.hangs = asyncio.Event()
        calls = [asyncio.create_task(upstream.call(Call(), say())) for _ in range(4)]
        await until(lambda: len(site.calls), lambda n: n == 2)
        assert (upstream.health().active, upstream.health().waiting) == (2, 2)
        with pytest.raises(Unavailable, match="is busy") as raised:
            await upstream.call(Call(), say())
        assert raised.value.retry_after == 1 and len(site.calls) == 2
        site.hangs.set()
        assert {task.id for task in await asyncio.gather(*calls)} == {"t"}
        assert (upstream.health().active, upstream.health().waiting) == (0, 0)


async def test_who_waits_too_long_or_leaves_gives_the_place_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUEUE_SECONDS", 0.1)
    async with Site() as site, opened(site.url, concurrency=1) as upstream:
        site.hangs = asyncio.Event()
        first = asyncio.create_task(upstream.call(Call(), say()))
        await site.arrived.wait()
        with pytest.raises(Unavailable):
            await upstream.call(Call(), say())
        monkeypatch.setattr(module, "_QUEUE_SECONDS", 20)
        leaver = asyncio.create_task(upstream.call(Call(), say()))
        await until(lambda: upstream.health().waiting)
        leaver.cancel()
        await asyncio.wait([leaver])
        assert upstream.health().waiting == 0
        site.hangs.set()
        await first
        await upstream.call(Call(), say())
        assert upstream.health().active == 0


async def test_a_cancel_does_not_wait_for_what_it_ends() -> None:
    async with Site() as site, opened(site.url, concurrency=1) as upstream:
        site.hangs = asyncio.Event()
        first = asyncio.create_task(upstream.call(Call(), say()))
        await site.arrived.wait()
        second = asyncio.create_task(upstream.call(Call(), say()))
        await until(lambda: upstream.health().waiting)
        cancel = asyncio.create_task(upstream.call(Call(), CancelTask(id="t")))
        await until(lambda: len(site.calls), lambda n: n == 2)
        site.hangs.set()
        await asyncio.gather(first, second, cancel, return_exceptions=True)
        assert (upstream.health().active, upstream.health().waiting) == (0, 0)


async def test_a_stream_holds_its_place_until_it_is_closed() -> None:
    async with Site() as site, opened(site.url, concurrency=1) as upstream:
        event = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": TASK}})
        site.headers, site.body = "Content-Type: text/event-stream\r\n", f"data: {event}\n\n".encode()
        async with aclosing(upstream.stream(Call(), say())) as batches:  # type: ignore[type-var]
            await anext(batches)
            assert upstream.health().active == 1
        assert upstream.health().active == 0


# -- breaker and health ------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST_BREAK_SECONDS", 0.05)
    monkeypatch.setattr(module, "_LONGEST_BREAK_SECONDS", 0.1)


@pytest.mark.usefixtures("quick")
async def test_after_failures_in_a_row_the_agent_is_left_alone_until_one_call_succeeds() -> None:
    async with Site() as site, opened(site.url, breaker=3) as upstream:
        site.status, site.body = 500, b"{}"
        for _ in range(3):
            with pytest.raises(A2AError):
                await upstream.call(Call(), GET)
        assert len(site.calls) == 3
        with pytest.raises(Unavailable, match="is not available") as raised:
            await upstream.call(Call(), GET)
        assert raised.value.retry_after and len(site.calls) == 3
        health = upstream.health()
        assert (health.state, health.servers[0].breaker) == ("down", "open")
        await until(lambda: upstream.health().servers[0].breaker, lambda state: state == "half-open")
        with pytest.raises(A2AError):  # the one that may try
            await upstream.call(Call(), GET)
        assert len(site.calls) == 4 and upstream.health().servers[0].breaker == "open"
        await until(lambda: upstream.health().servers[0].breaker, lambda state: state == "half-open")
        site.status, site.body = 200, b""
        site.hangs = asyncio.Event()
        trying = asyncio.create_task(upstream.call(Call(), say()))
        await until(lambda: len(site.calls), lambda n: n == 5)
        with pytest.raises(Unavailable):  # only one
            await upstream.call(Call(), say())
        site.hangs.set()
        await trying
        health = upstream.health()
        assert (health.state, health.servers[0].breaker, health.servers[0].failures) == ("up", "closed", 0)


@pytest.mark.usefixtures("quick")
async def test_one_long_call_does_not_keep_a_server_that_is_well_again_from_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TRIAL_SECONDS", 0.05)
    async with Site() as site, opened(site.url, breaker=1) as upstream:
        site.status, site.body = 500, b"{}"
        with pytest.raises(A2AError):
            await upstream.call(Call(), GET)
        await until(lambda: upstream.health().servers[0].breaker, lambda state: state == "half-open")
        opens = asyncio.Event()
        site.status, site.body, site.hangs = 200, b"", opens
        long = asyncio.create_task(upstream.call(Call(), say()))
        await until(lambda: len(site.calls), lambda n: n == 2)
        site.hangs = None
        await until_works(lambda: upstream.call(Call(), say()), Unavailable)
        assert upstream.health().servers[0].breaker == "closed"
        opens.set()
        await long


@pytest.mark.usefixtures("quick")
async def test_while_an_agent_is_away_nobody_asks_it_for_its_card_but_the_check() -> None:
    async with opened(f"http://127.0.0.1:{free_port()}", breaker=1) as upstream:
        assert upstream.health().servers[0].breaker == "open"
        failures = upstream.health().servers[0].failures
        for _ in range(5):
            with pytest.raises(NotCalled):
                await upstream.card()
        assert upstream.health().servers[0].failures == failures


@pytest.mark.usefixtures("quick")
async def test_errors_of_the_agent_are_answers_and_do_not_open_the_breaker() -> None:
    agent = Agent("echo")

    @agent.skill
    async def echo(text: str) -> str:
        return text

    async with running(application(agent, store="memory:")) as url, opened(url, breaker=2) as upstream:
        for _ in range(5):
            with pytest.raises(TaskNotFound):
                await upstream.call(Call(), GET)
        assert upstream.health().state == "up" and upstream.health().servers[0].failures == 0


async def test_a_caller_that_leaves_says_nothing_about_the_agent() -> None:
    async with Site() as site, opened(site.url, breaker=1) as upstream:
        site.hangs = asyncio.Event()
        leaver = asyncio.create_task(upstream.call(Call(), say()))
        await site.arrived.wait()
        leaver.cancel()
        await asyncio.wait([leaver])
        assert upstream.health().servers[0].breaker == "closed"
        site.hangs.set()


@pytest.mark.usefixtures("quick")
async def test_an_agent_that_is_away_at_the_start_is_found_when_it_comes() -> None:
    port = free_port()
    async with opened(f"http://127.0.0.1:{port}", breaker=2) as upstream:
        assert upstream.known_card is None
        with pytest.raises(A2AError):
            await upstream.call(Call(), say())
        assert upstream.health().state == "down" and upstream.health().error
        async with Site(port=port):
            await until(lambda: upstream.known_card)
            await until(lambda: upstream.health().servers[0].breaker, lambda state: state != "open")
            task = await upstream.call(Call(), say())
            assert task.id == "t" and upstream.health() == UpstreamHealth(
                state="up", servers=upstream.health().servers
            )


async def test_a_bridge_with_many_slow_agents_asks_them_all_for_their_cards_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_OPEN_SECONDS", 60.0)
    names = ("one", "two", "three")
    async with Site() as site:
        site.waits_for_requests = len(names)
        routes = {name: RouteSettings(url=site.url, path=f"/{name}") for name in names}
        app = make_bridge(BridgeSettings(routes=routes)).app(store="memory:")
        async with asyncio.timeout(30), running(app):
            assert len(site.requests) >= len(names)


async def test_nothing_is_checked_while_the_agent_is_well() -> None:
    async with Site() as site, opened(site.url) as upstream:
        await upstream.call(Call(), say())
        cards = len(site.requests) - len(site.calls)
        for _ in range(5):
            await upstream.call(Call(), say())
        assert len(site.requests) - len(site.calls) == cards
        server = upstream._servers[0]
        assert server._refreshing is None and server._checking is None


async def test_an_old_card_is_read_again_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Site() as site, opened(site.url) as upstream:
        site.card = {**site.card, "description": "another"}
        monkeypatch.setattr(module, "_CARD_SECONDS", 0.0)
        await upstream.call(Call(), say())
        await until(lambda: upstream.known_card and upstream.known_card.description == "another")
        await upstream.call(Call(), say())


# -- several servers ---------------------------------------------------------------------------------------------------


async def test_a_server_that_refuses_connections_is_passed_over_for_any_operation() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    async with Site() as site, opened(dead, site.url) as upstream:
        assert (await upstream.call(Call(), say())).id == "t"
        assert len(site.calls) == 1 and upstream.health().state == "up"


@pytest.mark.usefixtures("quick")
async def test_a_server_that_goes_away_is_replaced_by_the_next_and_used_again_when_it_is_back() -> None:
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(Site())
        async with Site() as first:
            port = first.port
            upstream = await stack.enter_async_context(opened(first.url, second.url, breaker=1))
            await upstream.call(Call(), say())
            assert (len(first.calls), len(second.calls)) == (1, 0)
        await upstream.call(Call(), say())
        assert len(second.calls) == 1
        async with Site(port=port) as again:
            await until(lambda: upstream.health().servers[0].breaker, lambda state: state != "open")
            await upstream.call(Call(), say())
            assert (len(again.calls), len(second.calls)) == (1, 1)


@pytest.mark.parametrize(
    ("request_", "streams", "moves"),
    [
        (say(), False, False),
        (say(), True, False),
        (GET, False, True),
        (ListTasks(), False, True),
    ],
)
async def test_a_send_that_may_have_arrived_is_never_sent_to_another_server(
    request_: Any, streams: bool, moves: bool
) -> None:
    async with Site() as first, Site() as second, opened(first.url, second.url) as upstream:
        first.breaks = True
        error: A2AError | None = None
        try:
            if streams:
                async for _ in upstream.stream(Call(), request_):
                    pass
            else:
                await upstream.call(Call(), request_)
        except A2AError as raised:
            error = raised
        assert moves or (isinstance(error, Unreachable) and not isinstance(error, NotSent))
        sends = [each for each in first.calls if each[0] == "POST"]
        assert sends and bool(second.calls) is moves


async def test_a_send_that_was_answered_with_an_error_stays_where_it_is() -> None:
    async with Site() as first, Site() as second, opened(first.url, second.url) as upstream:
        first.status, first.body = 500, b"{}"
        with pytest.raises(A2AError):
            await upstream.call(Call(), say())
        assert not second.calls


# -- addresses and redirects -------------------------------------------------------------------------------------------


async def test_a_card_that_points_to_another_private_address_is_not_followed() -> None:
    async with Site() as site, Site() as inner:
        site.card = card(f"{inner.url}/rpc")
        async with opened(site.url, credentials="s3cret") as upstream:
            with pytest.raises(AddressBlocked, match="not on the internet"):
                await upstream.call(Call(), say())
            assert not inner.requests
        async with opened(site.url, allow_private=True, credentials="s3cret") as upstream:
            await upstream.call(Call(), say())
        (_, _, headers), *_ = inner.calls
        assert "authorization" not in headers  # another origin: allowed, and still not ours to tell


async def test_a_card_that_points_to_a_private_address_over_grpc_is_not_followed() -> None:
    pytest.importorskip("grpc")
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    port = listener.getsockname()[1]
    async with Site() as site:
        site.card = card(f"http://127.0.0.1:{port}", binding="GRPC")
        async with opened(site.url) as upstream:
            with pytest.raises(AddressBlocked, match="not on the internet"):
                await upstream.call(Call(), say())
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


@pytest.mark.parametrize("status", [302, 307, 308])
async def test_a_redirect_never_carries_a_message_or_a_credential_elsewhere(status: int) -> None:
    async with Site() as site, Site() as thief, opened(site.url, credentials="s3cret") as upstream:
        site.status, site.headers, site.body = status, f"Location: {thief.url}/rpc\r\n", b"{}"
        with pytest.raises(A2AError):
            await upstream.call(Call(), say())
        assert site.calls[0][2]["authorization"] == "Bearer s3cret"
        assert not thief.requests


# -- credentials -------------------------------------------------------------------------------------------------------


def of(caller: str, token: str = "", **more: Any) -> Call:
    shown = {"authorization": f"Bearer {token}"} if token else {}
    return Call(scope=Scope("", "crew", caller), principal=Principal(id=caller), credentials=shown, **more)


def tokens(site: Site) -> list[str]:
    return [headers.get("authorization", "") for _, _, headers in site.calls]


async def test_by_default_nothing_of_the_caller_is_passed_on() -> None:
    async with Site() as site, opened(site.url) as upstream:
        await upstream.call(of("ada", "ADA"), say())
        upstream.remember_caller(of("ada", "ADA"))
        await upstream.call(of("ada"), say())
        assert tokens(site) == ["", ""] and not upstream._credentials._remembered


async def test_two_routes_to_one_server_share_no_credential_and_no_connection() -> None:
    async with Site() as site:
        async with opened(site.url, credentials="ONE") as one, opened(site.url, credentials="TWO") as two:
            for upstream in (one, two, one):
                await upstream.call(Call(), say())
            assert tokens(site) == ["Bearer ONE", "Bearer TWO", "Bearer ONE"]
            carriers = {id(await transport(each)) for each in (one, two)}
            assert len(carriers) == 2


async def transport(upstream: Upstream) -> Any:
    """What carries the requests of an upstream."""
    (server,) = upstream._servers
    return (await server.connect()).client.link.transport._transport


async def test_what_the_caller_showed_is_passed_on_where_the_operator_says_so() -> None:
    async with Site() as site, opened(site.url, credentials={"type": "caller"}) as upstream:
        await asyncio.gather(*(upstream.call(of(who, who.upper()), say()) for who in ("ada", "bob", "eve")))
        assert sorted(tokens(site)) == ["Bearer ADA", "Bearer BOB", "Bearer EVE"]
        with pytest.raises(Unauthenticated):
            await upstream.call(Call(), say())
        assert len(site.calls) == 3
        cards = [headers for _, path, headers in site.requests if "well" in path]
        assert cards and not any("authorization" in headers for headers in cards)


async def test_streams_of_two_callers_that_are_read_in_turns_keep_their_own_credentials() -> None:
    """A consumer may read both in one task, so the context of one must not reach the other, nor a reconnection."""
    async with Site() as site, opened(site.url, credentials={"type": "caller"}) as upstream:
        # A working task, and then the stream breaks off: the client has to ask again, with the same credential.
        working = {**TASK, "status": {"state": "TASK_STATE_WORKING"}}
        event = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"task": working}})
        site.headers, site.body = "Content-Type: text/event-stream\r\n", f"data: {event}\n\n".encode()
        ada: Any = upstream.stream(of("ada", "ADA"), say())
        bob: Any = upstream.stream(of("bob", "BOB"), say())
        async with aclosing(ada), aclosing(bob):
            await anext(ada)
            await anext(bob)
            again = [asyncio.ensure_future(anext(bob)), asyncio.ensure_future(anext(ada))]
            await until(lambda: len(site.calls), lambda n: n >= 4)
            for each in again:
                each.cancel()
            await asyncio.wait(again)
        assert set(tokens(site)) == {"Bearer ADA", "Bearer BOB"}
        assert tokens(site)[:2] == ["Bearer ADA", "Bearer BOB"]


async def test_a_durable_task_uses_what_its_caller_showed_last_and_waits_for_it_after_a_restart() -> None:
    async with Site() as site:
        async with opened(site.url, credentials={"type": "caller"}) as upstream:
            upstream.remember_caller(of("ada", "OLD"))
            upstream.remember_caller(of("ada", "ADA"))
            upstream.remember_caller(Call(credentials={"authorization": "Bearer NOBODY"}))
            await upstream.call(of("ada"), say())
            with pytest.raises(NoCallerCredentials):
                await upstream.call(of("bob"), say())
        async with opened(site.url, credentials={"type": "caller"}) as upstream:
            with pytest.raises(NoCallerCredentials):
                await upstream.call(of("ada"), say())
            waiting = asyncio.create_task(upstream.wait_for_caller(of("ada")))
            upstream.remember_caller(of("bob", "BOB"))
            assert not waiting.done()
            upstream.remember_caller(of("ada", "ADA"))
            async with asyncio.timeout(10):
                await waiting
            await upstream.call(of("ada"), say())
            assert upstream.health().servers[0].failures == 0
        assert tokens(site) == ["Bearer ADA", "Bearer ADA"]


async def test_workers_know_the_callers_of_a_route_together_and_of_another_route_not() -> None:
    secrets, given = SharedSecrets(), {"type": "caller"}
    async with Site() as site, AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(opened(site.url, credentials=given)) for _ in "12"]
        other = Upstream(settings(site.url, credentials=given), name="another")
        for upstream in (one, two, other):
            upstream.share_callers(secrets)
        waiting = asyncio.create_task(two.wait_for_caller(of("ada")))
        one.remember_caller(of("ada", "ADA"))
        async with asyncio.timeout(10):
            await waiting
        await two.call(of("ada"), say())
        with pytest.raises(NoCallerCredentials):
            await other.call(of("ada"), say())
        one.remember_caller(of("ada", "NEW"))
        await two.call(of("ada"), say())
        site.status, site.body = 401, b"{}"
        for upstream in (two, one):  # it is refused, and nobody tries it again
            with pytest.raises(NoCallerCredentials):
                await upstream.call(of("ada"), say())
        assert secrets.get(one._credentials._shared_name(("", "ada"))) == b""
        assert tokens(site)[:2] == ["Bearer ADA", "Bearer NEW"]
        await other.close()


async def test_a_remembered_token_that_is_refused_is_forgotten_and_its_caller_waited_for() -> None:
    async with Site() as site, opened(site.url, credentials={"type": "caller"}) as upstream:
        upstream.remember_caller(of("ada", "OLD"))
        site.status, site.body = 401, b"{}"
        with pytest.raises(NoCallerCredentials):
            await upstream.call(of("ada"), say())
        waiting = asyncio.create_task(upstream.wait_for_caller(of("ada")))
        await asyncio.wait([waiting], timeout=0)
        assert not waiting.done()
        with pytest.raises(Unauthenticated) as raised:  # who is here is told, and need not be waited for
            await upstream.call(of("ada", "ALSO-OLD"), say())
        assert not isinstance(raised.value, NoCallerCredentials)
        upstream.remember_caller(of("ada", "NEW"))
        async with asyncio.timeout(10):
            await waiting


async def test_a_remembered_token_is_forgotten_when_it_expires() -> None:
    server = OAuthServer()
    server.issuer = "https://login.example"
    async with Site() as site, opened(site.url, credentials={"type": "caller"}) as upstream:
        upstream.remember_caller(of("ada", server.token("ada", "x", lasts=-1)))
        with pytest.raises(NoCallerCredentials):
            await upstream.call(of("ada"), say())
        assert not upstream._credentials._remembered and not site.calls


async def test_a_cookie_of_the_agent_is_not_kept() -> None:
    async with Site() as site, opened(site.url, credentials={"type": "caller"}) as upstream:
        site.headers = "Set-Cookie: session=ada; Path=/\r\n"
        await upstream.call(of("ada", "ADA"), say())
        await upstream.call(of("bob", "BOB"), say())
        assert all("cookie" not in headers for _, _, headers in site.requests)


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON", "GRPC"])
@pytest.mark.parametrize("kind", ["caller", "token_exchange"])
async def test_calls_and_streams_over_every_binding_show_the_credential_of_their_own_caller(
    binding: str, kind: str
) -> None:
    server, port = OAuthServer(), free_port()
    async with server.running():
        crew = Crew(server)
        given = exchange_settings(server) if kind == "token_exchange" else {"type": "caller"}
        app = application(crew.agent, store="memory:", grpc_port=port)
        async with running(app) as url, AsyncExitStack() as stack:
            upstream = await stack.enter_async_context(
                opened(url, binding=binding, credentials=given, allow_private=binding == "GRPC")
            )
            audience = BRIDGE if kind == "token_exchange" else UPSTREAM

            async def use(who: str) -> None:
                call = of(who, server.token(who, audience))
                sent = await upstream.call(call, say(who))
                assert sent.status.state.terminal
                with pytest.raises(TaskNotFound):
                    await upstream.call(of("eve", server.token("eve", audience)), GetTask(id=sent.id))
                async for _ in upstream.stream(call, say(who)):
                    pass
                assert (await upstream.call(call, ListTasks())).total_size == 2

            await asyncio.gather(*(use(who) for who in ("ada", "bob", "cyd")))
    assert {each["sub"] for each in crew.seen} == {"ada", "bob", "cyd", "eve"}


@asynccontextmanager
async def exchanging(**more: Any) -> AsyncIterator[tuple[OAuthServer, Crew, Upstream]]:
    server = OAuthServer()
    async with server.running():
        crew = Crew(server)
        async with running(application(crew.agent, store="memory:")) as url:
            async with opened(url, credentials=exchange_settings(server, **more)) as upstream:
                yield server, crew, upstream


async def test_the_agent_behind_a_route_sees_the_caller_and_the_bridge() -> None:
    async with exchanging() as (server, crew, upstream):
        for who in ("ada", "bob", "ada"):
            await upstream.call(of(who, server.token(who, BRIDGE)), say())
        assert [(each["sub"], each["act"]) for each in crew.seen] == [
            ("ada", {"sub": "bridge"}),
            ("bob", {"sub": "bridge"}),
            ("ada", {"sub": "bridge"}),
        ]


@pytest.mark.parametrize(
    ("more", "token", "error", "says"),
    [
        ({}, {"lasts": -5}, Unauthenticated, "your token cannot be exchanged"),
        ({"audience": "other"}, {}, Unavailable, "no token could be obtained"),
        ({"client_secret": "wrong-secret"}, {}, Unavailable, "no token could be obtained"),
    ],
)
async def test_a_failed_exchange_tells_the_caller_what_it_can_change_and_nothing_else(
    more: dict[str, Any], token: dict[str, Any], error: type[A2AError], says: str
) -> None:
    async with exchanging(**more) as (server, crew, upstream):
        shown = server.token("ada", BRIDGE, **token)
        with pytest.raises(error, match=says) as raised:
            await upstream.call(of("ada", shown), say())
        assert server.url not in str(raised.value) and shown not in str(raised.value)
        assert not crew.seen and upstream.health().servers[0].failures == 0


async def test_an_authorization_server_that_is_away_does_not_open_the_breaker() -> None:
    async with exchanging(token_url=f"http://127.0.0.1:{free_port()}/token") as (server, crew, upstream):
        for _ in range(8):
            with pytest.raises(NotSent):
                await upstream.call(of("ada", server.token("ada", BRIDGE)), say())
        assert upstream.health().servers[0].breaker == "closed" and not crew.seen


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"type": "magic"}, "there is no type 'magic'"),
        ({"type": "token_exchange", "token_url": "https://x"}, "client_id"),
        ({"type": "client_credentials", "colour": "red"}, "colour|missing"),
        ("env:NOT_THERE_AT_ALL", "NOT_THERE_AT_ALL"),
        ({"key": 3}, "not a secret"),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_at_the_start(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Upstream(settings("http://127.0.0.1:9", credentials=given), name="crew")


# -- what is observed --------------------------------------------------------------------------------------------------


class Noted:
    def __init__(self) -> None:
        self.ended: list[tuple[str, str, str]] = []

    def begin(self, upstream: str, call: Call, operation: str, request: Request) -> NotedCall:
        return NotedCall(self, upstream, operation, replace(call, trace={"traceparent": "00-here"}))

    def refuse(self, call: Call, operation: str, reason: str) -> None:
        self.ended.append(("", operation, reason))


class NotedCall:
    def __init__(self, noted: Noted, upstream: str, operation: str, call: Call) -> None:
        self.call, self._noted, self._about = call, noted, (upstream, operation)

    def end(self, outcome: str) -> None:
        self._noted.ended.append((*self._about, outcome))


async def test_every_call_of_a_server_is_observed_with_its_outcome() -> None:
    dead = f"127.0.0.1:{free_port()}"
    async with Site() as site, opened(f"http://{dead}", site.url, breaker=1, concurrency=1) as upstream:
        await until(lambda: upstream.health().servers[0].breaker, lambda state: state == "open")
        upstream.observer = noted = Noted()
        await upstream.call(Call(), say())
        assert site.calls[0][2]["traceparent"] == "00-here"
        site.breaks = True
        with pytest.raises(A2AError):
            async for _ in upstream.stream(Call(), say()):
                pass
        with pytest.raises(Unavailable):
            await upstream.call(Call(), GET)
        here = site.url.removeprefix("http://")
        assert noted.ended == [
            (here, "SendMessage", "OK"),
            (here, "SendStreamingMessage", "UNREACHABLE"),
            ("", "GetTask", "UNAVAILABLE"),
        ]
