"""One node of several: `python -m tests.crash.node PORT STORE TTL ROOM [BUS]` serves the agent that is killed.

Its leases lapse TTL seconds after its last heartbeat, and it runs up to ROOM tasks at a time.
"""

from __future__ import annotations

import sys

from dragoman.observe.limit import Quota
from dragoman.server.runtime import serve
from tests.crash.agent import agent

if __name__ == "__main__":
    port, store, ttl, room, *bus = sys.argv[1:]
    serve(
        agent,
        port=int(port),
        store=store,
        bus="".join(bus),
        ttl=float(ttl),
        max_running=int(room),
        quota=Quota(queue=1000),
        drain=0.1,
    )
