"""`dragoman serve FILE[:agent]`, `dragoman serve MODULE[:agent]`, `dragoman serve --mcp-server COMMAND`"""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from functools import partial
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, cast

from dragoman.buses import open_bus
from dragoman.cli.arguments import (
    add_address,
    add_command,
    add_flag,
    add_limits,
    add_quiet,
    add_repeated,
    add_serving,
    add_tls,
    checked,
    count,
    days,
    exit_on,
    number,
    positive_number,
    read_limits,
    secret,
)
from dragoman.server.cors import Cors
from dragoman.stores import default_store, open_store

if TYPE_CHECKING:
    from dragoman.server.options import ServeOptions

EPILOG = """\
FILE is a Python file that creates an Agent. FILE:name serves only the agent with this name. A file of a package is imported as
a part of the package. MODULE or MODULE:name is imported as `python -m` does, from this folder or installed.
One agent has the path /, several have the paths /<id>. All versions of A2A use the same URL.
`agent.run()` in the file only selects the agents. The options here say how they are served.

  dragoman serve hello.py
  dragoman serve hello.py currency.py --port 9000
  dragoman serve mypkg.agents:billing                           the agent `billing` of a module
  dragoman serve hello.py --store memory:                       tasks only in memory
  dragoman serve hello.py --store postgresql://db.example.com/tasks     on several machines
  dragoman serve hello.py --grpc-port 50051                     also over gRPC
  dragoman serve hello.py --public-url https://agents.example.com   behind a proxy
  dragoman serve hello.py --catalogue                           others find its agents: dragoman find TEXT
  dragoman serve --mcp-server "npx -y @modelcontextprotocol/server-memory"    the tools of an MCP server as an agent
  dragoman serve hello.py --console                             with pages that show its tasks: open the URL it prints
"""


_SERVE_OPTIONS = (
    "host", "port", "store", "grpc_port", "grpc_public", "public_url", "trusted_proxies", "cors_origins", "tls_cert", "tls_key",
    "tls_client_ca", "keys", "workers", "drain", "ttl", "max_running", "retain", "retain_unfinished", "log_level", "insecure", "mcp",
)  # fmt: skip
"""Options that `serve` takes as they are, under the same name."""


def register(commands: Any) -> None:
    parser = add_command(commands, "serve", "serve the agents of a file or module", EPILOG, run)
    parser.add_argument(
        "files", nargs="*", metavar="FILE[:agent]", help="a Python file or module that creates an Agent"
    )
    _add_mcp_servers(parser)
    add_server_options(parser)


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """The options of a server, for every command that runs one."""
    add_address(parser)
    add_serving(parser)
    parser.add_argument(
        "--store",
        type=checked(open_store),
        default=default_store(),
        help="sqlite:///PATH, postgresql://HOST/DATABASE or memory: (default: %(default)s)",
    )
    parser.add_argument(
        "--bus",
        type=checked(open_bus),
        metavar="URL",
        help="how nodes wake each other, if not with NOTIFY in the store: nats://HOST, or postgresql://HOST/DATABASE "
        "if --store goes through a pooler",
    )
    add_flag(
        parser,
        "--mcp",
        help="also serve MCP clients such as Claude Code, at /mcp below the path of each agent (extra: mcp)",
    )
    parser.add_argument("--grpc-public", default="", metavar="HOST:PORT", help="address of gRPC in the card")
    parser.add_argument("--public-url", default="", help="URL of this server in the card")
    add_repeated(
        parser,
        "--trusted-proxy",
        "CIDR",
        "trust Forwarded headers of proxies in this network; may be repeated",
        dest="trusted_proxies",
    )
    add_repeated(
        parser,
        "--cors-origin",
        "ORIGIN",
        "web pages that may call agents: https://app.example.com, or * for all; may be repeated (default: none)",
        type=checked(lambda text: Cors([text])),
        dest="cors_origins",
    )
    add_tls(parser)
    parser.add_argument(
        "--tls-client-ca", default="", metavar="FILE", help="require client certificates of this authority"
    )
    parser.add_argument("--keys", metavar="DIR", help="sign cards with the keys in DIR (see `dragoman keys`)")
    parser.add_argument(
        "--workers",
        type=count,
        default=1,
        help="number of server processes, which share the store (default: 1)",
    )
    parser.add_argument(
        "--drain",
        type=number,
        default=10.0,
        help="seconds that running tasks get to finish at shutdown (default: 10)",
    )
    parser.add_argument(
        "--ttl",
        type=positive_number,
        default=30.0,
        metavar="SECONDS",
        help="lease time: if this node does not renew its leases for so long, others take over its tasks (default: 30)",
    )
    parser.add_argument(
        "--retain-days",
        type=days,
        dest="retain",
        metavar="RETAIN_DAYS",
        help="delete finished tasks after this many days (default: never)",
    )
    parser.add_argument(
        "--retain-unfinished-days",
        type=days,
        dest="retain_unfinished",
        metavar="RETAIN_UNFINISHED_DAYS",
        help="delete unfinished tasks that no node runs and that did not change for this many days (default: never)",
    )
    parser.add_argument(
        "--log", default="plain", choices=("plain", "json"), help="format of log lines (default: %(default)s)"
    )
    add_quiet(parser)
    _add_quotas(parser)
    add_limits(parser)
    _add_push(parser)
    _add_monitoring(parser)
    _add_console(parser)
    _add_catalogue(parser)


