"""An agent with the tools of `tool_server.py`, to be served and killed."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from dragoman import Agent, Turn
from dragoman.mcp import mcp

FOLDER = Path(os.environ["TOOLS"])
SCRIPT = str(Path(__file__).with_name("tool_server.py"))

tools = mcp(
    [sys.executable, SCRIPT, str(FOLDER)],
    name="tools",
    legacy=bool(os.environ.get("LEGACY")),
    env={"STATE_KEY": os.environ.get("STATE_KEY", "")},
)
agent = Agent("User", tools=[tools])


@agent.skill(default=True)
async def use(turn: Turn, call: dict[str, Any]) -> str:
    return (await turn.tool(call["tool"], call.get("arguments"))).text


@agent.skill
async def twice(turn: Turn) -> str:
    """Pays, and is then interrupted."""
    paid = await turn.tool("pay", amount=1)
    (FOLDER / "between").touch()
    while not (FOLDER / "continue").exists():
        await asyncio.sleep(0.01)
    again = await turn.tool("pay", amount=1)
    return f"{paid.text}, {again.text}"
