"""An agent that is killed while it streams, asks and calls. CALLS: a file with one line for each piece of work that began."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from dragoman import Agent, Status, Turn

agent = Agent("Durable", description="Goes on after it was killed")


def note(line: str) -> None:
    with open(os.environ["CALLS"], "a") as file:
        file.write(line + "\n")


async def recite(words: int) -> AsyncIterator[str | Status]:
    """Says something else in each process, and does not come to an end in one that is to be killed."""
    note("recite")
    yield "I am "
    yield Status("reciting", {"words": words})
    for n in range(words):
        yield f"{os.getpid()}-{n} "
    if "HANG" in os.environ:
        await asyncio.Event().wait()


@agent.skill(default=True)
async def stream(words: int, turn: Turn) -> None:
    """Streams some words, then asks."""
    text = await turn.stream_step("recite", recite, words)
    await turn.artifact("result").write(await turn.ask("And then?"))
    await turn.data({"text": text}, name="whole")
