"""Webhooks: `dragoman listen` is one, `dragoman push list|redeliver` shows what could not be delivered."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from typing import Any

from dragoman.cli import show
from dragoman.cli.arguments import add_address, add_command, add_flag, add_verbs, exit_on, secret
from dragoman.cli.connect import add_store, run_with_store
from dragoman.engine.protocols import Store
from dragoman.engine.push_configs import Delivery
from dragoman.model.content import Message
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task
from dragoman.push.receive import Received, Verifier

LISTEN_EPILOG = """\
Runs a webhook that prints each push notification. Without --token, --secret or --jwks it accepts all notifications.

  dragoman listen --port 9000 --token abc
  dragoman send AGENT hi --push http://127.0.0.1:9000 --push-token abc

The server that sends must be allowed to reach this machine: `dragoman serve ... --allow-private-push`.
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "listen", "print the push notifications that arrive", LISTEN_EPILOG, run_listen
    )
    add_address(parser, port=9000)
    parser.add_argument(
        "--token", type=secret, default="", help="the token of the push config; env:NAME reads a variable"
    )
    parser.add_argument(
        "--secret",
        type=secret,
        action="append",
        default=[],
        help="the secret that signs notifications; may be repeated; env:NAME reads a variable",
    )
    parser.add_argument("--jwks", default="", metavar="URL", help="the sender's public keys")
    parser.add_argument("--issuer", default="", help="the required issuer, with --jwks")
    parser.add_argument(
        "--audience", default="", help="the required audience (this webhook's URL), with --jwks"
    )
    add_flag(parser, "--json", help="print JSON, one notification per line")
    _register_push(commands)


def run_listen(args: argparse.Namespace) -> int:
    from dragoman.auth.jwks import FetchedKeys
    from dragoman.push.webhook import Webhook
    from dragoman.server.http1.server import HttpServer
    from dragoman.server.runtime import bind
    from dragoman.server.workers import stop_signals

    with exit_on(ValueError):
        verifier = Verifier(
            token=args.token,
            secrets=args.secret,
            keys=FetchedKeys(args.jwks) if args.jwks else None,
            issuer=args.issuer,
            audience=args.audience,
            insecure=True,
        )
    listener = bind(args.host, args.port)
    listener.listen()
    print(f"listening on http://{args.host}:{listener.getsockname()[1]}/", flush=True)
    app = Webhook(_print_json if args.json else _print_line, verifier)
    asyncio.run(HttpServer(app, listener).serve(stop_signals()))
    return 0


def _print_json(received: Received) -> None:
    show.json(
        {"delivery": received.delivery, "task": received.task_id, "event": received.event}, pretty=False
    )


def _print_line(received: Received) -> None:
    event = received.event
    match event:
        case Task():
            text = f"{event.state.word}  {event.text}"
        case StatusUpdate():
            text = f"{event.status.state.word}  {event.status.message.text if event.status.message else ''}"
        case ArtifactUpdate():
            text = f"artifact {event.artifact.name or event.artifact.artifact_id}  {event.artifact.text}"
        case Message():
            text = f"message  {event.text}"
    show.say(f"{timestamp()}  {received.task_id}  {' '.join(text.split())}")
    sys.stdout.flush()


MAX_LISTED = 1000

EPILOG = """\
The server tries again when a webhook fails, and gives up after a day or 60 attempts. Later notifications of the task wait behind the failed one.

  dragoman push list                      all notifications that wait
  dragoman push list --dead               those that were given up
  dragoman push redeliver 7 12            send these again
  dragoman push redeliver --dead          send all again that were given up
"""


def _register_push(commands: Any) -> None:
    parser = add_command(
        commands, "push", "list notifications that could not be delivered, and send them again", EPILOG
    )
    verbs = add_verbs(parser)
    listing = add_command(verbs, "list", "list notifications that wait", run=run_list)
    add_flag(listing, "--dead", help="only those that were given up")
    add_flag(listing, "--json", help="print JSON")
    again = add_command(verbs, "redeliver", "send notifications again, now", run=run_redeliver)
    again.add_argument(
        "keys", nargs="*", type=int, metavar="NUMBER", help="from the first column of the list"
    )
    add_flag(again, "--dead", help="all that were given up")
    add_flag(again, "--from-start", help="send all events of the task again")
    add_store(listing)
    add_store(again)


async def run_list(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        found = await store.push_queue.find(dead=args.dead, limit=MAX_LISTED)
        if args.json:
            show.json([_document(each) for each in found])
        else:
            show.table(
                ("number", "task", "url", "waiting", "state", "tries", "error"),
                [_row(each) for each in found],
            )
        return 0

    return await run_with_store(args.store, work)


async def run_redeliver(args: argparse.Namespace) -> int:
    async def work(store: Store) -> int:
        keys, push_queue = args.keys, store.push_queue
        if args.dead:
            keys = [*keys, *(each.key for each in await push_queue.find(dead=True, limit=MAX_LISTED))]
        cursor = 0 if args.from_start else None
        missing = [key for key in dict.fromkeys(keys) if not await push_queue.redeliver(key, cursor=cursor)]
        for key in missing:
            print(f"there is no notification {key}")
        return 1 if missing else 0

    if not args.keys and not args.dead:
        raise SystemExit("dragoman: redeliver needs numbers of `dragoman push list`, or --dead")
    return await run_with_store(args.store, work)


def _document(delivery: Delivery) -> dict[str, Any]:
    return {
        "number": delivery.key,
        "tenant": delivery.scope.tenant,
        "agent": delivery.scope.agent,
        "task": delivery.task,
        "config": delivery.webhook.config.id,
        "url": _url_without_query(delivery),
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
        _url_without_query(delivery),
        waiting,
        state,
        str(delivery.attempt),
        delivery.error,
    )


def _url_without_query(delivery: Delivery) -> str:
    """The query may hold a secret."""
    return delivery.webhook.config.url.partition("?")[0]
