"""Connects a command to an agent or to a store, and turns errors into a sentence and an exit status.

Options, output and exit status follow the A2A project's specification of command lines (a2a-cli 0.2).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman.cli import show
from dragoman.cli.arguments import CommandParser, add_flag, add_repeated, describe, duration, exit_on
from dragoman.client import Client, ClientCertificate, connect
from dragoman.client.authorize import origin_of
from dragoman.client.catalogue import is_catalogue, split_catalogue
from dragoman.client.config import find_entry, read_agents
from dragoman.client.credentials import name_files
from dragoman.client.discover import resolve_target
from dragoman.client.transport.transport import RequestRejected
from dragoman.errors import A2AError, Forbidden, InvalidAgentResponse, Unauthenticated, Unreachable
from dragoman.model.task import TaskState

if TYPE_CHECKING:  # most commands need no store
    from dragoman.engine.protocols import Store

HUB_URL = "http://127.0.0.1:8080"
"""The default address of `dragoman hub`."""
EXIT_STATES = """\
Exit status: 0 if the agent answered (with --fail: only if the task completed), 2 if an option is wrong, 3 if the agent cannot
be reached, 4 if it refuses the credentials, 5 after --timeout, 1 for any other error."""
FAILURE, USAGE, UNREACHABLE, REFUSED, TIMED_OUT = 1, 2, 3, 4, 5

log = logging.getLogger("dragoman.cli")


def add_agent_options(parser: CommandParser, *more: str) -> None:
    """Add AGENT, the words after it (`more`, which `parse_agent` names), and the options to connect."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar=" ".join(["AGENT", *more]),
        help="the agent: a URL, a file with a card, a name in dragoman.toml, or catalogue://HOST/NAME",
    )
    parser.add_argument("-a", "--agent-card", metavar="AGENT", help="the agent, if it is not the first word")
    add_connection_options(parser)
    parser.add_argument(
        "--timeout", type=duration, metavar="TIME", help="stop after this time in total: 30, 500ms, 2m"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        help="text: one field per line; json: A2A's own form (default: for people)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="-o json")
    add_flag(parser, "--debug", help="log to standard error how the agent is reached")
    parser.set_defaults(refuse=parser.error)
    parser.intermixed = True


def add_connection_options(parser: argparse._ActionsContainer) -> None:
    """How to reach an agent and what to show to it, for `connect_options`."""
    add_credentials(parser)
    parser.add_argument(
        "--a2a-version",
        default="",
        metavar="VERSION",
        help="use only this version of A2A: 1.0, 0.3, 0.2, 0.1, draft, arbiter",
    )
    add_repeated(
        parser,
        "--transport",
        "BINDING",
        "use this binding if the agent offers it: JSONRPC, HTTP+JSON, GRPC; repeat it in order of preference",
    )


def add_credentials(parser: argparse._ActionsContainer) -> None:
    """What to show to a server, and which servers to trust, for `connect_options`."""
    parser.add_argument(
        "--auth",
        metavar="SECRET",
        help="token, API key or name:password, as the card requires; env:NAME reads a variable",
    )
    parser.add_argument("--bearer", metavar="TOKEN", help="a bearer token (or the variable A2ACLI_BEARER)")
    parser.add_argument("--api-key", metavar="KEY", help="an API key (or the variable A2ACLI_API_KEY)")
    parser.add_argument(
        "--svc-param",
        "--header",
        action="append",
        default=[],
        dest="header",
        metavar="NAME:VALUE",
        help="an additional header, or gRPC metadata; may be repeated",
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="trust servers with a certificate of this authority (PEM)"
    )
    parser.add_argument(
        "--cert", metavar="FILE", help="client certificate with its key (PEM), instead of --auth"
    )
    add_flag(parser, "--insecure", help="accept any server certificate; only for development")


def parse_agent(args: argparse.Namespace, *names: str, rest: str = "") -> None:
    """Set `args.url` and `names` from the words, and `rest` to the list of the others. Without `rest` there are no others."""
    words = list(args.words)
    for name in ("url", *names):
        if name == "url" and args.agent_card:
            args.url = args.agent_card
        elif words:
            setattr(args, name, words.pop(0))
        else:
            args.refuse(f"{'AGENT' if name == 'url' else name.removesuffix('_given').upper()} is missing")
    if rest:
        setattr(args, rest, words)
    elif words:
        args.refuse(f"{words[0]!r} is one word too many")
    args.json = args.output == "json"
    if args.debug:
        from dragoman.observe.logs import configure

        configure("debug")


def connect_options(args: argparse.Namespace) -> dict[str, Any]:
    """Turn the parsed options into arguments of `connect`."""
    headers = {}
    for line in args.header:
        name, colon, value = line.partition(":")
        if not colon:
            args.refuse(f"--svc-param {line!r} should be NAME:VALUE")
        headers[name.strip()] = value.strip()
    secrets = [each for each in (args.auth, args.bearer, args.api_key, args.cert) if each]
    if len(secrets) > 1:
        args.refuse("use only one of --auth, --bearer, --api-key and --cert")
    tls = None
    if args.ca or args.insecure:
        with name_files(args.ca or ""):
            tls = ssl.create_default_context(cafile=args.ca)
    if args.insecure and tls is not None:
        print("dragoman: --insecure: the server's identity is not checked", file=sys.stderr)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return {
        "credentials": ClientCertificate(args.cert)
        if args.cert
        else next(iter(secrets), None) or _secret_from_environment(args.url),
        "tls": tls,
        "headers": headers,
        "version": args.a2a_version,
        "timeout": args.timeout,
    }


def _hub_token(url: str) -> str | None:
    """Return DRAGOMAN_TOKEN if the agent is one of the hub at DRAGOMAN_URL. No other server gets it.

    Credentials in dragoman.toml come first.
    """
    token = os.environ.get("DRAGOMAN_TOKEN")
    if not token:
        return None
    agents = read_agents()
    try:
        there = resolve_target(url, agents)
        entry = agents.get(url) or (find_entry(there, agents) if isinstance(there, str) else None)
        if not isinstance(there, str) or (entry is not None and entry.credential is not None):
            return None
        if is_catalogue(there):
            there, _ = split_catalogue(there)
        same = _origin(there) == _origin(os.environ.get("DRAGOMAN_URL") or HUB_URL)
    except A2AError:  # not an address: `connect` reports it
        return None
    return token if same else None


def _origin(url: str) -> str:
    """The origin of a URL, with localhost as the loopback address."""
    return origin_of(url).replace("://localhost:", "://127.0.0.1:")


def _secret_from_environment(url: str) -> str | None:
    return _hub_token(url) or os.environ.get("A2ACLI_BEARER") or os.environ.get("A2ACLI_API_KEY")


async def choose_binding(args: argparse.Namespace, **more: Any) -> str:
    """Return the first binding of --transport that the agent offers. Empty: the first of its card."""
    if not args.transport:
        return ""
    wanted: list[str] = [each.upper() for each in args.transport]
    async with connect(args.url, **connect_options(args), **more) as agent:
        offered = {each.protocol_binding.upper() for each in agent.card.supported_interfaces}
    for each in wanted:
        if each in offered:
            return each
    show.say(f"dragoman: {args.url} offers none of {', '.join(wanted)}", sys.stderr)
    return ""


async def run_with_agent(
    args: argparse.Namespace, work: Callable[[Client], Awaitable[int]], **more: Any
) -> int:
    """Connect, run `work`, and report errors. Returns the exit status."""
    connected, began = False, time.monotonic()
    try:
        async with asyncio.timeout(args.timeout):
            chosen = await choose_binding(args, **more)
            async with connect(args.url, **connect_options(args), **more, binding=chosen) as agent:
                connected = True
                log.debug("%s: A2A %s at %s", agent.card.name, agent.version, agent.url)
                return await work(agent)
    except BrokenPipeError:  # the reader of our output is gone
        raise
    except TimeoutError as error:
        return report_error(TimeoutError(str(error) or f"{args.url} did not finish in time"), args)
    except (A2AError, OSError, ValueError) as error:
        return report_error(error, args, connected=connected)
    finally:
        log.debug("it took %.3f s", time.monotonic() - began)


def _check_exists(url: str) -> None:
    """Opening a SQLite file that does not exist would create it."""
    path = url.removeprefix("sqlite:///")
    if url.startswith("memory:") or (path != url and not Path(path).is_file()):
        raise SystemExit(f"dragoman: there is no store at {url}")


def add_store(parser: argparse.ArgumentParser) -> None:
    from dragoman.stores import default_store

    parser.add_argument("--store", default=default_store(), help="the server's store (default: %(default)s)")


async def run_with_store(url: str, work: Callable[[Store], Awaitable[int]]) -> int:
    """Open a server's store, and run `work`. The server may run meanwhile."""
    from dragoman.stores import UnsupportedSchema, open_store

    _check_exists(url)
    with exit_on(ValueError):
        store = open_store(url)
    with exit_on(UnsupportedSchema):
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()


def report_error(
    error: Exception | str, args: argparse.Namespace | None = None, *, connected: bool = True
) -> int:
    """Print an error in the form that --output asks for. Returns the exit status."""
    code, status, hint = _classify(error, args, connected=connected)
    if args is not None and getattr(args, "json", False):
        number = error.rpc if isinstance(error, A2AError) else None
        show.json({"error": {"code": code, "message": describe(error), "hint": hint, "a2aCode": number}})
    else:
        show.say(f"dragoman: {describe(error)}", sys.stderr)
        if code == _CREDENTIALS_MISSING and hint:
            show.say(hint, sys.stderr)
    return status


_CREDENTIALS_MISSING = "A2ACLI_ERR_CREDENTIALS_MISSING"


def _credentials_hint() -> str:
    if os.environ.get("DRAGOMAN_TOKEN"):
        hub = os.environ.get("DRAGOMAN_URL") or HUB_URL
        return f"DRAGOMAN_TOKEN is only for the hub at {hub}: set DRAGOMAN_URL, or use --bearer"
    return "use --bearer, --api-key or --auth"


def _classify(
    error: Exception | str, args: argparse.Namespace | None, *, connected: bool
) -> tuple[str, int, str | None]:
    """Return the error's name for programs, the exit status, and a hint."""
    local = "A2ACLI_ERR_"
    match error:
        case TimeoutError():
            return local + "TIMEOUT", TIMED_OUT, None
        case Unauthenticated():
            has_credentials = args is not None and (args.auth or args.bearer or args.api_key or args.cert)
            if has_credentials or (args is not None and _secret_from_environment(args.url)):
                return local + "AUTH_FAILED", REFUSED, None
            return _CREDENTIALS_MISSING, REFUSED, _credentials_hint()
        case Forbidden():
            return local + "AUTH_FAILED", REFUSED, None
        case RequestRejected() if not connected:
            return local + "CARD_NOT_FOUND", UNREACHABLE, None
        case Unreachable():
            missing = not connected and "no agent card" in str(error)
            return local + ("CARD_NOT_FOUND" if missing else "UNREACHABLE"), UNREACHABLE, None
        case InvalidAgentResponse() if not connected:
            return local + "CARD_INVALID", FAILURE, None
        case A2AError():
            name = "".join(word.capitalize() for word in error.reason.split("_"))
            return f"{name}Error", FAILURE, "--debug shows how the agent was reached"
        case ValueError():
            return local + "USAGE", USAGE, None
    return local + "INTERNAL", FAILURE, None


def add_fail(parser: argparse.ArgumentParser) -> None:
    add_flag(parser, "--fail", help="exit with 1 unless the task is completed")


def exit_code(args: argparse.Namespace, state: TaskState) -> int:
    return FAILURE if args.fail and state is not TaskState.COMPLETED else 0
