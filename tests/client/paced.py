"""An agent that counts slowly, and can be killed: `python -m tests.client.paced PORT STORE`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from dragoman import Agent, Turn
from dragoman.server.runtime import serve

agent = Agent("Paced", description="Counts, one at a time")


@agent.skill
async def count(turn: Turn) -> AsyncIterator[str]:
    """Counts."""
    for i in range(int(turn.text)):
        yield f"{i} "
        await turn.status(f"at {i}")
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], announce=lambda url: print("READY", flush=True))
