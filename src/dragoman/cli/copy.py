"""`dragoman copy`"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dragoman.cli.arguments import add_command, exit_on
from dragoman.stores import UnsupportedSchema

HUB_FILE = "hub.db"
"""The tables of a hub, in its folder."""

EPILOG = """\
Copies tasks, webhooks and the audit log; of a hub also tenants, agents, conversations and all else. The files do not change. Stop the
server first, and start it with the new store:

  dragoman copy sqlite:///dragoman.db postgresql://db.example.com/tasks
  dragoman serve bank.py --store postgresql://db.example.com/tasks

  dragoman copy ~/.dragoman postgresql://db.example.com/hub
  dragoman hub --store postgresql://db.example.com/hub
"""
SHOWN = ("tenants", "agents", "conversations", "memories", "artifacts", "schedules")
"""Tables of a hub whose rows are counted for people."""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "copy", "copy a SQLite store, or a hub, to a PostgreSQL database", EPILOG, run
    )
    parser.add_argument("source", metavar="FROM", help="sqlite:///PATH, or the folder of a hub")
    parser.add_argument("target", metavar="TO", help="postgresql://HOST/DATABASE, an empty one")


async def run(args: argparse.Namespace) -> int:
    path = _check_source(args)
    from dragoman.stores.copy_to_postgres import copy

    with exit_on(UnsupportedSchema, ValueError):
        if path.is_dir():
            from dragoman.hub.store.copy_to_postgres import copy_hub

            hub = await copy_hub(path, args.target)
            copied, words = hub.tasks, [f"{name} {hub.rows[name]}" for name in SHOWN]
        else:
            copied, words = await copy(path, args.target), []
    words = [
        f"tasks {copied.tasks}",
        f"webhooks {copied.webhooks}",
        f"audit entries {copied.entries}",
        *words,
    ]
    print(f"copied: {', '.join(words)}")
    if copied.left:
        print(f"not copied: tasks {copied.left} (PostgreSQL does not take ids with a NUL, or very long ones)")
    if path.is_dir():
        print(f"Large files and workspaces are still in {path}: the hub needs it as --data.")
    return 0


def _check_source(args: argparse.Namespace) -> Path:
    """The file of a store, or the folder of a hub."""
    path = Path(args.source.removeprefix("sqlite:///")).expanduser()
    if path.is_dir() and not (path / HUB_FILE).is_file():
        raise SystemExit(f"dragoman: there is no hub in the folder {path}: it has no {HUB_FILE}")
    if not path.is_dir() and (not args.source.startswith("sqlite:///") or not path.is_file()):
        raise SystemExit(
            f"dragoman: there is no SQLite store at {args.source}: use sqlite:///PATH, or the folder of a hub"
        )
    if path.name == "tasks.db" and path.with_name(HUB_FILE).is_file():
        raise SystemExit(
            f"dragoman: these are the tasks of the hub in {path.parent}: copy the folder, so that its tenants come along"
        )
    if not args.target.startswith(("postgresql://", "postgres://")):
        raise SystemExit("dragoman: the target is postgresql://HOST/DATABASE")
    if find_spec("asyncpg") is None:
        raise SystemExit("dragoman: PostgreSQL needs an extra: pip install 'dragoman[postgres]'")
    return path
