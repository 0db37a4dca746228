"""The echo agent of `bench/target.py`, written with Dragoman. Usage: echo.py STORE PORT [GRPC_PORT]"""

from __future__ import annotations

import asyncio
import sys

from dragoman import Agent, Turn

CHUNK = "x" * 20

agent = Agent("echo", description="echo")
released = asyncio.Event()


@agent.skill
async def echo(turn: Turn) -> str | None:
    """Echoes."""
    kind, _, count = turn.text.partition(":")
    if kind in ("stream", "paced"):
        artifact = turn.artifact("echo")
        for i in range(1, int(count) + 1):
            await artifact.write(CHUNK, last=i == int(count))
            if kind == "paced":
                await asyncio.sleep(0)
        return None
    if kind == "history":
        for i in range(int(count) - 1):
            await turn.status(f"history message number {i} of the task")
    elif kind == "wait":
        await released.wait()
    elif kind == "release":
        released.set()
    return turn.text


if __name__ == "__main__":
    store, port, *grpc_port = sys.argv[1:]
    agent.run(
        port=int(port), store=store, grpc_port=int(grpc_port[0]) if grpc_port else None, log_level="error"
    )
