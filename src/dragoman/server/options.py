"""The options of `serve`, `agent.run`, `agent.app` and `agent.test`, by name and type, so that an editor knows them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dragoman.auth.keys import KeyRing
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Audit, Bus, Store
from dragoman.engine.runner import NodeOptions
from dragoman.model.card import AgentCard
from dragoman.model.ops import Principal, Scope, Service
from dragoman.observe.instrument import Tracer
from dragoman.observe.limit import Quota
from dragoman.observe.shared_memory import SharedSecrets
from dragoman.push.options import DEFAULTS, PushOptions
from dragoman.server.app import Operators, PathHandler
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """What a server is made of: what a console shows."""

    store: Store
    bus: Bus
    engine: Engine
    mounts: Sequence[Mount] = ()
    find_mounts: Callable[[str], Awaitable[Sequence[Mount]]] | None = None
    """The mounts of a tenant, by its name in scopes, where agents come and go; an empty name is for all that everybody has."""
    tenants: TenantNames | None = None
    """A hub has names for its tenants; elsewhere the tenant in a scope is its name."""
    metrics: Callable[[], bytes] | None = None
    audit: Audit | None = None
    """Where operators' actions are recorded; None: nowhere."""
    push: bool = False
    """Webhooks are called."""
    check_limits: Callable[[Scope, str, int], AbstractAsyncContextManager[None]] | None = None
    """Checks the limits of a scope for a new task with this id and so many bytes, while it is made. Raises `RateLimited` and
    `QuotaExceeded`."""
    catalogue: OpenedCatalogue | None = None
    bridged: Mapping[str, Bridged] = field(default_factory=dict)
    """Which of the agents stand for others, by id."""


class TenantNames(Protocol):
    """The names that people know tenants by, and the keys that scopes have."""

    async def name_of(self, key: str) -> str:
        """The name of the tenant with this key; the key itself if there is none."""
        ...

    async def key_of(self, name: str) -> str | None:
        """The key of the tenant with this name; None: there is none."""
        ...


class OpenedCatalogue(PathHandler, Protocol):
    """A catalogue that serves its paths (`dragoman.catalogue`), as far as a server needs to know."""

    @property
    def catalogue(self) -> Any:
        """For the console: the `CatalogueSearch` itself."""
        ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class ServerCatalogue(Protocol):
    def open(self, parts: ServerParts) -> OpenedCatalogue:
        """Called in each worker."""
        ...


