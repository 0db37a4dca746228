"""The peers' agent (`peers/README.md`), as one of ours."""

from __future__ import annotations

import asyncio
from typing import Any

from dragoman import Agent, Turn
from dragoman.engine.records import Mail
from dragoman.model.ops import Principal, SendMessage


class Peer(Agent):
    """Answers one text, and only that, without a task."""

    def check_message(self, request: SendMessage, principal: Principal, first: Mail | None = None) -> bool:
        return super().check_message(request, principal, first) and request.message.text == "message"


agent = Peer("Peer", description="Does what it is told", input_modes=["*/*"], output_modes=["*/*"])


@agent.skill(id="echo", tags=["echo"], reply=True)
async def echo(turn: Turn) -> Any:
    """Echoes, and more."""
    text = turn.text
    if text == "message":
        return "just a message"
    if text == "ask":
        return f"You said: {await turn.ask('Which one?')}"
    if text == "fail":
        raise RuntimeError("as you wish")
    if text == "parts":
        return list(turn.message.parts[1:])
    if text.startswith("ticks:"):
        for i in range(int(text[6:])):
            await turn.status(f"tick {i}")
            await asyncio.sleep(0.05)
    elif text.startswith("stream:"):
        chunks = turn.artifact("chunks")
        for i in range(int(text[7:])):
            await chunks.write(f"chunk {i} ")
        return None
    return text
