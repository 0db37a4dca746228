"""`dragoman mcp AGENT` and `dragoman mcp install CLIENT AGENT`"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dragoman.cli import show
from dragoman.cli.arguments import add_address, add_command, add_flag, add_repeated, add_tls, duration, secret
from dragoman.cli.connect import (
    FAILURE,
    UNREACHABLE,
    add_connection_options,
    choose_binding,
    connect_options,
    parse_agent,
)
from dragoman.client import Client, connect
from dragoman.client.config import read_agents
from dragoman.client.discover import resolve_target
from dragoman.errors import A2AError, Unauthenticated

if TYPE_CHECKING:  # the extra `mcp` may not be installed
    from dragoman.mcp.install import McpClient

CARD_SECONDS = 5.0
"""How long the start waits for the agent's card. Without it, the server starts all the same."""

ABOUT = """\
Serves an A2A agent as an MCP server: each skill is a tool of programs such as Claude Code, Cursor or VS Code.
What the agent says while it works is progress, its files are resources, its questions are forms. A task that takes
long goes on at the agent; the tool check_task has its result later, also after a restart.
"""

EPILOG = """\
  dragoman mcp install claude-code https://agent.example.com      add it to Claude Code
  dragoman mcp install cursor https://agent.example.com --print   only show what would be added
  dragoman mcp https://agent.example.com                          on standard input and output, as clients start it
  dragoman mcp https://agent.example.com --bearer env:TOKEN       with credentials for the agent
  dragoman mcp https://agent.example.com --http --port 8765       over HTTP, for this machine
  dragoman mcp https://agent.example.com --http --host 0.0.0.0 --forward-auth
                                                                  for others; each shows a token, and the agent checks it

Clients of install: {clients}. Other clients take the command `dragoman mcp AGENT`.
Needs the extra: pip install 'dragoman[mcp]'
"""

_CLIENTS = "claude-code, claude-desktop, cursor, vscode, windsurf, codex, gemini, cline"


def register(commands: Any) -> None:
    parser = add_command(
        commands,
        "mcp",
        "use an agent as tools of an MCP client such as Claude Code",
        EPILOG.format(clients=_CLIENTS),
        run,
        description=ABOUT,
        usage="dragoman mcp [options] AGENT\n       dragoman mcp install [options] CLIENT AGENT",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="AGENT",
        help="the agent: a URL, a file with a card, or a name in dragoman.toml",
    )
    parser.add_argument("-a", "--agent-card", metavar="AGENT", help="the agent, if it is not a word")
    parser.add_argument(
        "--wait",
        type=duration,
        metavar="TIME",
        help="how long a tool waits for the end of a task before it returns the task's id: 50, 5m (default: 50)",
    )
    add_repeated(
        parser,
        "--files",
        "FOLDER",
        "let the client send files of this folder by their path; may be repeated (default: none)",
        type=Path,
    )
    agent = parser.add_argument_group("the agent", "as for `dragoman send`")
    add_connection_options(agent)
    add_flag(parser, "--debug", help="log to standard error")
    http = parser.add_argument_group("over HTTP, instead of standard input and output")
    add_flag(http, "--http", help="serve streamable HTTP at /mcp")
    add_address(http, port=8765)
    http.add_argument(
        "--token",
        type=secret,
        default=os.environ.get("DRAGOMAN_MCP_TOKEN", ""),
        metavar="TOKEN",
        help="callers show this bearer token; env:NAME reads a variable (or the variable DRAGOMAN_MCP_TOKEN)",
    )
    add_flag(
        http,
        "--forward-auth",
        help="show the Authorization of each caller to the agent, which decides. Without it, callers' tokens stay here",
    )
    add_tls(http)
    install = parser.add_argument_group(
        "install", "adds the agent to a client's configuration file, and keeps a copy of it"
    )
    install.add_argument(
        "--name", default="", help="name of the server in the file (default: from the agent's card)"
    )
    install.add_argument(
        "--scope",
        choices=("user", "project"),
        default="",
        help="the file of the user, or the one in this folder (default: project for claude-code and vscode, else user)",
    )
    install.add_argument(
        "--print", action="store_true", dest="only_print", help="show the entry, and change nothing"
    )
    add_flag(install, "--force", help="replace an entry of the same name")
    parser.set_defaults(refuse=parser.error, timeout=None, output=None)
    parser.intermixed = True


