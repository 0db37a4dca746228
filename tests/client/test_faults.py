"""Broken connections: each event comes once, nothing is done twice, and errors are clear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from dragoman import connect
from dragoman.buses.local import LocalBus
from dragoman.client import Piece
from dragoman.client.transport.transport import NotSent
from dragoman.engine.engine import Engine
from dragoman.errors import InvalidAgentResponse, RateLimited, Unavailable, Unreachable
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.server.mount import Mount
from dragoman.server.runtime import running
from dragoman.stores import open_store
from tests.client.chaos import Chaos, Cut, Dropped, EndEarly, Fault, Lost, Raw, Slow, Stall, Status
from tests.client.counting import HASTY, Counter, rebuild, text

STREAM, SUBSCRIBE, SEND, GET, CANCEL = (
    "SendStreamingMessage",
    "SubscribeToTask",
    "SendMessage",
    "GetTask",
    "CancelTask",
)
REPORTS = [f"at {i}" for i in range(4, 30, 5)]

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server() -> AsyncIterator[Counter]:
    """One for all tests: starting a server takes longer than most of them."""
    async with Counter().serving() as counter:
        yield counter


@pytest_asyncio.fixture(loop_scope="module")
async def counter(server: Counter) -> AsyncIterator[Counter]:
    server.forget()
    yield server
    server.gate.set()


anybodys = pytest.mark.parametrize("anonymous", [False, True], ids=["ours", "anybodys"])
breaks = pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Cut(frames=1), id="cut at once"),
        pytest.param(Cut(frames=4), id="cut"),
        pytest.param(Cut(frames=9, half=True), id="half a frame"),
        pytest.param(EndEarly(frames=5), id="ended early"),
        pytest.param(EndEarly(frames=5, then=b"data: upstream timed out\n\n"), id="text"),
        pytest.param(EndEarly(frames=5, then=b'data: {"jsonrpc": "2.0", "resu\n\n'), id="half a document"),
        pytest.param(EndEarly(frames=5, then=b"\x00\xff\r\r\n"), id="garbage"),
        pytest.param(EndEarly(frames=5, then=b'data: {"result":"\xff"}\n\n'), id="not UTF-8"),
        pytest.param(EndEarly(frames=5, then=b"data: " + b"[" * 100_000 + b"\n\n"), id="too deep"),
        pytest.param(Stall(frames=6), id="stalled"),
        pytest.param(Slow(), id="slow"),
    ],
)


def check(pieces: list[Piece], *, complete: bool) -> None:
    """Everything was told, once. Of a server that is not ours, reports made while nobody listened are gone."""
    numbers, reports = rebuild(pieces)
    assert numbers == text(30)
    assert reports == (REPORTS if complete else [r for r in REPORTS if r in reports])
    assert pieces[-1].state is TaskState.COMPLETED


@anybodys
@breaks
async def test_each_event_comes_once_when_a_stream_breaks(
    counter: Counter, fault: Fault, anonymous: bool
) -> None:
    chaos = Chaos(counter.url, anonymous=anonymous)
    chaos.on(STREAM, fault)
    async with chaos as url, connect(url, policy=HASTY) as agent:
        pieces = [piece async for piece in agent.stream("count:30")]
    check(pieces, complete=not anonymous)
    assert counter.runs == ["count:30"]


@anybodys
@breaks
async def test_each_event_comes_once_when_it_breaks_while_the_agent_works(
    counter: Counter, fault: Fault, anonymous: bool
) -> None:
    chaos = Chaos(counter.url, anonymous=anonymous)
    chaos.on(STREAM, fault)
    chaos.on(SUBSCRIBE, Cut(frames=1), Cut(frames=2, half=True), Status(500), Status(503), Dropped())
    async with chaos as url, connect(url, policy=HASTY) as agent, asyncio.TaskGroup() as group:
        if isinstance(fault, Slow):
            group.create_task(counter.release())
        else:
            group.create_task(counter.release(chaos.until(SUBSCRIBE, 3)))
        pieces = [piece async for piece in agent.stream("hold:30")]
    check(pieces, complete=not anonymous)
    assert counter.runs == ["hold:30"]


@anybodys
@pytest.mark.parametrize("frames", [1, 4, 9])
@pytest.mark.parametrize(
    ("version", "stream", "subscribe"),
    [
        ("0.3", "message/stream", "tasks/resubscribe"),
        ("0.2", "message/stream", "tasks/resubscribe"),
        ("0.1", "tasks/sendSubscribe", "tasks/resubscribe"),
    ],
)
async def test_a_broken_stream_of_an_older_version_continues(
    counter: Counter, anonymous: bool, version: str, stream: str, subscribe: str, frames: int
) -> None:
    chaos = Chaos(counter.url, anonymous=anonymous)
    chaos.on(stream, Cut(frames=frames))
    chaos.on(subscribe, Cut(frames=1), Cut(frames=2))
    async with (
        chaos as url,
        connect(url, policy=HASTY, version=version) as agent,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(counter.release(chaos.until(subscribe, 3)))
        pieces = [piece async for piece in agent.stream("hold:30")]
    check(pieces, complete=False)
    assert counter.runs == ["hold:30"]


async def test_a_dragoman_server_continues_after_the_last_event(counter: Counter) -> None:
    chaos = Chaos(counter.url)
    chaos.on(STREAM, Cut(frames=4))
    async with chaos as url, connect(url, policy=HASTY) as agent:
        events = [piece.event async for piece in agent.stream("count:30")]
    (again,) = [seen for seen in chaos.seen if seen.method == SUBSCRIBE]
    assert int(again.headers["last-event-id"]) >= 4
    assert len(events) == len({id(event) for event in events})


@pytest.mark.parametrize("fault", [Lost(), Dropped(), Cut(frames=0), Status(502)])
async def test_a_first_send_whose_answer_is_lost_is_done_once_on_our_server(
    counter: Counter, fault: Fault
) -> None:
    chaos = Chaos(counter.url)
    async with chaos as url, connect(url, policy=HASTY) as agent:
        chaos.on(SEND, fault, Lost())
        assert await agent.send("count:3") == text(3)
    assert counter.runs == ["count:3"]
    sent = [seen.headers["idempotency-key"] for seen in chaos.seen if seen.method == SEND]
    assert len(sent) == 3
    assert len(set(sent)) == 1


@pytest.mark.parametrize("fault", [Lost(), Dropped(), Status(500), Status(504)])
async def test_a_send_in_doubt_is_not_repeated_on_a_server_that_could_do_it_twice(
    counter: Counter, fault: Fault
) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    chaos.on(SEND, fault)
    async with chaos as url, connect(url, policy=HASTY) as agent:
        with pytest.raises((Unreachable, Unavailable)):
            await agent.send("count:3")
    assert chaos.methods().count(SEND) == 1
    assert len(counter.runs) <= 1


@anybodys
async def test_a_server_that_is_too_busy_is_asked_again_when_it_says(
    counter: Counter, anonymous: bool
) -> None:
    chaos = Chaos(counter.url, anonymous=anonymous)
    chaos.on(SEND, Status(429, {"retry-after": "0"}), Status(503, {"retry-after": "0"}))
    async with chaos as url, connect(url, policy=HASTY) as agent:
        assert await agent.send("count:3") == text(3)
    assert chaos.methods().count(SEND) == 3
    assert counter.runs == ["count:3"]


async def test_waiting_longer_than_there_is_time_for_is_not_begun(counter: Counter) -> None:
    chaos = Chaos(counter.url)
    chaos.on(SEND, Status(429, {"retry-after": "3600"}))
    async with chaos as url, connect(url, policy=HASTY, timeout=5) as agent:
        with pytest.raises(RateLimited) as caught:
            await agent.send("count:3")
    assert caught.value.retry_after == 3600
    assert counter.runs == []


async def test_reading_is_repeated_through_any_trouble(counter: Counter) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    async with chaos as url, connect(url, policy=HASTY) as agent:
        done = await agent.send("count:3")
        chaos.on(GET, Status(500), Lost(), Raw(b"SSH-2.0-OpenSSH\r\n"))
        assert (await agent.get(done.id)).text == text(3)


async def test_a_cancel_whose_answer_is_lost_has_still_canceled(counter: Counter) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    chaos.on(CANCEL, Lost())
    async with chaos as url, connect(url, policy=HASTY) as agent:
        running = await agent.send("hold:4", wait=False)
        assert (await agent.cancel(running.id)).state is TaskState.CANCELED


async def test_the_error_of_an_answer_that_is_not_http_says_so(counter: Counter) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    chaos.on(SEND, Raw(b"220 smtp.example.com ESMTP\r\n"))
    async with chaos as url, connect(url, policy=HASTY) as agent:
        with pytest.raises(Unreachable, match="not HTTP"):
            await agent.send("count:3")


async def test_a_page_instead_of_an_answer_is_reported_by_its_status(counter: Counter) -> None:
    chaos = Chaos(counter.url, anonymous=True)
    chaos.on(SEND, Status(200), Status(418, body=b"teapot"), Status(418, body=b"{}"))
    async with chaos as url, connect(url, policy=HASTY) as agent:
        with pytest.raises(Unreachable, match="did not answer with JSON"):
            await agent.send("count:3")
        with pytest.raises(Unreachable, match="HTTP 418: teapot"):
            await agent.send("count:3")
        with pytest.raises(Unreachable, match=r"HTTP 418$"):
            await agent.send("count:3")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_message_does_not_follow_a_redirect_to_another_origin(counter: Counter, code: int) -> None:
    chaos, trap = Chaos(counter.url), Chaos(counter.url)
    async with chaos as url, trap as there, connect(url, policy=HASTY, credentials="secret") as agent:
        chaos.on(SEND, Status(code, {"location": f"{there}/"}))
        with pytest.raises(InvalidAgentResponse, match="another origin"):
            await agent.send("count:3")
    assert trap.seen == []
    assert counter.runs == []


async def test_a_card_may_move_to_another_origin_but_credentials_do_not_go_there(counter: Counter) -> None:
    chaos, other = Chaos(counter.url), Chaos(counter.url)
    async with chaos as url, other as there:
        chaos.on(
            "GET",
            Status(401),
            Status(401),
            Status(401),
            Status(302, {"location": f"{there}/agent-card.json"}),
        )
        async with connect(url, policy=HASTY, credentials="secret", headers={"X-Key": "k"}) as agent:
            assert agent.card.name == "Counter"
            await agent.send("count:3")
    assert [seen.headers.get("authorization") for seen in chaos.seen] == [None, None, None, "Bearer secret"]
    assert all("authorization" not in seen.headers and "x-key" not in seen.headers for seen in other.seen)
    assert other.methods() == ["GET", SEND]


async def test_an_agent_that_is_not_there_is_named() -> None:
    with pytest.raises(NotSent, match=r"cannot reach http://127\.0\.0\.1:9"):
        async with connect("http://127.0.0.1:9", policy=HASTY):
            pass


async def test_a_stream_that_was_never_begun_is_sent_again_only_where_that_is_safe(counter: Counter) -> None:
    for anonymous in (False, True):
        chaos = Chaos(counter.url, anonymous=anonymous)
        async with chaos as url, connect(url, policy=HASTY) as agent:
            chaos.on(STREAM, Cut(frames=0))
            if anonymous:
                with pytest.raises(Unreachable):
                    [piece async for piece in agent.stream("count:4")]
            else:
                assert rebuild([piece async for piece in agent.stream("count:4")])[0] == text(4)
    assert counter.runs.count("count:4") == 2


async def test_a_timeout_ends_the_wait_and_not_the_task(counter: Counter) -> None:
    async with connect(counter.url, policy=HASTY) as agent:
        stream = agent.stream("hold:4", timeout=0.3)
        with pytest.raises(TimeoutError, match=r"its task .* goes on"):
            async for _ in stream:
                pass
        assert stream.task is not None
        assert (await agent.get(stream.task.id)).state is TaskState.WORKING
        with pytest.raises(TimeoutError, match="did not finish in time"):
            await agent.wait(stream.task.id, timeout=0.2)
        counter.gate.set()
        assert await agent.wait(stream.task.id) == text(4)


async def test_events_that_an_arbiter_stream_repeats_come_once(counter: Counter) -> None:
    engine = Engine(open_store("memory:"), LocalBus(), lambda scope: counter.agent)
    mount = Mount(service=engine, card=lambda: counter.agent.card, agent="counter", only="arbiter")
    app = App([mount], on_startup=[engine.start], on_shutdown=[engine.stop])
    async with running(app) as upstream:
        chaos = Chaos(upstream, anonymous=True)
        chaos.on("message/stream", Cut(frames=5))
        chaos.on("tasks/resubscribe", Cut(frames=2), Cut(frames=7))
        async with (
            chaos as url,
            connect(url, policy=HASTY, version="arbiter") as agent,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(counter.release(chaos.until("tasks/resubscribe", 3)))
            pieces = [piece async for piece in agent.stream("hold:30")]
    numbers, reports = rebuild(pieces)
    assert numbers == reports.pop() == text(30), "it says its answer at the end, too"
    assert reports == [r for r in REPORTS if r in reports]
    assert counter.runs == ["hold:30"]
