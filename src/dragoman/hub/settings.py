"""The settings of a hub. Nothing else in the hub reads the environment.

A value comes from a flag, else from the environment (`DRAGOMAN_PORT`), else from the table `[hub]` of `dragoman.toml`, else it
is the default below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dragoman.client.config import CONFIG, explain_setting, place_of, read_settings
from dragoman.errors import InvalidParams
from dragoman.hub.models.prices import Price, read_price
from dragoman.hub.schedules.run_times import find_zone
from dragoman.hub.tenants.policy import Policy, validate
from dragoman.server.address import is_loopback
from dragoman.server.limits import Limits

ENVIRONMENT, FLAG = "the environment", "a flag"
PREFIX = "DRAGOMAN_"
MIN_ADMIN_TOKEN_CHARACTERS = 16
"""Of a hub that listens on more than loopback."""
SECRETS = ("admin_token", "bus", "metrics_token", "push_seal", "search_key", "store")
PROVIDER_KEYS = {
    "OPENAI_API_KEY": "openai/gpt-6-luna",
    "ANTHROPIC_API_KEY": "anthropic/claude-haiku-5-5",
    "OPENROUTER_API_KEY": "openrouter/~anthropic/claude-haiku-latest",
    "MISTRAL_API_KEY": "mistral/mistral-small-latest",
    "GEMINI_API_KEY": "gemini/gemini-flash-latest",
    "GROQ_API_KEY": "groq/openai/gpt-oss-20b",
}
"""Environment variables with keys of providers, in the order of preference, and the default model of each: a small and cheap one, as
the provider listed it in November 2026, by a name that follows new versions (`-latest`) if there is one."""


_LIMITS = Limits()
Whole = Annotated[int, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Amount = Annotated[float, Meta(ge=0, le=1_000_000)]
Port = Annotated[int, Meta(ge=0, le=65_535)]


class Settings(Policy, frozen=True, kw_only=True):
    """The members of `Policy` are the policy of the hub: it applies to tenants that have none of their own."""

    host: str = "127.0.0.1"
    port: Port = 8080
    grpc_port: Port | None = None
    """Serve gRPC there; 0 takes a free port. Needs the extra `grpc`."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    """PEM files: the certificate and its key for TLS over HTTP and gRPC, and the authorities of client certificates."""
    data: str = "~/.dragoman"
    """The folder of tasks.db, hub.db, a2a_agents.json, mcp_servers.json."""
    store: str = ""
    """`postgresql://host/database`: tasks and tables are there, for any number of hubs; empty: in SQLite files in `data`."""
    bus: str = ""
    """`nats://host`: the bus by which the hubs of one store wake each other; empty: the store."""
    blobs: str = ""
    """Where the contents of large files are: a folder, or `s3://bucket/prefix`; empty: `blobs` in `data`."""
    admin_token: str = ""
    oidc_issuer: str = ""
    """The company's login: its users act for tenants, with tokens of this issuer (OpenID Connect); empty: only tokens of the hub."""
    oidc_audience: tuple[str, ...] = ()
    """What the tokens must be for."""
    oidc_tenant_claim: str = "tenant"
    """The claim with the name or number of the tenant. Dots lead into objects."""
    oidc_scope_claim: str = "scope"
    oidc_read: tuple[str, ...] = ("dragoman:read",)
    oidc_run: tuple[str, ...] = ("dragoman:run",)
    oidc_admin: tuple[str, ...] = ("dragoman:admin",)
    """The words in the claim that give a user the scopes read, run and admin."""
    public_url: str = ""
    """The hub's URL in cards; required behind a proxy."""
    trusted_proxies: tuple[str, ...] = ()
    model: str = ""
    """`provider/name`, `embedded`, `embedded:FILE.gguf`, `echo` or `scripted:FILE`; empty: chosen by the keys and packages that are there."""
    index_model: str = ""
    """The model of `index`; empty: the same."""
    text_commands: tuple[str, ...] = ()
    """Models of providers that write their commands as text, because they cannot call tools: `ollama`, `ollama/gemma*`, `*`."""
    plain_models: tuple[str, ...] = ()
    """Models of providers that are too small for commands: their prompt does not explain any."""
    context_window: Whole = 128_000
    """The context window of providers' models, in tokens. Longer conversations are summarized. 0: never."""
    agents: tuple[str, ...] = ()
    """Python files whose agents every tenant has."""
    model_aliases: dict[str, str] = {}
    """Names that constitutions may use for a model: `fast = "openai/gpt-6-luna"`."""
    prices: dict[str, Price] = {}
    """What a million tokens of a model cost, by its name or a pattern."""
    currency: str = "USD"
    """The currency of the prices and of `cost_per_day`."""
    max_concurrent: Whole = 32
    rate_per_min: Whole = 600
    rate_burst: Whole = 0
    """What a tenant may do unless it has limits of its own; 0: as much as it likes."""
    max_connections: Whole = 256
    """How many clients may be connected at once; 0: any number."""
    max_body: Count = 16 << 20
    head_timeout: Seconds = _LIMITS.head_timeout
    body_timeout: Seconds = _LIMITS.body_timeout
    write_timeout: Seconds = _LIMITS.write_timeout
    read_rate: Count = _LIMITS.read_rate
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
    strict: bool = False
    """Answer A2A as an Arbiter server does, and refuse what it refuses: other versions, methods, bindings."""
    search_engine: Literal["", "brave", "searxng", "tavily"] = ""
    """The web search of `/search`; empty: Brave's if there is a key, else none."""
    search_key: str = ""
    search_url: str = ""
    """The address of a SearXNG server, or another address for one of the other engines."""
    search_private: bool = False
    """The search engine may be at an address that is not public."""
    push: bool = False
    """Agents send push notifications, over https and to public addresses; with `allow_private` to any."""
    push_seal: str = ""
    """Keys that encrypt stored credentials of webhooks, with commas between them."""
    allow_exec: bool = False
    """Let agents run commands, confined."""
    exec_image: str = ""
    """Run them in containers of this image, with Docker; empty: in processes of this machine."""
    exec_unconfined: bool = False
    """Run commands even if they cannot be confined: they can read the hub's files and use the network."""
    exec_seconds: Seconds = 30.0
    exec_memory_mb: Count = 512
    exec_disk_mb: Count = 1024
    """Limits of a command, and of a tenant's folder."""
    allow_private: bool = False
    """Let `/fetch` read addresses that are not public."""
    timezone: str = ""
    """The time zone of schedules that name none, such as `Europe/Berlin`; empty: that of this machine."""
    drain: Amount = 30.0
    retain_days: Amount = 30.0
    """Delete finished tasks after so many days, and cancel those that wait for an answer for so long; 0: never."""
    retain_usage_days: Amount = 400.0
    """Delete sums of tokens and money after so many days; 0: never."""
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

    @property
    def search(self) -> str:
        """The search engine; empty: none."""
        return self.search_engine or ("brave" if self.search_key else "")

    @property
    def policy(self) -> Policy:
        """What tenants may use and store. Raises `InvalidParams`."""
        return validate(Policy(**{name: getattr(self, name) for name in Policy.__struct_fields__}))

    def describe(self) -> dict[str, Any]:
        """The settings without secrets."""
        values = msgspec.structs.asdict(self)
        return {name: _mask(value) if name in SECRETS else value for name, value in values.items()}


