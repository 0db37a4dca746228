"""What a constitution can grant: commands, and the bundles they come in."""

from __future__ import annotations

BUNDLES: dict[str, tuple[str, ...]] = {
    "web": ("/search", "/fetch", "/browse"),
    "exec": ("/exec",),
    "write": ("/write",),
    "read": ("/read", "/list", "/map"),
    "mem": ("/mem",),
    "delegation": ("/agent", "/parallel", "/pane"),
    "mcp": ("/mcp",),
    "a2a": ("/a2a",),
    "advise": ("/advise",),
    "todos": ("/todo",),
    "schedule": ("/schedule",),
    "lessons": ("/lesson",),
}
"""Granting one command of a bundle grants all of them."""

KNOWN = tuple(command for commands in BUNDLES.values() for command in commands)

SKILLS: dict[str, tuple[str, str]] = {
    "/fetch": ("fetch-url", "Reads a web page and returns its text."),
    "/search": ("web-search", "Searches the web and sums up what it finds."),
    "/browse": ("browse-page", "Opens a page in a browser and reads it."),
    "/exec": ("shell-exec", "Runs a shell command in a confined place."),
    "/write": ("write-file", "Makes or replaces a file."),
    "/read": ("read-file", "Reads a file."),
    "/list": ("list-files", "Lists files."),
    "/map": ("workspace-map", "Shows the tree of the workspace."),
    "/mem": ("memory", "Keeps, finds and forgets what is worth remembering."),
    "/mcp": ("mcp-tools", "Uses the tools of MCP servers."),
    "/agent": ("delegate", "Hands part of the work to another agent."),
    "/parallel": ("parallel-fanout", "Has several agents work at once."),
    "/advise": ("advisor-consult", "Asks a stronger model for advice."),
    "/todo": ("todos", "Keeps track of what is still to do."),
    "/schedule": ("schedule", "Has work done later, or again and again."),
    "/lesson": ("lessons", "Records what to do better next time."),
}
"""The skill that a card shows for a command: its id, and what it is."""

_BUNDLE = {command: bundle for bundle, commands in BUNDLES.items() for command in commands}


def bundle_of(command: str) -> str:
    """The bundle that grants a command; empty for one that needs no grant (`/help`)."""
    return _BUNDLE.get(command, "")
