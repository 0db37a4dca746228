"""An agent with the tools of an MCP server.

python examples/notes.py
dragoman send http://localhost:8000 "buy milk"
dragoman send http://localhost:8000 --skill find "milk"
"""

from __future__ import annotations

import sys
from pathlib import Path

from dragoman import Agent, Turn
from dragoman.mcp import mcp

server = mcp([sys.executable, str(Path(__file__).with_name("notes_server.py"))])
agent = Agent("Notes", description="Keeps your notes", tools=[server])


@agent.skill(default=True)
async def write(text: str, turn: Turn) -> str:
    """Writes a note down, once, whatever crashes."""
    result = await turn.tool("write_note", text=text)
    return f"Written down as {result.text}."


@agent.skill
async def find(word: str, turn: Turn) -> list[str]:
    """Finds notes."""
    result = await turn.tool("find_notes", word=word)
    return list(result.data["result"])


if __name__ == "__main__":
    agent.run()
