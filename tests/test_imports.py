"""What a script does not use, it does not wait for."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

PUBLIC = (
    "dragoman",
    "dragoman.auth",
    "dragoman.client",
    "dragoman.errors",
    "dragoman.executor",
    "dragoman.mcp",
    "dragoman.push",
)
HEAVY = (
    "joserfc",
    "cryptography",
    "uvicorn",
    "grpc",
    "google.protobuf",
    "pydantic",
    "opentelemetry",
    "dragoman.hub",
)


@pytest.mark.parametrize(
    "statement",
    [
        "import dragoman",
        "import dragoman.client",
        "from dragoman import Agent, connect, connect_sync",
        "from dragoman import wrap",
        "from dragoman.cli import parser; parser(['send'])",
        "from dragoman.cli import parser; parser(['card'])",
        "from dragoman.cli import parser; parser(['chat'])",
        "from dragoman.cli import parser; parser(['tasks'])",
    ],
)
def test_an_import_brings_nothing_heavy_along(statement: str) -> None:
    loaded = f"{statement}\nimport sys\nprint([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


EXTRAS = (
    "grpc",
    "google",
    "nats",
    "asyncpg",
    "opentelemetry",
    "starlette",
    "fastapi",
    "any_llm",
    "mcp",
    "xllamacpp",
    "rich",
)
WITHOUT_EXTRAS = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in {EXTRAS} else find(name, *more)
from dragoman.cli import parser
parser()
import dragoman.hub.assembly, dragoman.server.runtime, dragoman.cli.load, dragoman.cli.show
"""


def test_servers_and_commands_are_imported_without_any_extra() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_name_that_is_promised_is_there() -> None:
    import dragoman
    import dragoman.auth

    for module in (dragoman, dragoman.auth):
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    asked = "import dragoman; print(sorted(set(dir(dragoman)) ^ {*dragoman.__all__, '__version__'}))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_dir_shows_every_public_name_also_those_that_are_imported_later() -> None:
    for name in ("dragoman.auth", "dragoman.executor", "dragoman.mcp"):
        asked = f"import {name} as it; print(sorted(set(it.__all__) - set(dir(it))))"
        done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("module", PUBLIC)
def test_type_checkers_find_names_that_a_public_module_does_not_have(module: str) -> None:
    source = inspect.getsource(import_module(module))
    # mypy takes a module with `__getattr__` for one that has every name: a misspelled import would be `Any`
    assert "__getattr__" not in {getattr(statement, "name", "") for statement in ast.parse(source).body}


PUBLIC_WITH_ADAPTERS = {
    *PUBLIC,
    *(f"dragoman.adapters.{name}" for name in ("langgraph", "openai_agents", "pydantic_ai", "smolagents")),
}


def test_documents_and_examples_import_public_names_only() -> None:
    root = Path(__file__).parent.parent
    texts = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "examples").rglob("*.py")]
    assert len(texts) > 10
    for file in texts:
        for module, named, listed in re.findall(_IMPORT, file.read_text()):
            assert module in PUBLIC_WITH_ADAPTERS, f"{file.name} imports {module}"
            names = {name.split()[0] for name in (named or listed).split(",") if name.strip()}
            assert names <= names_of(module), f"{file.name} imports what {module} does not list"


def test_the_documentation_of_the_package_names_every_public_module() -> None:
    import dragoman

    assert dragoman.__doc__
    assert set(re.findall(r"`(dragoman[\w.]*)`", dragoman.__doc__)) == PUBLIC_WITH_ADAPTERS


_IMPORT = r"from (dragoman[\w.]*) import (?:\(([^)]*)\)|([^\n#(]+))"


def names_of(module: str) -> set[str]:
    """`__all__` of a module, which may need an extra to be imported."""
    found = find_spec(module)
    assert found is not None and found.origin is not None
    for node in ast.parse(Path(found.origin).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise AssertionError(f"{module} has no __all__")


def test_a_turn_shows_agent_code_only_what_is_documented() -> None:
    from dragoman import Turn

    documents = "".join(
        path.read_text() for path in (Path(__file__).parent.parent / "docs").glob("*agents.md")
    )
    internal = {"mail", "first", "scope", "trace"}  # read-only facts, for observers and the hub
    shown = {name for name in dir(Turn) if not name.startswith("_")} - internal
    assert not {name for name in shown if f"turn.{name}" not in documents}


def test_everything_for_an_agent_is_importable_from_dragoman() -> None:
    from dragoman import (
        Agent,
        Extension,
        Principal,
        Provider,
        PushConfig,
        PushOptions,
        Reply,
        Skill,
        TaskFailed,
    )

    assert all((Extension, Principal, Provider, PushConfig, Reply, Skill, TaskFailed))
    with pytest.raises(TypeError, match="run"):
        Agent("a", push=PushOptions())  # type: ignore[arg-type]


@pytest.mark.parametrize(("push", "received"), [(True, True), (False, False), (None, False)])
async def test_the_option_push_turns_notifications_on_and_off(push: bool | None, received: bool) -> None:
    from dragoman import Agent

    agent = Agent("a")
    agent.skill(_echo)
    async with agent.test(push=push) as client:
        assert bool(client.card.capabilities.push_notifications) is received


def _echo(text: str) -> str:
    return text
