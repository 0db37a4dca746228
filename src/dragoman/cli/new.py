"""`dragoman new NAME`: a project for an agent, with a test and a README."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from dragoman.cli.arguments import add_command, describe

EPILOG = """\
Templates:
  hello      one skill, a few lines
  llm        a model with tools; every call is a recorded step (set the provider's key, and MODEL)
  form       asks for what it needs, question by question, and books once
  delegate   two agents, of which one calls the other
  langgraph  a graph of LangGraph, served with `wrap`; its interrupts are questions
  wrapped    an executor written for the official A2A SDK

  dragoman new greeter
  dragoman new assistant --template llm
  dragoman new trips --template langgraph
  cd greeter && dragoman dev greeter.agent
"""


class Template(NamedTuple):
    about: str
    tries: tuple[str, ...]
    notes: str
    extras: str = "cli"
    framework: str = ""
    """The package that it needs beside Dragoman."""


TEMPLATES = {
    "hello": Template("Greets people", ("dragoman send http://127.0.0.1:8000 world",), "It has one skill."),
    "llm": Template(
        "Answers questions with a language model and tools",
        (
            'dragoman send http://127.0.0.1:8000 "What time is it in Paris?"',
            "dragoman chat http://127.0.0.1:8000",
        ),
        "Set the key of a provider first, such as `OPENAI_API_KEY`, and choose its model: `MODEL=openai/gpt-6-luna`. The tests "
        "need no key.",
        "cli,llm",
    ),
    "form": Template(
        "Books hotel rooms, and asks for what it needs to know",
        ("dragoman chat http://127.0.0.1:8000",),
        "Stop the agent while it waits for an answer, and start it again: the answers are still there.",
    ),
    "delegate": Template(
        "Plans trips with the help of another agent",
        (
            'dragoman send http://127.0.0.1:8000/planner "Rome, Oslo"',
            'dragoman send http://127.0.0.1:8000/weather "Rome"',
        ),
        "Set `WEATHER` to the URL of an agent elsewhere, of any version of A2A, to ask that one.",
    ),
    "langgraph": Template(
        "Books trips with a graph of LangGraph",
        ("dragoman chat http://127.0.0.1:8000",),
        "Put your own graph in place of this one: `agent = wrap(graph, name=..., description=...)` is all that it needs. Stop the agent "
        "while it waits for an answer, and start it again: the graph goes on where it was. Agents of pydantic-ai, the OpenAI Agents "
        "SDK and other frameworks are wrapped in the same way.",
        "cli,langgraph",
        "langgraph",
    ),
    "wrapped": Template(
        "Counts words, with an executor of the official SDK",
        ('dragoman send http://127.0.0.1:8000 "one two three"',),
        "Change the imports of your own executor from `a2a` to `dragoman.executor`, and put it in place of `WordCounter`. An "
        "agent of LangGraph, pydantic-ai, the OpenAI Agents SDK or another framework needs no executor: `from dragoman import wrap`, "
        "and `agent = wrap(graph, name=..., description=...)`.",
    ),
}


def register(commands: Any) -> None:
    parser = add_command(
        commands, "new", "make a project for an agent, with a test and a README", EPILOG, run
    )
    parser.add_argument("name", metavar="NAME", help="the name of the project, and of its folder")
    parser.add_argument(
        "--template", choices=TEMPLATES, default="hello", help="what to begin with (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    folder = Path(args.name)
    try:
        written = write_project(folder, args.template)
    except (OSError, ValueError) as error:
        print(f"dragoman: {describe(error)}", file=sys.stderr)
        return 1
    for path in written:
        print(f"made {path}")
    print(f"next: cd {folder} && dragoman dev {module_name(folder.name)}.agent")
    return 0


def module_name(name: str) -> str:
    """The package of a project: `my-agent` -> `my_agent`. Raises `ValueError`."""
    module = re.sub(r"[-.\s]+", "_", name).lower()
    taken = module in sys.stdlib_module_names or module in ("dragoman", "tests", "test")
    if (
        not re.fullmatch(r"[A-Za-z][A-Za-z0-9._-]{0,60}", name)
        or keyword.iskeyword(module)
        or not module.isidentifier()
    ):
        raise ValueError(
            f"{name!r} is not a name for a project: use letters, digits and -, and begin with a letter"
        )
    if taken:
        raise ValueError(f"there is a module {module} already: use another name")
    return module


def write_project(folder: Path, template: str) -> list[Path]:
    """Write the files of a new project. Raises `ValueError` for a bad name, and `FileExistsError` for a folder with files."""
    module, chosen = module_name(folder.name), TEMPLATES[template]
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already, and not empty")
    words = {
        "name": folder.name,
        "module": module,
        "title": re.sub(r"[-_.]+", " ", folder.name).strip().capitalize(),
        "about": chosen.about,
        "tries": "\n".join(chosen.tries),
        "notes": chosen.notes,
        "extras": chosen.extras,
    }
    texts = {
        "README.md": _text("common/README.md", words),
        "pyproject.toml": _text("common/pyproject.toml", words),
        ".gitignore": _text("common/gitignore", words),
        f"{module}/__init__.py": "",
        f"{module}/agent.py": _text(f"{template}/agent.py", words),
        "tests/test_agent.py": _text(f"{template}/test_agent.py", words),
    }
    written = []
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _text(name: str, words: dict[str, str]) -> str:
    template = files("dragoman.cli").joinpath("templates", f"{name}.template").read_text(encoding="utf-8")
    return template.format(**words)
