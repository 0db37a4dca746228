"""A TCP proxy whose connections can be cut or go silent."""

from __future__ import annotations

import asyncio
from typing import Self


class Wire:
    """`async with Wire() as wire:` then `wire.upstream = port`; clients connect to `wire.address`."""

    def __init__(self) -> None:
        self.upstream = 0
        self.connections = 0
        """How many there were."""
        self.live = asyncio.Event()
        """While it is not set nothing passes, and nobody is told."""
        self.live.set()
        self._ends: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.live.set()
        self.cut()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()

    def replace(self) -> None:
        """Leave the connections there are dead for good; new ones work."""
        self.live.clear()
        self.live = asyncio.Event()
        self.live.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self.connections += 1
        live = self.live
        there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._ends |= {writer, back}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pass(reader, back, live))
                both.create_task(_pass(there, writer, live))
        except asyncio.CancelledError:
            pass  # we were cut down with the wire
        finally:
            writer.transport.abort()
            back.transport.abort()


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter, live: asyncio.Event) -> None:
    try:
        while piece := await source.read(65536):
            await live.wait()
            sink.write(piece)
            await sink.drain()
    except OSError:
        pass
    sink.transport.abort()
