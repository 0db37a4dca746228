"""The operator API at /console/api, and the files of the page at /console.

Each module contributes its routes (`routes(console)`). A handler gets a `ConsoleRequest` and returns the body of the answer. An
error is `{"error": {"code", "message"}}`, with the HTTP status of the `A2AError` that was raised.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any, TypeAlias

import msgspec

from dragoman.console.access import OPERATOR, Access, Viewer
from dragoman.engine.protocols import AuditEntry
from dragoman.errors import A2AError, Forbidden, Unauthenticated, Unavailable
from dragoman.model.ids import timestamp
from dragoman.model.ops import Scope
from dragoman.server.app import CONSOLE_PATH
from dragoman.server.asgi import Disconnected
from dragoman.server.exchange import Exchange
from dragoman.server.mount import Header
from dragoman.server.options import ServerParts
from dragoman.server.routes import (
    HEAD_OF_STREAM,
    ApiRequest,
    ApiResponse,
    NotFound,
    Route,
    RouteList,
    Table,
    send,
)

logger = logging.getLogger("dragoman.console")

API = f"{CONSOLE_PATH}/api"
OPERATOR_FEATURES = ("inspect",)
"""Features that the page does not show to tenants."""
ANYBODY = "anybody"
SCOPED = "scoped"
"""Access of a route that needs no session, and of one whose handler checks the scope of the token itself."""

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: tuple[Header, ...] = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
"""The media types of the page's files, by their extensions."""

NO_SCOPE = Scope()
ANY_QUERY = "*"
"""In `Route.query`: any parameter is allowed."""

ConsoleRequest: TypeAlias = ApiRequest[Viewer]


class Console:
    """Serves /console. `modules` are called with this object, and return their routes.

    `server`: the parts of the server that the console shows. `dragoman inspect` has none.
    """

    def __init__(
        self,
        access: Access,
        *,
        kind: str,
        features: Sequence[str],
        modules: Iterable[Callable[[Console], Sequence[Route]]] = (),
        server: ServerParts | None = None,
        count: Callable[[Viewer, Exchange], Awaitable[None]] | None = None,
    ) -> None:
        self._count = count
        """Counts a request against the limits of its viewer. Raises `RateLimited`."""
        self.access, self.kind, self.features, self.server = access, kind, list(features), server
        self.table = Table([*routes(self), *(route for module in modules for route in module(self))])

    async def __call__(self, exchange: Exchange) -> None:
        exchange.always = HEADERS
        try:
            self.access.check_host(exchange)
            if exchange.path == API or exchange.path.startswith(f"{API}/"):
                await self._handle_api(exchange)
            else:
                await self._serve_file(exchange)
        except Disconnected:
            raise
        except A2AError as error:
            await _fail(exchange, error)
        except Exception:
            logger.exception("%s %s failed", exchange.method, exchange.path)
            await _fail(exchange, A2AError())

    async def _handle_api(self, exchange: Exchange) -> None:
        found = self.table.find(exchange.path.removeprefix(API))
        methods, values = found or ({}, {})
        route = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
        viewer = None
        if route is None or route.access != ANYBODY:
            try:
                viewer = await self.access.viewer(exchange)
            except Unauthenticated as error:
                if b"authorization" in exchange.headers:
                    self.record("authenticate", error.reason)
                raise
            if self._count is not None:
                await self._count(viewer, exchange)
        if found is None:
            raise NotFound("there is nothing at this path")
        if route is None:
            allow = ", ".join(methods)
            body = {"error": {"code": "METHOD_NOT_ALLOWED", "message": f"this path takes {allow}"}}
            await send(exchange, ApiResponse(body, 405, ((b"allow", allow.encode()),)))
            return
        if route.access == OPERATOR and viewer is not None and viewer.role != OPERATOR:
            raise Forbidden("only operators may do this")
        changes = exchange.method not in ("GET", "HEAD") and route.path != "/session"
        if viewer is not None and viewer.is_read_only and changes and route.access != SCOPED:
            raise Forbidden("this needs a token with the scope run; this one has read")
        request: ApiRequest[Any] = ApiRequest(exchange, viewer, values)
        if ANY_QUERY not in route.query:
            request.refuse_unknown(route.query)
        if exchange.method == "HEAD" and route.streams:
            await send(exchange, HEAD_OF_STREAM)
            return
        answer = await route.answer(request)
        if answer is not None:
            await send(exchange, answer)

    # -- audit -------------------------------------------------------------------------------------------------

    def actor(self, viewer: Viewer) -> str:
        """The name of a viewer in the audit and in the log of a task."""
        if viewer.role == OPERATOR:
            return "console:operator"
        return f"console:{viewer.tenant}/{viewer.who}" if viewer.who else f"console:{viewer.tenant}"

    @contextmanager
    def audit(
        self, request: ConsoleRequest, operation: str, scope: Scope = NO_SCOPE, task: str = ""
    ) -> Iterator[None]:
        """Write an entry of the audit when the block ends: who did what, and how it ended."""
        outcome = "OK"
        try:
            yield
        except A2AError as error:
            outcome = error.reason
            raise
        except BaseException:
            outcome = A2AError.reason
            raise
        finally:
            self.record(operation, outcome, scope, task, principal=self.actor(request.caller))

    def record(
        self, operation: str, outcome: str, scope: Scope = NO_SCOPE, task: str = "", *, principal: str = ""
    ) -> None:
        if self.server is not None and self.server.audit is not None:
            entry = AuditEntry(
                at=timestamp(),
                operation=operation,
                outcome=outcome,
                tenant=scope.tenant,
                agent=scope.agent or "console",
                principal=principal,
                task=task,
                dialect="console",
            )
            self.server.audit.record(entry)

    # -- files -------------------------------------------------------------------------------------------------

    async def _serve_file(self, exchange: Exchange) -> None:
        if exchange.path == CONSOLE_PATH:
            await exchange.respond(308, b"", ((b"location", b"console/"),))
            return
        name = exchange.path.removeprefix(f"{CONSOLE_PATH}/") or "index.html"
        path = self._files.get(name)
        if path is None:
            raise NotFound("there is nothing at this path")
        if exchange.method not in ("GET", "HEAD"):
            await exchange.respond(405, b"", ((b"allow", b"GET, HEAD"),))
            return
        body = path.read_bytes()
        tag = b'"%b"' % hashlib.sha256(body).hexdigest()[:24].encode()
        media = MEDIA_TYPES[name.rpartition(".")[2]].encode()
        headers = ((b"content-type", media), (b"etag", tag), (b"cache-control", b"no-cache"))
        if tag in exchange.headers.get(b"if-none-match", b""):
            await exchange.respond(304, b"", headers[1:])
        else:
            await exchange.respond(200, body, headers)

    @cached_property
    def _files(self) -> dict[str, Any]:
        """The files of the page by their names; a path in a request is only ever looked up here."""
        folder = files("dragoman.console").joinpath("page")
        return {file.name: file for file in folder.iterdir() if file.name.rpartition(".")[2] in MEDIA_TYPES}


