"""Loads the agents of a Python file or module, for a command that serves them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import ModuleType
from typing import Any

import dragoman
from dragoman.agent.agent import Agent
from dragoman.server import runtime


def load(*names: str) -> list[Agent]:
    """The agents of each `FILE[:agent]` or `MODULE[:agent]`: the one that is named, those that it serves itself, or all it
    makes. The current folder is searched for modules, as `python -m` does."""
    loaded: dict[Path | str, Loaded] = {}
    agents: list[Agent] = []
    _search(Path.cwd())
    for name in names:
        source, wanted = split(name)
        key = Path(source).resolve() if Path(source).is_file() else source
        if key not in loaded:
            loaded[key] = _run(source)
        agents += loaded[key].agents(source, wanted)
    return list(dict.fromkeys(agents))


def split(name: str) -> tuple[str, str]:
    """The file or module of `name`, and the agent that is named there."""
    source, colon, wanted = name.rpartition(":")
    return (source, wanted) if colon and wanted.isidentifier() else (name.removesuffix(":"), "")


def missing(source: str) -> str:
    """Why nothing can be loaded from `source`, as far as that is seen without running it; empty if it can."""
    if Path(source).is_file():
        return ""
    if not _is_module(source):
        return f"{source}: no such file"
    _search(Path.cwd())
    top = source.partition(".")[0]
    return "" if importlib.util.find_spec(top) is not None else f"{source}: no such file, and no module {top}"


def _is_module(source: str) -> bool:
    return not source.endswith(".py") and all(part.isidentifier() for part in source.split("."))


def _search(folder: Path) -> None:
    """Look for modules in `folder` first."""
    where = str(folder)
    if where not in sys.path[:1]:
        sys.path.insert(0, where)


@dataclass
class Loaded:
    """What a file makes, by name, and what it would serve if it were run."""

    made: dict[str, Agent]
    served: list[Agent]

    def agents(self, path: str, wanted: str) -> list[Agent]:
        if wanted:
            if wanted not in self.made:
                has = ", ".join(self.made) or "none"
                raise SystemExit(f"{path} has no agent called {wanted}; it has {has}")
            return [self.made[wanted]]
        if not self.served and not self.made:
            raise SystemExit(f"{path} makes no Agent at its top level")
        return self.served or list(self.made.values())


def _run(source: str) -> Loaded:
    """Import a module, or a file under a name that is not `__main__`, and see what it makes."""
    if why := missing(source):
        raise SystemExit(why)
    file = Path(source).resolve()
    with _serving_left_to_us() as served:
        try:
            module = _import_file(file, source) if file.is_file() else import_module(source)
        except SyntaxError as error:
            raise SystemExit(f"dragoman: {_where(error, file, source)}") from None
        except Exception as error:
            raise SystemExit(f"{_told(error)}\ndragoman: {source} cannot be loaded") from None
    made = {name: value for name, value in vars(module).items() if isinstance(value, Agent)}
    return Loaded(made, served)


def _import_file(file: Path, source: str) -> ModuleType:
    """A file of a package is imported by its name there, so that it can import its neighbours as they import it."""
    root, names = file.parent, [file.stem]
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if len(names) == 1:
        return _import_script(file, source)
    if names[-1] == "__init__":
        names.pop()
    _search(root)
    module = import_module(".".join(names))
    if module.__file__ is None or Path(module.__file__).resolve() != file:
        raise SystemExit(f"{source} is {'.'.join(names)}, and so is {module.__file__}: rename one of them")
    return module


def _import_script(file: Path, source: str) -> ModuleType:
    """A file of no package gets one of its own, so that two of one name are two, and `from .neighbour import x` works."""
    package = ModuleType(f"dragoman_served_{abs(hash(file)):x}")
    package.__path__ = [str(file.parent)]
    name = f"{package.__name__}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{source} is not a Python file")
    sys.modules[package.__name__] = package
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _search(file.parent)
    spec.loader.exec_module(module)
    return module


@contextmanager
def _serving_left_to_us() -> Iterator[list[Agent]]:
    """The seven-line agent ends with `agent.run()`. While it is loaded that only says which agents to serve."""
    served: list[Agent] = []

    def note(*agents: Agent, **options: Any) -> None:
        served.extend(agents)

    was, runtime.serve = runtime.serve, note
    try:
        yield served
    finally:
        runtime.serve = was


def _where(error: SyntaxError, file: Path, shown: str) -> str:
    """What cannot be read, and where: `hello.py, line 3: invalid syntax`, and the line."""
    told = TracebackException.from_exception(error)
    name = shown if error.filename == str(file) else error.filename
    _, *line = list(told.format_exception_only())[:-1]
    return "".join([f"{name}, line {error.lineno}: {error.msg}\n", *line]).rstrip()


def _told(error: Exception) -> str:
    """The traceback, without what is ours."""
    ours = str(Path(dragoman.__file__).parent)
    told = TracebackException.from_exception(error)
    seen: TracebackException | None = told
    while seen is not None:
        seen.stack = StackSummary.from_list(
            [frame for frame in seen.stack if not frame.filename.startswith((ours, "<frozen importlib"))]
        )
        seen = seen.__cause__ or seen.__context__
    return "".join(told.format()).rstrip()
