"""An agent that writes `n` words, one every `PACE` seconds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from dragoman import Agent

PACE = float(os.environ.get("PACE", "0"))

agent = Agent("told", description="Says many words")


@agent.skill
async def words(count: str) -> AsyncIterator[str]:
    """Says so many words."""
    for i in range(int(count)):
        await asyncio.sleep(PACE)
        yield f"{i} "
