"""`dragoman push list` and `dragoman push redeliver`"""

from __future__ import annotations

import argparse
import time
from typing import Any

from dragoman.cli import show
from dragoman.cli.stored import looked_into
from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import Delivery
from dragoman.model.ids import timestamp
from dragoman.stores import default_store

LIMIT = 1000

EPILOG = """\
A webhook that could not be told is tried again and again, and then given up: what happens meanwhile waits behind it.

  dragoman push list                      everything that was not told yet
  dragoman push list --dead               what was given up
  dragoman push redeliver 7 12            try these again
  dragoman push redeliver --dead          try all again that were given up
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "push",
        help="see what webhooks could not be told, and tell them again",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="what was not told yet")
    listing.add_argument("--dead", action="store_true", help="only what was given up")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_list)
    again = verbs.add_parser("redeliver", help="tell it again, now")
    again.add_argument(
        "keys", nargs="*", type=int, metavar="NUMBER", help="from the first column of the list"
    )
    again.add_argument("--dead", action="store_true", help="all that were given up")
    again.add_argument("--from-start", action="store_true", help="tell the whole task again")
    again.set_defaults(run=run_redeliver)
    for each in (listing, again):
        each.add_argument("--store", default=default_store(), help="of the server (default: %(default)s)")


async def run_list(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        found = await store.push_queue.find(dead=args.dead, limit=LIMIT)
        if args.json:
            show.json([_document(each) for each in found])
        else:
            show.table(
                ("number", "task", "url", "waiting", "state", "tries", "error"),
                [_row(each) for each in found],
            )
        return 0

    return await looked_into(args.store, work)


async def run_redeliver(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        keys, push_queue = args.keys, store.push_queue
        if args.dead:
            keys = [*keys, *(each.key for each in await push_queue.find(dead=True, limit=LIMIT))]
        cursor = 0 if args.from_start else None
        missing = [key for key in dict.fromkeys(keys) if not await push_queue.redeliver(key, cursor=cursor)]
        for key in missing:
            print(f"there is no {key}")
        return 1 if missing else 0

    if not args.keys and not args.dead:
        raise SystemExit("dragoman: say which: numbers of `dragoman push list`, or --dead")
    return await looked_into(args.store, work)


def _document(delivery: Delivery) -> dict[str, Any]:
    return {
        "number": delivery.key,
        "tenant": delivery.scope.tenant,
        "agent": delivery.scope.agent,
        "task": delivery.task,
        "config": delivery.webhook.config.id,
        "url": _shown(delivery),
        "dialect": delivery.webhook.dialect,
        "told": delivery.cursor,
        "last": delivery.last,
        "attempts": delivery.attempt,
        "error": delivery.error,
        "dead": delivery.dead,
        "next": None if delivery.dead else timestamp(max(delivery.at, time.time())),
    }


def _row(delivery: Delivery) -> tuple[str, ...]:
    waiting = str(delivery.last - delivery.cursor)
    pause = max(0.0, delivery.at - time.time())
    state = "given up" if delivery.dead else f"again in {pause:.0f} s" if pause else "due"
    return (
        str(delivery.key),
        delivery.task,
        _shown(delivery),
        waiting,
        state,
        str(delivery.attempt),
        delivery.error,
    )


def _shown(delivery: Delivery) -> str:
    """Without its query, which may hold a secret."""
    return delivery.webhook.config.url.partition("?")[0]