DEFAULTS: dict[str, Any] = msgspec.structs.asdict(Settings())


class InvalidSetting(Exception):
    """A setting has an invalid value."""


def load_settings(
    flags: Mapping[str, Any] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    config: str = CONFIG,
) -> Settings:
    """Raises `InvalidSetting`."""
    environment = os.environ if environment is None else environment
    out = Settings()
    for source, values in (
        (config, _read_file(config)),
        (ENVIRONMENT, _read_environment(environment)),
        (FLAG, {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        out = _override(out, values, source)
    _check(out)
    if not out.model and find_spec("any_llm") is not None:
        out = replace(
            out, model=next((model for key, model in PROVIDER_KEYS.items() if environment.get(key)), "")
        )
    return out


def _check(settings: Settings) -> None:
    """Refuse values that are invalid only together, or that msgspec cannot check."""
    try:
        settings.policy  # noqa: B018
    except InvalidParams as error:
        raise InvalidSetting(error.message) from None
    try:
        find_zone(settings.timezone)
    except InvalidParams as error:
        raise InvalidSetting(f"--timezone: {error.message}") from None
    if settings.store and not settings.store.startswith(("postgresql://", "postgres://")):
        raise InvalidSetting(
            "the store of a hub is postgresql://host/database; without one, its SQLite files are in its folder (--data)"
        )
    if settings.search_engine == "searxng" and not settings.search_url:
        raise InvalidSetting("--search-engine searxng needs the address of the server: --search-url")
    if settings.search_engine in ("brave", "tavily") and not settings.search_key:
        raise InvalidSetting(f"--search-engine {settings.search_engine} needs a key: DRAGOMAN_SEARCH_KEY")
    if settings.search_url and not settings.search:
        raise InvalidSetting("--search-url needs --search-engine")
    if settings.strict and (settings.push or settings.grpc_port is not None):
        raise InvalidSetting(
            "--strict has neither push notifications nor gRPC: leave out --push and --grpc-port"
        )
    if not settings.tls_cert and (settings.tls_key or settings.tls_client_ca):
        raise InvalidSetting("--tls-key and --tls-client-ca need --tls-cert")
    if 0 < len(settings.admin_token) < MIN_ADMIN_TOKEN_CHARACTERS and not is_loopback(settings.host):
        raise InvalidSetting(
            f"the admin token has fewer than {MIN_ADMIN_TOKEN_CHARACTERS} characters, so that it could be guessed, and the hub listens "
            f"on {settings.host}: leave it out, and the hub makes one"
        )
    if settings.oidc_issuer and not settings.oidc_audience:
        raise InvalidSetting("oidc_issuer needs oidc_audience: what the tokens of the issuer must be for")
    if settings.oidc_issuer and not _is_safe_url(settings.oidc_issuer):
        raise InvalidSetting(f"oidc_issuer is an https URL, not {settings.oidc_issuer[:200]!r}")


def _is_safe_url(url: str) -> bool:
    """True for https, and for http on this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host)))


def _read_file(config: str) -> dict[str, Any]:
    try:
        return read_settings("hub", DEFAULTS, config)
    except ValueError as error:
        raise InvalidSetting(str(error)) from error


def _read_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, default in DEFAULTS.items():
        value = environment.get(PREFIX + name.upper())
        if value is not None:
            several = isinstance(default, tuple | dict)
            out[name] = [each.strip() for each in value.split(",") if each.strip()] if several else value
    return out


def misspelled(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables that nobody reads and that are nearly called like a setting, each with the name of that setting."""
    known = [PREFIX + name.upper() for name in DEFAULTS]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            close = get_close_matches(
                name.removeprefix(PREFIX), [each.removeprefix(PREFIX) for each in known], 1, 0.8
            )
            yield from ((name, PREFIX + each) for each in close)


_ALL_OR_NONE = {"true": ("*",), "['true']": ("*",), "false": (), "['false']": ()}
"""`text_commands` as yes or no, for all models."""


def _read_pairs(value: Any) -> Any:
    """`fast=openai/gpt-6-luna` as a table, if it came from a flag or the environment."""
    if not isinstance(value, list):
        return value
    for each in value:
        if "=" not in each:
            raise InvalidSetting(f"{each[:80]!r} is not NAME=VALUE")
    return {name.strip(): text.strip() for name, _, text in (each.partition("=") for each in value)}


def _override(old: Settings, values: Mapping[str, Any], source: str) -> Settings:
    known = msgspec.structs.asdict(old)
    for name, value in values.items():
        if name == "text_commands":
            value = _ALL_OR_NONE.get(str(value).lower(), value)
        if isinstance(DEFAULTS[name], dict):
            value = _read_pairs(value)
            if name == "prices" and isinstance(value, dict):
                value = {model: read_price(price) for model, price in value.items()}
        try:
            known[name] = getattr(msgspec.convert({name: value}, Settings, strict=False), name)
        except msgspec.ValidationError as error:
            raise InvalidSetting(
                f"{_describe_place(name, source, error)} {explain_setting(error, Settings, name)}"
            ) from None
    return Settings(**known)


def _describe_place(name: str, source: str, error: msgspec.ValidationError) -> str:
    """Where the invalid value is: a variable, a flag, or a line of a file."""
    if source == ENVIRONMENT:
        return PREFIX + name.upper()
    if source == FLAG:
        return "--" + name.replace("_", "-")
    inside = "a value in " if "[" in str(error).partition(" - at ")[2] else ""
    return f"{place_of(['hub', name], source)}: {inside}{name}"


def _mask(value: str) -> str:
    return "(set)" if value else ""
