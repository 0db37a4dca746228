"""The options of `serve`, `agent.run`, `agent.app` and `agent.test`, by name and type, so that an editor knows them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dragoman.agent.agent import Agent
from dragoman.auth.keys import KeyRing
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Audit, Bus, Store
from dragoman.engine.runner import NodeOptions
from dragoman.model.card import AgentCard
from dragoman.model.ops import Principal, Scope, Service
from dragoman.observe.instrument import Tracer
from dragoman.observe.limit import Quota
from dragoman.observe.shared_memory import SharedSecrets
from dragoman.push.options import PushOptions
from dragoman.server.app import Operators, PathHandler
from dragoman.server.limits import Limits
from dragoman.server.mount import Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerParts:
    """What a server is made of: what a console shows."""

    store: Store
    bus: Bus
    engine: Engine
    agents: Sequence[Agent] = ()
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
    check_limits: Callable[[Scope, str], AbstractAsyncContextManager[None]] | None = None
    """Checks the limits of a scope for a new task with this id, while it is made. Raises `RateLimited`."""
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
        """For the console: the `Catalogue` itself."""
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
    def verdict(self) -> Any:
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


class AppOptions(NodeOptions, total=False):
    """See `application`."""

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
