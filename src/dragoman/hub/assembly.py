"""Builds a hub and its application from settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman.agent.agent import Agent
from dragoman.buses import open_bus
from dragoman.catalogue import open_catalogue
from dragoman.catalogue.settings import read_catalogue
from dragoman.client.client import ConnectedPeers
from dragoman.client.fetch import Fetcher
from dragoman.engine.runner import TTL_SECONDS, Program
from dragoman.hub.agents.constitution import INDEX, Constitution
from dragoman.hub.agents.constitution_agent import ConstitutionAgent
from dragoman.hub.agents.programs import StoppableModel
from dragoman.hub.agents.prompt import ConversationHistory, roster
from dragoman.hub.api.about import ModelInfo
from dragoman.hub.api.access import Users, mounts_by_agent
from dragoman.hub.api.agents import HubSource
from dragoman.hub.conversations.retention import Retention
from dragoman.hub.hub import Hub
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Model, ModelError, local, traits_of
from dragoman.hub.models.calls import ModelByProvider, RetryingModel
from dragoman.hub.models.local import DemoModel, EchoModel, ScriptFileModel
from dragoman.hub.models.offered import ModelNames, Prices
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.settings import Settings
from dragoman.hub.site import Site
from dragoman.hub.store.blobs import open_blobs
from dragoman.hub.store.catalogue import CatalogueEntry
from dragoman.hub.store.database import open_database
from dragoman.hub.store.requests import IdempotencyKeys
from dragoman.hub.store.schedules import Schedules
from dragoman.hub.store.tenants import Tenant
from dragoman.hub.store.workspace_leases import WorkspaceLeases
from dragoman.hub.tenants.admission import Quotas
from dragoman.hub.tools.files import Pictures
from dragoman.hub.tools.toolbox import ExternalServices
from dragoman.model.byte_budget import ByteBudget
from dragoman.observe.shared_quota import SharedQuota
from dragoman.push.options import PushOptions
from dragoman.push.seal import read_keys
from dragoman.push.sender import open_push_sender
from dragoman.server.app import App, Operators
from dragoman.server.application import readiness
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.limits import BODIES_BYTES, Connections, Limits
from dragoman.server.options import ServerParts
from dragoman.server.pipeline import Binding
from dragoman.server.rest import Rest
from dragoman.server.routes import Table
from dragoman.stores import open_store

if TYPE_CHECKING:  # of an extra
    from dragoman.server.grpc import Grpc

OpenConsole = Callable[[Hub, ServerParts, Table], Operators]
"""Gets the routes of the native API, too: the console offers them to operators and tenants that are logged in."""

TAKEOVER_SECONDS = 30.0
"""How long it may take, after a lease is over, until another hub has begun to continue all that it was for."""

DEMO, EMBEDDED, ECHO, SCRIPTED = "demo", "embedded", "echo", "scripted"


def application(
    settings: Settings,
    *,
    model: Model | None = None,
    code: Sequence[Agent] = (),
    store: str = "",
    console: OpenConsole | None = None,
    **engine: Any,
) -> tuple[Hub, App]:
    """A hub and its ASGI app. `store` and `model` replace those of the settings. `console` makes what serves /console."""
    metrics = HubMetrics()
    model = model or RetryingModel(choose_model(settings), counted=metrics.provider)
    if store != "memory:":
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tasks = store or settings.tasks
    opened, bus = open_store(tasks, folder=settings.folder), open_bus(settings.bus or tasks)
    database = open_database(tasks, settings.folder, policy=settings.policy)
    leases = None
    if opened.quotas.spans_machines:
        leases = WorkspaceLeases(database, seconds=settings.exec_seconds)
    services = ExternalServices(settings, metrics, leases)
    factory = _ProgramFactory(model, services)
    counter = None
    if (
        opened.quotas.spans_machines
    ):  # what a hub that died did is continued when its lease is over: its slots stay longer
        counter = SharedQuota(opened.quotas, slot_seconds=engine.get("ttl", TTL_SECONDS) + TAKEOVER_SECONDS)
    hub = Hub(
        database,
        opened,
        bus,
        factory.make,
        code=code,
        index=replace(INDEX, model=settings.index_model),
        quotas=Quotas(
            max_running=settings.max_concurrent,
            per_minute=settings.rate_per_min,
            burst=settings.rate_burst,
            shared=counter,
        ),
        remotes=services.remotes,
        peers=ConnectedPeers(),
        metrics=metrics,
        fetcher=services.fetcher,
        keys=IdempotencyKeys(database, seconds=settings.idempotency_hours * 3600),
        push=open_push_sender(opened, _push(settings), issuer=settings.public_url) if settings.push else None,
        folder=settings.folder if tasks.startswith("sqlite:") else None,
        blobs=open_blobs(settings.blobs, settings.folder / "blobs" if store != "memory:" else None),
        model_names=model_names(settings),
        prices=Prices(settings.prices, settings.currency),
        admin_token_is_set=bool(settings.admin_token),
        workspaces=settings.folder / "workspaces" if store != "memory:" else None,
        **engine,
    )
    fetch = Fetcher()
    if settings.oidc_issuer:
        hub.identify_user = Users(hub.tenants, settings, fetch).identify
    factory.open(hub)
    scheduler = Scheduler(hub, Schedules(database, timezone=settings.timezone))
    retention = Retention(hub, opened, settings.retain_days * 86_400, settings.retain_usage_days)
    limits = Limits(
        max_body=settings.max_body,
        max_connections=settings.max_connections,
        head_timeout=settings.head_timeout,
        body_timeout=settings.body_timeout,
        write_timeout=settings.write_timeout,
        read_rate=settings.read_rate,
    )

    async def start() -> None:
        await hub.start()
        if settings.admin_token:
            await hub.tenants.admin(settings.admin_token)
        services.remotes.refresh()
        for registry in services.registries:
            registry.start()
        scheduler.periodic.start()
        if settings.retain_days or settings.retain_usage_days:
            retention.periodic.start()

    async def stop() -> None:
        if counter is not None:
            await counter.close()
        await retention.periodic.stop()
        await scheduler.periodic.stop()
        await hub.stop(settings.drain)
        await services.close()
        await fetch.close()

    bindings: list[Binding] = [JsonRpc(), Rest()]
    connections = Connections(limits.max_connections)
    bodies = ByteBudget(BODIES_BYTES)
    grpc = _grpc(settings, hub, bindings, limits, connections, bodies)
    catalogue = None
    if settings.catalogue:
        catalogue = open_catalogue(opened, [HubSource(hub)], **_catalogue(settings))
    parts = ServerParts(
        catalogue=catalogue,
        store=opened,
        bus=bus,
        engine=hub.engine,
        metrics=hub.metrics_text,
        audit=hub.observer.audit,
        push=settings.push,
    )
    site = Site(
        hub,
        factory.model,
        scheduler,
        models=list_models(settings),
        origins=settings.cors_origins,
        strict=settings.strict,
    )
    app = App(
        [],
        console=console(hub, parts, site.table) if console is not None else None,
        catalogue=catalogue,
        bindings=[*bindings, grpc] if grpc else bindings,
        limits=limits,
        connections=connections,
        bodies=bodies,
        public_url=settings.public_url,
        trusted_proxies=settings.trusted_proxies,
        elsewhere=site,
        on_startup=[start, *([catalogue.start] if catalogue else ()), *([grpc.start] if grpc else ())],
        on_shutdown=[
            *([grpc.drain] if grpc else ()),
            *([catalogue.stop] if catalogue else ()),
            stop,
            *([grpc.stop] if grpc else ()),
        ],
        metrics=hub.metrics_text,
        metrics_token=settings.metrics_token,
        ready=readiness(opened, hub.engine.runner),
        busy=lambda: hub.engine.waits_for(settings.drain),
    )
    return hub, app


class _ProgramFactory:
    """Builds programs from constitutions."""

    def __init__(self, model: Model, services: ExternalServices) -> None:
        self._given, self._services = model, services

    def open(self, hub: Hub) -> None:
        """Create what needs the hub: tools, history, images."""
        self._hub = hub
        self.model = StoppableModel(
            self._given, hub.tenants, names=hub.model_names, policies=hub.policies, budgets=hub.budgets
        )
        self._services.follow(hub.policies)
        self._tools = self._services.tools(hub.database, self.model, hub.artifacts)
        self._history = ConversationHistory(hub.conversations, self.model)
        self._pictures = Pictures(hub.database, self.model)

    async def _approve(self, tenant: str) -> tuple[str, ...]:
        return (await self._hub.policies.of(tenant)).approve

    def make(self, tenant: Tenant, entry: CatalogueEntry) -> Program:
        async def siblings() -> Sequence[Constitution]:
            return await self._hub.catalogue.constitutions(tenant.id)

        async def describe_agents() -> str:
            if traits_of(self.model, entry.constitution.model).plain:
                return ""  # too small to choose an agent
            remotes = self._services.remotes
            return roster(await siblings(), remotes.lines(await remotes.visible(tenant.key)))

        return ConstitutionAgent(
            entry.id,
            entry.constitution,
            model=self.model,
            tools=self._tools,
            roster=describe_agents,
            siblings=siblings,
            history=self._history,
            pictures=self._pictures,
            version=str(entry.updated_at or 1),
            native=traits_of(self.model, entry.constitution.model).tools,
            prices=self._hub.budgets.prices,
            approve=self._approve,
        )


def choose_model(settings: Settings) -> Model:
    """The model of the settings, or the best available one. Raises `ModelError`."""
    name, _, rest = settings.model.partition(":")
    if name == SCRIPTED:
        return ScriptFileModel(rest)
    if name == ECHO:
        return EchoModel()
    if name == DEMO:
        return DemoModel()
    if name == EMBEDDED or not settings.model:
        if not settings.model and not local.available():
            return EchoModel()
        small = local.EmbeddedModel(rest)
        if find_spec("any_llm") is None:
            return small
        # A constitution that names a provider's model gets that model.
        return ModelByProvider({"": small, EMBEDDED: small, "*": _hosted(settings, "")})
    if "/" not in settings.model:
        raise ModelError("not_found", f"{settings.model!r} is no model: say provider/name, embedded or echo")
    if find_spec("any_llm") is None:
        raise ModelError("not_found", "models of providers need the extra `llm`: pip install 'dragoman[llm]'")
    hosted = _hosted(settings, settings.model)
    if not local.available():
        return hosted
    return ModelByProvider({"*": hosted, "": hosted, EMBEDDED: local.EmbeddedModel()})


def _hosted(settings: Settings, default: str) -> Model:
    from dragoman.hub.models.hosted import HostedModel

    return HostedModel(
        default,
        text_commands=settings.text_commands,
        plain=settings.plain_models,
        window=settings.context_window,
    )


def model_names(settings: Settings) -> ModelNames:
    """The models that every tenant may name."""
    own = [settings.model, settings.index_model, *(model.id for model in list_models(settings))]
    return ModelNames(own, settings.model_aliases)


def list_models(settings: Settings) -> list[ModelInfo]:
    out = []
    for model in dict.fromkeys((settings.model, settings.index_model)):
        if "/" in model and ":" not in model.partition("/")[0]:
            out.append(ModelInfo(id=model, provider=model.partition("/")[0]))
    if local.available():
        out.append(ModelInfo(id=local.EMBEDDED_NAME, provider=EMBEDDED, context_window=4096))
    if not out or settings.model.startswith((DEMO, ECHO, SCRIPTED)):
        out.append(ModelInfo(id=settings.model.partition(":")[0] or ECHO, provider="dragoman"))
    out += [ModelInfo(id=name, provider=of.partition("/")[0]) for name, of in settings.model_aliases.items()]
    return out


def _grpc(
    settings: Settings,
    hub: Hub,
    others: Sequence[Binding],
    limits: Limits,
    connections: Connections,
    bodies: ByteBudget,
) -> Grpc | None:
    if settings.grpc_port is None:
        return None
    if find_spec("grpc") is None:
        raise ValueError("gRPC needs an extra: pip install 'dragoman[grpc]'")
    from dragoman.server.grpc import Grpc, Tls

    tls = None
    if settings.tls_cert:
        key = settings.tls_key or settings.tls_cert
        tls = Tls(certificate=settings.tls_cert, key=key, client_ca=settings.tls_client_ca)
    return Grpc(
        [],
        host=settings.host,
        port=settings.grpc_port,
        others=others,
        limits=limits,
        connections=connections,
        bodies=bodies,
        public_url=settings.public_url,
        tls=tls,
        find=mounts_by_agent(hub),
    )


def _catalogue(settings: Settings) -> dict[str, Any]:
    """The options of the catalogue, from [catalogue] in dragoman.toml. Raises `ValueError`."""
    given = read_catalogue()
    return {
        "name": given.name,
        "agents": given.agents,
        "allow_private": given.allow_private or settings.allow_private,
        "interval": given.interval,
    }


def _push(settings: Settings) -> PushOptions:
    """Only public addresses, unless the operator allows private ones."""
    return PushOptions(
        allow_private=settings.allow_private, http=settings.allow_private, seal=read_keys(settings.push_seal)
    )
