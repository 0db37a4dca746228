"""An MCP server with two tools, for `notes.py`. It keeps notes in memory."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes", instructions="Keeps short notes.")
notes: list[str] = []


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def write_note(text: str) -> str:
    """Writes a note down."""
    notes.append(text)
    return f"note {len(notes)}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def find_notes(word: str) -> list[str]:
    """Finds the notes with a word in them."""
    return [note for note in notes if word in note]


if __name__ == "__main__":
    server.run()
