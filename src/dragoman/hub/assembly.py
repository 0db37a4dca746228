"""Builds a hub and its application from settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dragoman.agent.agent import Agent
from dragoman.catalogue.settings import configured_catalogue
from dragoman.hub.api.about import ModelInfo
from dragoman.hub.api.access import CountedHub, mounts_by_agent
from dragoman.hub.api.published import HubSource
from dragoman.hub.conversations.retention import Retention
from dragoman.hub.hub import Hub
from dragoman.hub.metrics import HubMetrics
from dragoman.hub.models import Model, ModelError, local
from dragoman.hub.models.local import DemoModel, EchoModel, ScriptFileModel
from dragoman.hub.models.names import ModelNames
from dragoman.hub.models.providers import ModelByProvider, RetryingModel
from dragoman.hub.schedules.scheduler import Scheduler
from dragoman.hub.settings import Settings
from dragoman.hub.site import Site
from dragoman.model.byte_budget import ByteBudget
from dragoman.server.app import App, Operators
from dragoman.server.application import readiness
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.limits import BODIES_BYTES, Connections, Limits
from dragoman.server.options import ServerParts
from dragoman.server.pipeline import Binding
from dragoman.server.rest import Rest
from dragoman.server.routes import Table

if TYPE_CHECKING:  # of an extra
    from dragoman.server.grpc.server import Grpc

OpenConsole = Callable[[Hub, ServerParts, Table], Operators]
"""Gets the routes of the native API, too: the console offers them to operators and tenants that are logged in."""

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
    """A hub and its ASGI app. `store` and `model` replace those of the settings. `console` opens the console, which serves /console."""
    metrics = HubMetrics()
    model = model or RetryingModel(choose_model(settings), count=metrics.count_provider)
    hub = Hub(settings, model, model_names(settings), metrics, code=code, store=store, **engine)
    scheduler = Scheduler(hub, hub.schedules)
    hub.periodic.append(scheduler.periodic)
    if settings.retain_days or settings.retain_usage_days:
        retention = Retention(hub, settings.retain_days * 86_400, settings.retain_usage_days)
        hub.periodic.append(retention.periodic)
    limits = Limits(
        max_body=settings.max_body,
        max_connections=settings.max_connections,
        head_timeout=settings.head_timeout,
        body_timeout=settings.body_timeout,
        write_timeout=settings.write_timeout,
        read_rate=settings.read_rate,
    )

    bindings: list[Binding] = [JsonRpc(), Rest()]
    on_startup, on_shutdown = [hub.start], [hub.stop]
    connections = Connections(limits.max_connections)
    bodies = ByteBudget(BODIES_BYTES)
    catalogue = None
    if settings.catalogue:
        configured = configured_catalogue(allow_private=settings.allow_private)
        catalogue = configured.publish(hub.store, [HubSource(hub)])
        on_startup, on_shutdown = [*on_startup, catalogue.start], [catalogue.stop, *on_shutdown]
    grpc = _open_grpc(settings, hub, bindings, limits, connections, bodies)
    if grpc is not None:
        bindings = [*bindings, grpc]
        on_startup, on_shutdown = [*on_startup, grpc.start], [grpc.drain, *on_shutdown, grpc.stop]
    site = Site(hub, scheduler, models=list_models(settings))
    operators = None
    if console is not None:
        parts = ServerParts(
            catalogue=catalogue,
            store=hub.store,
            bus=hub.bus,
            engine=hub.engine,
            metrics=hub.metrics_text,
            audit=hub.observer.audit,
            push=settings.push,
        )
        operators = console(hub, parts, site.table)
    app = App(
        [],
        console=operators,
        catalogue=catalogue,
        bindings=bindings,
        limits=limits,
        connections=connections,
        bodies=bodies,
        public_url=settings.public_url,
        trusted_proxies=settings.trusted_proxies,
        elsewhere=site,
        on_startup=on_startup,
        on_shutdown=on_shutdown,
        metrics=hub.metrics_text,
        metrics_token=settings.metrics_token,
        ready=readiness(hub.store, hub.engine.runner),
        busy=lambda: hub.engine.waits_for(settings.drain),
    )
    return hub, app


def choose_model(settings: Settings) -> Model:
    """The model of the settings, or the best available one. Raises `ModelError`."""
    name, _, path = settings.model.partition(":")
    if name == SCRIPTED:
        return ScriptFileModel(path)
    if name == ECHO:
        return EchoModel()
    if name == DEMO:
        return DemoModel()
    if name == EMBEDDED or not settings.model:
        if not settings.model and not local.available():
            return EchoModel()
        embedded = local.EmbeddedModel(path)
        if find_spec("any_llm") is None:
            return embedded
        # A constitution that names a provider's model gets that model.
        return ModelByProvider({"": embedded, EMBEDDED: embedded, "*": _hosted_model(settings, "")})
    if "/" not in settings.model:
        raise ModelError(
            "not_found", f"{settings.model!r} is not a model: use provider/name, embedded or echo"
        )
    if find_spec("any_llm") is None:
        raise ModelError("not_found", "models of providers need the extra `llm`: pip install 'dragoman[llm]'")
    hosted = _hosted_model(settings, settings.model)
    if not local.available():
        return hosted
    return ModelByProvider({"*": hosted, "": hosted, EMBEDDED: local.EmbeddedModel()})


def _hosted_model(settings: Settings, default: str) -> Model:
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
    """The models that `/v1/models` shows."""
    out, chosen = [], (settings.model, settings.index_model)
    for model in dict.fromkeys(chosen):
        if "/" in model and ":" not in model.partition("/")[0]:
            out.append(ModelInfo(id=model, provider=model.partition("/")[0]))
    if local.available() and (not settings.model or any(name.startswith(EMBEDDED) for name in chosen)):
        out.append(ModelInfo(id=local.EMBEDDED_NAME, provider=EMBEDDED, context_window=4096))
    if not out or settings.model.startswith((DEMO, ECHO, SCRIPTED)):
        out.append(ModelInfo(id=settings.model.partition(":")[0] or ECHO, provider="dragoman"))
    aliases = settings.model_aliases.items()
    out += [ModelInfo(id=alias, provider=model.partition("/")[0]) for alias, model in aliases]
    return out


def _open_grpc(
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
    from dragoman.server.grpc.server import Grpc, Tls

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
        find=mounts_by_agent(hub, CountedHub(hub)),
    )
