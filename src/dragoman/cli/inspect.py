"""`dragoman inspect AGENT`: look at any agent in a browser, or check its card for a script."""

from __future__ import annotations

import argparse
import asyncio
import sys
import webbrowser
from typing import Any

import msgspec

from dragoman.cli import show
from dragoman.cli.arguments import add_command, add_flag, secret
from dragoman.cli.connect import (
    EXIT_STATES,
    FAILURE,
    add_agent_options,
    connect_options,
    parse_agent,
    report_error,
)
from dragoman.client.config import find_entry, read_agents
from dragoman.client.discover import resolve_target
from dragoman.errors import A2AError

EPILOG = f"""\
Without --json, this prints the URL of a page on loopback, with a one-time token in it. The page shows the agent's card with
findings, how the agent is called and why, a chat, every request and response, a test of resumed streams, and ways to log in.
The agent may be anybody's, of any version of A2A. Private addresses are called only if they are the one that you name here,
unless you say --allow-private.

  dragoman inspect https://agent.example.com
  dragoman inspect http://127.0.0.1:8000 --open                     and open the page in a browser
  dragoman inspect https://agent.example.com --auth env:TOKEN       with a credential, as for `dragoman send`
  dragoman inspect https://agent.example.com --json                 card, findings and choice; no page

{EXIT_STATES.replace("0 if the agent answered (with --fail: only if the task completed)", "0 if the card has no finding that is an error")}
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "inspect", "look at any agent: card with findings, chat, bytes, login", EPILOG, run
    )
    add_agent_options(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="loopback address of the page (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=0, help="port of the page (default: a free one)")
    add_flag(parser, "--open", help="open the page in a browser")
    add_flag(
        parser,
        "--allow-private",
        help="also call loopback and private addresses that a card names or that you type into the page",
    )


def run(args: argparse.Namespace) -> int:
    parse_agent(args)
    if args.output is not None:
        return asyncio.run(_check(args))
    return _serve(args)


def _target(args: argparse.Namespace) -> tuple[str, Any]:
    """The URL of the agent, and the credential for it. Raises `A2AError`."""
    if args.ca or args.cert or args.insecure:
        args.refuse("the inspector has no --ca, --cert and --insecure")
    agents = read_agents()
    where = resolve_target(args.url, agents)
    if not isinstance(where, str):
        raise ValueError("give the URL of an agent, or a name in dragoman.toml, not a file")
    options = connect_options(args)
    entry = agents.get(args.url) or find_entry(where, agents)
    credential = options["credentials"]
    if credential is None and entry is not None:
        credential = entry.credential
    if options["headers"]:
        args.refuse("the inspector has no --svc-param: use --auth, --bearer or --api-key")
    return where, credential


def _secrets(credential: Any) -> list[str]:
    """What the page never shows of a credential."""
    if isinstance(credential, dict):
        credential = tuple(credential.values())
    values = credential if isinstance(credential, tuple) else (credential,)
    return [secret(each) for each in values if isinstance(each, str)]


def _guard(args: argparse.Namespace, url: str) -> Any:
    from dragoman.push.guard import OutboundGuard

    guard = OutboundGuard(allow_private=args.allow_private)
    guard.allow(url)
    return guard


async def _check(args: argparse.Namespace) -> int:
    """Print what is known of the agent. Exit 1 if a finding is an error."""
    from dragoman.console.inspect import inspect_agent

    try:
        url, credential = _target(args)
        async with asyncio.timeout(args.timeout):
            found = await inspect_agent(
                url,
                _guard(args, url),
                credentials=credential,
                version=args.a2a_version,
                binding=args.transport[0] if args.transport else "",
            )
    except TimeoutError:
        return report_error(TimeoutError(f"{args.url} did not answer in time"), args)
    except (A2AError, OSError, ValueError) as error:
        return report_error(error, args, connected=False)
    plain = msgspec.json.decode(msgspec.json.encode(found))
    if args.json:
        show.json(plain)
    else:
        _print(plain)
    wrong = found["problem"] or any(each.severity == "error" for each in found["findings"])
    return FAILURE if wrong or found["signature"]["state"] == "invalid" else 0


def _print(found: dict[str, Any]) -> None:
    chosen = found["chosen"]
    show.fields(
        [
            ("name", str(found["card"].get("name", "")) if isinstance(found["card"], dict) else ""),
            ("card", f"{found['found']['url']} (A2A {found['found']['version']})"),
            (
                "chosen",
                f"A2A {chosen['version']}, {chosen['binding']}, {chosen['url']}" if chosen else "nothing",
            ),
            ("signature", found["signature"]["message"]),
            ("problem", found["problem"]),
        ]
    )
    for each in found["findings"]:
        show.say(
            f"{each['severity']}: {each['pointer'] or '/'}: {each['message']} {each['fix']} [{each['rule']}]"
        )


def _serve(args: argparse.Namespace) -> int:
    from dragoman.console import CALLING_FEATURES, calling_modules
    from dragoman.console.access import Access, OneTimeToken, OperatorToken
    from dragoman.console.api import Console
    from dragoman.console.login import Logins
    from dragoman.observe.logs import configure
    from dragoman.server.address import is_loopback
    from dragoman.server.app import App
    from dragoman.server.runtime import run as serve

    if args.a2a_version or args.transport or args.timeout:
        args.refuse(
            "--a2a-version, --transport and --timeout are for --json: choose version and binding in the inspector's page"
        )
    if not is_loopback(args.host):
        args.refuse("the page of the inspector is served on loopback only")
    try:
        url, credential = _target(args)
        guard = _guard(args, url)
        logins = Logins(guard)
        handle = logins.add(credential, url, *_secrets(credential)).handle if credential is not None else ""
    except (A2AError, ValueError, argparse.ArgumentTypeError) as error:
        return report_error(error, args)
    configure("debug" if args.debug else "warning", lines="short")
    one_time, token = OneTimeToken(), OneTimeToken().text
    access = Access(OperatorToken(token), one_time=one_time, hosts=[args.host])
    modules = calling_modules(guard, logins, url=url, handle=handle)
    app = App(
        [],
        console=Console(access, kind="inspect", features=CALLING_FEATURES, modules=modules),
        on_shutdown=[logins.close],
    )

    def announce(address: str) -> None:
        page = f"{address}/console/#token={one_time.text}"
        print(page, flush=True)
        if args.open and not webbrowser.open(page):
            print("dragoman: no browser could be opened", file=sys.stderr)

    serve(app, args.host, args.port, announce)
    return 0
