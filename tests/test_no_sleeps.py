"""Tests wait for events, or with `tests/waiting.py`. A sleep elsewhere is work that takes time, in a program under test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent

PROGRAMS = {
    "interop/peers/": "servers of other projects, which run in environments of their own",
    "interop/frameworks/": "agents of other frameworks, which run in environments of their own",
    "interop/agent.py": "an agent that is served to other projects",
    "interop/test_mcp_server.py": "an agent that is called by other projects: its work takes time",
    "browser/agent.py": "an agent in another process: its work takes `PACE` seconds",
    "crash/agent.py": "an agent in another process: its work takes `PACE` seconds",
    "crash/test_bridge.py": "an agent in another process: its work takes time",
    "push/agent.py": "an agent in another process: its work takes `PACE` seconds",
    "client/paced.py": "an agent in another process: its work takes time",
    "hub/mcp_slow_server.py": "a server in another process: it waits for a file",
    "mcp/tool_agent.py": "a server in another process: it waits for a file",
    "mcp/tool_server.py": "a server in another process: it waits for files",
    "hub/test_escape.py": "a command in a sandbox that runs for too long",
    "cli/test_dev.py": "an agent in another process: it waits for a file",
    "console/test_processes.py": "an agent in another process: it waits for a file",
    "server/test_half_closed.py": "an agent in another process: its work takes time",
}
"""Where a program under test sleeps, and why."""


def test_no_test_sleeps_to_wait() -> None:
    found = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if re.search(r"(?:asyncio|time)\.sleep\((?!0\))", path.read_text(encoding="utf-8"))
    } - {"waiting.py", "test_no_sleeps.py"}
    unexpected = [path for path in sorted(found) if not path.startswith(tuple(PROGRAMS))]
    assert unexpected == [], "wait for an event, or use tests/waiting.py"
    gone = [program for program in PROGRAMS if not any(path.startswith(program) for path in found)]
    assert gone == [], "these sleep no more"
