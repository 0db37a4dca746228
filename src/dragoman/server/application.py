"""Wires agents, a store, the engine and the bindings into one ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace as replace_field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Unpack

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.agent.extensions import ExtendedService
from dragoman.auth.keys import KeyRing
from dragoman.auth.requirements import AgentAuthenticator
from dragoman.buses import open_bus
from dragoman.client.client import ConnectedPeers
from dragoman.client.fetch import Fetcher
from dragoman.engine.engine import Engine, ProgramsById
from dragoman.engine.protocols import Peers, Store
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
    Tracer,
)
from dragoman.observe.limit import LimitedService, Quota, open_shared_quota
from dragoman.observe.metrics import Metrics
from dragoman.observe.shared_memory import SharedCounters
from dragoman.observe.shared_quota import SharedQuota
from dragoman.push.options import DEFAULTS, PushOptions
from dragoman.push.sender import open_push_sender
from dragoman.server.app import App, Callback
from dragoman.server.cards import JWKS
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.limits import BODIES_BYTES, Connections, Limits
from dragoman.server.mount import Mount
from dragoman.server.options import AppOptions, Bridged, ServerCatalogue, ServerConsole, ServerParts
from dragoman.server.pipeline import Binding
from dragoman.server.rest import Rest
from dragoman.stores import default_store_of_app, open_store

logger = logging.getLogger("dragoman.application")

_PROBE = 1.0


def application(
    *agents: Agent,
    store: str = "",
    bus: str = "",
    path: str = "/",
    public_url: str = "",
    trusted_proxies: Sequence[str] = (),
    cors_origins: Sequence[str] = (),
    limits: Limits | None = None,
    keepalive: float = 15.0,
    drain: float = 10.0,
    retain: float | None = None,
    retain_unfinished: float | None = None,
    shared: bool = False,
    peer_credentials: Mapping[str, Any] | None = None,
    keys: KeyRing | str | Path | None = None,
    push: PushOptions | bool | None = DEFAULTS,
    grpc_port: int | None = None,
    grpc_host: str = "127.0.0.1",
    grpc_public: str = "",
    grpc_tls: Mapping[str, str] | None = None,
    quota: Quota | None = None,
    shared_counters: SharedCounters | None = None,
    metrics: bool = True,
    metrics_token: str = "",
    audit: bool = True,
    tracer: Tracer | None = None,
    console: ServerConsole | None = None,
    bridged: Mapping[str, Bridged] | None = None,
    catalogue: ServerCatalogue | None = None,
    mcp: bool = False,
    **engine: Unpack[NodeOptions],
) -> App:
    """Agents as one ASGI app: a single one at `path`, several at `/<id>`.

    `cors_origins`: web pages that may call them, by where they come from; `*` for all.
    `store` is `memory:`, `sqlite:///path` or `postgresql://host/database` (default: `$DRAGOMAN_STORE`, else
    `sqlite:///dragoman.db`, and `memory:` in a process that runs tests); `bus` is where nodes tell each other of news, if
    that is not the store: `nats://host`. `retain`: forget finished tasks after so many seconds; `retain_unfinished`: and
    unfinished ones to which nothing has happened for so long and which no node runs. `shared`: other processes of
    this machine write to the same store. `peer_credentials`: what the agents show to those they call, by URL or name.
    `keys`: sign the agents' cards, and notifications, with the keys in this directory. `push`: whether webhooks are
    told, and how (`PushOptions`); False: not at all. An agent with `push=False` tells none, whatever is said here.
    `grpc_port`: speak gRPC there, too (the extra `grpc`; 0 takes a free one), with `grpc_tls` as for `server.grpc.Tls`;
    `grpc_public` is the `host:port` that the card gives for it.
    `quota`: limits of callers and agents (`observe.limit.Quota`). `shared_counters`: memory shared with the other workers.
    `metrics`: serve /metrics, to this machine or with `metrics_token`.
    `audit`: keep a record of who did what. `tracer`: make spans, as `observe.otel.OpenTelemetry` does.
    `console`: pages and an API for operators at /console (`dragoman.console`). `catalogue`: a catalogue of agents, with a search
    (`dragoman.catalogue`).
    `bridged`: by its id, how an agent that stands for another one is served (`dragoman.bridge`).
    `mcp`: the agents also answer MCP clients, at /mcp below their path (the extra `mcp`).
    """
    if not agents:
        raise ValueError("there is no agent to serve")
    ids = [agent.id for agent in agents]
    if twice := next((id for id in ids if ids.count(id) > 1), ""):
        raise ValueError(f"two agents have the id {twice!r}: give one of them another (`Agent(..., id=)`)")
    check_options(engine, AppOptions, "an application")
    store = store or default_store_of_app()
    if not path.startswith("/") or (path != "/" and len(agents) > 1):
        raise ValueError(f"a path begins with a slash, and several agents have their own: not {path!r}")
    by_id, bridged = ProgramsById({agent.id: agent for agent in agents}), bridged or {}
    ring, fetch = _ring(keys, public_url), Fetcher()
    opened, opened_bus = open_store(store), open_bus(bus or store, shared=shared)
    if push is True:
        push = DEFAULTS
    messenger = open_push_sender(opened, push, keys=ring, issuer=public_url) if push else None
    numbers = Metrics(shared_counters.reports if shared_counters else None) if metrics else None
    if numbers is not None:
        opened.time_commits(numbers.counts.commits[()].add)
        numbers.watch_waiting(opened.waiting)
        if messenger is not None:
            numbers.watch_pushes(messenger.outcomes)
    record = opened.audit if audit else None
    instruments = Instrumentation(
        counts=numbers.counts if numbers is not None else None, audit=record, tracer=tracer
    )
    for name, bridge in bridged.items():
        bridge.upstream.observer = InstrumentedUpstream(instruments, name)
        if numbers is not None:
            numbers.watch_upstream(name, bridge.upstream.health)
        if shared_counters is not None:
            bridge.upstream.share_callers(shared_counters.secrets)
    quota = quota or Quota()
    service = Engine(
        opened,
        opened_bus,
        by_id.find,
        peers=_Peers(ConnectedPeers(credentials=peer_credentials), bridged),
        push=messenger,
        observer=instruments,
        queue=quota.queue,
        load=shared_counters.load if shared_counters else None,
        **engine,
    )
    limited: Service = ExtendedService(service, by_id.find) if any(a.extensions for a in agents) else service
    shared_quota, own_quotas = open_shared_quota(quota, opened), list[SharedQuota]()

    def observe(service: Service, quota: Quota, shared: SharedQuota | None, agent: str = "") -> Service:
        if quota.limits_callers:
            service = LimitedService(
                service,
                quota,
                unfinished=lambda scope: opened.scope(scope).unfinished(),
                usage=shared_counters.usage if shared_counters else None,
                shared=shared,
                agent=agent,
            )
        return InstrumentedService(service, instruments)

    def card_of(agent: Agent) -> AgentCard:
        bridge = bridged.get(agent.id)
        card = agent.card if bridge is None or bridge.card is None else bridge.card()
        return card if push or (bridge is not None and bridge.service) else _without_push(card)

    common = observe(limited, quota, shared_quota)

    def service_of(agent: Agent) -> Service:
        if (bridge := bridged.get(agent.id)) is None or (bridge.service is None and bridge.quota is None):
            return common
        answers = bridge.service or limited
        if bridge.quota is None:
            return observe(answers, quota, shared_quota)
        own = open_shared_quota(bridge.quota, opened)
        if own is not None:
            own_quotas.append(own)
        return observe(answers, bridge.quota, own, agent.id)

    def path_of(agent: Agent) -> str:
        if (bridge := bridged.get(agent.id)) is not None:
            return bridge.path
        return path if len(agents) == 1 else f"/{agent.id}"

    mounts = [
        Mount(
            service=service_of(agent),
            card=partial(card_of, agent),
            agent=agent.id,
            path=path_of(agent),
            deduplicates=bridged[agent.id].deduplicates if agent.id in bridged else None,
            versions=agent.versions,
            authenticator=InstrumentedAuth(
                AgentAuthenticator(agent.auth, realm=agent.id, fetch=fetch), agent.id, instruments
            )
            if agent.auth
            else None,
            private=agent.private_card,
            check_reader=bridged[agent.id].check_reader if agent.id in bridged else None,
            signer=ring,
            methods=frozenset(name for each in agent.extensions for name in each.methods),
        )
        for agent in agents
    ]
    bindings: list[Binding] = [JsonRpc(), Rest()]
    limits = limits or Limits()
    connections = Connections(
        limits.max_connections, shared_counters.connections if shared_counters else None
    )
    bodies = ByteBudget(BODIES_BYTES)
    grpc = None
    if grpc_port is not None:
        if find_spec("grpc") is None:
            raise SystemExit("gRPC needs an extra: pip install 'dragoman[grpc]'")
        from dragoman.server.grpc import Grpc, Tls

        grpc = Grpc(
            mounts,
            host=grpc_host,
            port=grpc_port,
            public=grpc_public,
            tls=Tls(**grpc_tls) if grpc_tls else None,
            limits=limits,
            connections=connections,
            bodies=bodies,
            share_port=shared,
            others=bindings,
            public_url=public_url,
        )
        bindings.append(grpc)
    tools = None
    if mcp:
        if find_spec("mcp") is None:
            raise SystemExit("MCP needs an extra: pip install 'dragoman[mcp]'")
        from dragoman.mcp.binding import McpBinding

        tools = McpBinding(shared=shared, max_body=limits.max_body, origins=[*cors_origins, public_url])
        bindings.append(tools)
    watch: list[asyncio.Task[None]] = []

    tool_boxes = [each.tools for agent in agents for each in agent.versions_of_code if each.tools is not None]

    async def start() -> None:
        await asyncio.gather(*(bridge.open() for bridge in bridged.values()))
        for box in tool_boxes:
            box.open()
        await service.start(retain=retain, retain_unfinished=retain_unfinished)
        if shared_counters is not None and numbers is not None:
            watch.append(asyncio.create_task(numbers.share()))

    async def stop() -> None:
        for task in watch:
            task.cancel()
        instruments.close()
        for each in (shared_quota, *own_quotas):
            if each is not None:
                await each.close()
        await service.stop(drain)
        for bridge in bridged.values():
            await bridge.close()
        for box in tool_boxes:
            await box.close()
        if tracer is not None:
            await asyncio.to_thread(tracer.close)

    parts = ServerParts(
        store=opened,
        bus=opened_bus,
        engine=service,
        agents=agents,
        mounts=mounts,
        metrics=numbers.text if numbers else None,
        audit=record,
        push=messenger is not None,
        bridged=bridged,
    )
    listed = catalogue.open(parts) if catalogue is not None else None
    operators = console.open(replace_field(parts, catalogue=listed)) if console is not None else None
    starts: list[Callback] = [start]
    stops: list[Callback] = [stop]
    if tools is not None:
        stops.insert(0, tools.stop)
    if listed is not None:
        starts.append(listed.start)
        stops.insert(0, listed.stop)
    if grpc is not None:
        starts.append(grpc.start)
        stops = [grpc.drain, *stops, grpc.stop]
    stops.append(fetch.close)
    app = App(
        mounts,
        console=operators,
        catalogue=listed,
        bindings=bindings,
        limits=limits,
        connections=connections,
        bodies=bodies,
        public_url=public_url,
        trusted_proxies=trusted_proxies,
        cors_origins=cors_origins,
        keepalive=keepalive,
        on_startup=starts,
        on_shutdown=stops,
        metrics=numbers.text if numbers else None,
        metrics_token=metrics_token,
        ready=readiness(opened, service.runner),
        busy=lambda: service.waits_for(drain),
        persistent=opened.persistent,
    )
    if tools is not None:
        tools.app = app
    return app


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
        await store.push_queue.when()
        if time.monotonic() - wrote >= _PROBE:
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
