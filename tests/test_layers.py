"""Who may import whom: downwards only, as the table in `docs/architecture.md` says.

A package may always import itself. What is not in its row below, it may not import, at the top of a file or inside a
function, for types or for good.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
ARCHITECTURE = SRC.parent / "docs" / "architecture.md"

PROTOCOLS = (
    "engine.protocols",
    "engine.push_configs",
    "engine.records",
    "engine.snapshot",
    "engine.transition",
)
ANYTHING = ("",)

ALLOWED: dict[str, tuple[str, ...]] = {
    "errors": (),
    "model": ("errors",),
    "dialects": ("model", "errors"),
    "auth": ("model", "errors"),
    "engine": ("model", "errors"),
    "stores": (*PROTOCOLS, "model", "errors"),
    "buses": (*PROTOCOLS, "stores.postgres.address", "model", "errors"),
    "push": (*PROTOCOLS, "client", "auth", "dialects", "model", "errors"),
    "observe": ("engine", "model", "errors"),
    "server": ("dialects", "auth", "model", "errors"),
    "client": ("dialects", "auth", "model", "errors"),
    "agent": ("engine", "auth", "model", "errors"),
    "executor": ("agent", "engine", "model", "errors"),
    "adapters": ("agent", "executor", "engine", "client", "mcp", "dialects", "model", "errors"),
    "mcp": ("agent", "server", "client", "engine", "observe", "auth", "model", "errors"),
    "bridge": (
        "agent",
        "server",
        "client",
        "engine",
        "observe",
        "stores",
        "buses",
        "push",
        "dialects",
        "auth",
        "model",
        "errors",
    ),
    "catalogue": (
        "server",
        "client",
        *PROTOCOLS,
        "observe.terminal",
        "push.guard",
        "dialects",
        "model",
        "errors",
    ),
    "hub": (
        "mcp",
        "agent",
        "catalogue",
        "server",
        "client",
        "engine",
        "observe",
        "stores",
        "buses",
        "push",
        "dialects",
        "auth",
        "model",
        "errors",
    ),
    "console": (
        "mcp",
        "agent",
        "catalogue",
        "server",
        "client",
        "engine",
        "observe",
        "stores",
        "buses",
        "push",
        "dialects",
        "auth",
        "hub",
        "model",
        "errors",
    ),
    "cli": ANYTHING,
    "__init__": ANYTHING,
}

WIRING = ("agent", "client", "engine", "observe", "stores", "buses", "push")

EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "agent.agent": ("client", "server"),
    "agent.testing": ("client", "server"),
    "server.application": (*WIRING, "mcp"),
    "server.options": ("engine", "observe", "push"),
    "server.runtime": WIRING,
}
"""Modules that may import more than their package: `agent.run()` and `agent.test()` import upwards when they are called, and
a server is put together somewhere."""

CORE = {
    "cryptography",
    "httptools",
    "joserfc",
    "msgspec",
    "prometheus_client",
    "rfc8785",
    "uvloop",
}
"""What `pip install dragoman` brings, by import name."""

EXTRAS: dict[str, tuple[str, ...]] = {
    "opentelemetry": ("observe.otel",),
    "rich": ("cli",),
    "grpc": ("server.grpc.server", "server.grpc.calls", "client.transport.grpc"),
    "grpc_health": ("server.grpc.server",),
    "starlette": ("executor.routes", "executor.server"),
    "fastapi": ("executor.routes",),
    "grpc_reflection": ("server.grpc.server",),
    "google": ("dialects.proto", "adapters.a2a_sdk", "adapters.google_adk"),
    "agent_framework": ("adapters.agent_framework",),
    "strands": ("adapters.strands",),
    "workflows": ("adapters.llama_index_workflows",),
    "llama_index": ("adapters.llama_index_workflows",),
    "crewai": ("adapters.crewai",),
    "crewai_core": ("adapters.crewai",),
    "pydantic": ("adapters.crewai", "mcp.tools"),
    "smolagents": ("adapters.smolagents",),
    "PIL": ("adapters.smolagents",),
    "langgraph": ("adapters.langgraph",),
    "langchain_core": ("adapters.langgraph",),
    "pydantic_ai": ("adapters.pydantic_ai",),
    "agents": ("adapters.openai_agents",),
    "a2a": ("adapters.a2a_sdk",),
    "nats": ("buses.nats",),
    "asyncpg": (
        "stores.postgres.address",
        "stores.postgres.database",
        "stores.postgres.pool",
        "hub.store.postgres",
    ),
    "obstore": ("hub.store.s3_blobs",),
    "any_llm": ("hub.models.hosted",),
    "mcp": ("mcp", "cli.mcp"),
    "httpx2": ("mcp.http_client",),
    "jsonschema": ("mcp",),
    "referencing": ("mcp",),
    "xllamacpp": ("hub.models.local",),
}
"""Optional libraries, and the modules that are there for them."""


def imports(file: Path, package: str) -> Iterator[tuple[int, str]]:
    """Every import in a file: the line, and the dotted name of what is imported."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                origin = ".".join([*above, origin] if origin else above)
            for alias in node.names:
                yield node.lineno, f"{origin}.{alias.name}"


def modules(src: Path) -> Iterator[tuple[Path, str, str]]:
    """Every file of the package: its path, its package and its name inside `dragoman`."""
    for file in sorted((src / "dragoman").rglob("*.py")):
        path = file.relative_to(src).with_suffix("").parts
        yield file, ".".join(path[:-1]), ".".join(path[1:])


