"""The bus of processes on one machine that share a SQLite file. A datagram lists the topics to wake.

Each process has a Unix socket in a folder beside the file and sends to all other sockets there. The socket of a dead process
refuses the datagram and is removed. A process that does not read (it is busy, or stopped) gets the same topics later. When too
many topics wait for it, it gets `WAKE_ALL` instead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

import msgspec

from dragoman.buses.local import WAKE_ALL, RemoteBus

_DATAGRAM_BYTES = 32 << 10
_MAX_OWED_TOPICS = 10_000
"""Topics that wait for one process. If there are more, it gets `WAKE_ALL`."""
_RETRY_SECONDS, _MAX_RETRY_SECONDS = 0.005, 0.2
"""Until the same is sent again to a process that does not read."""
_MTIME_SECONDS = 0.1
"""A folder may change twice in this time with the same modification time."""
_MAX_PATH_BYTES = 100
"""Of a socket's path. The limits of operating systems are a little above."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("dragoman.buses")


class UnixSocketBus(RemoteBus):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._name = f"{token_hex(6)}.sock"
        self._socket: socket.socket | None = None
        self._handle = -1
        """The open folder, if a path in it is too long for a socket."""
        self._owed: dict[str, dict[str, None]] = {}
        """The topics that each other process has not received yet."""
        self._others: list[str] = []
        self._listed = -1.0

    async def open(self) -> None:
        try:
            self._socket = self._bind()
        except OSError as error:
            _log.warning("cannot wake other processes on this machine, so they only poll: %s", error)
            return
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        self._start_sending(self._send_topics())

    async def close(self) -> None:
        await self._stop_sending()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._remove(self._name)
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            with suppress(OSError):  # other processes have sockets in it
                self._folder.rmdir()
        await self._local.close()

    def _bind(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            made.setblocking(False)
            while True:
                try:
                    self._folder.mkdir(mode=0o700, exist_ok=True)
                    if (
                        len(os.fsencode(self._folder)) + len(self._name) >= _MAX_PATH_BYTES
                        and sys.platform == "linux"
                    ):
                        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
                    made.bind(self._path(self._name))
                    return made
                except FileNotFoundError:  # the last process removed the folder between our two steps
                    if not self._folder.parent.is_dir():
                        raise
        except BaseException:
            made.close()
            raise

    def _path(self, name: str) -> str:
        if self._handle >= 0:
            return f"/proc/self/fd/{self._handle}/{name}"
        return str(self._folder / name)

    def _receive(self) -> None:
        assert self._socket is not None
        for _ in range(100):  # then other callbacks run
            try:
                names = _decode(self._socket.recv(_DATAGRAM_BYTES * 2))
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, msgspec.DecodeError) as error:
                _log.warning("cannot read a datagram of the bus: %s", error)
                continue
            self._receive_topics(names)

    async def _send_topics(self) -> None:
        """Send pending topics until the bus closes. Topics of one round of the loop go together."""
        pause = _RETRY_SECONDS
        while True:
            if not self._owed:
                await self._changed.wait()
                pause = _RETRY_SECONDS
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                pause = min(pause * 2, _MAX_RETRY_SECONDS)
            self._changed.clear()
            topics, self._pending = self._pending, {}
            for other in self._list_others():
                owed = self._owed.pop(other, None)
                left = self._send(other, topics if owed is None else owed | topics)
                if left:
                    self._owed[other] = left if len(left) <= _MAX_OWED_TOPICS else {WAKE_ALL: None}
            if self._closing:
                return

    def _send(self, other: str, topics: dict[str, None]) -> dict[str, None]:
        """Send to one process. Returns the topics that it did not take."""
        assert self._socket is not None
        names = list(topics)
        path = self._path(other)
        for start, data in _datagrams(names):
            try:
                self._socket.sendto(data, path)
            except (BlockingIOError, InterruptedError):
                return dict.fromkeys(names[start:])
            except (ConnectionRefusedError, FileNotFoundError):
                self._remove(other)  # that process is dead
                self._listed = -1.0
                return {}
            except OSError as error:  # such as no memory: try later
                _log.debug("cannot send to another process: %s", error)
                return dict.fromkeys(names[start:])
        return {}

    def _list_others(self) -> list[str]:
        """The sockets of the other processes."""
        try:
            changed = self._folder.stat().st_mtime
            if changed != self._listed:
                names = os.listdir(self._folder)
                self._others = [name for name in names if name != self._name and name.endswith(".sock")]
                self._owed = {name: owed for name, owed in self._owed.items() if name in self._others}
                self._listed = changed if time.time() - changed > _MTIME_SECONDS else -1.0
        except OSError:
            self._others = []
        return self._others

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink()


def _datagrams(names: list[str]) -> list[tuple[int, bytes]]:
    """Encode names as datagrams of a limited size, each with the index of its first name."""
    whole = _encode(names)
    if len(whole) <= _DATAGRAM_BYTES:
        return [(0, whole)] if names else []
    pieces, start, size = [], 0, 0
    for n, name in enumerate(names):
        longer = len(_encode(name)) + 1
        size += longer
        if size + 2 > _DATAGRAM_BYTES and n > start:
            pieces.append((start, _encode(names[start:n])))
            start, size = n, longer
    pieces.append((start, _encode(names[start:])))
    return pieces
