"""The bus of processes on one machine that share a SQLite file: a datagram says which logs to look at.

Each process has a socket in a folder beside the file, and sends to all others there. A process that is dead refuses what is
sent to it, and its socket is removed. A process that does not read (it is busy, or stopped) is sent the same later; when too much
waits for it, it is told to look at everything. So a process wakes the readers of the tasks that changed, and no others.
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

from dragoman.buses.relay import Relay

_ALL = "*"
"""Not a topic: look at everything."""
_DATAGRAM_BYTES = 32 << 10
_MAX_OWED = 10_000
"""Topics that wait for one process. When there are more, it looks at everything."""
_RETRY, _MAX_RETRY = 0.005, 0.2
"""Seconds until a process that does not read is sent the same again."""
_LAST = 1.0
"""Seconds to pass on what was said before the end."""
_FRESH = 0.1
"""Seconds in which a folder may change again without a new time of its last change."""
_MAX_PATH = 100
"""Bytes of a socket's path; the operating systems' limits are a little above."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[str]).decode
_log = logging.getLogger("dragoman.buses")


class MachineBus(Relay):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._name = f"{token_hex(6)}.sock"
        self._socket: socket.socket | None = None
        self._handle = -1
        """The open folder, where a socket's path would be too long."""
        self._teller: asyncio.Task[None] | None = None
        self._ending = False
        self._owed: dict[str, dict[str, None]] = {}
        """What each of the others has not been sent yet."""
        self._others: list[str] = []
        self._listed = -1.0

    async def open(self) -> None:
        self._ending = False
        try:
            self._socket = self._bind()
        except OSError as error:
            _log.warning(
                "other processes on this machine are not told of news, and look by themselves: %s", error
            )
            return
        asyncio.get_running_loop().add_reader(self._socket, self._receive)
        self._relaying = True
        self._teller = asyncio.create_task(self._tell(), name="dragoman-bus")

    async def close(self) -> None:
        self._relaying, self._ending = False, True
        if self._teller is not None:
            self._news.set()
            await asyncio.wait([self._teller], timeout=_LAST)
            self._teller.cancel()
            with suppress(asyncio.CancelledError):
                await self._teller
            self._teller = None
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
            self._remove(self._name)
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
            with suppress(OSError):  # others have sockets in it
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
                        len(os.fsencode(self._folder)) + len(self._name) >= _MAX_PATH
                        and sys.platform == "linux"
                    ):
                        self._handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
                    made.bind(self._path(self._name))
                    return made
                except FileNotFoundError:  # the last to leave removed the folder between our two steps
                    if not self._folder.parent.is_dir():
                        raise
        except BaseException:
            made.close()
            raise

    def _path(self, name: str) -> str:
        if self._handle >= 0:
            return f"/proc/self/fd/{self._handle}/{name}"
        return str(self._folder / name)

    # -- hearing -----------------------------------------------------------------------------------------------

    def _receive(self) -> None:
        assert self._socket is not None
        for _ in range(100):  # then others have their turn
            try:
                names = _decode(self._socket.recv(_DATAGRAM_BYTES * 2))
            except (BlockingIOError, InterruptedError):
                return
            except (OSError, msgspec.DecodeError) as error:
                _log.warning("news that cannot be read: %s", error)
                continue
            for name in names:
                if name == _ALL:
                    self._local.wake_all()
                else:
                    self._local.wake(name)

    # -- telling -----------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        """Pass on what is said here. What is said in one round of the loop goes together."""
        pause = _RETRY
        while True:
            if not self._owed:
                await self._news.wait()
                pause = _RETRY
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._news.wait()
                pause = min(pause * 2, _MAX_RETRY)
            self._news.clear()
            told, self._pending = self._pending, {}
            for other in self._neighbours():
                owed = self._owed.pop(other, None)
                left = self._send(other, told if owed is None else owed | told)
                if left:
                    self._owed[other] = left if len(left) <= _MAX_OWED else {_ALL: None}
            if self._ending:
                return

    def _send(self, other: str, topics: dict[str, None]) -> dict[str, None]:
        """Send to one process: what it did not take."""
        assert self._socket is not None
        names = list(topics)
        path = self._path(other)
        for start, data in _datagrams(names):
            try:
                self._socket.sendto(data, path)
            except (BlockingIOError, InterruptedError):
                return dict.fromkeys(names[start:])
            except (ConnectionRefusedError, FileNotFoundError):
                self._remove(other)  # nobody is there any more
                self._listed = -1.0
                return {}
            except OSError as error:  # such as no memory: later
                _log.debug("cannot send news: %s", error)
                return dict.fromkeys(names[start:])
        return {}

    def _neighbours(self) -> list[str]:
        """The sockets of the others."""
        try:
            changed = self._folder.stat().st_mtime
            if changed != self._listed:
                names = os.listdir(self._folder)
                self._others = [name for name in names if name != self._name and name.endswith(".sock")]
                self._owed = {name: owed for name, owed in self._owed.items() if name in self._others}
                self._listed = changed if time.time() - changed > _FRESH else -1.0
        except OSError:
            self._others = []
        return self._others

    def _remove(self, name: str) -> None:
        with suppress(OSError):
            (self._folder / name).unlink()


def _datagrams(names: list[str]) -> list[tuple[int, bytes]]:
    """Names in pieces that can be sent, each with the place of its first one."""
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
