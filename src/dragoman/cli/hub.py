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
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dragoman.cli.arguments import LIMITS, add_command, add_quiet, exit_on
from dragoman.errors import A2AError
from dragoman.hub.models.hosted import describe_problem
from dragoman.hub.models.prices import Prices
from dragoman.hub.settings import DEFAULTS, PROVIDER_KEYS, InvalidSetting, Settings, load_settings, misspelled

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
    for title, options in _OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, about in options.items():
            _add_option(group, name, DEFAULTS[name], about)
    add_quiet(parser)


def _add_option(group: Any, name: str, default: Any, about: str) -> None:
    if "default" not in about and default not in (None, False, 0, "", (), {}):
        shown = (
            " ".join(default)
            if isinstance(default, tuple)
            else f"{default:g}"
            if isinstance(default, float)
            else default
        )
        about = f"{about} (default: {shown})"
    options: dict[str, Any] = {"dest": name, "default": None, "help": about}
    if isinstance(default, bool):
        options["action"] = "store_true"
    elif name in _REPEATED:
        options |= {"action": "append", "metavar": _REPEATED[name]}
    elif isinstance(default, int | float):
        options["metavar"] = "N"
    if name == "text_commands":
        options |= {"nargs": "?", "const": "*"}
    group.add_argument(f"--{name.replace('_', '-')}", **options)


