"""The ASGI application: many agents in one process, each at its path.

It needs no framework and fits into any: mounted below a path it respects `root_path`, and where nobody runs its
lifespan it starts with the first request.

    /healthz /readyz                   is it alive, does it take requests
    /metrics                           numbers for Prometheus, for this machine or with a token
    <mount>                            JSON-RPC, with and without a slash at the end
    <mount>/message:send, /tasks ...   HTTP+JSON; below /v1 that of 0.3
    <mount>/mcp                        MCP, if it is asked for
    <mount>/.well-known/agent-card.json, <mount>/.well-known/agent.json, <mount>/agent-card.json
    /.well-known/...                   the card of the agent at the root, or of the first; jwks.json, if cards are signed
    /console/...                       pages and an API for operators, if they are asked for
    /catalogue/..., /.well-known/ai-catalog.json, /.well-known/ard.json    the catalogue, if it is asked for
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol
from urllib.parse import unquote

import msgspec

from dragoman.errors import StoreDamaged
from dragoman.model.byte_budget import ByteBudget
from dragoman.model.card import Interface
from dragoman.server.address import PublicAddress
from dragoman.server.asgi import AsgiScope, Disconnected, Receive, Send
from dragoman.server.cards import JWKS, WELL_KNOWN, Cards
from dragoman.server.cors import Cors
from dragoman.server.exchange import JSON, Exchange, Shared
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.limits import BODIES_BYTES, Connections, Limits, TaskTimeout
from dragoman.server.mount import Mount
from dragoman.server.pipeline import Binding, Handler
from dragoman.server.rest import Rest
from dragoman.server.streams import Streams
from dragoman.server.waits import Waits

log = logging.getLogger(__name__)

Callback = Callable[[], Awaitable[object]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]
Elsewhere = Callable[[Exchange], Awaitable[Mount | None]]
"""Called for a path that no mount has: it responds, or returns the mount of the path."""
Operators = Callable[[Exchange], Awaitable[None]]
"""Called for the paths of operators: it responds, errors included."""

CONSOLE_PATH, CATALOGUE_PATH = "/console", "/catalogue"


class PathHandler(Protocol):
    """Answers requests for paths of its own."""

    def serves(self, path: str) -> bool: ...

    async def __call__(self, exchange: Exchange) -> None:
        """Responds, errors included."""
        ...


_SERVER_PATHS = ("/healthz", "/readyz", "/metrics")
"""Paths of the server, not of an agent. They have no CORS headers."""
READY_SECONDS = 2.0
"""How long the readiness check may take."""


class App:
    """Serves `mounts` through `bindings` (JSON-RPC and HTTP+JSON, unless others are given).

    `cors_origins`: web pages that may call the agents, by where they come from (`https://app.example.com`); a card that is
    public may be read by all. `connections`: where our own server counts them, with those of gRPC; `bodies`: and their large
    bodies. `ready` raises when requests would fail, because something that we need is away.
    `console` serves /console and what is below it, `catalogue` its own paths; agents keep all others.
    """

    def __init__(
        self,
        mounts: Sequence[Mount],
        *,
        bindings: Sequence[Binding] | None = None,
        limits: Limits | None = None,
        connections: Connections | None = None,
        public_url: str = "",
        trusted_proxies: Sequence[str] = (),
        keepalive: float = 15.0,
        cors_origins: Sequence[str] = (),
        elsewhere: Elsewhere | None = None,
        on_startup: Sequence[Callback] = (),
        on_shutdown: Sequence[Callback] = (),
        bodies: ByteBudget | None = None,
        metrics: Callable[[], bytes] | None = None,
        metrics_token: str = "",
        ready: Callback | None = None,
        busy: Callable[[], str] | None = None,
        persistent: bool = True,
        console: Operators | None = None,
        catalogue: PathHandler | None = None,
    ) -> None:
        self._mounts = {mount.prefix: mount for mount in mounts}
        if len(self._mounts) != len(mounts):
            raise ValueError("two agents are mounted at one path")
        if console is not None and CONSOLE_PATH in self._mounts:
            raise ValueError(f"an agent and the console cannot both have the path {CONSOLE_PATH}")
        if catalogue is not None and CATALOGUE_PATH in self._mounts:
            raise ValueError(f"an agent and the catalogue cannot both have the path {CATALOGUE_PATH}")
        self._first = mounts[0] if mounts else None
        self._deepest = max((prefix.count("/") for prefix in self._mounts), default=0)
        self._elsewhere = elsewhere
        self._cors = Cors(cors_origins) if cors_origins else None
        self._cards = Cards()
        self._bindings: tuple[Binding, ...] = (
            *(bindings if bindings is not None else (JsonRpc(), Rest())),
            self._cards,
        )
        paths = [(mount, below) for mount in mounts for below in ("", "/")]
        roots = {mount.prefix + below: self._match(mount, below) for mount, below in paths}
        self._roots = {path: found for path, found in roots.items() if found is not None}
        """The handlers of the mounts themselves, where most calls go."""
        self.limits = limits = limits or Limits()
        self.connections = connections or Connections(limits.max_connections)
        self.streams = Streams(keepalive=keepalive)
        self._waits = Waits(persistent=persistent)
        self._shared = Shared(
            limits=limits,
            address=PublicAddress(public_url, trusted_proxies),
            body_timeout=TaskTimeout(limits.body_timeout),
            waits=self._waits,
            streams=self.streams,
            bodies=bodies or ByteBudget(BODIES_BYTES),
            interfaces=self._interfaces,
        )
        self._on_startup, self._on_shutdown = tuple(on_startup), tuple(on_shutdown)
        self._metrics, self._metrics_token = metrics, metrics_token
        self._ready, self._busy = ready, busy
        self._console, self._catalogue = console, catalogue
        self._starting = asyncio.Lock()
        self.started = self.stopped = False

    async def start(self) -> None:
        """Run the startup callbacks, once."""
        async with self._starting:
            if not self.started:
                for callback in self._on_startup:
                    await callback()
                self.started, self.stopped = True, False
                self.streams.draining = self._waits.closed = False

    def waits_for(self) -> str:
        """What a stop waits for, for the log: `: 2 tasks run, and have 10 s to finish`."""
        what = self._busy() if self._busy is not None else ""
        return f": {what}" if what else ""

    async def drain(self) -> None:
        """End the open streams and begin no more. Call it before the server waits for its connections to close."""
        await self.streams.drain()

    async def stop(self) -> None:
        """Drain, then run the shutdown callbacks. Further requests get 503."""
        self.stopped = True
        await self.drain()
        async with self._starting:
            if self.started:
                self.started = False
                for callback in self._on_shutdown:
                    await callback()
            self._waits.close()

    def mounted_in(self, other: Asgi, path: str) -> Asgi:
        """`other` with this application at `path` and below it; it starts and stops with `other`.

        A framework's own mount does not serve the path itself: it redirects `/a2a` to `/a2a/`, and few clients follow.
        """
        path = f"/{path.strip('/')}"

        async def app(scope: AsgiScope, receive: Receive, send: Send) -> None:
            root: str = scope.get("root_path", "").rstrip("/")
            asked: str = scope.get("path", "")
            asked = asked.removeprefix(root) if asked.startswith(f"{root}/") else asked
            if scope["type"] == "lifespan":
                await other(scope, receive, self._with_lifespan(send))
            elif asked == path or asked.startswith(f"{path}/"):
                await self({**scope, "root_path": root + path, "app_root_path": root}, receive, send)
            else:
                await other(scope, receive, send)

        return app

    def _with_lifespan(self, send: Send) -> Send:
        async def forward(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                await self.start()
            elif message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                await self.stop()
            await send(message)

        return forward

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
            return
        path: str = scope["path"]
        if (
            scope.get("root_path")
            or "%" in path
            or b"%" in (scope.get("raw_path") or b"")
            or path[:2] == "//"
        ):
            path = _below(scope)  # most paths are what they seem
        exchange = Exchange(scope, receive, send, path, self._shared)
        try:
            if not self.started and not self.stopped:
                await self.start()
            await self._answer(exchange)
        except Disconnected:
            pass
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            if not exchange.responding:
                await _respond_error(exchange, 500, "INTERNAL", "internal error")
        finally:
            if exchange.at_end is not None:
                exchange.at_end()

    async def _answer(self, exchange: Exchange) -> None:
        if (
            self._console is not None
            and exchange.path.startswith(CONSOLE_PATH)
            and _is_console(exchange.path)
        ):
            # before CORS: no other origin may use it
            await (_shutting_down if self.stopped else self._console)(exchange)
            return
        if self._cors is not None and exchange.path not in _SERVER_PATHS:
            exchange.always = self._cors.headers(exchange)
            if exchange.method == "OPTIONS" and self._cors.allows(exchange):
                await self._cors.preflight(exchange)
                return
        found = self._roots.get(exchange.path)
        if found is None and self._catalogue is not None and self._catalogue.serves(exchange.path):
            await (_shutting_down if self.stopped else self._catalogue)(exchange)
            return
        found = found or self._find(exchange.path)
        if found is None and self._elsewhere is not None and not self.stopped:
            mount = await self._elsewhere(exchange)
            if exchange.responding:
                return
            found = self._match(mount, exchange.path[len(mount.prefix) :]) if mount is not None else None
        if found is None:
            await self._own(exchange)
            return
        mount, methods = found
        if self.stopped:
            await _shutting_down(exchange)
        elif (handler := methods.get(exchange.method)) is None:
            await _not_allowed(exchange, methods)
        else:
            await handler(exchange, mount)

    def serves(self, scope: AsgiScope) -> bool:
        """True if an agent serves the path of a request."""
        return self._find(_below(scope)) is not None

    def _find(self, path: str) -> tuple[Mount, Mapping[str, Handler]] | None:
        """The nearest mount of a path, and its handlers."""
        if (found := self._roots.get(path)) is not None:
            return found
        # Not deeper than the deepest mount: a path may have thousands of slashes.
        prefix = "/".join(path.split("/", self._deepest + 1)[: self._deepest + 1])
        while (mount := self._mounts.get(prefix)) is None and prefix:
            prefix = prefix.rpartition("/")[0]
        if mount is None:
            first = self._first
            methods = self._cards.match(first, path) if first and path in (*WELL_KNOWN, JWKS) else None
            return (first, methods) if first and methods else None
        return self._match(mount, path[len(prefix) :])

    def _match(self, mount: Mount, below: str) -> tuple[Mount, Mapping[str, Handler]] | None:
        if below.startswith("//"):
            below = "/" + below.lstrip("/")
        for binding in self._bindings:
            if (methods := binding.match(mount, below)) is not None:
                return mount, methods
        return None

    async def _own(self, exchange: Exchange) -> None:
        metrics = self._metrics if exchange.path == "/metrics" and self._may_scrape(exchange) else None
        if metrics is None and exchange.path not in ("/healthz", "/readyz"):
            await _respond_error(exchange, 404, "NOT_FOUND", "there is nothing at this path")
        elif exchange.method not in ("GET", "HEAD"):
            await _not_allowed(exchange, ("GET", "HEAD"))
        elif metrics is not None:
            await exchange.respond(200, metrics(), ((b"content-type", b"text/plain; version=0.0.4"),))
        elif exchange.path == "/readyz" and self.streams.draining:
            await exchange.respond(503, b'{"status":"draining"}')
        elif exchange.path == "/readyz" and (reason := await self._why_not_ready()):
            await exchange.respond(503, b'{"status":"%b"}' % reason)
        else:
            await exchange.respond(200, b'{"status":"ok"}')

    async def _why_not_ready(self) -> bytes:
        """Why the server is not ready, in a word; empty if it is. The log has the details."""
        try:
            if self._ready is not None:
                async with asyncio.timeout(READY_SECONDS):
                    await self._ready()
        except Exception as error:
            log.warning("not ready: %s", str(error) or type(error).__name__)
            return b"damaged" if isinstance(error, StoreDamaged) else b"unavailable"
        return b""

    def _may_scrape(self, exchange: Exchange) -> bool:
        """True for callers with the token; without a token, for this machine, but not through a proxy."""
        if self._metrics_token:
            token = exchange.headers.get(b"authorization", b"").partition(b" ")[2].strip()
            return hmac.compare_digest(token, self._metrics_token.encode())
        forwarded = b"forwarded" in exchange.headers or b"x-forwarded-for" in exchange.headers
        return not forwarded and exchange.local

    def _interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        return [interface for binding in self._bindings for interface in binding.interfaces(mount, url)]

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            log.exception("startup failed")
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def _is_console(path: str) -> bool:
    return path[len(CONSOLE_PATH) : len(CONSOLE_PATH) + 1] in ("", "/")


def _below(scope: AsgiScope) -> str:
    """The path below the mount point; servers differ in whether `path` includes `root_path`."""
    path: str = scope["path"]
    if "%" in path or b"%" in (scope.get("raw_path") or b""):
        path = _decoded_path(scope)
    root: str = scope.get("root_path", "").rstrip("/")
    if root:
        # A proxy that removes its own prefix leaves only the path in the framework.
        for prefix in (root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))):
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                path = path[len(prefix) :]
                break
    if path.startswith("//"):  # a client appended a path to a URL that ends in a slash
        path = "/" + path.lstrip("/")
    return path


def _decoded_path(scope: AsgiScope) -> str:
    """The path, decoded except for escapes that would change its meaning: a slash, a colon, a percent sign in an id."""
    path: str = scope["path"]
    raw: bytes = scope.get("raw_path") or b""
    if b"%" not in raw:
        return path.replace("%", "%25") if "%" in path else path
    pieces = _KEPT_ESCAPES.split(raw.decode("latin-1"))
    decoded = "".join([piece.upper() if n % 2 else unquote(piece) for n, piece in enumerate(pieces)])
    return decoded if unquote(decoded) == path else path.replace("%", "%25")


_KEPT_ESCAPES = re.compile(r"(%(?:2F|3A|25))", re.IGNORECASE)


async def _shutting_down(exchange: Exchange) -> None:
    await _respond_error(exchange, 503, "UNAVAILABLE", "shutting down", (b"retry-after", b"1"))


async def _not_allowed(exchange: Exchange, methods: Sequence[str] | Mapping[str, Handler]) -> None:
    allow = ", ".join(methods)
    await _respond_error(
        exchange, 405, "UNIMPLEMENTED", f"this path takes {allow}", (b"allow", allow.encode())
    )


async def _respond_error(
    exchange: Exchange, http: int, status: str, message: str, *headers: tuple[bytes, bytes]
) -> None:
    body = msgspec.json.encode({"error": {"code": http, "status": status, "message": message}})
    await exchange.respond(http, body, (JSON, *headers))
