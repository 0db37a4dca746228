"""`dragoman find TEXT`: search the catalogue of an organisation, and register agents in it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag, count, duration
from dragoman.cli.connect import USAGE, add_credentials, connect_options, report_error, run_with_store
from dragoman.client.authorize import AuthorizedTransport, origin_of
from dragoman.client.catalogue import ListedAgent, RemoteCatalogue
from dragoman.client.config import find_entry, read_agents
from dragoman.client.connection import Options, combine_credentials
from dragoman.client.transport.network import LOOPBACK_HOSTS, HttpTransport
from dragoman.client.transport.transport import decode_json, read_at_most, to_error
from dragoman.engine.protocols import Store
from dragoman.errors import A2AError, InvalidParams
from dragoman.observe.terminal import one_line, shorten
from dragoman.stores import default_store

DEFAULT_URL = "http://127.0.0.1:8000"
_MAX_ANSWER = 1 << 20

EPILOG = """\
Searches names, skills, tags and descriptions. Without TEXT, it lists all agents. You see what your credentials show you.
The catalogue is --catalogue, else the variable DRAGOMAN_CATALOGUE, else url in [catalogue] of dragoman.toml, else
http://127.0.0.1:8000. It can be any server that publishes /.well-known/ard.json or /.well-known/ai-catalog.json.

  dragoman serve hello.py --catalogue                     publish a catalogue
  dragoman find "refund an order"
  dragoman find --catalogue https://agents.example.com --bearer env:TOKEN --json
  dragoman send catalogue://agents.example.com/refunds "refund order 7"

For operators: --add registers an agent elsewhere, --remove removes it. They change the store of the server (--store), which may run
meanwhile. With --catalogue they go to the console of that server, with the operator token in DRAGOMAN_CONSOLE_TOKEN.

  dragoman find --add https://money.example.com --name money
  dragoman find --remove money
