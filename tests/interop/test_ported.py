"""The peers' agents, written against the official SDK, on our engine: with nothing but their imports changed."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import dragoman.executor
from dragoman.application import application
from dragoman.executor import AgentCard, AgentSkill, ExecutorAgent
from dragoman.server import running
from tests.interop.client import outcomes
from tests.interop.environments import PROGRAMS
from tests.interop.running import SERVERS, failures


def ported(program: str) -> Any:
    """The executor of a peer's server."""
    kept: list[ast.stmt] = []
    for node in ast.parse((PROGRAMS / program).read_text()).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("a2a."):
            names = [alias for alias in node.names if alias.name in dragoman.executor.__all__]
            if names:
                kept.append(ast.ImportFrom("dragoman.executor", names, 0))
        elif isinstance(node, ast.Import):
            kept += [ast.Import([alias]) for alias in node.names if alias.name in ("asyncio", "sys")]
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            kept.append(node)
    program_ = ast.fix_missing_locations(ast.Module(kept, []))
    scope: dict[str, Any] = {}
    exec(compile(program_, program, "exec"), scope)
    return scope["Peer"]()


@pytest.mark.parametrize("version", ["1.0", "0.3", "0.1"])
@pytest.mark.parametrize("library", ["a2a-sdk-1.3.0", "a2a-sdk-0.3.26"])
async def test_an_executor_passes_every_check_after_its_imports_were_changed(
    library: str, version: str
) -> None:
    card = AgentCard(
        name=library,
        description="An agent that was ported",
        default_input_modes=["*/*"],
        skills=[AgentSkill(id="echo", name="echo", description="Echoes", tags=["echo"])],
    )
    agent = ExecutorAgent(ported(SERVERS[library]), card)
    async with running(application(agent, store="memory:")) as url:
        assert failures(await outcomes(url, version=version)) == {}