async def _fail(exchange: Exchange, error: A2AError) -> None:
    if exchange.responding:
        logger.error("%s %s: a response could not be finished", exchange.method, exchange.path)
        return
    body: dict[str, Any] = {"code": error.reason, "message": error.message}
    if error.fields:
        body["fields"] = [{"field": field, "reason": why} for field, why in error.fields]
    headers: list[Header] = []
    if error.retry_after is not None or isinstance(error, Unavailable):
        headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after or 1))))
    await send(exchange, ApiResponse({"error": body}, error.http, headers))


# -- streams -----------------------------------------------------------------------------------------------------


class ByteFrames:
    """The encoder of streams whose batches are encoded already."""

    def batch(self, batch: bytes) -> tuple[bytes, bool]:
        return batch, False


def frame(data: Any, *, event: str = "") -> bytes:
    """One event of a stream. JSON has no line breaks."""
    head = b"event: %b\n" % event.encode() if event else b""
    return b"%bdata: %b\n\n" % (head, msgspec.json.encode(data))


async def stream(exchange: Exchange, chunks: AsyncIterator[bytes]) -> None:
    """Write frames as they come, with keep-alives between them, until `chunks` or the client ends."""
    await exchange.shared.streams.serve(exchange, chunks, ByteFrames(), failed=_last_frame)


def _last_frame(error: Exception) -> bytes:
    if not isinstance(error, A2AError):
        logger.error("a stream failed", exc_info=error)
        error = A2AError()
    return frame({"code": error.reason, "message": error.message}, event="error")


# -- sessions ----------------------------------------------------------------------------------------------------


class NewSession(msgspec.Struct, forbid_unknown_fields=True):
    token: str


def product_version() -> str:
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return ""


def routes(console: Console) -> Sequence[Route]:
    api = RouteList("session")

    @api.add(
        "POST",
        "/session",
        "Log in with a token; the answer sets a cookie.",
        access=ANYBODY,
        body=NewSession,
        status=204,
    )
    async def log_in(request: ConsoleRequest) -> Any:
        body = await request.json(NewSession)
        try:
            viewer, cookie = await console.access.log_in(request.exchange, body.token)
        except Unauthenticated as error:
            console.record("authenticate", error.reason)
            raise
        console.record("log in", "OK", principal=console.actor(viewer))
        return ApiResponse(status=204, headers=((b"set-cookie", cookie.encode("latin-1")),))

    @api.add("DELETE", "/session", "Log out in this browser.", status=204)
    async def log_out(request: ConsoleRequest) -> Any:
        cookie = console.access.log_out(request.exchange)
        return ApiResponse(status=204, headers=((b"set-cookie", cookie.encode("latin-1")),))

    @api.add("GET", "/me", "Who is logged in, and what this console can do.")
    async def me(request: ConsoleRequest) -> Any:
        viewer = request.caller
        return {
            "role": viewer.role,
            "tenant": viewer.name or viewer.tenant or None,
            "scope": viewer.scope or None,
            "who": viewer.who or None,
            "kind": console.kind,
            "version": product_version(),
            "features": [
                each for each in console.features if viewer.role == OPERATOR or each not in OPERATOR_FEATURES
            ],
        }

    return api
