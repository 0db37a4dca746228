"""The peers' agents, written against the official SDK, on our engine: with nothing but their imports changed."""

from __future__ import annotations

import ast
import json
import subprocess
from typing import Any

import pytest

import dragoman.executor
from dragoman.executor import AgentCard, AgentSkill, ExecutorAgent
from dragoman.server.application import application
from dragoman.server.runtime import running
from tests.interop.client import outcomes
from tests.interop.environments import HOME, PROGRAMS, install
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


MODULES = (
    "types", "utils", "helpers", "server.routes", "server.tasks", "server.events", "server.request_handlers", "client",
    "server.agent_execution", "server.id_generator", "utils.constants", "utils.errors", "extensions.common",
)  # fmt: skip
LIST = """
import importlib, json
out = {}
for name in %r:
    module = importlib.import_module("a2a." + name)
    named = getattr(module, "__all__", None) or [
        each for each, value in vars(module).items()
        if not each.startswith("_") and getattr(value, "__module__", "a2a").startswith("a2a") and type(value).__name__ != "module"
    ]
    out[name] = list(named)
print(json.dumps(out))
"""


@pytest.mark.interop
def test_every_public_name_of_the_sdk_is_there_or_says_what_to_write() -> None:
    install("a2a-sdk-1.3.0")
    python = str(HOME / "a2a-sdk-1.3.0" / "bin" / "python")
    listed = subprocess.run([python, "-c", LIST % (MODULES,)], capture_output=True, text=True, check=True)
    unknown = []
    for module, names in json.loads(listed.stdout).items():
        for name in names:
            try:
                assert getattr(dragoman.executor, name) is not None
            except ImportError as error:
                if f"{name} in dragoman.executor: " not in str(error):
                    unknown.append(f"{module}.{name}: {error}")
            except AttributeError:
                unknown.append(f"{module}.{name}")
    assert unknown == []
