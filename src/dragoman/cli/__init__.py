"""The `dragoman` command: one file per verb, each a thin layer over the library."""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Sequence
from importlib import import_module

VERBS = (
    "serve",
    "card",
    "send",
    "chat",
    "tasks",
    "task",
    "keys",
    "sign",
    "listen",
    "push",
    "audit",
    "hub",
    "init",
    "doctor",
    "tenant",
    "agent",
    "version",
)

ABOUT = """\
Agents that talk A2A, in every version of it, and keep their tasks when the process dies.

  dragoman serve hello.py                 serve the agents of a file
  dragoman card http://127.0.0.1:8000     what an agent says it is
  dragoman send http://127.0.0.1:8000 hi  send a message and print the answer

  dragoman init                           begin a hub: many tenants, many agents
  dragoman hub                            serve it
"""

EPILOG = """\
An AGENT is the URL of an agent of any version of A2A, a file with its card, or a name in dragoman.toml.
`dragoman COMMAND --help` has the options of a command, and examples.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="dragoman",
        description=ABOUT,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for verb in VERBS:
        import_module(f"dragoman.cli.{verb}").register(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        outcome = args.run(args)
        return asyncio.run(outcome) if inspect.iscoroutine(outcome) else int(outcome or 0)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
