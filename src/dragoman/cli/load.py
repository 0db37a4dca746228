"""Loads the agents of a Python file, for a command that serves them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any

import dragoman
from dragoman import server
from dragoman.agent.agent import Agent


def load(*names: str) -> list[Agent]:
    """The agents of each `FILE[:agent]`: the one that is named, those that the file itself serves, or all it makes."""
    files: dict[Path, Loaded] = {}
    agents: list[Agent] = []
    for name in names:
        path, _, wanted = name.partition(":")
        file = Path(path).resolve()
        if not file.is_file():
            raise SystemExit(f"{path}: no such file")
        if file not in files:
            files[file] = _run(file, path)
        agents += files[file].agents(path, wanted)
    return list(dict.fromkeys(agents))


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


def _run(file: Path, shown: str) -> Loaded:
    """Run a file under a name of its own, so that `if __name__ == "__main__"` stays quiet."""
    name = f"dragoman_served_{file.stem}_{abs(hash(file)):x}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{shown} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    with _serving_left_to_us() as served:
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise SystemExit(f"dragoman: {_where(error, file, shown)}") from None
        except Exception as error:
            raise SystemExit(f"{_told(error)}\ndragoman: {shown} cannot be loaded") from None
    made = {name: value for name, value in vars(module).items() if isinstance(value, Agent)}
    return Loaded(made, served)


@contextmanager
def _serving_left_to_us() -> Iterator[list[Agent]]:
    """The seven-line agent ends with `agent.run()`. While it is loaded that only says which agents to serve."""
    served: list[Agent] = []

    def note(*agents: Agent, **options: Any) -> None:
        served.extend(agents)

    was, server.serve = server.serve, note
    try:
        yield served
    finally:
        server.serve = was


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