def _add_quotas(parser: argparse.ArgumentParser) -> None:
    limits = parser.add_argument_group("limits of one caller", "default: no limit")
    limits.add_argument("--rate", type=positive_number, help="operations per second")
    limits.add_argument("--burst", type=count, default=20, help="operations at once, before --rate counts")
    limits.add_argument("--concurrency", type=count, help="operations at a time, streams included")
    limits.add_argument("--open-tasks", type=count, help="unfinished tasks with one agent")
    limits.add_argument(
        "--shared-quotas",
        action=argparse.BooleanOptionalAction,
        dest="shared",
        help="count rates and concurrency over all servers that use the store (default: with PostgreSQL)",
    )
    overall = parser.add_argument_group("limits of all callers together", "default: no limit")
    overall.add_argument("--agent-rate", type=positive_number, help="operations per second with one agent")
    overall.add_argument(
        "--agent-burst", type=count, default=100, help="operations at once, before --agent-rate counts"
    )
    overall.add_argument(
        "--agent-concurrency", type=count, help="operations at a time with one agent, streams included"
    )
    overall.add_argument(
        "--queue",
        type=count,
        help="tasks that may run or wait in all workers; more are refused with 503 (default: as many as may run)",
    )
    overall.add_argument(
        "--max-running",
        type=count,
        default=10_000,
        help="tasks that run at a time in each worker (default: %(default)s)",
    )


