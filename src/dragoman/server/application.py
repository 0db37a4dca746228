"""Wires agents, a store, the engine and the bindings into one ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from dataclasses import replace as replace_field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.extensions import ExtendedService
from dragoman.auth.keys import KeyRing
from dragoman.auth.requirements import AgentAuthenticator
from dragoman.buses import open_bus
from dragoman.client.client import ConnectedPeers
from dragoman.client.fetch import Fetcher
from dragoman.engine.engine import Engine
from dragoman.engine.protocols import Bus, Peers, Store
from dragoman.engine.runner import NodeOptions, Runner
from dragoman.errors import StoreDamaged, Unavailable
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.card import AgentCard
from dragoman.model.ops import Scope, Service
from dragoman.model.options import check_options
from dragoman.observe.instrument import (
    Instrumentation,
    InstrumentedAuth,
    InstrumentedService,
    InstrumentedUpstream,
)
from dragoman.observe.limit import LimitedService, Quota, open_shared_quota
from dragoman.observe.metrics import Metrics
from dragoman.observe.shared_memory import SharedCounters
from dragoman.observe.shared_quota import SharedQuota
from dragoman.push.options import DEFAULTS
from dragoman.push.sender import PushSender, open_push_sender
from dragoman.server.app import App, Callback
from dragoman.server.cards import JWKS
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.limits import BODIES_BYTES, Connections, Limits
from dragoman.server.mount import Mount
from dragoman.server.options import AppOptions, AppSettings, Bridged, ServerParts
from dragoman.server.pipeline import Binding
from dragoman.server.rest import Rest
from dragoman.stores import default_store_of_app, open_store

if TYPE_CHECKING:
    from dragoman.mcp.binding import McpBinding
    from dragoman.server.grpc.server import Grpc

logger = logging.getLogger("dragoman.application")

_PROBE_SECONDS = 1.0


def application(
    *agents: Agent, shared_counters: SharedCounters | None = None, **options: Unpack[AppOptions]
) -> App:
    """Agents as one ASGI app: a single one at `path`, several at `/<id>`. `AppSettings` says what the options mean.

    `shared_counters`: memory shared with the other workers.
    """
    settings, node = _read_options(agents, options)
    ring = _ring(settings.keys, settings.public_url)
    core = _open_core(agents, settings, node, ring, shared_counters)
    fetch, limits = Fetcher(), settings.limits or Limits()
    gauge = shared_counters.connections if shared_counters else None
    connections, bodies = Connections(limits.max_connections, gauge), ByteBudget(BODIES_BYTES)
    mounts = _mount_all(agents, settings, core, fetch, ring)
    bindings: list[Binding] = [JsonRpc(), Rest()]
    check_extras(settings.grpc_port, settings.mcp)
    grpc = _open_grpc(settings, mounts, bindings, connections, bodies)
    tools = _open_mcp(settings, limits)
    bindings += [each for each in (grpc, tools) if each is not None]
    parts = _describe(core, mounts, settings)
    catalogue = settings.catalogue.open(parts) if settings.catalogue is not None else None
    console = None
    if settings.console is not None:
        console = settings.console.open(replace_field(parts, catalogue=catalogue))
    life = _Life(core, agents, settings)
    starts: list[Callback] = [life.start]
    stops: list[Callback] = [life.stop]
    if tools is not None:
        stops.insert(0, tools.stop)
    if catalogue is not None:
        starts.append(catalogue.start)
        stops.insert(0, catalogue.stop)
    if grpc is not None:
        starts.append(grpc.start)
        stops = [grpc.drain, *stops, grpc.stop]
    stops.append(fetch.close)
    app = App(
        mounts,
        console=console,
        catalogue=catalogue,
        bindings=bindings,
        limits=limits,
        connections=connections,
        bodies=bodies,
        public_url=settings.public_url,
        trusted_proxies=settings.trusted_proxies,
        cors_origins=settings.cors_origins,
        keepalive=settings.keepalive,
        on_startup=starts,
        on_shutdown=stops,
        metrics=parts.metrics,
        metrics_token=settings.metrics_token,
        ready=readiness(core.store, core.engine.runner),
        busy=lambda: core.engine.waits_for(settings.drain),
        persistent=core.store.persistent,
    )
    if tools is not None:
        tools.app = app
    return app


def _read_options(agents: Sequence[Agent], options: AppOptions) -> tuple[AppSettings, NodeOptions]:
    """The options of the application, and those of its node. Raises `ValueError` and `TypeError`."""
    if not agents:
        raise ValueError("there is no agent to serve")
    check_ids(agents)
    check_options(options, AppOptions, "an application")
    ours = {field.name for field in fields(AppSettings)}
    given: dict[str, Any] = {name: value for name, value in options.items() if name in ours}
    node: Any = {name: value for name, value in options.items() if name not in ours}
    settings = AppSettings(**given)
    path = settings.path
    if not path.startswith("/") or (path != "/" and len(agents) > 1):
        raise ValueError(f"a path begins with a slash, and several agents have their own: not {path!r}")
    return settings, node


# -- what answers calls -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """What is behind the bindings: the engine on its store, and who observes them."""

    store: Store
    bus: Bus
    engine: Engine
    services: _Services
    sender: PushSender | None
    metrics: Metrics | None
    instruments: Instrumentation
    shared_counters: SharedCounters | None


def _open_core(
    agents: Sequence[Agent],
    settings: AppSettings,
    node: NodeOptions,
    ring: KeyRing | None,
    shared_counters: SharedCounters | None,
) -> _Core:
    url = settings.store or default_store_of_app()
    store, bus = open_store(url), open_bus(settings.bus or url, shared=settings.shared)
    push = DEFAULTS if settings.push is True else settings.push
    sender = open_push_sender(store, push, keys=ring, issuer=settings.public_url) if push else None
    bridged = settings.bridged or {}
    metrics = _measure(store, sender, bridged, shared_counters) if settings.metrics else None
    instruments = Instrumentation(
        counts=metrics.counts if metrics is not None else None,
        audit=store.audit if settings.audit else None,
        tracer=settings.tracer,
    )
    for name, bridge in bridged.items():
        bridge.upstream.observer = InstrumentedUpstream(instruments, name)
        if shared_counters is not None:
            bridge.upstream.share_callers(shared_counters.secrets)
    agents_by_id, quota = {agent.id: agent for agent in agents}, settings.quota or Quota()

    def find_agent(scope: Scope) -> Agent | None:
        return agents_by_id.get(scope.agent)

    engine = Engine(
        store,
        bus,
        find_agent,
        peers=_Peers(ConnectedPeers(credentials=settings.peer_credentials), bridged),
        push=sender,
        observer=instruments,
        queue=quota.queue,
        load=shared_counters.load if shared_counters else None,
        **node,
    )
    extended = any(agent.extensions for agent in agents)
    answers: Service = ExtendedService(engine, find_agent) if extended else engine
    return _Core(
        store=store,
        bus=bus,
        engine=engine,
        services=_Services(answers, quota, store, instruments, shared_counters),
        sender=sender,
        metrics=metrics,
        instruments=instruments,
        shared_counters=shared_counters,
    )


def _measure(
    store: Store,
    messenger: PushSender | None,
    bridged: Mapping[str, Bridged],
    shared_counters: SharedCounters | None,
) -> Metrics:
    """The metrics of an application, with what its parts report."""
    numbers = Metrics(shared_counters.reports if shared_counters else None)
    store.time_commits(numbers.counts.commits[()].add)
    numbers.watch_waiting(store.count_unclaimed)
    if messenger is not None:
        numbers.watch_pushes(messenger.outcomes)
    for name, bridge in bridged.items():
        numbers.watch_upstream(name, bridge.upstream.health)
    return numbers


class _Services:
    """What answers the calls of each agent: the engine, or a bridge, with the limits of callers, counted, traced and audited."""

    def __init__(
        self,
        engine: Service,
        quota: Quota,
        store: Store,
        instruments: Instrumentation,
        shared_counters: SharedCounters | None,
    ) -> None:
        self._engine, self._quota, self._store, self.instruments = engine, quota, store, instruments
        self._usage = shared_counters.usage if shared_counters else None
        self._opened: list[SharedQuota] = []
        self._shared = self._open(quota)
        self._common = self._observe(engine, quota, self._shared)

    def of(self, agent: str, bridge: Bridged | None) -> Service:
        if bridge is None or (bridge.service is None and bridge.quota is None):
            return self._common
        answers = bridge.service or self._engine
        if bridge.quota is None:
            return self._observe(answers, self._quota, self._shared)
        return self._observe(answers, bridge.quota, self._open(bridge.quota), agent)

    async def close(self) -> None:
        for each in self._opened:
            await each.close()

    def _open(self, quota: Quota) -> SharedQuota | None:
        shared = open_shared_quota(quota, self._store)
        if shared is not None:
            self._opened.append(shared)
        return shared

    def _observe(
        self, service: Service, quota: Quota, shared: SharedQuota | None, agent: str = ""
    ) -> Service:
        if quota.limits_callers:
            service = LimitedService(
                service,
                quota,
                unfinished=lambda scope: self._store.scope(scope).count_unfinished(),
                usage=self._usage,
                shared=shared,
                agent=agent,
            )
        return InstrumentedService(service, self.instruments)


class _Life:
    """Starts and stops the core, with the bridges and the MCP servers that its agents use."""

    def __init__(self, core: _Core, agents: Sequence[Agent], settings: AppSettings) -> None:
        self._core, self._settings = core, settings
        self._bridges = list((settings.bridged or {}).values())
        self._tool_boxes = [
            code.tools for agent in agents for code in agent.versions_of_code if code.tools is not None
        ]
        self._sharing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        core, settings = self._core, self._settings
        await asyncio.gather(*(bridge.open() for bridge in self._bridges))
        for box in self._tool_boxes:
            box.open()
        await core.engine.start(retain=settings.retain, retain_unfinished=settings.retain_unfinished)
        if core.shared_counters is not None and core.metrics is not None:
            self._sharing = asyncio.create_task(core.metrics.share())

    async def stop(self) -> None:
        core, settings = self._core, self._settings
        if self._sharing is not None:
            self._sharing.cancel()
        core.instruments.close()
        await core.engine.drain(settings.drain)
        await core.services.close()  # what ended until now has given its slot back
        await core.engine.stop(settings.drain)
        for bridge in self._bridges:
            await bridge.close()
        for box in self._tool_boxes:
            await box.close()
        if settings.tracer is not None:
            await asyncio.to_thread(settings.tracer.close)


# -- what calls come through ------------------------------------------------------------------------------------------


def _open_grpc(
    settings: AppSettings,
    mounts: Sequence[Mount],
    others: Sequence[Binding],
    connections: Connections,
    bodies: ByteBudget,
) -> Grpc | None:
    if settings.grpc_port is None:
        return None
    from dragoman.server.grpc.server import Grpc, Tls

    return Grpc(
        mounts,
        host=settings.grpc_host,
        port=settings.grpc_port,
        public=settings.grpc_public,
        tls=Tls(**settings.grpc_tls) if settings.grpc_tls else None,
        limits=settings.limits,
        connections=connections,
        bodies=bodies,
        share_port=settings.shared,
        others=others,
        public_url=settings.public_url,
    )


def _open_mcp(settings: AppSettings, limits: Limits) -> McpBinding | None:
    if not settings.mcp:
        return None
    from dragoman.mcp.binding import McpBinding

    origins = [*settings.cors_origins, settings.public_url]
    return McpBinding(shared=settings.shared, max_body=limits.max_body, origins=origins)


def _describe(core: _Core, mounts: Sequence[Mount], settings: AppSettings) -> ServerParts:
    """What a console and a catalogue see of the server."""
    return ServerParts(
        store=core.store,
        bus=core.bus,
        engine=core.engine,
        mounts=mounts,
        metrics=core.metrics.text if core.metrics else None,
        audit=core.instruments.audit,
        push=core.sender is not None,
        bridged=settings.bridged or {},
    )


def _mount_all(
    agents: Sequence[Agent], settings: AppSettings, core: _Core, fetch: Fetcher, signer: KeyRing | None
) -> list[Mount]:
    bridged = settings.bridged or {}
    mounts = []
    for agent in agents:
        path = settings.path if len(agents) == 1 else f"/{agent.id}"
        push = core.sender is not None
        mounts.append(_mount(agent, path, core.services, bridged.get(agent.id), push, fetch, signer))
    return mounts


def _mount(
    agent: Agent,
    path: str,
    services: _Services,
    bridge: Bridged | None,
    push: bool,
    fetch: Fetcher,
    signer: KeyRing | None,
) -> Mount:
    """An agent at a path, or at that of its bridge."""
    authenticator = None
    if agent.auth:
        checks = AgentAuthenticator(agent.auth, realm=agent.id, fetch=fetch)
        authenticator = InstrumentedAuth(checks, agent.id, services.instruments)

    def card() -> AgentCard:
        card = agent.card if bridge is None or bridge.card is None else bridge.card()
        return card if push or (bridge is not None and bridge.service) else _without_push(card)

    return Mount(
        service=services.of(agent.id, bridge),
        card=card,
        agent=agent.id,
        path=bridge.path if bridge is not None else path,
        deduplicates=bridge.deduplicates if bridge is not None else None,
        versions=agent.versions,
        authenticator=authenticator,
        private=agent.private_card,
        check_reader=bridge.check_reader if bridge is not None else None,
        signer=signer,
        methods=frozenset(name for each in agent.extensions for name in each.methods),
    )


def check_ids(agents: Sequence[Agent]) -> None:
    """Raises `ValueError` if two agents have one id, which is part of their addresses."""
    ids = [agent.id for agent in agents]
    if twice := next((id for id in ids if ids.count(id) > 1), ""):
        raise ValueError(f"two agents have the id {twice!r}: give one of them another (`Agent(..., id=)`)")


def check_extras(grpc_port: int | None, mcp: bool) -> None:
    """Raise `SystemExit` if what an option needs is not installed."""
    if grpc_port is not None and find_spec("grpc") is None:
        raise SystemExit("gRPC needs an extra: pip install 'dragoman[grpc]'")
    if mcp and find_spec("mcp") is None:
        raise SystemExit("MCP needs an extra: pip install 'dragoman[mcp]'")


class _Peers:
    """The agents that agents here call: those behind a bridge by name, all others as `peers` finds them."""

    def __init__(self, peers: Peers, bridged: Mapping[str, Bridged]) -> None:
        self._peers = peers
        self._upstreams = {each.peer: each.upstream for each in bridged.values()}

    async def find(self, name: str, scope: Scope) -> tuple[Service, Scope]:
        if (upstream := self._upstreams.get(name)) is not None:
            return upstream, scope
        return await self._peers.find(name, scope)

    async def close(self) -> None:
        await self._peers.close()


def readiness(store: Store, runner: Runner) -> Callable[[], Awaitable[None]]:
    """Fails when the server is full, and when the store cannot be read or written, or is damaged. A stranger who asks makes
    us write once in a second."""
    wrote = float("-inf")

    async def ready() -> None:
        nonlocal wrote
        if damage := store.damage():
            raise StoreDamaged(damage)
        if runner.full:
            raise Unavailable("as many tasks run and wait as may")
        await store.push_queue.next_due()
        if time.monotonic() - wrote >= _PROBE_SECONDS:
            await runner.beat()
            wrote = time.monotonic()

    return ready


def signing_keys(keys: KeyRing | str | Path) -> KeyRing:
    """Raises `ValueError` if there is none to sign with."""
    ring = keys if isinstance(keys, KeyRing) else KeyRing(keys)
    if not any(key.signs for key in ring.keys):
        raise ValueError("there is no key to sign cards with: `dragoman keys new` makes one")
    return ring


def _ring(keys: KeyRing | str | Path | None, public_url: str) -> KeyRing | None:
    if keys is None:
        return None
    ring = signing_keys(keys)
    if not public_url:  # we would sign whatever a client puts into `Host`
        raise ValueError("a signed card says where the agent is, and only you can say that: give public_url")
    if not ring.jku:
        ring.jku = public_url.rstrip("/") + JWKS
    return ring


def _without_push(card: AgentCard) -> AgentCard:
    return replace(card, capabilities=replace(card.capabilities, push_notifications=False))
