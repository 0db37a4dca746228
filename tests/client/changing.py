"""An agent whose text differs each time it is started, and that stops halfway in the first process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

from dragoman import Agent, Turn

agent = Agent("Changing", description="Never says the same thing twice")


@agent.skill
async def say(turn: Turn) -> AsyncIterator[str]:
    """Says which process it is."""
    first = not Path(os.environ["MARK"]).exists()
    yield "first, half an answer" if first else "second, "
    if first:
        await asyncio.Event().wait()
    yield "all of it"
