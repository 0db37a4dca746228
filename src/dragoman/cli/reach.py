"""What the verbs that talk to an agent have in common: the options to reach it, and what to say when that fails.

Options, output and exit status follow the A2A project's specification of command lines (a2a-cli 0.2) where it has a say.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import re
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from dragoman.cli import show
from dragoman.client import Client, ClientCertificate, connect
from dragoman.client.agents_table import find_entry, read_agents
from dragoman.client.authorize import origin_of
from dragoman.client.credentials import name_files
from dragoman.client.discover import resolve_target
from dragoman.client.transport.transport import Rejected
from dragoman.errors import A2AError, Forbidden, InvalidAgentResponse, Unauthenticated, Unreachable
from dragoman.model.task import TaskState

HUB_URL = "http://127.0.0.1:8080"
"""Where `dragoman hub` is unless it is told otherwise."""
EXIT_STATES = """\
Exits with 0 when the agent has answered, whatever became of the task (--fail: with 1 unless it is completed), 2 when an option
is wrong, 3 when the agent cannot be reached, 4 when it does not let us in, 5 when the time is up, 1 otherwise."""
FAILURE, USAGE, UNREACHABLE, REFUSED, TIMED_OUT = 1, 2, 3, 4, 5

log = logging.getLogger("dragoman.cli")


def add_options(parser: argparse.ArgumentParser, *more: str) -> None:
    """The agent and what follows it on the command line (`more`, which `target` names), and the options to reach it."""
    parser.add_argument(
        "words",
        nargs="*",
        metavar=" ".join(["AGENT", *more]),
        help="the agent: a URL, a file with a card, or a name in dragoman.toml",
    )
    parser.add_argument("-a", "--agent-card", metavar="AGENT", help="the agent, instead of the first word")
    parser.add_argument(
        "--auth",
        metavar="SECRET",
        help="token, API key or name:password, as the card asks; env:NAME reads a variable",
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
        help="one more header, or gRPC metadata; may be repeated",
    )
    parser.add_argument(
        "--a2a-version",
        default="",
        metavar="VERSION",
        help="speak this version of A2A only: 1.0, 0.3, 0.2, 0.1, draft, arbiter",
    )
    parser.add_argument(
        "--transport",
        action="append",
        default=[],
        metavar="BINDING",
        help="prefer this binding: JSONRPC, HTTP+JSON, GRPC; may be repeated, the best first",
    )
    parser.add_argument(
        "--ca", metavar="FILE", help="believe servers whose certificate this authority has signed (PEM)"
    )
    parser.add_argument(
        "--cert", metavar="FILE", help="show this client certificate, with its key (PEM), instead of --auth"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="believe every server's certificate, for development"
    )
    parser.add_argument(
        "--timeout", type=duration, metavar="TIME", help="give up after so long, all told: 30, 500ms, 2m"
    )
    parser.add_argument(
        "-o",
        "--output",
        choices=("text", "json"),
        help="text: a field on a line, for programs; json: the protocol's own (default: for people)",
    )
    parser.add_argument("--json", action="store_const", const="json", dest="output", help="-o json")
    parser.add_argument("--debug", action="store_true", help="say on standard error how the agent is reached")
    parser.set_defaults(refuse=parser.error)
    intermixed(parser)


def target(args: argparse.Namespace, *names: str) -> list[str]:
    """Find the agent among the words, and those that have `names`. Returns the words that are left."""
    words = list(args.words)
    for name in ("url", *names):
        if name == "url" and args.agent_card:
            args.url = args.agent_card
        elif words:
            setattr(args, name, words.pop(0))
        else:
            args.refuse(f"which {'agent' if name == 'url' else name}?")
    args.json = args.output == "json"
    if args.debug:
        from dragoman.observe.logs import configure

        configure("debug")
    return words


def duration(text: str) -> float:
    """Seconds: `30`, `1.5`, `500ms`, `2m`, `1h`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h|)", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: say 30, 500ms or 2m")
    return float(found[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(found[2], 1)


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
            args.refuse(f"--svc-param {line!r} should be NAME:VALUE")
        headers[name.strip()] = value.strip()
    secrets = [each for each in (args.auth, args.bearer, args.api_key, args.cert) if each]
    if len(secrets) > 1:
        args.refuse("show one of --auth, --bearer, --api-key and --cert")
    tls = None
    if args.ca or args.insecure:
        with name_files(args.ca or ""):
            tls = ssl.create_default_context(cafile=args.ca)
    if args.insecure and tls is not None:
        print("dragoman: --insecure: anybody could answer in the agent's place", file=sys.stderr)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return {
        "credentials": ClientCertificate(args.cert)
        if args.cert
        else next(iter(secrets), None) or _given(args.url),
        "tls": tls,
        "headers": headers,
        "version": args.a2a_version,
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
        there = resolve_target(url, agents)
        entry = agents.get(url) or (find_entry(there, agents) if isinstance(there, str) else None)
        if not isinstance(there, str) or (entry is not None and entry.credential is not None):
            return None
        same = _machine(there) == _machine(os.environ.get("DRAGOMAN_URL") or HUB_URL)
    except A2AError:  # it is no address: whoever connects says so
        return None
    return token if same else None


def _machine(url: str) -> str:
    """The origin of a URL; localhost is the loopback address that servers listen on."""
    return origin_of(url).replace("://localhost:", "://127.0.0.1:")


def _given(url: str) -> str | None:
    """What the environment has to show to the agent."""
    return _hub_token(url) or os.environ.get("A2ACLI_BEARER") or os.environ.get("A2ACLI_API_KEY")


async def binding(args: argparse.Namespace, **more: Any) -> str:
    """The first of the transports that were asked for that the agent offers; empty: whatever its card says first."""
    if not args.transport:
        return ""
    wanted: list[str] = [each.upper() for each in args.transport]
    async with connect(args.url, **options(args), **more) as agent:
        offered = {each.protocol_binding.upper() for each in agent.card.supported_interfaces}
    for each in wanted:
        if each in offered:
            return each
    show.say(f"dragoman: {args.url} offers none of {', '.join(wanted)}", sys.stderr)
    return ""


async def reached(args: argparse.Namespace, work: Callable[[Client], Awaitable[int]], **more: Any) -> int:
    """Connect, do `work`, and turn what goes wrong into a sentence and an exit code."""
    connected, began = False, time.monotonic()
    try:
        async with asyncio.timeout(args.timeout):
            chosen = await binding(args, **more)
            async with connect(args.url, **options(args), **more, binding=chosen) as agent:
                connected = True
                log.debug("%s: A2A %s at %s", agent.card.name, agent.version, agent.url)
                return await work(agent)
    except BrokenPipeError:  # whoever read what we print has gone
        raise
    except TimeoutError as error:
        return failed(TimeoutError(str(error) or f"{args.url} did not finish in time"), args)
    except (A2AError, OSError, ValueError) as error:
        return failed(error, args, connected=connected)
    finally:
        log.debug("it took %.3f s", time.monotonic() - began)


def failed(error: Exception | str, args: argparse.Namespace | None = None, *, connected: bool = True) -> int:
    """Say what went wrong, in the form that was asked for. Returns the exit status for it."""
    code, status, hint = _classified(error, args, connected=connected)
    if args is not None and getattr(args, "json", False):
        number = error.rpc if isinstance(error, A2AError) else None
        show.json({"error": {"code": code, "message": str(error), "hint": hint, "a2aCode": number}})
    else:
        show.say(f"dragoman: {error}", sys.stderr)
    return status


def _classified(
    error: Exception | str, args: argparse.Namespace | None, *, connected: bool
) -> tuple[str, int, str | None]:
    """The error's name for programs, the exit status, and what to do about it."""
    local = "A2ACLI_ERR_"
    match error:
        case TimeoutError():
            return local + "TIMEOUT", TIMED_OUT, None
        case Unauthenticated():
            shown = args is not None and (args.auth or args.bearer or args.api_key or args.cert)
            if shown or (args is not None and _given(args.url)):
                return local + "AUTH_FAILED", REFUSED, None
            return local + "CREDENTIALS_MISSING", REFUSED, "give --bearer, --api-key or --auth"
        case Forbidden():
            return local + "AUTH_FAILED", REFUSED, None
        case Rejected() if not connected:
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
    parser.add_argument("--fail", action="store_true", help="exit with 1 unless the task is completed")


def exit_code(args: argparse.Namespace, state: TaskState) -> int:
    return FAILURE if args.fail and state is not TaskState.COMPLETED else 0