"""


def register(commands: Any) -> None:
    parser = add_command(commands, "find", "search a catalogue of agents", EPILOG, run)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="what the agent should do")
    parser.add_argument("--catalogue", metavar="URL", help="the server whose catalogue it is")
    parser.add_argument(
        "-n", "--limit", type=count, default=20, help="at most this number of agents (default: 20)"
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), help="json: for programs (default: a table)"
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="-o json")
    access = parser.add_argument_group("access")
    add_credentials(access)
    access.add_argument(
        "--timeout", type=duration, metavar="TIME", help="stop after this time: 30, 500ms, 2m"
    )
    change = parser.add_argument_group("for operators")
    change.add_argument("--add", metavar="URL", help="register the agent at this URL")
    change.add_argument("--name", default="", help="its name in the catalogue (default: from its card)")
    add_flag(change, "--private", help="show it only to callers that an agent of the server accepts")
    change.add_argument("--tenant", default="", metavar="NAME", help="on a hub: show it only to this tenant")
    change.add_argument("--remove", metavar="NAME", help="remove a registered agent")
    change.add_argument(
        "--store", help=f"the store of the server, for --add and --remove (default: {default_store()})"
    )
    parser.set_defaults(refuse=parser.error, a2a_version="")


async def run(args: argparse.Namespace) -> int:
    args.json = args.output == "json"
    if args.add and args.remove:
        args.refuse("use one of --add and --remove")
    changes = args.add or args.remove
    if changes and args.text:
        args.refuse("--add and --remove take no TEXT")
    if not changes and (args.name or args.private or args.tenant or args.store):
        args.refuse("--name, --private, --tenant and --store belong to --add and --remove")
    if args.catalogue and args.store:
        args.refuse("use one of --catalogue and --store")
    try:
        if changes and not args.catalogue:
            return await run_with_store(
                args.store or default_store(), lambda store: _change_store(args, store)
            )
        args.url = args.catalogue or _default_url()
        async with asyncio.timeout(args.timeout):
            return await (_change_remote(args) if changes else _find(args))
    except TimeoutError:
        return report_error(TimeoutError(f"{args.url} did not answer in time"), args)
    except (A2AError, OSError, ValueError) as error:
        return report_error(error, args)


def _default_url() -> str:
    from dragoman.catalogue.settings import read_catalogue

    return os.environ.get("DRAGOMAN_CATALOGUE") or read_catalogue().url or DEFAULT_URL


def _transport(args: argparse.Namespace, secret: str | None = None) -> AuthorizedTransport:
    """A transport with the credentials of the options, else with those of [agents] for this URL."""
    if "://" not in args.url:
        raise ValueError(f"{args.url!r} is not a URL")
    given = connect_options(args)
    given.pop("timeout")
    options = Options(**given)
    if secret is not None:
        options = Options(tls=options.tls, headers=options.headers, credentials=secret)
    elif options.credentials is None and (entry := find_entry(args.url, read_agents())) is not None:
        options = Options(
            tls=options.tls, headers={**entry.headers, **options.headers}, credentials=entry.credential
        )
    transport = AuthorizedTransport(HttpTransport(tls=options.tls), tls=options.tls)
    transport.origin = origin_of(args.url)
    transport.credential = combine_credentials(options, None, transport.origin)
    return transport


async def _find(args: argparse.Namespace) -> int:
    text = " ".join(args.text)
    transport = _transport(args)
    try:
        catalogue = RemoteCatalogue(args.url, transport)
        found = await (catalogue.search(text, args.limit) if text.strip() else catalogue.list(args.limit))
    finally:
        await transport.close()
    if args.json:
        show.json({"agents": found})
    elif not found:
        show.say(
            f"dragoman: no agent of {args.url} matches" if text else f"dragoman: {args.url} shows no agent",
            sys.stderr,
        )
    else:
        _table(found, args.url)
    return 0


def _table(found: Sequence[ListedAgent], url: str) -> None:
    """On a terminal, how to call an agent is said once, below the table. Programs get the URL of each card."""
    rows = [
        (
            one_line(agent.name),
            one_line(agent.version) or "-",
            one_line(agent.health) or "-",
            one_line(agent.signature) or "-",
            shorten(agent.description or agent.title, 60),
            one_line(agent.url),
        )
        for agent in found
    ]
    headings = ("name", "version", "health", "signature", "about", "card")
    if not sys.stdout.isatty():
        show.table(headings, rows)
        return
    show.table(headings[:-1], [row[:-1] for row in rows])
    plain = url.startswith("http://") and (urlsplit(url).hostname or "") not in LOOPBACK_HOSTS
    place = f"{'catalogue+http' if plain else 'catalogue'}://{url.partition('://')[2].rstrip('/')}"
    show.say(f"\nTo call one: dragoman send {place}/{rows[0][0]} TEXT")


async def _change_store(args: argparse.Namespace, store: Store) -> int:
    from dragoman.catalogue.registered_agents import RegisteredAgents
    from dragoman.push.guard import Guard

    agents = RegisteredAgents(store.catalogue, Guard(allow_private=True))  # the operator named the URL
    if args.remove:
        await agents.remove(args.remove, tenant=args.tenant)
        return _say_removed(args)
    entry = await agents.add(args.add, name=args.name, tenant=args.tenant, private=args.private)
    return _say_added(args, entry.name, entry.title, entry.health.state, entry.health.error)


def _say_added(args: argparse.Namespace, name: str, title: str, health: str, error: str) -> int:
    if args.json:
        show.json({"name": name, "title": title, "health": health, "error": error})
    else:
        show.say(f"registered {name}: {one_line(title)}, {health}{f' ({one_line(error)})' if error else ''}")
    return 0


def _say_removed(args: argparse.Namespace) -> int:
    if args.json:
        show.json({"removed": args.remove})
    else:
        show.say(f"removed {args.remove}")
    return 0


async def _change_remote(args: argparse.Namespace) -> int:
    token = args.bearer or args.auth or os.environ.get("DRAGOMAN_CONSOLE_TOKEN")
    if not token:
        show.say(
            "dragoman: to change a catalogue elsewhere, put its operator token into DRAGOMAN_CONSOLE_TOKEN",
            sys.stderr,
        )
        return USAGE
    transport = _transport(args, token)
    api = f"{args.url.rstrip('/')}/console/api/catalogue"
    body = b""
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    if args.remove:
        method, url = "DELETE", f"{api}/{quote(args.remove, safe='')}?tenant={quote(args.tenant, safe='')}"
    else:
        method, url = "POST", api
        wanted = {"url": args.add, "name": args.name, "tenant": args.tenant, "private": args.private}
        body = msgspec.json.encode(wanted)
    try:
        response = await transport.request(method, url, headers, body)
        answer = await read_at_most(response, _MAX_ANSWER, url)
        if response.status not in (200, 201, 204):
            raise to_error(response, answer, url, _refused)
    finally:
        await transport.close()
    if args.remove:
        return _say_removed(args)
    added = decode_json(answer)
    health = added.get("health", {})
    return _say_added(args, added["name"], added["title"], health.get("state", ""), health.get("error", ""))


def _refused(document: dict[str, Any], status: int) -> A2AError:
    return InvalidParams(str(document["error"].get("message", f"HTTP {status}")))
