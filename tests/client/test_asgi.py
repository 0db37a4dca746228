"""The in-process transport behaves like a network: it streams, applies backpressure, disconnects and breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import Unreachable

URL = "http://agent.local/rpc?x=1"


class App:
    """Streams one piece each time it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.next = asyncio.Semaphore(0)
        self.scope: dict[str, Any] = {}
        self.body = b""
        self.sent = 0
        self.disconnected = asyncio.Event()
        self.events: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                self.events.append(message["type"])
                await send({"type": "lifespan.startup.complete"})
            self.events.append("lifespan.shutdown")
            return
        self.scope = scope
        self.body = (await receive())["body"]
        headers = [(b"Content-Type", b"text/plain"), (b"x-two", b"a"), (b"x-two", b"b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        leaving = asyncio.create_task(receive())
        try:
            for n in range(1000):
                turn = asyncio.create_task(self.next.acquire())
                await asyncio.wait({turn, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    turn.cancel()
                    self.disconnected.set()
                    return
                await send({"type": "http.response.body", "body": b"%d;" % n, "more_body": True})
                self.sent += 1
        finally:
            leaving.cancel()


async def test_a_piece_can_be_read_before_the_response_ends() -> None:
    app = App()
    transport = AsgiTransport(app)
    app.next.release()
    async with asyncio.timeout(20):
        response = await transport.request("POST", URL, {"X-Thing": "yes"}, b"hello")
        chunks = response.chunks()
        assert await anext(chunks) == b"0;"
        app.next.release()
        assert await anext(chunks) == b"1;"
        await response.close()
        await app.disconnected.wait()
        await transport.close()
    assert response.status == 200
    assert response.headers == {"content-type": "text/plain", "x-two": "a, b"}
    assert app.body == b"hello"
    assert (b"x-thing", b"yes") in app.scope["headers"]
    assert (app.scope["path"], app.scope["query_string"]) == ("/rpc", b"x=1")


async def test_the_lifespan_runs_once_around_all_requests() -> None:
    app = App()
    transport = AsgiTransport(app)
    async with asyncio.timeout(20):
        for _ in range(2):
            app.next.release()
            response = await transport.request("GET", URL, {})
            await response.close()
        await transport.close()
    assert app.events == ["lifespan.startup", "lifespan.shutdown"]


async def test_an_application_waits_while_its_response_is_not_read() -> None:
    app = App()
    transport = AsgiTransport(app)
    for _ in range(500):
        app.next.release()
    async with asyncio.timeout(20):
        response = await transport.request("GET", URL, {})
        for _ in range(5000):
            await asyncio.sleep(0)
        assert 0 < app.sent < 500
        await transport.close()
    assert response.status == 200


async def test_an_application_that_breaks_off_is_an_unreachable_peer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise RuntimeError("power cut")

    transport = AsgiTransport(app)
    response = await transport.request("GET", URL, {})
    with pytest.raises(Unreachable, match="power cut"):
        await response.read()
    await transport.close()


async def test_an_application_that_fails_before_it_answers_is_an_unreachable_peer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("no power")

    transport = AsgiTransport(app)
    with pytest.raises(Unreachable, match="no power"):
        await transport.request("GET", URL, {})
    await transport.close()


async def test_an_application_that_returns_before_its_answer_is_complete_is_an_unreachable_peer() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/half":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})

    transport = AsgiTransport(app)
    response = await transport.request("GET", "http://app/half", {})
    with pytest.raises(Unreachable, match="did not finish its answer"):
        await response.read()
    with pytest.raises(Unreachable, match="did not finish its answer"):
        await transport.request("GET", "http://app/nothing", {})
    await transport.close()
