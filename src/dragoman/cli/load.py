"""Loads the agents of a Python file or module, for a command that serves them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import ModuleType
from typing import Any

import dragoman
from dragoman.agent.agent import Agent
from dragoman.server import runtime


def load(*names: str) -> list[Agent]:
    """Load the agents of each `FILE[:agent]` or `MODULE[:agent]`: the named one, those that it serves, or all that it creates.

    Modules are searched in the current folder first, as `python -m` does."""
    loaded: dict[Path | str, Loaded] = {}
    agents: list[Agent] = []
    _add_to_path(Path.cwd())
    for name in names:
        source, wanted = split(name)
        key = Path(source).resolve() if Path(source).is_file() else source
        if key not in loaded:
            loaded[key] = _run(source)
        agents += loaded[key].agents(source, wanted)
    return list(dict.fromkeys(agents))


def split(name: str) -> tuple[str, str]:
    """Split `FILE:agent` into the file or module and the agent."""
    source, colon, wanted = name.rpartition(":")
    return (source, wanted) if colon and wanted.isidentifier() else (name.removesuffix(":"), "")


def missing(source: str) -> str:
    """Explain why `source` cannot be loaded, without running it. Empty if nothing is wrong."""
    if Path(source).is_file():
        return ""
    if not _is_module(source):
        if Path(source).is_dir():
            return f"{source} is a folder: name a file in it, or a module"
        return f"{source}: no such file"
    _add_to_path(Path.cwd())
    top = source.partition(".")[0]
    return "" if importlib.util.find_spec(top) is not None else f"{source}: no such file, and no module {top}"


def _is_module(source: str) -> bool:
    return not source.endswith(".py") and all(part.isidentifier() for part in source.split("."))


def _add_to_path(folder: Path) -> None:
    """Search modules in `folder` first."""
    where = str(folder)
    if where not in sys.path[:1]:
        sys.path.insert(0, where)


@dataclass
class Loaded:
    """The agents that a file creates, by name, and those that it serves with `run()` or `serve()`."""

    created: dict[str, Agent]
    served: list[Agent]

    def agents(self, path: str, wanted: str) -> list[Agent]:
        if wanted:
            if wanted not in self.created:
                has = ", ".join(self.created) or "none"
                raise SystemExit(f"{path} has no agent called {wanted}; it has {has}")
            return [self.created[wanted]]
        if not self.served and not self.created:
            raise SystemExit(f"{path} creates no Agent at its top level")
        return self.served or list(self.created.values())


def _run(source: str) -> Loaded:
    """Import a module, or a file under a name other than `__main__`, and collect its agents."""
    if why := missing(source):
        raise SystemExit(why)
    file = Path(source).resolve()
    with _collect_served() as served:
        try:
            module = _import_file(file, source) if file.is_file() else import_module(source)
        except SyntaxError as error:
            raise SystemExit(f"dragoman: {_format_syntax_error(error, file, source)}") from None
        except Exception as error:
            raise SystemExit(f"{_format_traceback(error)}\ndragoman: {source} cannot be loaded") from None
    created = {name: value for name, value in vars(module).items() if isinstance(value, Agent)}
    return Loaded(created, served)


def _import_file(file: Path, source: str) -> ModuleType:
    """Import a file of a package by its full name, so that imports within the package work."""
    root, names = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if len(names) == 1:
        return _import_script(file, source)
    if names[-1] == "__init__":
        names.pop()
    _add_to_path(root)
    module = import_module(".".join(names))
    if module.__file__ is None or Path(module.__file__).resolve() != file:
        raise SystemExit(f"{source} is {'.'.join(names)}, and so is {module.__file__}: rename one of them")
    return module


def _import_script(file: Path, source: str) -> ModuleType:
    """Import a single file in a package of its own: two files may have one name, and `from .neighbour import x` works."""
    # The name is the same in each process: frameworks store the classes of their state by the names of their modules.
    digest = blake2b(str(file).encode(), digest_size=8).hexdigest()
    package = ModuleType(f"dragoman_served_{digest}")
    package.__path__ = [str(file.parent)]
    name = f"{package.__name__}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source} is not a Python file")
    sys.modules[package.__name__] = package
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _add_to_path(file.parent)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _collect_served() -> Iterator[list[Agent]]:
    """While a file is loaded, `agent.run()` and `serve()` only name the agents to serve."""
    served: list[Agent] = []

    def collect(*agents: Agent, **options: Any) -> None:
        served.extend(agents)

    was, runtime.serve = runtime.serve, collect
    try:
        yield served
    finally:
        runtime.serve = was


def _format_syntax_error(error: SyntaxError, file: Path, label: str) -> str:
    """Format as `hello.py, line 3: invalid syntax`, with the line."""
    formatted = TracebackException.from_exception(error)
    name = label if error.filename == str(file) else error.filename
    _, *line = list(formatted.format_exception_only())[:-1]
    return "".join([f"{name}, line {error.lineno}: {error.msg}\n", *line]).rstrip()


def _format_traceback(error: Exception) -> str:
    """Format the traceback without frames of this package."""
    ours = str(Path(dragoman.__file__).parent)
    formatted = TracebackException.from_exception(error)
    error_part: TracebackException | None = formatted
    while error_part is not None:
        error_part.stack = StackSummary.from_list(
            [
                frame
                for frame in error_part.stack
                if not frame.filename.startswith((ours, "<frozen importlib"))
            ]
        )
        error_part = error_part.__cause__ or error_part.__context__
    return "".join(formatted.format()).rstrip()
