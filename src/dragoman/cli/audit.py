"""`dragoman audit`"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import msgspec

from dragoman.cli.arguments import add_command, add_flag, iso_time
from dragoman.cli.connect import add_store, run_with_store
from dragoman.engine.protocols import Audit, Store
from dragoman.stores.audit_chain import ChainReport, check_chain

EPILOG = """\
The audit log has an entry for every request that changes something, and for every failed authentication. Each entry has a hash
of the one before, so that a changed or missing entry is found.

  dragoman audit                                the last hundred entries
  dragoman audit --task 01a1dfc9-...            the entries of one task
  dragoman audit --principal ada --since 2026-11-01
  dragoman audit --operation authenticate       failed authentications
  dragoman audit verify                         check that no entry was changed
  dragoman audit verify --known a1b2c3...       check also that this earlier hash is still there
  dragoman audit prune --before 2026-01-01      print old entries as JSON, and delete them
"""

_PRUNE_BATCH = 1000


def register(commands: Any) -> None:
    parser = add_command(commands, "audit", "show who did what to which task", EPILOG, run)
    parser.add_argument(
        "what",
        nargs="?",
        choices=("verify", "prune"),
        help="verify: check the hashes of all entries; prune: print old entries, and delete them",
    )
    add_store(parser)
    parser.add_argument("--tenant", help="only callers of this tenant")
    parser.add_argument("--principal", default="", metavar="NAME", help="only this caller")
    parser.add_argument("--task", default="", metavar="ID", help="only this task")
    parser.add_argument(
        "--operation",
        default="",
        metavar="NAME",
        help="only this operation: SendMessage, CancelTask, authenticate, ...",
    )
    parser.add_argument(
        "--since",
        type=iso_time,
        default=None,
        metavar="TIME",
        help="only newer entries: 2026-11-15 or 2026-11-15T14:00:00Z",
    )
    parser.add_argument(
        "--limit", type=int, default=100, help="at most this number of entries (default: 100)"
    )
    add_flag(parser, "--json", help="one JSON object per line")
    parser.add_argument(
        "--known", default="", metavar="HASH", help="for verify: a hash that verify or prune printed"
    )
    parser.add_argument(
        "--before", type=iso_time, metavar="TIME", help="for prune: delete entries older than this"
    )


async def run(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        if args.what == "verify":
            return _report(await check_chain(store.audit, args.known.lower()))
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
        raise SystemExit("dragoman: prune needs --before, such as --before 2026-01-01")
    return await run_with_store(args.store, work)


async def _prune(audit: Audit, before: str) -> int:
    """Delete in batches, so that a running server does not wait."""
    last = ""
    while gone := await audit.forget(before, limit=_PRUNE_BATCH):
        for entry in gone:
            print(json.dumps(msgspec.to_builtins(entry)), flush=entry is gone[-1])
        last = gone[-1].hash
    if last:
        print(f"the log continues after {last}: use it with verify --known", file=sys.stderr)
    return 0


def _report(found: ChainReport) -> int:
    for each in reversed(found.breaks):
        print(each)
    if found.breaks:
        return 1
    older = f" (the first {found.older} have no hash)" if found.older else ""
    last = f"; the last is {found.last.id}, {found.last.hash}" if found.last else ""
    print(f"{found.entries} entries, all hashes are correct{older}{last}")
    return 0


def _one_line(text: str) -> str:
    """Escape text that a caller chose: it must not start a line or control the terminal."""
    return text if text.isprintable() else ascii(text)[1:-1]