def within(name: str, row: tuple[str, ...]) -> bool:
    """Whether `name` is one of the modules in `row`, or in one of them."""
    return any(not entry or name == entry or name.startswith(entry + ".") for entry in row)


def broken(src: Path) -> list[str]:
    """Each import that breaks the rule, as a sentence."""
    found = []
    for file, package, name in modules(src):
        top = name.partition(".")[0]
        if top not in ALLOWED:
            found.append(
                f"{file.relative_to(src.parent)}: dragoman.{top} has no row in {Path(__file__).name}"
            )
            continue
        for line, target in imports(file, package):
            here = f"{file.relative_to(src.parent)}:{line}"
            library, _, rest = target.partition(".")
            if library == "dragoman":
                if not within(rest, (top, *ALLOWED[top], *EXCEPTIONS.get(name, ()))):
                    may = ", ".join(ALLOWED[top]) or "nothing of ours"
                    found.append(f"{here}: {top} imports {target}; it may import {may}")
            elif library not in sys.stdlib_module_names | CORE and not within(name, EXTRAS.get(library, ())):
                found.append(
                    f"{here}: {library} is no core dependency, and {name} is not behind an extra for it"
                )
    return found


def test_imports_only_go_down() -> None:
    assert not (wrong := broken(SRC)), "\n" + "\n".join(wrong)


def test_the_architecture_shows_the_same_table() -> None:
    text = ARCHITECTURE.read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| ((?:`[\w.]+` ?)*)\|$", text[text.index("## Who may import whom") :], re.MULTILINE
    )
    shown = {package: sorted(re.findall(r"`([\w.]+)`", row)) for package, row in rows}
    everywhere = {"model", "errors", *PROTOCOLS}
    enforced = {
        package: sorted({*row} - everywhere | ({"protocols"} if {*PROTOCOLS} <= {*row} else set()))
        for package, row in ALLOWED.items()
        if row and row is not ANYTHING
    }
    assert shown == enforced
    assert all(f"`{name.replace('.', '/')}.py`" in text for name in PROTOCOLS)


def cycle(src: Path) -> list[str]:
    """Modules that import each other at the top of their files, also if only for types; empty if there are none."""
    files = {
        name.removesuffix("__init__").rstrip("."): (file, package) for file, package, name in modules(src)
    }

    def module_of(target: str) -> str | None:
        """The module that has what is imported: `x.y` may be the module `x.y`, or the name `y` in `x`."""
        rest = target.removeprefix("dragoman.")
        return next((name for name in (rest, rest.rpartition(".")[0]) if name in files), None)

    imported = {
        name: {found for target in imports_at_the_top(*where) if (found := module_of(target))} - {name}
        for name, where in files.items()
    }
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def imports_at_the_top(file: Path, package: str) -> Iterator[str]:
    inside = {
        line
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    return (
        target
        for line, target in imports(file, package)
        if line not in inside and target.startswith("dragoman.")
    )


def test_no_modules_import_each_other_not_even_for_types() -> None:
    assert cycle(SRC) == []


def test_a_cycle_for_types_is_found(tmp_path: Path) -> None:
    package = tmp_path / "src" / "dragoman" / "engine"
    package.mkdir(parents=True)
    (package / "turn.py").write_text("from dragoman.engine.runner import Runner")
    (package / "runner.py").write_text("if TYPE_CHECKING:\n    from dragoman.engine import turn")
    assert set(cycle(tmp_path / "src")) == {"engine.turn", "engine.runner"}


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("engine/runner.py", "from dragoman.dialects import select"),
        ("engine/runner.py", "from dragoman import stores"),
        ("engine/runner.py", "def f():\n    import dragoman.server.app"),
        ("engine/runner.py", "from ..hub import x"),
        ("server/app.py", "from dragoman.engine.engine import Engine"),
        ("client/transport/network.py", "from dragoman.engine import records"),
        ("stores/sqlite/store.py", "from dragoman.engine.runner import Runner"),
        ("stores/sqlite/store.py", "from dragoman.engine import runner"),
        ("agent/agent.py", "from dragoman.hub import Hub"),
        ("model/task.py", "from dragoman import Agent"),
        ("newcomer/thing.py", "from dragoman.model import ids"),
        ("engine/runner.py", "import rich"),
    ],
)
def test_an_import_that_goes_up_is_found(tmp_path: Path, module: str, statement: str) -> None:
    file = tmp_path / "src" / "dragoman" / module
    file.parent.mkdir(parents=True)
    file.write_text(statement)
    assert len(broken(tmp_path / "src")) == 1


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        (
            "engine/runner.py",
            "from dragoman.model.task import Task\nfrom .records import Record\nimport msgspec, asyncio",
        ),
        ("stores/sqlite/store.py", "from dragoman.engine import protocols, records\nimport sqlite3"),
        ("server/grpc/server.py", "import grpc.aio\nfrom dragoman.model import ops"),
        ("cli/main.py", "from dragoman.hub import Hub\nimport rich.table"),
    ],
)
def test_an_import_that_goes_down_is_fine(tmp_path: Path, module: str, statement: str) -> None:
    file = tmp_path / "src" / "dragoman" / module
    file.parent.mkdir(parents=True)
    file.write_text(statement)
    assert broken(tmp_path / "src") == []
