"""The listening socket of gRPC: it accepts, counts connections and what their callers read, and passes bytes on.

gRPC's core accepts by itself. It cannot share a count with HTTP and other workers, cannot be told to stop accepting, and
does not close the connection of a caller that does not read. So the core listens on a socket in a private directory, and
this stands before it. Bytes are passed on as they are (TLS too), with the flow control of both sides.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import tempfile
from typing import cast

from dragoman.server.limits import Connections
from dragoman.server.temporary import TemporaryFolder

AVAILABLE = hasattr(socket, "AF_UNIX")
MAX_PATH_BYTES = 70
"""Of the folder for temporary files. The name of a Unix socket has at most 104 bytes on some systems."""


class Front:
    """The core listens on `address`; then `start`, and in the end `close`. Raises `OSError` if there is no place for its
    socket."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        parent = tempfile.gettempdir()
        self._temporary = TemporaryFolder("grpc", parent if len(parent) <= MAX_PATH_BYTES else "/tmp")
        self._folder = self._temporary.make()
        self.address = f"unix:{self._folder}/core"
        self._numbers = itertools.count()
        self._server: asyncio.Server | None = None
        self._open: set[_Client] = set()
        self._by_peer: dict[str, _Client] = {}

    async def start(self, host: str, port: int, *, share_port: bool) -> int:
        """Accept connections: the port. Raises `OSError` if it is taken."""
        loop = asyncio.get_running_loop()
        server = self._server = await loop.create_server(
            lambda: _Client(self), host, port, reuse_port=share_port or None, backlog=4096
        )
        found: int = server.sockets[0].getsockname()[1]
        return found

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """End what is open."""
        self.stop_accepting()
        for client in list(self._open):
            client.close()
        self._temporary.remove()

    def accept(self, client: _Client) -> bool:
        self._open.add(client)
        self._connections.count(1)
        return not self._connections.full

    def left(self, client: _Client) -> None:
        self._open.discard(client)
        self._by_peer.pop(client.peer, None)
        self._connections.count(-1)

    def client(self, peer: str) -> _Client | None:
        """The connection that the core knows as `peer`."""
        return self._by_peer.get(peer)

    def dial(self, client: _Client) -> socket.socket:
        """A connection to the core. Its own end has a name, so that the core can tell connections apart (`peer`)."""
        ours = socket.socket(socket.AF_UNIX)
        try:
            ours.setblocking(False)
            name = self._folder / str(next(self._numbers))
            ours.bind(str(name))
            name.unlink()
            client.peer = f"unix:{name}"
            self._by_peer[client.peer] = client
            ours.connect(f"{self._folder}/core")  # at once, or not at all
        except OSError:
            ours.close()
            raise
        return ours


class _Client(asyncio.Protocol):
    """A caller's connection."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._core: _Core | None = None
        self._early: list[bytes] = []
        """What came before there was somebody to pass it on to."""
        self._dialling: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport
        self.peer = ""
        """Its name for the core."""
        self._passed_on = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if not self._front.accept(self):
            self.transport.abort()
            return
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        core = _Core(self)
        try:
            ours = self._front.dial(self)
            await asyncio.get_running_loop().create_unix_connection(lambda: core, sock=ours)
        except OSError:
            self.transport.abort()
            return
        self._core = core
        if self.transport.is_closing():
            core.transport.close()
        elif self._early:
            core.transport.writelines(self._early)
            self._early.clear()
            self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._core is not None:
            self._core.transport.write(data)
        else:
            self._early.append(data)
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        if self._core is not None:
            self._core.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._core is not None:
            self._core.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.left(self)
        if self._core is not None:
            self._core.transport.close()

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def pass_on(self, data: bytes) -> None:
        self._passed_on += len(data)
        self.transport.write(data)

    def read_bytes(self) -> int:
        """Bytes that the caller's connection took."""
        return self._passed_on - self.transport.get_write_buffer_size()


class _Core(asyncio.Protocol):
    """The same connection, as the core sees it."""

    def __init__(self, client: _Client) -> None:
        self._client = client
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._client.pass_on(data)

    def pause_writing(self) -> None:
        self._client.transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._client.transport.is_closing():
            self._client.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()
