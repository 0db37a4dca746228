"""`dragoman copy`"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import add_command, exit_on
from dragoman.stores import UnsupportedSchema

EPILOG = """\
Copies tasks, webhooks and the audit log. The file does not change. Stop the server first, and start it with the new store:

  dragoman copy sqlite:///dragoman.db postgresql://db.example.com/tasks
  dragoman serve bank.py --store postgresql://db.example.com/tasks
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "copy", "copy all tasks from a SQLite file to a PostgreSQL database", EPILOG, run
    )
    parser.add_argument("source", metavar="FROM", help="sqlite:///PATH")
    parser.add_argument("target", metavar="TO", help="postgresql://HOST/DATABASE, an empty one")


async def run(args: argparse.Namespace) -> int:
    path = _check_source(args)
    from dragoman.stores.copy_to_postgres import copy

    with exit_on(UnsupportedSchema, ValueError):
        copied = await copy(path, args.target)
    print(f"copied: tasks {copied.tasks}, webhooks {copied.webhooks}, audit entries {copied.entries}")
    if copied.left:
        print(f"not copied: tasks {copied.left} (PostgreSQL does not take ids with a NUL, or very long ones)")
    return 0


def _check_source(args: argparse.Namespace) -> Path:
    path = Path(args.source.removeprefix("sqlite:///"))
    if not args.source.startswith("sqlite:///") or not path.is_file():
        raise SystemExit(f"dragoman: there is no SQLite store at {args.source}: use sqlite:///PATH")
    if not args.target.startswith(("postgresql://", "postgres://")):
        raise SystemExit("dragoman: the target is postgresql://HOST/DATABASE")
    if find_spec("asyncpg") is None:
        raise SystemExit("dragoman: PostgreSQL needs an extra: pip install 'dragoman[postgres]'")
    return path
