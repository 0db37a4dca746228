"""The HTTP server: a listening socket, TLS, signals, and the order of a shutdown.

It serves any ASGI application. `server/runtime.py` serves ours with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from email.utils import formatdate
from functools import partial
from types import FrameType

from dragoman.errors import A2AError
from dragoman.server.http1.protocol import Asgi, HttpProtocol, ServerState
from dragoman.server.limits import Connections, Limits
from dragoman.server.workers import HANGUP

logger = logging.getLogger("dragoman.server")

BACKLOG = 4096
SHUTDOWN_SECONDS = 10.0
"""How long open requests have after a drain."""
_HSTS = b"strict-transport-security: max-age=31536000\r\n"

Callback = Callable[[], Awaitable[object]]


class HttpServer:
    """`startup` runs before the socket is listened to, `drain` when it is closed and before connections are waited for.

    The order matters: clients that connect during a drain must reach another process. `each_second` is called while
    the server runs.
    """

    def __init__(
        self,
        app: Asgi,
        listener: socket.socket,
        *,
        limits: Limits | None = None,
        connections: Connections | None = None,
        tls: ssl.SSLContext | None = None,
        startup: Callback | None = None,
        drain: Callback | None = None,
        each_second: Callable[[], None] | None = None,
    ) -> None:
        self._listener, self._tls = listener, tls
        self._startup, self._drain, self._each_second = startup, drain, each_second
        self._state = ServerState(app, limits or Limits(), connections)
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._descriptors_left = True

    async def start(self) -> None:
        if self._startup is not None:
            await self._startup()
        self._tick()
        limits = self._state.limits
        self._server = await asyncio.get_running_loop().create_server(
            partial(HttpProtocol, self._state),
            sock=self._listener,
            ssl=self._tls,
            ssl_handshake_timeout=limits.head_timeout if self._tls is not None else None,
            backlog=BACKLOG,
        )
        self._ticker = asyncio.create_task(self._tick_each_second())

    async def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        self._listener.close()
        self._state.closing = True
        for connection in list(self._state.open):
            connection.shutdown()
        if self._drain is not None:
            await self._drain()
        if not await self._wait_closed(SHUTDOWN_SECONDS):
            logger.warning("%d requests did not end in time and are canceled", len(self._state.tasks))
            for task in list(self._state.tasks):
                task.cancel()
            for connection in list(self._state.open):
                connection.abort()
            await self._wait_closed(1.0)

    async def serve(
        self, signals: Sequence[signal.Signals], *, stopping: Callable[[], None] | None = None
    ) -> None:
        """Serve until one of the `signals`. The first one drains; another one exits at once, because tasks are on disk
        and continue in another process. A terminal may send SIGHUP twice, so that does not count as another one.
        """
        stop = asyncio.Event()
        with _handle(signals, asyncio.get_running_loop(), stop):
            try:
                await self.start()
            except A2AError as error:  # something it needs is away
                logger.error("startup failed: %s", error.message)
                raise SystemExit(1) from None
            except Exception:
                logger.exception("startup failed")
                raise SystemExit(1) from None
            await stop.wait()
            if stopping is not None:
                stopping()
            await self.stop()

    async def _wait_closed(self, seconds: float) -> bool:
        """Wait until all connections are closed and all requests are answered. False if that takes too long."""
        state = self._state
        state.idle.clear()
        try:
            async with asyncio.timeout(seconds):
                while state.open or state.tasks:
                    if state.tasks:
                        await asyncio.wait(list(state.tasks))
                    else:
                        await state.idle.wait()
                        state.idle.clear()
        except TimeoutError:
            return False
        return True

    async def _tick_each_second(self) -> None:
        while True:
            await asyncio.sleep(1 - time.time() % 1)
            self._tick()

    def _tick(self) -> None:
        date = formatdate(time.time(), usegmt=True).encode()
        self._state.headers = b"date: %b\r\n%b" % (date, _HSTS if self._tls is not None else b"")
        self._check_descriptors()
        if self._each_second is not None:
            self._each_second()

    def _check_descriptors(self) -> None:
        """Log when the process has no file descriptors left. The event loop accepts connections only to close them."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
            self._descriptors_left = True
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._descriptors_left:
                self._descriptors_left = False
                logger.error(
                    "there are no file descriptors left (%s): new connections are closed. Raise the limit (ulimit -n), or "
                    "lower --max-connections",
                    error.strerror,
                )


def new_event_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    return uvloop.new_event_loop()


@contextlib.contextmanager
def _handle(
    signals: Sequence[signal.Signals], loop: asyncio.AbstractEventLoop, stop: asyncio.Event
) -> Iterator[None]:
    received = False

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        if received and signum != HANGUP:
            os._exit(128 + signum)
        received = True
        loop.call_soon_threadsafe(stop.set)

    before = {signum: signal.signal(signum, handle) for signum in signals}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