def _add_push(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("push notifications")
    add_repeated(group, "--push-only", "HOST", "allow webhooks only on this host; may be repeated")
    add_repeated(
        group,
        "--push-trust",
        "CIDR",
        "allow webhooks in this private network; may be repeated",
        type=checked(partial(ip_network, strict=False)),
    )
    add_flag(group, "--push-challenge", help="ask a new webhook first whether it wants notifications")
    add_flag(
        group,
        "--allow-private-push",
        help="for development: allow webhooks on this machine and in private networks, also over plain HTTP",
    )


def _add_monitoring(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("monitoring")
    add_flag(group, "--no-metrics", help="do not serve /metrics")
    add_flag(group, "--no-audit", help="write no audit log")
    add_flag(group, "--otel", help="send OpenTelemetry spans to OTEL_TRACES_EXPORTER (extra: otel)")


def _add_mcp_servers(parser: argparse.ArgumentParser) -> None:
    """The options that serve MCP servers as agents."""
    group = parser.add_argument_group("MCP servers as agents (extra: mcp)")
    add_repeated(
        group,
        "--mcp-server",
        "COMMAND|URL",
        "serve the tools of this MCP server as the skills of an agent; may be repeated",
    )
    add_repeated(
        group,
        "--mcp-env",
        "NAME",
        "give this variable of our environment to the commands of --mcp-server; may be repeated",
    )
    group.add_argument(
        "--mcp-bearer",
        type=secret,
        default="",
        metavar="TOKEN",
        help="bearer token for the URL of --mcp-server; env:NAME reads a variable",
    )
    group.add_argument(
        "--mcp-approve",
        choices=("destructive", "all"),
        help="ask the caller before destructive tools are called, or before all (default: ask for none)",
    )


def _mcp_agents(args: argparse.Namespace) -> list[Any]:
    if not args.mcp_server:
        return []
    from dragoman.adapters.wrap import wrap
    from dragoman.mcp import mcp

    agents = []
    env = {}
    for name in args.mcp_env:
        if name not in os.environ:
            raise SystemExit(f"dragoman: --mcp-env: there is no variable {name} in the environment")
        env[name] = os.environ[name]
    approve = args.mcp_approve == "all" or args.mcp_approve or False
    urls = [server for server in args.mcp_server if server.startswith(("http://", "https://"))]
    if args.mcp_bearer and len(urls) != 1:
        raise SystemExit(
            "dragoman: --mcp-bearer is for one --mcp-server with a URL: two servers never share a token"
        )
    headers = {"Authorization": f"Bearer {args.mcp_bearer}"} if args.mcp_bearer else {}
    for server in args.mcp_server:
        for_server: dict[str, Any] = {"headers": headers} if server in urls else {"env": env}
        with exit_on(ValueError, ModuleNotFoundError, about=f"--mcp-server {server}: "):
            agents.append(wrap(mcp(server, approve=approve, **for_server)))
    return agents


def _add_catalogue(parser: argparse.ArgumentParser) -> None:
    """The options of the catalogue."""
    group = parser.add_argument_group("catalogue")
    add_flag(
        group,
        "--catalogue",
        help="publish a catalogue of the agents here and of those that `dragoman find --add` registers, with a search "
        "(/.well-known/ai-catalog.json, /catalogue; default: off)",
    )
    add_flag(group, "--catalogue-allow-private", help="registered agents may be at private addresses")


def _catalogue(args: argparse.Namespace) -> Any:
    if not args.catalogue:
        if args.catalogue_allow_private:
            raise SystemExit("dragoman: --catalogue-allow-private needs --catalogue")
        return None
    from dragoman.catalogue.settings import configured_catalogue

    with exit_on(ValueError):
        return configured_catalogue(allow_private=args.catalogue_allow_private)


def _add_console(parser: argparse.ArgumentParser) -> None:
    """The options of the console."""
    group = parser.add_argument_group("console")
    add_flag(group, "--console", help="serve pages and an API for operators at /console (default: off)")
    group.add_argument(
        "--console-token-file",
        default="",
        metavar="FILE",
        help="the operator token of the console is in this file; else in DRAGOMAN_CONSOLE_TOKEN. Required on a public "
        "address (default: one is made and kept beside the SQLite store)",
    )


def _read_console_token(args: argparse.Namespace) -> str:
    """The operator token that was given; empty if none was."""
    if not args.console_token_file:
        return os.environ.get("DRAGOMAN_CONSOLE_TOKEN", "")
    with exit_on(OSError, ValueError, about="--console-token-file: "):
        with open(args.console_token_file, encoding="utf-8") as file:
            token = file.read(10_000).strip()
        if not token:
            raise ValueError(f"{args.console_token_file} is empty")
    return token


def run(args: argparse.Namespace) -> int:
    from dragoman.cli.load import load
    from dragoman.observe.logs import configure
    from dragoman.server.runtime import serve

    configure(args.log_level, lines=args.log)
    if not args.files and not args.mcp_server:
        raise SystemExit("dragoman: what is to be served? Give a FILE or a MODULE, or --mcp-server")
    serve(*load(*args.files), *_mcp_agents(args), **read_server_options(args))
    return 0


def read_server_options(args: argparse.Namespace) -> ServeOptions:
    """The options of `add_server_options`, for `serve`."""
    from dragoman.observe.limit import Quota
    from dragoman.server.options import ServeOptions

    options = ServeOptions(
        bus=args.bus or "",
        push=_push(args),
        log_lines=args.log,
        quota=Quota(**{each.name: getattr(args, each.name) for each in fields(Quota)}),
        limits=read_limits(args),
        metrics=not args.no_metrics,
        metrics_token=os.environ.get("DRAGOMAN_METRICS_TOKEN", ""),
        audit=not args.no_audit,
        tracer=_tracer() if args.otel else None,
        console=_console(args),
        catalogue=_catalogue(args),
    )
    return cast("ServeOptions", {name: getattr(args, name) for name in _SERVE_OPTIONS} | options)


def _console(args: argparse.Namespace) -> Any:
    if not args.console:
        if args.console_token_file:
            raise SystemExit("dragoman: --console-token-file needs --console")
        return None
    from dragoman.console import AgentConsole

    return AgentConsole(_read_console_token(args))


def _push(args: argparse.Namespace) -> Any:
    from dragoman.push.options import PushOptions
    from dragoman.push.seal import read_keys

    with exit_on(ValueError, about="DRAGOMAN_PUSH_SEAL: "):
        keys = read_keys(os.environ.get("DRAGOMAN_PUSH_SEAL", ""))
    return PushOptions(
        allow_private=args.allow_private_push,
        only=tuple(args.push_only),
        trust=tuple(args.push_trust),
        challenge=args.push_challenge,
        secret=os.environ.get("DRAGOMAN_PUSH_SECRET", ""),
        seal=keys,
    )


def _tracer() -> Any:
    try:
        from dragoman.observe.otel import tracer_from_environment
    except ImportError:
        raise SystemExit("--otel needs OpenTelemetry: pip install 'dragoman[otel]'") from None
    with exit_on(ValueError, about="--otel: "):
        return tracer_from_environment(os.environ)
