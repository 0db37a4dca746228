"""What the verbs that talk to an agent have in common: the options to reach it, and what to say when that fails."""

from __future__ import annotations

import argparse
import asyncio
import os
import ssl
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.cli import show
from dragoman.client import Client, ClientCertificate, connect
from dragoman.client.agents_table import entry_for, read_agents
from dragoman.client.credentials import named
from dragoman.client.discover import address
from dragoman.client.origin import origin_of
from dragoman.errors import A2AError
from dragoman.model.task import TaskState

HUB_URL = "http://127.0.0.1:8080"
"""Where `dragoman hub` is unless it is told otherwise."""
EXIT_STATES = "Exits with 0 when the task is completed, 2 when it asks for something, 1 otherwise."


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", metavar="AGENT", help="a URL, a card, a file with one, or a name in dragoman.toml"
    )
    parser.add_argument(
        "--auth",
        metavar="SECRET",
        help="token, API key or name:password, as the card asks; env:NAME reads a variable",
    )
    parser.add_argument(
        "--header", action="append", default=[], metavar="NAME:VALUE", help="one more header; may be repeated"
    )
    parser.add_argument(
        "--version", default="", help="speak this version of A2A only: 1.0, 0.3, 0.2, 0.1, draft, arbiter"
    )
    parser.add_argument("--binding", default="", help="use this binding only: JSONRPC, HTTP+JSON, GRPC")
    parser.add_argument(
        "--ca", metavar="FILE", help="believe servers whose certificate this authority has signed (PEM)"
    )
    parser.add_argument(
        "--cert", metavar="FILE", help="show this client certificate, with its key (PEM), instead of --auth"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long, all told")
    parser.add_argument("--json", action="store_true", help="print JSON")


def intermixed(parser: argparse.ArgumentParser) -> None:
    """Let `AGENT --option TEXT` mean what it says: left alone, argparse takes TEXT for missing at the first option."""
    plainly = parser.parse_known_args

    def parse(args: Any = None, namespace: Any = None) -> Any:
        parser.parse_known_args = plainly  # type: ignore[method-assign]
        try:
            return parser.parse_known_intermixed_args(args, namespace)
        finally:
            parser.parse_known_args = parse  # type: ignore[method-assign]

    parser.parse_known_args = parse  # type: ignore[method-assign]


def options(args: argparse.Namespace) -> dict[str, Any]:
    """The parsed options, as `connect` takes them."""
    headers = {}
    for line in args.header:
        name, colon, value = line.partition(":")
        if not colon:
            raise SystemExit(f"dragoman: --header {line!r} should be NAME:VALUE")
        headers[name.strip()] = value.strip()
    if args.cert and args.auth:
        raise SystemExit("dragoman: show --auth or --cert, not both")
    tls = None
    if args.ca:
        with named(args.ca):
            tls = ssl.create_default_context(cafile=args.ca)
    return {
        "credentials": ClientCertificate(args.cert) if args.cert else args.auth or _hub_token(args.url),
        "tls": tls,
        "headers": headers,
        "version": args.version,
        "binding": args.binding,
        "timeout": args.timeout,
    }


def _hub_token(url: str) -> str | None:
    """DRAGOMAN_TOKEN, if the agent is one of the hub at DRAGOMAN_URL: nobody else is shown it.

    What dragoman.toml says to show the agent comes first.
    """
    token = os.environ.get("DRAGOMAN_TOKEN")
    if not token:
        return None
    agents = read_agents()
    try:
        there = address(url, agents)
        entry = agents.get(url) or (entry_for(there, agents) if isinstance(there, str) else None)
        if not isinstance(there, str) or (entry is not None and entry.proof is not None):
            return None
        same = _machine(there) == _machine(os.environ.get("DRAGOMAN_URL") or HUB_URL)
    except A2AError:  # it is no address: whoever connects says so
        return None
    return token if same else None


def _machine(url: str) -> str:
    """The origin of a URL; localhost is the loopback address that servers listen on."""
    return origin_of(url).replace("://localhost:", "://127.0.0.1:")


async def reached(args: argparse.Namespace, work: Callable[[Client], Awaitable[int]], **more: Any) -> int:
    """Connect, do `work`, and turn what goes wrong into a sentence and an exit code."""
    try:
        async with asyncio.timeout(args.timeout), connect(args.url, **options(args), **more) as agent:
            return await work(agent)
    except BrokenPipeError:  # whoever read what we print has gone
        raise
    except TimeoutError as error:
        return failed(str(error) or f"{args.url} did not finish in time")
    except (A2AError, OSError, ValueError) as error:
        return failed(error)


def failed(error: Exception | str) -> int:
    show.say(f"dragoman: {error}", sys.stderr)
    return 1


def exit_code(state: TaskState) -> int:
    return 0 if state is TaskState.COMPLETED else 2 if state.interrupted else 1
