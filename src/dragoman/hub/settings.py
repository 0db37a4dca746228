"""The settings of a hub. Nothing else in the hub reads the environment.

A value comes from a flag, else from the environment (`DRAGOMAN_PORT`), else from the table `[hub]` of `dragoman.toml`, else it
is the default below.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from dragoman.client.config import CONFIG, explain, place_of, read_table, unknown_setting
from dragoman.server.limits import Limits

ENVIRONMENT, FLAG = "the environment", "a flag"
PREFIX = "DRAGOMAN_"
SECRET = ("admin_token", "bus", "metrics_token", "push_seal", "search_key", "store")
KEYS = {
    "OPENAI_API_KEY": "openai/gpt-4o-mini",
    "ANTHROPIC_API_KEY": "anthropic/claude-3-5-haiku-latest",
    "OPENROUTER_API_KEY": "openrouter/openai/gpt-4o-mini",
    "MISTRAL_API_KEY": "mistral/mistral-small-latest",
    "GEMINI_API_KEY": "gemini/gemini-2.0-flash",
    "GROQ_API_KEY": "groq/llama-3.1-8b-instant",
}
"""Variables with providers' keys, in the order of preference, and the default model of each."""


_EACH = Limits()
Whole = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class Settings(Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = 8080
    grpc_port: Port | None = None
    """Serve gRPC there; 0 takes a free port. Needs the extra `grpc`."""
    data: str = "~/.dragoman"
    """The folder of tasks.db, hub.db, a2a_agents.json, mcp_servers.json."""
    store: str = ""
    """`postgresql://host/database`: tasks and tables are there, for any number of hubs; empty: in SQLite files in `data`."""
    bus: str = ""
    """`nats://host`: where the hubs of one store tell each other of news; empty: the store."""
    admin_token: str = ""
    public_url: str = ""
    """The hub's URL in cards; required behind a proxy."""
    trusted_proxies: tuple[str, ...] = ()
    model: str = ""
    """`provider/name`, `embedded`, `embedded:FILE.gguf`, `echo` or `scripted:FILE`; empty: chosen by the keys and packages that are there."""
    index_model: str = ""
    """The model of `index`; empty: the same."""
    text_commands: bool = False
    """Models of providers write their commands as text: for those that cannot call tools."""
    context_window: Whole = 128_000
    """Tokens that models of providers read at once: conversations that come near are summed up. 0: never."""
    agents: tuple[str, ...] = ()
    """Python files whose agents every tenant has."""
    max_concurrent: Whole = 0
    rate_per_min: Whole = 0
    rate_burst: Whole = 0
    """What a tenant may do unless it has limits of its own; 0: as much as it likes."""
    max_connections: Whole = 256
    """How many clients may be connected at once; 0: any number."""
    max_body: Count = 16 << 20
    head_timeout: Seconds = _EACH.head_timeout
    body_timeout: Seconds = _EACH.body_timeout
    write_timeout: Seconds = _EACH.write_timeout
    read_rate: Count = _EACH.read_rate
    """Limits of one request; see `server.limits.Limits`."""
    idempotency_hours: Amount = 24.0
    """How long an Idempotency-Key is valid."""
    metrics_token: str = ""
    """The token for /metrics from other machines."""
    console: bool = False
    """Serve pages and an API at /console, for the holders of the admin token and of tenants' tokens."""
    catalogue: bool = False
    """Publish a catalogue: each tenant finds its own agents, and those that the operator registered."""
    cors_origins: tuple[str, ...] = ("*",)
    search_key: str = ""
    """A key for Brave's web search."""
    push: bool = False
    """Agents send push notifications, over https and to public addresses; with `allow_private` to any."""
    push_seal: str = ""
    """Keys that encrypt stored credentials of webhooks, with commas between them."""
    allow_exec: bool = False
    """Let agents run commands, confined."""
    exec_image: str = ""
    """Run them in containers of this image, with Docker; empty: in processes of this machine."""
    exec_unconfined: bool = False
    """Run them also where they cannot be confined: they can read the hub's files and use the network."""
    exec_seconds: Seconds = 30.0
    exec_memory_mb: Count = 512
    exec_disk_mb: Count = 1024
    """Limits of a command, and of a tenant's folder."""
    allow_private: bool = False
    """Let `/fetch` read addresses that are not public."""
    drain: Amount = 30.0
    retain_days: Amount = 0.0
    """Delete finished tasks after so many days; 0: never."""
    log: Literal["plain", "json"] = "plain"
    """The format of log lines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def folder(self) -> Path:
        return Path(self.data).expanduser()

    @property
    def tasks(self) -> str:
        """The URL of the task store."""
        return self.store or f"sqlite:///{self.folder / 'tasks.db'}"

    def describe(self) -> dict[str, Any]:
        """The settings without secrets."""
        values = msgspec.structs.asdict(self)
        return {name: _masked(value) if name in SECRET else value for name, value in values.items()}


class InvalidSetting(Exception):
    """A setting has an invalid value."""


def settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config: str = CONFIG,
) -> Settings:
    """Raises `InvalidSetting`."""
    environment = os.environ if environment is None else environment
    out = Settings()
    for source, values in (
        (config, _file(config)),
        (ENVIRONMENT, _environment(environment)),
        (FLAG, {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        out = _with(out, values, source)
    if out.store and not out.store.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting(
            "the store of a hub is postgresql://host/database; without one, its SQLite files are in its folder (--data)"
        )
    if not out.model and find_spec("any_llm") is not None:
        out = replace(out, model=next((model for key, model in KEYS.items() if environment.get(key)), ""))
    return out


def _file(config: str) -> dict[str, Any]:
    try:
        table = read_table("hub", config)
    except ValueError as error:
        raise InvalidSetting(str(error)) from error
    if not isinstance(table, dict):
        raise InvalidSetting(f"{place_of(['hub'], config)}: hub is not a table ([hub])")
    for name in table:
        if name not in Settings.__struct_fields__:
            fault = unknown_setting(name, Settings.__struct_fields__, "hub")
            raise InvalidSetting(f"{place_of(['hub', name], config)}: {fault}")
    return dict(table)


def _environment(environment: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in Settings.__struct_fields__:
        value = environment.get(PREFIX + name.upper())
        if value is not None:
            kind = Settings.__annotations__[name]
            out[name] = (
                [each.strip() for each in value.split(",") if each.strip()] if "tuple" in kind else value
            )
    return out


def _with(old: Settings, values: Mapping[str, Any], source: str) -> Settings:
    known = msgspec.structs.asdict(old)
    for name, value in values.items():
        try:
            known[name] = msgspec.convert({name: value}, Settings, strict=False)
            known[name] = getattr(known[name], name)
        except msgspec.ValidationError as error:
            if source == ENVIRONMENT:
                what = PREFIX + name.upper()
            elif source == FLAG:
                what = "--" + name.replace("_", "-")
            else:
                inside = "a value in " if "[" in str(error).partition(" - at ")[2] else ""
                what = f"{place_of(['hub', name], source)}: {inside}{name}"
            raise InvalidSetting(f"{what} {explain(error)}") from None
    return Settings(**known)


def _masked(value: str) -> str:
    return "(set)" if value else ""
