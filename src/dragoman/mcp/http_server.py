"""An agent's MCP server over streamable HTTP, as an ASGI application.

Who may call is decided here: everybody on this machine, callers with a token, or callers with their own credentials, which
the agent checks (`forward`). A session belongs to the credentials that opened it.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from dragoman.mcp.server import AgentServer
from dragoman.server.asgi import DIRECT

PATH = "/mcp"
MAX_BODY = 24 << 20
"""Bytes of a request: a file of 16 MiB in base64 fits."""
MAX_SESSIONS = 1_000
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_STOP_SECONDS = 5.0


def forward_headers(names: Sequence[str]) -> Callable[[Any], dict[str, str]]:
    """A function that takes the headers with these names out of a request."""

    def take(request: Any) -> dict[str, str]:
        return {name: request.headers[name] for name in names if name in request.headers}

    return take


class McpSessions:
    """The sessions of an agent's MCP server over HTTP. `start` before the first request; it can be started again after `stop`.

    `stateless`: requests may come to any of several processes, so there are no sessions, and no forms before MCP 2026-07-28.
    """

    def __init__(
        self,
        agent: AgentServer,
        *,
        stateless: bool = False,
        only_this_machine: bool = False,
        max_body: int = MAX_BODY,
    ) -> None:
        self._agent, self._stateless, self._max_body = agent, stateless, max_body
        self._security = _only_this_machine() if only_this_machine else None
        self._manager: Any = None
        self._begun, self._stop = asyncio.Event(), asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the sessions, in a task of their own: the library requires that one task opens and closes them."""
        if self._running is None:
            self._agent.stopping.clear()
            self._stop.clear()
            self._begun = asyncio.Event()
            self._running = asyncio.create_task(self._run(self._begun))
        await self._begun.wait()

    async def _run(self, begun: asyncio.Event) -> None:
        self._manager = StreamableHTTPSessionManager(
            app=self._agent.server,
            stateless=self._stateless,
            max_request_body_size=self._max_body,
            max_sessions=MAX_SESSIONS,
            security_settings=self._security,
        )
        async with self._manager.run():
            begun.set()
            await self._stop.wait()

    async def stop(self) -> None:
        """End all sessions. Tasks continue at the agent."""
        await self._agent.finish_calls()
        self._stop.set()
        running, self._running = self._running, None
        if running is not None:
            await asyncio.wait([running], timeout=_STOP_SECONDS)
        await self._agent.close()

    async def handle(self, scope: Any, receive: Any, send: Any, user: str = "") -> None:
        """Serve a request of an authorized caller. `user` identifies the caller: a session belongs to one."""
        if user:
            authenticated_user = AuthenticatedUser(AccessToken(token="-", client_id=user, scopes=[]))
            scope = {**scope, "user": authenticated_user}
        await self._manager.handle_request(scope, with_disconnects(scope, receive), send)


class HttpEndpoint:
    """The ASGI application. `start` it and `stop` it.

    `token`: callers need this token. `forward`: callers send credentials in one of these headers, and the agent checks them. Without
    both, everybody on this machine may call, so requests of web pages are refused by their `Host` and `Origin` headers.
    """

    def __init__(self, agent: AgentServer, *, token: str = "", forward: Sequence[str] = ()) -> None:
        self._token, self._forward = token, tuple(forward)
        self._sessions = McpSessions(agent, only_this_machine=not (token or forward))
        self.start, self.stop = self._sessions.start, self._sessions.stop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/healthz":
            await _respond(send, 200, b'{"status":"ok"}')
        elif scope["path"].rstrip("/") != PATH:
            await _respond(send, 404, b'{"error":"the MCP server is at %s"}' % PATH.encode())
        elif (user := self._user(scope)) is False:
            await _respond(
                send, 401, b'{"error":"credentials are missing or wrong"}', (b"www-authenticate", b"Bearer")
            )
        else:
            await self._sessions.handle(scope, receive, send, user)

    def _user(self, scope: Any) -> Any:
        """The identity of this caller, empty for everybody; False if it may not call."""
        headers: dict[str, bytes] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value)
        if self._token:
            scheme, _, credentials = headers.get("authorization", b"").partition(b" ")
            good = hmac.compare_digest(credentials.strip(), self._token.encode())
            return "token" if good and scheme.lower() == b"bearer" else False
        if self._forward:
            credentials = b"\0".join(headers.get(name, b"") for name in self._forward)
            return identify(credentials) if credentials.strip(b"\0") else False
        return ""


def with_disconnects(scope: Any, receive: Any) -> Any:
    """Make our HTTP server report at once that a client disconnects, which cancels the call."""
    direct = (scope.get("extensions") or {}).get(DIRECT)
    if direct is None:
        return receive
    is_complete = False

    async def receive_and_mark() -> Any:
        nonlocal is_complete
        if is_complete:
            direct.mark_slow()
        message = await receive()
        is_complete = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    return receive_and_mark


def identify(credentials: bytes) -> str:
    """A name for the holder of these credentials, from which they cannot be read."""
    return hashlib.sha256(credentials).hexdigest()


def _only_this_machine() -> Any:
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=[*_LOOPBACK, *(f"{host}:*" for host in _LOOPBACK)],
        allowed_origins=[f"http://{host}:*" for host in _LOOPBACK],
    )


async def _respond(send: Any, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