def run(args: argparse.Namespace) -> int:
    installs = args.words[:1] == ["install"]
    client = ""
    if installs:
        if len(args.words) == 1:
            args.refuse(f"CLIENT is missing: {_CLIENTS}")
        _, client, *args.words = args.words
    parse_agent(args)
    _check(args, installs)
    try:
        import dragoman.mcp.server  # noqa: F401
    except ImportError as error:
        raise SystemExit(f"dragoman mcp needs an extra: pip install 'dragoman[mcp]' ({error})") from None
    if installs:
        return asyncio.run(_install(args, client))
    return _serve_http(args) if args.http else asyncio.run(_serve_stdio(args))


def _check(args: argparse.Namespace, installs: bool) -> None:
    """Refuse options that contradict each other."""
    from dragoman.server.address import is_loopback

    if installs and args.http:
        args.refuse("install writes the command for standard input and output: leave out --http")
    if not installs and (args.name or args.scope or args.only_print or args.force):
        args.refuse("--name, --scope, --print and --force are for `dragoman mcp install CLIENT AGENT`")
    if not args.http:
        if args.forward_auth or args.tls_cert or args.tls_key:
            args.refuse("--forward-auth and --tls-cert need --http")
        return
    if args.forward_auth and (args.auth or args.bearer or args.api_key or args.cert):
        args.refuse("with --forward-auth the agent sees the callers' credentials: give none here")
    if args.forward_auth and args.token:
        args.refuse("use --token or --forward-auth: both are the caller's Authorization header")
    if not is_loopback(args.host) and not (args.token or args.forward_auth):
        args.refuse(
            f"{args.host} can be reached from other machines, and anybody there could call the agent: "
            "use --token or --forward-auth"
        )
    if args.tls_key and not args.tls_cert:
        args.refuse("--tls-key needs --tls-cert")


async def _agent_server(args: argparse.Namespace) -> Any:
    """The MCP server of the agent. It starts without the agent, too, and connects when it is there."""
    from dragoman.mcp.clients import Clients
    from dragoman.mcp.http_server import forward_headers
    from dragoman.mcp.server import AgentServer, McpOptions

    try:
        binding = await choose_binding(args)
    except (A2AError, OSError, TimeoutError):
        binding = ""
    options = connect_options(args)

    def make(headers: Mapping[str, str]) -> Client:
        shown = {**options, "headers": {**options["headers"], **headers}}
        if args.forward_auth:
            shown["credentials"] = None
        return connect(args.url, **shown, binding=binding)

    clients = Clients(make)
    name = about = version = ""
    try:
        async with asyncio.timeout(CARD_SECONDS):
            client = await clients.acquire()
            name, about, version = client.card.name, client.card.description, client.card.version
            await clients.release(client)
    except (A2AError, OSError, TimeoutError, ValueError) as error:
        if not args.forward_auth or not isinstance(error, Unauthenticated):
            show.say(f"dragoman: the agent does not answer yet: {error or 'it took too long'}", sys.stderr)
    chosen: dict[str, Any] = {"files": tuple(each.resolve() for each in args.files)}
    if args.wait is not None:
        chosen["wait"] = args.wait
    if args.forward_auth:
        chosen["headers"] = forward_headers(["authorization"])
    return AgentServer(clients, McpOptions(**chosen), name=name or "dragoman", about=about, version=version)


async def _serve_stdio(args: argparse.Namespace) -> int:
    from mcp.server.stdio import stdio_server

    agent = await _agent_server(args)
    try:
        async with stdio_server() as (read, write):
            await agent.server.run(read, write, agent.server.create_initialization_options())
    finally:
        await agent.close()
    return 0


def _serve_http(args: argparse.Namespace) -> int:
    from dragoman.server.http1.server import BACKLOG, HttpServer, new_event_loop
    from dragoman.server.runtime import bind, open_tls
    from dragoman.server.workers import stop_signals

    tls = open_tls(args.tls_cert, args.tls_key) if args.tls_cert else None
    listener = bind(args.host, args.port)
    listener.listen(BACKLOG)

    async def serve() -> None:
        from dragoman.mcp.http_server import PATH, HttpEndpoint

        agent = await _agent_server(args)
        endpoint = HttpEndpoint(
            agent, token=args.token, forward=["authorization"] if args.forward_auth else ()
        )
        server = HttpServer(
            endpoint,
            listener,
            tls=tls.context if tls is not None else None,
            startup=endpoint.start,
            drain=endpoint.stop,
            each_second=tls.renew if tls is not None else None,
        )
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"MCP: {'https' if tls else 'http'}://{host}:{listener.getsockname()[1]}{PATH}", flush=True)
        await server.serve(stop_signals())

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    return 0


