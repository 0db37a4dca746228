"""MCP beside A2A: each agent of a server also answers MCP clients, at `<mount>/mcp`.

A tool call becomes a request of the same caller to the same application, in this process. So authentication, scopes, limits,
metrics and audit are those of every other call. Before that, a request is authenticated here, because a session belongs to
one caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from dragoman.client.client import Client, connect
from dragoman.client.connection import IN_PROCESS
from dragoman.client.transport.asgi import AsgiTransport
from dragoman.errors import A2AError
from dragoman.mcp.clients import Clients
from dragoman.mcp.http_server import PATH, McpSessions, identify
from dragoman.mcp.server import AgentServer, McpOptions
from dragoman.model.card import Interface
from dragoman.model.ops import Principal
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.jsonrpc import JsonRpc
from dragoman.server.mount import Mount
from dragoman.server.pipeline import Handler

RESOURCE_METADATA = f"/.well-known/oauth-protected-resource{PATH}"
"""Where an MCP client finds the servers that issue tokens (RFC 9728); a 401 names it."""
_CALLER = "dragoman.caller"
"""The key in a request's ASGI scope under which its caller's credentials are."""
_QUERY, _CLIENT = ":query", ":client"
"""Credentials that are not headers: the query, and the client certificate."""
_NOT_FORWARDED = frozenset({"x-request-id", "x-real-ip"})


class McpBinding:
    """A `Binding` of an application. Set `app` before the first request."""

    def __init__(self, *, shared: bool, max_body: int, origins: Sequence[str]) -> None:
        """`shared`: other processes serve the same address. `origins`: web pages that may call."""
        self.app: Any = None
        self._shared, self._max_body = shared, max_body
        self._origins = frozenset("/".join(each.strip().lower().split("/")[:3]) for each in origins if each)
        self._sessions: dict[str, McpSessions] = {}
        self._methods: Mapping[str, Handler] = dict.fromkeys(("POST", "GET", "DELETE"), self._handle)

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        if path in (PATH, f"{PATH}/"):
            return self._methods
        if path == RESOURCE_METADATA and _issuers(mount):
            return {"GET": _describe_resource}
        return None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        return ()

    async def stop(self) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for each in sessions:
            await each.stop()

    async def _handle(self, exchange: Exchange, mount: Mount) -> None:
        try:
            self._check_origin(exchange)
            principal = await exchange.card_reader(mount)  # the list of tools says what is on the card
            body = await exchange.body() if exchange.method == "POST" else b""
        except A2AError as error:
            text = msgspec.json.encode({"error": {"code": error.http, "message": error.message}})
            headers = [JSON, *mount.refusal(error, error.http)]
            if error.http == 401 and _issuers(mount):
                where = f"{exchange.base_url()}{mount.prefix}{RESOURCE_METADATA}"
                headers.append((b"www-authenticate", f'Bearer resource_metadata="{where}"'.encode("latin-1")))
            await exchange.respond(error.http, text, headers)
            return
        sessions = self._sessions.get(mount.prefix)
        if sessions is None:
            sessions = self._sessions[mount.prefix] = McpSessions(
                self._agent_server(mount), stateless=self._shared, max_body=self._max_body
            )
        await sessions.start()
        scope = {**exchange.scope, _CALLER: _caller_credentials(exchange, mount)}
        user = _name(principal) if mount.authenticator is not None else ""
        await sessions.handle(scope, _replay(exchange, body), partial(_send, exchange), user)

    def _check_origin(self, exchange: Exchange) -> None:
        """Only web pages of listed origins and of this machine may call: a DNS name of a foreign page may point to this machine."""
        origin = exchange.header(b"origin").lower()
        if not origin or "*" in self._origins or origin in self._origins:
            return
        if urlsplit(origin).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise _OriginRefused("web pages of this origin may not call")

    def _agent_server(self, mount: Mount) -> AgentServer:
        card = mount.current_card()
        return AgentServer(
            Clients(partial(self._connect, mount)),
            McpOptions(headers=lambda request: request.scope.get(_CALLER, {})),
            name=card.name,
            about=card.description,
            version=card.version,
        )

    def _connect(self, mount: Mount, credentials: Mapping[str, str]) -> Client:
        """A client of the agent with the credentials of the caller."""
        url = IN_PROCESS + mount.path
        card = replace(mount.current_card(), supported_interfaces=tuple(JsonRpc().interfaces(mount, url)))
        headers = {name: value for name, value in credentials.items() if not name.startswith(":")}
        transport = _CallerTransport(self._without_lifespan, credentials)
        return connect(card, transport=transport, headers=headers)

    async def _without_lifespan(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("the application runs already")
        await self.app(scope, receive, send)


class _OriginRefused(A2AError):
    http = 403


class _CallerTransport(AsgiTransport):
    """Requests in this process, with the query and the certificate of the caller."""

    def __init__(self, app: Any, credentials: Mapping[str, str]) -> None:
        super().__init__(app)
        self._query = credentials.get(_QUERY, "")
        self._certificate = credentials.get(_CLIENT, "")

    def _scope(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        scope = super()._scope(method, url, headers, body)
        if self._query:
            scope["query_string"] = b"&".join(filter(None, (scope["query_string"], self._query.encode())))
        if self._certificate:
            scope["extensions"] = {"tls": {"client_cert_chain": [self._certificate]}}
        return scope


def _issuers(mount: Mount) -> list[str]:
    """The servers that issue tokens for an agent, from its card."""
    found = []
    for scheme in mount.current_card().security_schemes.values() if mount.authenticator is not None else ():
        if (oidc := scheme.open_id_connect_security_scheme) is not None:
            found.append(oidc.open_id_connect_url.removesuffix("/.well-known/openid-configuration"))
        elif (oauth := scheme.oauth2_security_scheme) is not None and oauth.oauth2_metadata_url:
            found.append(oauth.oauth2_metadata_url.replace("/.well-known/oauth-authorization-server", "", 1))
    return found


async def _describe_resource(exchange: Exchange, mount: Mount) -> None:
    card = mount.current_card()
    scopes = {
        scope
        for requirement in card.security_requirements
        for names in requirement.schemes.values()
        for scope in names.list
    }
    document: dict[str, Any] = {
        "resource": f"{exchange.base_url()}{mount.prefix}{PATH}",
        "authorization_servers": _issuers(mount),
        "bearer_methods_supported": ["header"],
    }
    if not mount.private:
        document["resource_name"] = card.name
    if scopes:
        document["scopes_supported"] = sorted(scopes)
    await exchange.respond(200, msgspec.json.encode(document))


def _caller_credentials(exchange: Exchange, mount: Mount) -> dict[str, str]:
    """The credentials in a request: headers, query and certificate. Any header that begins with x- may be an API key."""
    if mount.authenticator is None:
        return {}
    keys = [
        each.api_key_security_scheme.name.lower()
        for each in mount.current_card().security_schemes.values()
        if each.api_key_security_scheme is not None
    ]
    credentials: dict[str, str] = {}
    for raw, value in exchange.scope["headers"]:
        name = raw.decode("latin-1").lower()
        wanted = name in ("authorization", "cookie", *keys) or name.startswith("x-")
        if wanted and name not in _NOT_FORWARDED and not name.startswith("x-forwarded-"):
            text = value.decode("latin-1")
            credentials[name] = f"{credentials[name]}, {text}" if name in credentials else text
    if query := exchange.scope.get("query_string", b"").decode("latin-1"):
        credentials[_QUERY] = query
    tls = (exchange.scope.get("extensions") or {}).get("tls") or {}
    if chain := tls.get("client_cert_chain"):
        credentials[_CLIENT] = chain[0]
    return credentials


def _name(principal: Principal) -> str:
    return identify(msgspec.json.encode([principal.tenant, principal.id]))


def _replay(exchange: Exchange, body: bytes) -> Any:
    """`receive` of a request whose body has been read."""
    waiting = [body]

    async def receive() -> Any:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await exchange.receive()

    return receive


async def _send(exchange: Exchange, message: Any) -> None:
    if message["type"] == "http.response.start":
        await exchange.start(message["status"], message["headers"])
    else:
        await exchange.send(message)
