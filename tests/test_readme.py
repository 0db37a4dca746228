"""What the README shows is run here, as it stands there."""

from __future__ import annotations

import ast
import io
import re
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType
from typing import Any

import dragoman
from dragoman.server.application import application
from dragoman.server.runtime import running

README = (Path(__file__).parent.parent / "README.md").read_text()
HELLO, TRAVEL, TESTING, CLIENT = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def compiled(source: str) -> CodeType:
    """README code uses `async with` at the top, as a notebook or `python -m asyncio` allows."""
    return compile(source, "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


async def run(source: str, names: dict[str, Any]) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        outcome = eval(compiled(source), names)
        if outcome is not None:
            await outcome
    return printed.getvalue()


def hello() -> dragoman.Agent:
    lines = HELLO.splitlines()
    assert lines[-1] == "agent.run()"
    assert len([line for line in lines if line]) == 7
    names: dict[str, Any] = {}
    exec("\n".join(lines[:-1]), names)
    return names["agent"]


async def test_the_seven_line_agent_greets() -> None:
    async with hello().test() as client:
        assert (await client("world")).text == "Hello, world!"


async def test_the_bigger_agent_asks_and_books() -> None:
    names: dict[str, Any] = {}
    exec(TRAVEL, names)
    assert await run(TESTING, names) == "300 for Rome: shall I?\n"
    async with names["agent"].test() as client:
        reply = await client(data={"city": "Rome", "days": 2})
        reply = await client("yes", task=reply.task.id)
        assert [artifact.text for artifact in reply.task.artifacts] == ["Rome, 2 days, 200", "Booked."]


async def test_the_client_prints_the_answer_and_its_pieces() -> None:
    async with running(application(hello(), store="memory:")) as url:
        source = CLIENT.replace("http://127.0.0.1:8000", url)
        assert source != CLIENT
        assert await run(source, {}) == "Hello, world!\nHello, world!"


def test_every_link_of_the_readme_leads_somewhere() -> None:
    root = Path(__file__).parent.parent
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert [link for link in links if not (root / link).exists()] == []
