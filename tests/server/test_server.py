"""Our own HTTP server: how it starts and stops."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import Any

import pytest

from dragoman.errors import Unavailable
from dragoman.server.http1.protocol import HttpProtocol, ServerState
from dragoman.server.http1.server import HttpServer
from dragoman.server.limits import Limits


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


async def test_failed_startup_ends_the_process_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    async def startup() -> None:
        raise OSError("the disk is full")

    listener = socket.create_server(("127.0.0.1", 0))
    with caplog.at_level(logging.ERROR), pytest.raises(SystemExit) as caught:
        await HttpServer(app, listener, startup=startup).serve(())
    assert caught.value.code == 1 and "the disk is full" in caplog.text
    listener.close()


async def test_something_that_is_away_at_the_start_is_reported_in_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def startup() -> None:
        raise Unavailable("the bus cannot connect to NATS")

    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(SystemExit) as caught:
        await HttpServer(app, listener, startup=startup).serve(())
    assert caught.value.code == 1
    (record,) = [each for each in caplog.records if "startup failed" in each.message]
    assert record.message.endswith("the bus cannot connect to NATS") and record.exc_info is None


async def test_listener_is_closed_before_the_drain_begins() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    refused: list[bool] = []

    async def drain() -> None:
        try:
            _, writer = await asyncio.open_connection(*address)
            writer.close()
        except ConnectionRefusedError:
            refused.append(True)

    server = HttpServer(app, listener, drain=drain)
    await server.start()
    await server.stop()
    assert refused == [True]


async def test_idle_connections_are_closed_by_a_stop() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = HttpServer(app, listener)
    await server.start()
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 204 ") and b"\r\ndate: " in head
    async with asyncio.timeout(20):
        await server.stop()
        assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("request_sent", [True, False])
async def test_a_connection_that_is_accepted_while_the_server_stops_does_not_stay_open(
    request_sent: bool,
) -> None:
    state = ServerState(app, Limits())
    state.closing = True
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    await asyncio.get_running_loop().connect_accepted_socket(partial(HttpProtocol, state), theirs)
    reader, writer = await asyncio.open_connection(sock=ours)
    if request_sent:
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    async with asyncio.timeout(10):
        answer = await reader.read()  # until the server closes
    assert (b" 204 " in answer and b"connection: close" in answer) is request_sent
    writer.close()
