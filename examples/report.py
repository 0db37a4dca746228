"""A long task that survives being killed.

Start it, send a topic, kill the process (`kill -9`), and start it again. The report continues, no chapter is researched
twice, and a client that reads the stream gets the rest.

    dragoman send http://127.0.0.1:8000 "the history of tea"
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

from dragoman import Agent, Turn

CHAPTERS = ("Origins", "Trade", "Ceremony", "Industry", "Today")
PACE = float(os.environ.get("REPORT_PACE", "1.0"))
"""Seconds of simulated work per chapter."""

agent = Agent("Report", description="Writes a long report, chapter by chapter")


async def research(topic: str, chapter: str) -> str:
    """Slow and expensive, so it must not happen twice."""
    await asyncio.sleep(PACE)
    return f"What is known about {topic}: {chapter.lower()}."


@agent.skill
async def report(topic: str, turn: Turn) -> AsyncIterator[str]:
    """Writes a report about a topic."""
    yield f"# {topic}\n"
    for i, chapter in enumerate(CHAPTERS, 1):
        await turn.status(f"Chapter {i} of {len(CHAPTERS)}: {chapter}")
        found = await turn.step(f"chapter/{i}", research, topic, chapter)
        yield f"\n## {i}. {chapter}\n\n{found}\n"


if __name__ == "__main__":
    agent.run()
