"""The application as others run it: with a lifespan and without, below a path, behind a real server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import msgspec
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount as Below

from dragoman.dialects.sse import SseReader
from dragoman.errors import Unavailable
from dragoman.model.ops import StreamResponse
from dragoman.model.task import TaskState
from dragoman.server.app import App
from dragoman.server.cards import WELL_KNOWN
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount
from tests.server.wire import (
    CARD,
    HELLO,
    Scripted,
    app_of,
    chunk,
    envelope,
    open_rpc,
    request,
    rpc,
    status,
    task,
)
from tests.waiting import until

V1 = {"A2A-Version": "1.0"}
S = TaskState


class Steps:
    """Startup and shutdown callbacks that leave a trace."""

    def __init__(self, fail: bool = False) -> None:
        self.taken: list[str] = []
        self.fail = fail

    async def up(self) -> None:
        await asyncio.sleep(0)
        if self.fail:
            raise RuntimeError("no disk")
        self.taken.append("up")

    async def down(self) -> None:
        self.taken.append("down")

    def app(self, service: Any = None) -> App:
        return app_of(service, on_startup=[self.up], on_shutdown=[self.down])


async def lifespan(
    app: Any,
) -> tuple[list[dict[str, Any]], asyncio.Queue[dict[str, str]], asyncio.Task[None]]:
    said: list[dict[str, Any]] = []
    received: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    running = asyncio.create_task(app({"type": "lifespan"}, received.get, send))
    await received.put({"type": "lifespan.startup"})
    while not said:
        await asyncio.sleep(0)
    return said, received, running


# --- starting and stopping


async def test_a_lifespan_starts_and_stops_it() -> None:
    steps = Steps()
    said, received, running = await lifespan(steps.app())
    assert said[-1]["type"] == "lifespan.startup.complete" and steps.taken == ["up"]
    await received.put({"type": "lifespan.shutdown"})
    await running
    assert said[-1]["type"] == "lifespan.shutdown.complete" and steps.taken == ["up", "down"]


async def test_a_lifespan_that_fails_says_why() -> None:
    said, _, running = await lifespan(Steps(fail=True).app())
    await running
    assert said == [{"type": "lifespan.startup.failed", "message": "no disk"}]


async def test_without_a_lifespan_the_first_requests_start_it_once() -> None:
    steps = Steps()
    app = steps.app()
    answers = await asyncio.gather(*[rpc(app, "GetTask", {"id": "t1"}, headers=V1) for _ in range(10)])
    assert all("result" in answer.json for answer in answers)
    assert steps.taken == ["up"]


async def test_stopping_ends_streams_before_what_feeds_them() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    steps = Steps()
    app = steps.app(service)
    answer = open_rpc(app, "SendStreamingMessage", HELLO, headers=V1)
    await answer.until(lambda: bool(answer.sends))
    await app.stop()
    assert service.closed.is_set() and steps.taken == ["up", "down"]
    assert (await answer.end()).finished


async def test_a_request_does_not_start_again_what_was_stopped() -> None:
    steps = Steps()
    app = steps.app()
    await rpc(app, "GetTask", {"id": "t1"}, headers=V1)
    await app.stop()
    answer = await rpc(app, "GetTask", {"id": "t1"}, headers=V1)
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert steps.taken == ["up", "down"]
    await app.start()
    assert (await rpc(app, "SendStreamingMessage", HELLO, headers=V1)).status == 200


async def test_a_start_that_fails_is_tried_again() -> None:
    steps = Steps(fail=True)
    app = steps.app()
    assert (await rpc(app, "GetTask", {"id": "t1"}, headers=V1)).status == 500
    steps.fail = False
    assert (await rpc(app, "GetTask", {"id": "t1"}, headers=V1)).status == 200


async def test_stopping_answers_those_who_still_wait() -> None:
    class Stuck(Scripted):
        async def call(self, call: Any, request: Any) -> Any:
            self.calls.append((call, request))
            await asyncio.Event().wait()

    service = Stuck()
    app = app_of(service)
    answer = open_rpc(app, "SendMessage", HELLO, headers=V1)
    while not service.calls:
        await asyncio.sleep(0)
    await app.stop()
    await answer.end()
    assert answer.status == 503 and answer.json["id"] == 1


async def test_healthz_answers_200() -> None:
    app = app_of()
    assert (await request(app, "GET", "/healthz")).json == {"status": "ok"}
    assert (await request(app, "GET", "/readyz")).status == 200
    assert (await request(app, "POST", "/healthz")).status == 405


async def test_server_without_its_store_is_alive_but_not_ready(caplog: pytest.LogCaptureFixture) -> None:
    here = True

    async def store() -> None:
        if not here:
            raise Unavailable("the store is closed")

    app = App([], ready=store)
    assert (await request(app, "GET", "/readyz")).status == 200
    here = False
    answer = await request(app, "GET", "/readyz")
    assert answer.status == 503 and answer.json == {"status": "unavailable"}
    assert (await request(app, "GET", "/healthz")).status == 200
    assert "the store is closed" in caplog.text
    here = True
    assert (await request(app, "GET", "/readyz")).status == 200


async def test_a_websocket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await app_of()({"type": "websocket"}, receive, send)
    assert [message["type"] for message in sent] == ["websocket.close"]


# --- many agents


async def test_each_agent_answers_at_its_path_in_its_own_scope() -> None:
    services = {name: Scripted() for name in ("ada", "bob")}
    app = App([Mount(path=f"/{name}", agent=name, service=one, card=CARD) for name, one in services.items()])
    await rpc(app, "GetTask", {"id": "t1"}, path="/bob", headers=V1)
    assert not services["ada"].calls
    assert services["bob"].calls[0][0].scope.agent == "bob"
    assert (await rpc(app, "GetTask", {"id": "t1"}, path="/", headers=V1)).status == 404


async def test_the_nearest_mount_answers() -> None:
    root, below = Scripted(), Scripted()
    app = App(
        [
            Mount(agent="root", service=root, card=CARD),
            Mount(path="/a/b", agent="below", service=below, card=CARD),
        ]
    )
    for path in ("/", "/a/b", "/a/b/"):
        await rpc(app, "GetTask", {"id": "t1"}, path=path, headers=V1)
    assert (len(root.calls), len(below.calls)) == (1, 2)
    assert (await rpc(app, "GetTask", {"id": "t1"}, path="/a", headers=V1)).status == 404


# --- below a framework


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
@pytest.mark.parametrize("path", ["/agents", "/agents/"])
async def test_app_can_be_mounted_in_a_framework(framework: str, path: str) -> None:
    app = app_of(Scripted([StreamResponse(task(S.WORKING), 1), status(S.COMPLETED, 2)]))
    outer: Any = (
        fastapi.FastAPI() if framework == "fastapi" else Starlette(routes=[Below("/agents", app=app)])
    )
    if framework == "fastapi":
        outer.mount("/agents", app)
    answer = await rpc(outer, "GetTask", {"id": "t1"}, path="/agents/", headers=V1)
    assert answer.json["result"]["id"] == "t1"
    card = (await request(outer, "GET", "/agents/.well-known/agent-card.json")).json
    assert card["url"] == "http://agents.example/agents/"
    body = envelope("SendStreamingMessage", HELLO)
    stream = await request(outer, "POST", "/agents/", body, headers=V1)
    assert [frame.id for frame in stream.frames()] == ["1", "2"]


# --- over a socket


@contextlib.asynccontextmanager
async def served(app: App, **config: Any) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", **config))
    running = asyncio.create_task(server._serve() if hasattr(server, "_serve") else server.serve())
    async with asyncio.timeout(10):
        await until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await app.drain()
        server.should_exit = True
        await running


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes, read to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


def posted(body: bytes, *headers: str) -> bytes:
    lines = ["POST / HTTP/1.1", "Host: localhost", "A2A-Version: 1.0", "Connection: close", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


async def test_a_call_over_a_socket() -> None:
    async with served(app_of()) as port:
        answer = await exchange(port, posted(envelope("GetTask", {"id": "t1"})))
    assert answer.startswith(b"HTTP/1.1 200") and b'"id":"t1"' in answer


async def test_a_stream_over_a_socket_goes_on_after_a_reconnect() -> None:
    service = Scripted([chunk(str(n), n) for n in range(1, 51)], [status(S.COMPLETED, 51)])
    async with served(app_of(service)) as port:
        answer = await exchange(port, posted(envelope("SendStreamingMessage", HELLO), "Last-Event-ID: 5"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    # chunked: every chunk is a line with its length, then its bytes
    pieces, rest = bytearray(), body
    while (size := int(rest.partition(b"\r\n")[0], 16)) > 0:
        rest = rest.partition(b"\r\n")[2]
        pieces += rest[:size]
        rest = rest[size + 2 :]
    frames = SseReader().feed(bytes(pieces))
    assert [int(frame.id) for frame in frames] == list(range(1, 52))
    assert service.calls[0][0].after == 5


async def test_a_socket_that_closes_ends_the_reading() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    async with served(app_of(service)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(posted(envelope("SendStreamingMessage", HELLO)))
        await reader.readuntil(b"\n\n")
        writer.close()
        async with asyncio.timeout(10):
            await service.closed.wait()


async def test_the_server_can_go_while_streams_are_open() -> None:
    service = Scripted([chunk("a", 1)])
    service.hold = asyncio.Event()
    async with served(app_of(service)) as port:
        open_ = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        for reader, writer in open_:
            writer.write(posted(envelope("SendStreamingMessage", HELLO)))
            await reader.readuntil(b"\n\n")
    async with asyncio.timeout(10):
        ends = [await reader.read() for reader, _ in open_]
    assert all(end.endswith(b"0\r\n\r\n") for end in ends)  # a whole response, not a broken one


async def test_a_client_that_sends_too_much_still_gets_its_answer_and_may_go_on() -> None:
    async with served(app_of(limits=Limits(max_body=1000))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body in (b"x" * 1_000_000, envelope("GetTask", {"id": "t1"})):
            writer.write(posted(body).replace(b"Connection: close\r\n", b""))
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                document = msgspec.json.decode(await reader.readexactly(length))
            assert head.startswith(b"HTTP/1.1 200")
            assert document.get("error", {}).get("code") == (-32600 if len(body) > 1000 else None)
        writer.close()


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/docs", "/openapi.json", *WELL_KNOWN, "/agent-card.json"],
)
async def test_head_is_answered_wherever_get_is(path: str) -> None:
    served = app_of(metrics=lambda: b"numbers 1\n")
    get, head = [await request(served, verb, path) for verb in ("GET", "HEAD")]
    assert get.status == head.status == 200 and get.body and not head.body
    assert get.headers == head.headers and head.headers["content-length"] == str(len(get.body))


async def test_numbers_are_read_and_nothing_else() -> None:
    served = app_of(metrics=lambda: b"numbers 1\n")
    answer = await request(served, "POST", "/metrics")
    assert answer.status == 405 and answer.headers["allow"] == "GET, HEAD"
    stranger = await request(served, "POST", "/metrics", client=("203.0.113.7", 1))
    assert stranger.status == 404


class Counted(dict[str, Mount]):
    """Mounts, and how often one was looked for."""

    looks = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(key, default)


async def test_slashes_cost_nothing() -> None:
    served = App([Mount(service=Scripted(), card=CARD, path=path) for path in ("/a", "/b/c")])
    served._mounts = counted = Counted(served._mounts)
    for path in ("/b/c" + "/x" * 20_000, "/" + "x/" * 20_000, "/x" + "/" * 20_000):
        assert (await request(served, "GET", path)).status == 404
    assert counted.looks < 12
    assert (await request(served, "GET", "/b/c/tasks/t1")).status == 200
    assert (await request(served, "GET", "/a/tasks/t1/")).status == 200