_OPTIONS: dict[str, dict[str, str]] = {
    "address": {
        "host": "address to listen on",
        "port": "port to listen on; 0 takes a free one",
        "grpc_port": "also serve gRPC on this port (needs the extra grpc)",
        "tls_cert": "serve TLS with this certificate chain (PEM), also over gRPC",
        "tls_key": "key of --tls-cert, if it is in another file",
        "tls_client_ca": "require client certificates of this authority",
        "public_url": "URL of the hub in the cards; needed behind a proxy",
        "trusted_proxies": "network whose Forwarded headers are trusted; may be repeated",
        "cors_origins": "origin of web pages that may call the hub; may be repeated (default: *)",
    },
    "storage": {
        "data": "folder of the hub's databases and files",
        "store": "postgresql://host/database, for several hubs; without it, SQLite files in --data",
        "bus": "nats://host: where the hubs of one store tell each other of news; without it, the store",
        "blobs": "where large files are: a folder, or s3://bucket/prefix (extra s3); default: blobs in --data",
        "idempotency_hours": "hours that an Idempotency-Key is stored",
        "retain_days": "delete finished requests after this number of days, and cancel those that wait so long; 0: never",
        "retain_usage_days": "delete the sums of tokens and money of tenants after this number of days; 0: never",
    },
    "models and agents": {
        "model": "provider/name, embedded, embedded:FILE.gguf, demo, echo or scripted:FILE",
        "index_model": "model of the orchestrator, if it is not --model",
        "text_commands": "model or provider that writes commands as text, because it cannot call tools (ollama, 'ollama/gemma*'); may be repeated; without a value: all",
        "plain_models": "model or provider that is too small for commands; may be repeated",
        "context_window": "tokens of a prompt; longer conversations are summarized; 0: never",
        "model_aliases": "name for a model that constitutions may use: fast=openai/gpt-6-luna; may be repeated",
        "prices": "what a million tokens cost: openai/gpt-6-luna=0.15/0.60 (input/output); may be repeated",
        "currency": "currency of the prices and of --cost-per-day",
        "agents": "Python file or module with agents for every tenant; may be repeated",
        "timezone": "time zone of schedules that name none (Europe/Berlin); without it, that of this machine",
    },
    "what else it serves": {
        "console": "serve pages and an API at /console: the admin token shows all tasks, a tenant's token its own",
        "catalogue": "publish a catalogue with a search: a tenant finds its own agents (/.well-known/ai-catalog.json, /catalogue)",
        "push": "agents may send push notifications",
        "push_seal": "keys that encrypt credentials of webhooks; better as the variable DRAGOMAN_PUSH_SEAL",
        "strict": "refuse over A2A what an Arbiter server refuses: other versions, methods and bindings",
    },
    "tokens and users": {
        "admin_token": "token of the administrator; better as the variable DRAGOMAN_ADMIN_TOKEN",
        "metrics_token": "token for /metrics; better as the variable DRAGOMAN_METRICS_TOKEN",
        "oidc_issuer": "issuer (OpenID Connect) whose users act for tenants",
        "oidc_audience": "audience of the tokens of the issuer; may be repeated",
        "oidc_tenant_claim": "claim with the name or number of the tenant",
        "oidc_scope_claim": "claim with the words that give a scope",
        "oidc_read": "word that gives the scope read; may be repeated (default: dragoman:read)",
        "oidc_run": "word that gives the scope run; may be repeated (default: dragoman:run)",
        "oidc_admin": "word that gives the scope admin; may be repeated (default: dragoman:admin)",
    },
    "what agents reach": {
        "search_engine": "web search of the agents: brave, searxng or tavily (default: brave, if there is a key)",
        "search_key": "key of the search engine; better as the variable DRAGOMAN_SEARCH_KEY",
        "search_url": "address of a SearXNG server",
        "search_private": "the search engine may be at a private address",
        "allow_private": "/fetch, push notifications and the catalogue may use private addresses",
        "allow_exec": "agents may run shell commands (/exec) in a sandbox",
        "exec_image": "run commands in Docker containers of this image",
        "exec_unconfined": "run commands also where there is no sandbox: they can read what the hub can read",
        "exec_seconds": "seconds that a command may run",
        "exec_memory_mb": "MB of memory of a command",
        "exec_disk_mb": "MB in the folder of a tenant",
    },
    "what a tenant may do, unless it has limits or a policy of its own": {
        "max_concurrent": "requests of one tenant that run at the same time; 0: no limit",
        "rate_per_min": "requests of one tenant per minute; 0: no limit",
        "rate_burst": "requests of one tenant that may come at once; 0: as many as in a minute",
        "reads_per_min": "requests of one tenant per minute that start nothing; 0: no limit",
        "max_open_requests": "requests of one tenant that are answered at the same time, with streams; 0: no limit",
        "models": "model that tenants may name beside the hub's own, such as openai/*; may be repeated",
        "remotes": "agent of a2a_agents.json that tenants see; may be repeated; none: no agent",
        "mcp_servers": "server of mcp_servers.json that tenants see; may be repeated; none: no server",
        "approve": "command that runs only after the caller said yes, such as /exec; may be repeated; none: no command",
        "tokens_per_day": "tokens of models that one tenant may use per day (UTC); 0: no limit",
        "cost_per_day": "money for models that one tenant may spend per day (UTC); needs --prices; 0: no limit",
    },
    "what a tenant may store, unless it has a policy of its own; 0: no limit": {
        "max_agents": "agents",
        "max_versions": "stored versions of one agent; older ones are deleted",
        "max_conversations": "conversations",
        "max_messages": "messages of one conversation",
        "max_conversation_mb": "MB of text in the messages of one conversation",
        "max_memories": "entries in its memory",
        "max_artifacts": "files",
        "max_artifact_mb": "MB of all files",
        "max_scratchpads": "scratchpads",
        "max_scratchpad_mb": "MB of all scratchpads",
        "max_request_mb": "MB of the stored requests",
        "max_todos": "todos",
        "max_schedules": "schedules",
    },
    "limits of connections and requests": LIMITS,
    "running": {
        "drain": "seconds that running tasks get to finish at shutdown",
        "log": "format of log lines: plain or json",
        "log_level": "lowest level that is logged: debug, info, warning or error",
    },
}
"""The settings and what each is, for --help."""
_REPEATED = {
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
    **dict.fromkeys(("oidc_audience", "oidc_read", "oidc_run", "oidc_admin"), "WORD"),
}
"""Settings that are lists or tables, whose options may be given several times, and what each value is."""


def add_hub_store(parser: argparse.ArgumentParser) -> None:
    """Which hub, for commands that change its database."""
    parser.add_argument("--data", help="the hub's folder (default: ~/.dragoman)")
    parser.add_argument(
        "--store", help="the hub's database, if it is not in its folder: postgresql://host/database"
    )


def read_hub_settings(args: argparse.Namespace) -> Settings:
    """The settings: options of the command, variables, `dragoman.toml`, defaults."""
    flags = {name: getattr(args, name, None) for name in DEFAULTS}
    with exit_on(InvalidSetting):
        return load_settings(flags)


def failing_models(given: Settings) -> Iterator[tuple[str, str]]:
    """The models of the settings to which every request will fail, and why."""
    prices = Prices(given.prices)
    for model in dict.fromkeys((given.model, given.index_model, *given.model_aliases.values())):
        if why := describe_problem(model, os.environ):
            yield model, why
        elif "/" in model and given.cost_per_day and prices.find(model) is None:
            yield model, "has no price, and cost_per_day needs one (`prices`)"


