"""`dragoman listen`"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from typing import Any

from dragoman.cli import show
from dragoman.cli.arguments import add_address, secret
from dragoman.model.content import Message
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, StatusUpdate, Task
from dragoman.push.receive import Received, Verifier

EPILOG = """\
Runs a webhook that prints each push notification. Without --token, --secret or --jwks it accepts all notifications.

  dragoman listen --port 9000 --token abc
  dragoman send AGENT hi --push http://127.0.0.1:9000 --push-token abc

The server that sends must be allowed to reach this machine: `dragoman serve ... --allow-private-push`.
"""


def register(commands: Any) -> None:
    parser = commands.add_parser(
        "listen",
        help="print the push notifications that arrive",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
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
    parser.add_argument("--json", action="store_true", help="print JSON, one notification per line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from dragoman.auth.jwks import FetchedKeys
    from dragoman.push.webhook import Webhook
    from dragoman.server.http1.server import HttpServer
    from dragoman.server.workers import stop_signals

    try:
        verifier = Verifier(
            token=args.token,
            secrets=args.secret,
            keys=FetchedKeys(args.jwks) if args.jwks else None,
            issuer=args.issuer,
            audience=args.audience,
            insecure=True,
        )
    except ValueError as error:
        raise SystemExit(f"dragoman: {error}") from None
    try:
        listener = socket.create_server((args.host, args.port))
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise SystemExit(f"dragoman: cannot listen on {args.host}:{args.port}: {why}") from None
    print(f"listening on http://{args.host}:{listener.getsockname()[1]}/", flush=True)
    app = Webhook(_json if args.json else _line, verifier)
    asyncio.run(HttpServer(app, listener).serve(stop_signals()))
    return 0


def _json(received: Received) -> None:
    show.json(
        {"delivery": received.delivery, "task": received.task_id, "event": received.event}, pretty=False
    )


def _line(received: Received) -> None:
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
