"""The `dragoman` command: a file for each verb, or for verbs that are one idea, and each a thin layer over the library."""

from __future__ import annotations

import argparse
import asyncio
import io
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutine
from platform import python_version
from typing import Any

from dragoman import __version__
from dragoman.cli.arguments import CommandParser, add_command, describe
from dragoman.errors import A2AError
from dragoman.observe.terminal import sanitize_for

VERBS = {
    "serve": "serve",
    "dev": "dev",
    "bridge": "bridge",
    "new": "new",
    "port": "port",
    "card": "card",
    "inspect": "inspect",
    "find": "find",
    "send": "send",
    "chat": "chat",
    "mcp": "mcp",
    "tasks": "tasks",
    "task": "tasks",
    "keys": "keys",
    "sign": "keys",
    "listen": "push",
    "push": "push",
    "audit": "audit",
    "copy": "copy",
    "hub": "hub",
    "init": "init",
    "doctor": "doctor",
    "tenant": "tenant",
    "agent": "agent",
    "version": "",
}
"""The commands, each with the module that it is in."""

ABOUT = """\
Agents that talk A2A, in every version of it, and keep their tasks when the process dies.

  dragoman new hello                      make a project, with a test
  dragoman dev hello.py                   serve an agent while you write it
  dragoman serve hello.py                 serve the agents of a file
  dragoman card get http://127.0.0.1:8000 print an agent's card
  dragoman send http://127.0.0.1:8000 hi  send a message and print the answer
  dragoman inspect http://127.0.0.1:8000  look at an agent in a browser
  dragoman mcp install claude-code URL    use an agent as tools of Claude Code and other MCP clients
  dragoman find "refund an order"         search a catalogue of agents

  dragoman bridge http://crew:9000        an agent elsewhere in all versions of A2A, with its tasks kept here
  dragoman init                           create a hub: many tenants, many agents
  dragoman hub                            serve the hub
"""

EPILOG = """\
An AGENT is the URL of an agent of any version of A2A, a file with its card, or a name in dragoman.toml.
`dragoman COMMAND --help` shows the options of a command, with examples.
"""


def parser(verbs: Iterable[str] = VERBS) -> argparse.ArgumentParser:
    top = CommandParser(prog="dragoman", description=ABOUT, epilog=EPILOG)
    top.add_argument("-v", "--version", action="version", version=f"dragoman {__version__}")
    commands = top.add_subparsers(metavar="COMMAND", required=True)
    for module in dict.fromkeys(VERBS[verb] for verb in verbs):
        if module:
            import_module(f"dragoman.cli.{module}").register(commands)
        else:
            _register_version(commands)
    return top


def _register_version(commands: Any) -> None:
    version = f"dragoman {__version__} (Python {python_version()})"
    add_command(
        commands, "version", "print the version", "example: dragoman version", lambda args: print(version)
    )


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the terminal's encoding may lack an agent's characters
    try:
        if not words or words[0] == "help":
            words = [*words[1:2], "--help"]
        verbs = words[:1] if words and words[0] in VERBS else VERBS  # importing all of them is slow
        args = parser(verbs).parse_args(words)
        outcome = args.run(args)
        code = asyncio.run(outcome) if iscoroutine(outcome) else int(outcome or 0)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 141
    except OSError as error:
        _silence_stdout()
        return _fail(error)
    except A2AError as error:
        return _fail(error)
    except SystemExit as stop:
        if not isinstance(stop.code, str):
            raise
        if _logs_json():
            logging.getLogger("dragoman").critical("%s", stop.code)
            return 1
        # the text may quote a file, a peer or a database
        raise SystemExit(sanitize_for(stop.code, sys.stderr)) from None


def _fail(error: Exception) -> int:
    print(sanitize_for(f"dragoman: {describe(error)}", sys.stderr), file=sys.stderr)
    return 1


def _logs_json() -> bool:
    """True if this is a server with a JSON log: then its last error is JSON, too."""
    logs = sys.modules.get("dragoman.observe.logs")  # not imported here: most commands do not need it
    return logs is not None and logs.is_json()


def _silence_stdout() -> None:
    """Discard buffered output, which would fail again when Python closes its files."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
