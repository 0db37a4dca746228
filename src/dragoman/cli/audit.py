"""`dragoman audit`"""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from dragoman.stores import open_store

EPILOG = """\
  dragoman audit                                the last hundred things that were done
  dragoman audit --task 01a1dfc9-...            everything done to a task
  dragoman audit --principal ada --since 2026-11-01
  dragoman audit --operation authenticate       who was not let in
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="who did what to which task",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--store", default="sqlite:///dragoman.db", help="default: %(default)s")
    parser.add_argument("--tenant")
    parser.add_argument("--principal", default="")
    parser.add_argument("--task", default="")
    parser.add_argument("--operation", default="")
    parser.add_argument("--since", default="", metavar="TIME", help="2026-11-15 or 2026-11-15T14:00:00Z")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=run)


async def run(args: argparse.Namespace) -> int:
    store = open_store(args.store)
    await store.open()
    try:
        entries = await store.audit.entries(
            tenant=args.tenant,
            principal=args.principal,
            task=args.task,
            operation=args.operation,
            since=args.since,
            limit=args.limit,
        )
    finally:
        await store.close()
    for entry in entries:
        if args.json:
            print(json.dumps(msgspec.to_builtins(entry)))
        else:
            who = entry.principal or "somebody"
            print(
                f"{entry.at}  {who}  {entry.operation}  {entry.agent}  {entry.task or '-'}  {entry.outcome}"
            )
    return 0