class BridgedUpstream(Service, Protocol):
    """An agent behind a bridge, as far as a server needs to know."""

    observer: Any
    """Set by the server: who counts, traces and audits its calls."""

    @property
    def signature(self) -> Any:
        """What is known of the signature of its card."""
        ...

    def health(self) -> Any:
        """How it is: `state` and `error`."""
        ...

    def share_callers(self, secrets: SharedSecrets) -> None:
        """Called in each worker of a server that has several."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridged:
    """How an agent of a bridge is served (`dragoman.bridge`)."""

    path: str
    peer: str
    """The name of the agent behind it, in the records of tasks."""
    upstream: BridgedUpstream
    """The agent behind it."""
    service: Service | None = None
    """Answers its calls. None: the engine does, and keeps its tasks."""
    card: Callable[[], AgentCard] | None = None
    """The card to publish. Raises `Unavailable` while it is not known."""
    check_reader: Callable[[Principal], None] | None = None
    """Raises `Forbidden` if a caller may not read a private card."""
    deduplicates: Callable[[], bool] | None = None
    """True if repeated keys and the numbers of events are honoured, as a server of ours does."""
    quota: Quota | None = None
    """Limits in place of those of the server."""
    open: Callable[[], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


class ServerConsole(Protocol):
    """Pages and an API for operators (`dragoman.console`), as far as a server needs to know."""

    def prepare(self, *, host: str, url: str, store: str, public_url: str, tls: bool) -> Sequence[str]:
        """Called once, before workers start. Returns lines to print. Raises `SystemExit` if it would not be safe."""
        ...

    def open(self, parts: ServerParts) -> Operators:
        """Called in each worker."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """The options of an application, and their defaults. `AppOptions` has the same names, for editors."""

    # where agents are, and who may reach them
    path: str = "/"
    """The path of a single agent. Several are at `/<id>`."""
    public_url: str = ""
    """The URL of this server in the cards. Needed behind a proxy, and to sign cards."""
    trusted_proxies: Sequence[str] = ()
    """Networks whose `Forwarded` headers are trusted."""
    cors_origins: Sequence[str] = ()
    """Web pages that may call the agents, by where they come from; `*` for all."""
    limits: Limits | None = None
    """Of requests, responses and connections."""
    quota: Quota | None = None
    """Limits of callers and agents."""
    keepalive: float = 15.0
    """Seconds without an event until a stream gets a keep-alive; 0: never."""
    grpc_port: int | None = None
    """Serve gRPC there, too (the extra `grpc`). 0 takes a free port."""
    grpc_host: str = "127.0.0.1"
    grpc_public: str = ""
    """The address of gRPC in the card: `host:port`."""
    grpc_tls: Mapping[str, str] | None = None
    """The members of `server.grpc.server.Tls`."""
    mcp: bool = False
    """Serve MCP clients, too, at /mcp below the path of each agent (the extra `mcp`)."""

    # where tasks are stored
    store: str = ""
    """`memory:`, `sqlite:///path` or `postgresql://host/database`. Empty: `$DRAGOMAN_STORE`, else `sqlite:///dragoman.db`, and
    `memory:` in a process that runs tests."""
    bus: str = ""
    """How nodes wake each other: `nats://host`. Empty: the store."""
    shared: bool = False
    """Other processes of this machine write to the same store."""
    drain: float = 10.0
    """Seconds that running tasks get to finish at shutdown."""
    retain: float | None = None
    """Seconds after which finished tasks are deleted. None: never."""
    retain_unfinished: float | None = None
    """Seconds after which unfinished tasks are deleted that no node runs and that did not change. None: never."""

    # what agents call
    peer_credentials: Mapping[str, Any] | None = None
    """The credentials for agents that the agents call, by URL or name."""
    push: PushOptions | bool | None = DEFAULTS
    """How webhooks are called. False: not at all. An agent with `push=False` calls none in any case."""
    keys: KeyRing | str | Path | None = None
    """Sign cards and notifications with the keys in this directory."""
    bridged: Mapping[str, Bridged] | None = None
    """Which of the agents stand for others (`dragoman.bridge`), by id."""

    # what operators see
    metrics: bool = True
    """Serve /metrics, to this machine or with `metrics_token`."""
    metrics_token: str = ""
    """Needed to read /metrics from another machine."""
    audit: bool = True
    """Write an audit log."""
    tracer: Tracer | None = None
    """Makes spans, as `observe.otel.OpenTelemetry` does."""
    console: ServerConsole | None = None
    """Pages and an API for operators at /console (`dragoman.console`)."""
    catalogue: ServerCatalogue | None = None
    """A catalogue of agents, with a search (`dragoman.catalogue`)."""


class AppOptions(NodeOptions, total=False):
    """See `AppSettings`."""

    store: str
    bus: str
    path: str
    public_url: str
    trusted_proxies: Sequence[str]
    cors_origins: Sequence[str]
    limits: Limits | None
    keepalive: float
    drain: float
    retain: float | None
    retain_unfinished: float | None
    shared: bool
    peer_credentials: Mapping[str, Any] | None
    keys: KeyRing | str | Path | None
    push: PushOptions | bool | None
    grpc_port: int | None
    grpc_host: str
    grpc_public: str
    grpc_tls: Mapping[str, str] | None
    quota: Quota | None
    metrics: bool
    metrics_token: str
    audit: bool
    tracer: Tracer | None
    console: ServerConsole | None
    bridged: Mapping[str, Bridged] | None
    catalogue: ServerCatalogue | None
    mcp: bool


class ServeOptions(AppOptions, total=False):
    """See `serve`."""

    host: str
    port: int
    workers: int
    insecure: bool
    announce: Callable[[str], None] | None
    log_level: str
    log_lines: str
    tls_cert: str
    tls_key: str
    tls_client_ca: str
    listener: socket.socket | None
    signals: Sequence[signal.Signals] | None


class TestOptions(AppOptions, total=False):
    """See `agent.test`."""

    version: str
    timeout: float | None
    credentials: Any
