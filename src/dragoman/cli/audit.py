"""`dragoman audit`"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from typing import Any

import msgspec

from dragoman.cli.stored import looked_into
from dragoman.engine.protocols import Audit, Store
from dragoman.stores import default_store
from dragoman.stores.audit_chain import Examined, examine

EPILOG = """\
  dragoman audit                                the last hundred things that were done
  dragoman audit --task 01a1dfc9-...            everything done to a task
  dragoman audit --principal ada --since 2026-11-01
  dragoman audit --operation authenticate       who was not let in
  dragoman audit verify                         whether anybody has changed the record
  dragoman audit verify --known a1b2c3...       since its last hash was this
  dragoman audit prune --before 2026-01-01      print what is older, and forget it
"""

_FEW = 1000


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="who did what to which task",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("verify", "prune"),
        help="verify: say whether every entry still follows from the one before; prune: print what is old, and forget it",
    )
    parser.add_argument("--store", default=default_store(), help="of the server (default: %(default)s)")
    parser.add_argument("--tenant", help="only what callers of this tenant did")
    parser.add_argument("--principal", default="", metavar="NAME", help="only what this caller did")
    parser.add_argument("--task", default="", metavar="ID", help="only what was done to this task")
    parser.add_argument(
        "--operation",
        default="",
        metavar="NAME",
        help="only this: SendMessage, CancelTask, authenticate, ...",
    )
    parser.add_argument(
        "--since", type=_time, default=None, metavar="TIME", help="2026-11-15 or 2026-11-15T14:00:00Z"
    )
    parser.add_argument("--limit", type=int, default=100, help="at most so many (default: 100)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.add_argument(
        "--known", default="", metavar="HASH", help="for `verify`: a hash it has printed before"
    )
    parser.add_argument(
        "--before", type=_time, metavar="TIME", help="for `prune`: what is older than this is old"
    )
    parser.set_defaults(run=run)


def _time(text: str) -> str:
    """As it was said, if it is a time."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError("say 2026-11-15 or 2026-11-15T14:00:00Z") from None
    return text


async def run(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        if args.what == "verify":
            return _verdict(await examine(store.audit, args.known.lower()))
        if args.what == "prune":
            return await _prune(store.audit, args.before)
        entries = await store.audit.entries(
            tenant=args.tenant,
            principal=args.principal,
            task=args.task,
            operation=args.operation,
            since=args.since or "",
            limit=args.limit,
        )
        for entry in entries:
            if args.json:
                print(json.dumps(msgspec.to_builtins(entry)))
            else:
                who = entry.principal or "somebody"
                line = (entry.at, who, entry.operation, entry.agent, entry.task or "-", entry.outcome)
                print("  ".join(map(_one_line, line)))
        return 0

    if args.what == "prune" and not args.before:
        raise SystemExit("dragoman: say what is old: --before 2026-01-01")
    return await looked_into(args.store, work)


async def _prune(audit: Audit, before: str) -> int:
    """A few at a time, so that a server that writes meanwhile need not wait."""
    last = ""
    while gone := await audit.forget(before, limit=_FEW):
        for entry in gone:
            print(json.dumps(msgspec.to_builtins(entry)), flush=entry is gone[-1])
        last = gone[-1].hash
    if last:
        print(f"the record goes on after {last}: give that to verify as --known", file=sys.stderr)
    return 0


def _verdict(found: Examined) -> int:
    for each in reversed(found.breaks):
        print(each)
    if found.breaks:
        return 1
    older = f" (the first {found.older} are older than the chain)" if found.older else ""
    last = f"; the last is {found.last.id}, {found.last.hash}" if found.last else ""
    print(f"{found.entries} entries, each follows from the one before{older}{last}")
    return 0


def _one_line(text: str) -> str:
    """A caller may have chosen it: it begins no line of its own, and tells a terminal nothing."""
    return text if text.isprintable() else ascii(text)[1:-1]