def unused_key(given: Settings) -> str:
    """The variable with a provider's key that is not used, because the extra `llm` is not installed; empty if there is none."""
    if given.model not in ("", "demo") or find_spec("any_llm") is not None:
        return ""
    return next((key for key in PROVIDER_KEYS if os.environ.get(key)), "")


def run(args: argparse.Namespace) -> int:
    from dragoman.cli.load import load
    from dragoman.hub.assembly import application
    from dragoman.hub.models import ModelError
    from dragoman.observe.logs import configure
    from dragoman.server.runtime import check_store, free_port, open_tls
    from dragoman.server.runtime import run as serve

    given = read_hub_settings(args)
    if args.demo is not None:
        given = replace(given, model=given.model or "demo", console=True)
    _close_on_exec()
    configure(given.log_level, lines=given.log)
    for name, meant in misspelled(os.environ):
        logger.warning("the variable %s is not read: did you mean %s?", name, meant)
    for model, why in failing_models(given):
        logger.warning("%s %s: every request to it will fail", model, why)
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
            hub.folder_lock.acquire()
        asyncio.run(check_store(given.tasks))
        same = _same_place(args)
        tokens = asyncio.run(_prepare(hub, given, demo=args.demo is not None, same=same))
        if args.demo is not None:
            _write_tokens(given.folder / DEMO_FILE, tokens)
    serve(
        app,
        given.host,
        given.port,
        _announce(tokens, given, same, demo=args.demo, console=console.url if console else None),
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


def _same_place(args: argparse.Namespace) -> str:
    """What other commands need to find the database of this hub, as words to insert."""
    flag = "--store" if args.store is not None else "--data" if args.data is not None else ""
    return f", with the same {flag}," if flag else ""


async def _ensure_admin_token(hub: Hub, given: Settings, same: str) -> dict[str, str]:
    """Create the admin token, if there is none, and return it. It is printed now: the port may be taken."""

    def show(made: str) -> None:
        print(f"admin:  {made}", flush=True)
        another = f"`dragoman tenant rotate-admin`{same} makes another."
        print(f"The admin token is shown this once. {another}", flush=True)

    made = await hub.tenants.ensure_admin_token(given.admin_token, show=show)
    return {"admin": made} if made else {}


async def _prepare(hub: Hub, given: Settings, *, demo: bool, same: str) -> dict[str, str]:
    """Create the tables and the tokens that are missing. Returns tokens to show."""
    await hub.database.open()
    try:
        if given.store and (given.folder / "hub.db").is_file() and not await hub.tenants.list():
            logger.warning(
                "this database has no tenants, and the folder %s has a hub in SQLite files: stop, and bring it along with "
                "`dragoman copy %s DATABASE`",
                given.folder,
                shlex.quote(str(given.folder)),
            )
        tokens = await _ensure_admin_token(hub, given, same)
        if not demo:
            return tokens
        if (before := _read_tokens(given.folder / DEMO_FILE)) is None:
            return {**tokens, "demo": await _create_demo_tenant(hub)}
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


async def _create_demo_tenant(hub: Hub) -> str:
    """Create a tenant called demo, with the sample agents. Returns its token."""
    tenant, token = await hub.tenants.add("demo", actor="cli")
    for file in sorted(files("dragoman.hub").joinpath("samples").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".json"):
            await hub.catalogue.create(tenant.id, json.loads(file.read_text(encoding="utf-8")))
    return token


def _announce(
    tokens: dict[str, str],
    given: Settings,
    same: str,
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
        print(f"model:  {_describe_model(given)}", flush=True)
        if console is not None:
            print(f"console: {console(url)}", flush=True)
        if demo is not None:
            print(
                _describe_demo(url, tokens.get("demo", ""), given, demo or shlex.join(sys.argv)), flush=True
            )
        elif "admin" in tokens:
            print(f"`dragoman tenant add NAME`{same} makes a tenant.", flush=True)

    return announce


def _describe_model(given: Settings) -> str:
    from dragoman.hub.models import local

    key = unused_key(given)
    install = "" if find_spec("any_llm") else "pip install 'dragoman[llm]'"
    how = (
        f"{key} is set, and needs {install}"
        if key
        else " and ".join(filter(None, ("set a provider's key", install)))
    )
    if given.model == "demo":
        return f"a script that hands each question to an agent (for a real one: {how})"
    if given.model:
        return given.model
    if local.available():
        return f"embedded (SmolLM2-135M: small, offline; for a better one: {how})"
    return f"echo (it only repeats; for a real one: {how}, or {local.INSTALL})"


def _describe_demo(url: str, token: str, given: Settings, again: str) -> str:
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