# -- install ---------------------------------------------------------------------------------------------------------


async def _install(args: argparse.Namespace, name: str) -> int:
    from dragoman.mcp.install import CLIENTS, NAME, InstallError, config_file, make_entry, plan_change, write

    client = CLIENTS.get(name)
    if client is None:
        args.refuse(f"{name!r} is not a client that is known here: {', '.join(CLIENTS)}")
    assert client is not None
    if args.name and not NAME.fullmatch(args.name):
        args.refuse("--name: letters, digits, - and _, at most 32")
    try:
        resolve_target(args.url, read_agents())
    except (A2AError, ValueError) as error:  # an agent that is away is added, an unknown name is not
        show.say(f"dragoman: {error}", sys.stderr)
        return FAILURE
    given = _arguments(args)
    server, problem = args.name, ""
    if not server or not args.only_print:
        card_name, problem = await _card_name(args)
        server = server or _server_name(card_name, args.url)
    try:
        path = config_file(client, args.scope, folder=Path.cwd(), env=os.environ)
        added = make_entry(client, [*_command(), *given])
        change = plan_change(client, path, server, added, force=args.force)
        if args.only_print:
            show.say(f"{path}:", sys.stderr)
            print(change.snippet, end="")
            return 0
        if not change.needed:
            print(f"{path} has the server {server!r} already")
            return 0
        copy = write(change)
    except InstallError as error:
        show.say(f"dragoman: {error}", sys.stderr)
        return FAILURE
    print(f"{client.title}: added the server {server!r} to {path}")
    if copy is not None:
        print(f"the file as it was: {copy}")
    if client.next_step:
        print(f"now: {client.next_step}")
    _warn(client, args)
    if problem:
        show.say(f"dragoman: the agent does not answer now: {problem}", sys.stderr)
        return UNREACHABLE
    return 0


def _arguments(args: argparse.Namespace) -> list[str]:
    """The options of `dragoman mcp` for the file. Secrets are named there, never written."""
    for option, value in (("--auth", args.auth), ("--bearer", args.bearer), ("--api-key", args.api_key)):
        if value and not value.startswith("env:"):
            args.refuse(
                f"{option} would stand in a file that others may read: put it in a variable, and use {option} env:NAME"
            )
    for line in args.header:
        if line.partition(":")[0].strip().lower() in ("authorization", "cookie", "x-api-key"):
            args.refuse(
                "a secret in --header would stand in a file: use --bearer env:NAME or --api-key env:NAME"
            )
    url = args.url
    if "://" not in url and Path(url).is_file():
        url = str(Path(url).resolve())
    words = ["mcp", url]
    for option, value in (
        ("--auth", args.auth),
        ("--bearer", args.bearer),
        ("--api-key", args.api_key),
        ("--a2a-version", args.a2a_version),
        ("--ca", args.ca and str(Path(args.ca).resolve())),
        ("--cert", args.cert and str(Path(args.cert).resolve())),
        ("--wait", args.wait and f"{args.wait:g}"),
        *(("--header", line) for line in args.header),
        *(("--transport", each) for each in args.transport),
        *(("--files", str(each.resolve())) for each in args.files),
    ):
        if value:
            words += [option, value]
    return [*words, "--insecure"] if args.insecure else words


def _warn(client: McpClient, args: argparse.Namespace) -> None:
    named = [each[4:] for each in (args.auth, args.bearer, args.api_key) if each]
    if named:
        print(
            f"{client.title} has to know the variable {named[0]}: a program of the desktop does not see those of a shell"
        )


def _command() -> list[str]:
    """How to start this program. The first word is an absolute path: clients of the desktop have another PATH."""
    found = shutil.which("dragoman")
    return [found] if found else [sys.executable, "-m", "dragoman.cli"]


async def _card_name(args: argparse.Namespace) -> tuple[str, str]:
    """The name on the agent's card, or why there is none."""
    try:
        async with asyncio.timeout(CARD_SECONDS), connect(args.url, **connect_options(args)) as agent:
            return agent.card.name, ""
    except (A2AError, OSError, ValueError) as error:
        return "", str(error) or "it took too long"


def _server_name(card_name: str, url: str) -> str:
    from dragoman.mcp.card_tools import tool_name

    name = tool_name(card_name.lower()) or tool_name(urlsplit(url).hostname or Path(url).stem) or "agent"
    return name[:32].strip("_-")
