"""Free ports on loopback."""

from __future__ import annotations

import random
import socket
from collections import deque
from contextlib import suppress

_RANGE = range(20_000, 32_000)
"""Below the ports that the system gives to connections."""
_held: deque[socket.socket] = deque(maxlen=200)


def free_port() -> int:
    """A port for a server that starts later, or starts again.

    No other test gets it meanwhile, in this process or in another one: the UDP port of the same number is held for that.
    """
    while True:
        port = random.SystemRandom().choice(_RANGE)
        holder = socket.socket(type=socket.SOCK_DGRAM)
        with suppress(OSError), socket.socket() as probe:
            holder.bind(("127.0.0.1", port))
            probe.bind(("127.0.0.1", port))
            _held.append(holder)
            return port
        holder.close()
