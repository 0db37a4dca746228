"""The credentials with which a route calls the agent behind it.

    credentials = "env:CREW_TOKEN"                    # a secret, used as the card of the agent asks
    credentials = ["ada", "env:PASSWORD"]             # a name and a password
    credentials = { key = "env:KEY" }                 # secrets by the names of the card's schemes
    credentials = { type = "api_key", key = "env:KEY", name = "X-Key", location = "header" }
    credentials = { type = "caller" }                 # the credentials of the bridge's caller, unchanged
    credentials = { type = "client_credentials", token_url = "https://...", client_id = "...", client_secret = "env:..." }
    credentials = { type = "token_exchange", token_url = "https://...", client_id = "...", client_secret = "env:..." }

`caller` and `token_exchange` depend on the caller. While the client makes the requests of a call, the call is in a context variable
(`with_credentials_of`), so a request can only use credentials of its own call. Credentials of callers are stored only in memory, which the workers
of one server share. A durable task that continues without its caller uses the last credentials of the caller (`remember`). After a restart
there are none: the task gets `NoCallerCredentials` until the caller sends another request.

Every route has its own credentials, token caches and connections.
"""

from __future__ import annotations

import asyncio
import os
import time
from base64 import urlsafe_b64decode
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dragoman.client.credentials import ApiKey, ClientCertificate, Credential, Outgoing
from dragoman.client.oauth import ACCESS_TOKEN, ClientCredentials, TokenExchange
from dragoman.client.transport.network import HttpTransport
from dragoman.client.transport.transport import Transport
from dragoman.errors import Unauthenticated
from dragoman.model.ops import Call
from dragoman.observe.shared_memory import SharedSecrets

_CALL: ContextVar[Call | None] = ContextVar("dragoman_bridge_call", default=None)
_MAX_CALLERS = 10_000
"""Callers whose credentials are stored. If there are more, those that were not used for the longest time are deleted."""
_CHECK_SECONDS = 0.5
"""How often a waiting task checks whether another worker has got a request of its caller."""
_REMEMBER_SECONDS = 12 * 3600.0
"""How long a credential without an expiry is stored."""


class NoCallerCredentials(Unauthenticated):
    """The agent has to be called with credentials of the caller, and none are stored: the caller has sent nothing since the start."""


class TokenSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where tokens come from, and what they are for."""

    type: Literal["client_credentials", "token_exchange"]
    token_url: str
    client_id: str
    client_secret: str
    scopes: tuple[str, ...] = ()
    audience: str | tuple[str, ...] = ()
    resource: str | tuple[str, ...] = ()
    actor: bool | str = True
    """The actor of a token exchange (`act`). True: the bridge, with a token of its own. A secret: the holder of that token. False: none."""
    subject_type: str = ACCESS_TOKEN
    requested_type: str = ""


class KeySettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["api_key"]
    key: str
    name: str = "X-API-Key"
    location: Literal["header", "query", "cookie"] = "header"


class CallerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["caller"]


_TYPES: dict[str, type[Any]] = {
    "client_credentials": TokenSettings,
    "token_exchange": TokenSettings,
    "api_key": KeySettings,
    "caller": CallerSettings,
}


def read_secret(text: str) -> str:
    """A secret, or the value of a variable (`env:NAME`). Raises `ValueError`."""
    if not text.startswith("env:"):
        return text
    if not (value := os.environ.get(text[4:])):
        raise ValueError(f"the variable {text[4:]!r} is not set")
    return value


def read_credentials(given: Any) -> Any:
    """Settings of credentials, or what `connect` takes. Raises `ValueError`."""
    if isinstance(given, str):
        return read_secret(given)
    if isinstance(given, tuple | list):
        name, password = given
        return name, read_secret(password)
    if not isinstance(given, dict):
        return given
    if "type" not in given:
        if wrong := [name for name, value in given.items() if not isinstance(value, str)]:
            raise ValueError(f"credentials: {wrong[0]} is not a secret")
        return {name: read_secret(value) for name, value in given.items()}
    kind = _TYPES.get(given["type"]) if isinstance(given["type"], str) else None
    if kind is None:
        raise ValueError(f"credentials: there is no type {given['type']!r}: {', '.join(_TYPES)}")
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"credentials: {error}") from error


def depends_on_caller(given: Any) -> bool:
    """True if the agent can tell from these credentials which caller of the bridge calls."""
    return isinstance(given, dict) and given.get("type") in ("caller", "token_exchange")


class with_credentials_of:
    """Inside this block, requests use the credentials of `call`. Do not `yield` to a caller inside it."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._before = _CALL.set(self._call)

    def __exit__(self, *_: object) -> None:
        _CALL.reset(self._before)


class RouteCredentials:
    """The credentials of one route. `credential` is for `connect(credentials=)`."""

    def __init__(self, credentials: Any, certificate: str = "") -> None:
        """Both as in the settings of a route. Raises `ValueError`."""
        self.per_caller = depends_on_caller(credentials)
        self._remembered: OrderedDict[tuple[str, str], tuple[dict[str, str], float]] = OrderedDict()
        self._waiting: dict[tuple[str, str], asyncio.Event] = {}
        self._shared: SharedSecrets | None = None
        self._route = ""
        self._tokens = _OwnTransport()
        self.credential = (
            ClientCertificate(certificate) if certificate else self._make_credential(credentials)
        )

    async def close(self) -> None:
        self._remembered.clear()
        await self._tokens.close()

    def share(self, secrets: SharedSecrets, route: str) -> None:
        """Share the credentials of callers with the other workers of the server."""
        if self.per_caller:
            self._shared, self._route = secrets, route

    def remember(self, call: Call) -> None:
        """Store the credentials of an authenticated caller, and wake tasks that wait for them. Those of anonymous callers are not stored."""
        credentials = call.credentials
        if not self.per_caller or not credentials or not call.principal.id:
            return
        caller = call.principal.tenant, call.principal.id
        known = self._remembered.get(caller)
        if known is None or known[0] != credentials:
            known = self._remembered[caller] = dict(credentials), _expiry(credentials)
            while len(self._remembered) > _MAX_CALLERS:
                self._remembered.popitem(last=False)
        self._remembered.move_to_end(caller)
        if self._shared is not None and self._read_shared(caller) != known:
            self._shared.put(self._shared_name(caller), msgspec.json.encode(known))
        if (waiting := self._waiting.pop(caller, None)) is not None:
            waiting.set()

    async def wait_for_caller(self, call: Call) -> None:
        """Wait until the caller of a task sends a request with credentials. This may take for ever."""
        caller = call.principal.tenant, call.principal.id
        while not self._find(caller):
            returned = self._waiting.setdefault(caller, asyncio.Event())
            try:
                async with asyncio.timeout(None if self._shared is None else _CHECK_SECONDS):
                    await returned.wait()
            except TimeoutError:
                pass  # another worker may have seen it

    def forget(self, call: Call) -> bool:
        """Delete the stored credentials of a caller, because the agent refused them. False if this call came with its own."""
        if not self.per_caller or call.credentials or not call.principal.id:
            return False
        caller = call.principal.tenant, call.principal.id
        known = self._remembered.pop(caller, None)
        if self._shared is not None and known is not None and self._read_shared(caller) == known:
            self._shared.put(self._shared_name(caller), b"")
        return True

    def _find(self, caller: tuple[str, str]) -> dict[str, str]:
        """The last credentials of a caller, at this or another worker; empty if there are none, or they have expired."""
        known = self._remembered.get(caller)
        if self._shared is not None and (shared := self._read_shared(caller)) is not None:
            known = self._remembered[caller] = shared
        if known is None:
            return {}
        if time.time() >= known[1]:
            self._remembered.pop(caller, None)
            return {}
        return known[0]

    def _read_shared(self, caller: tuple[str, str]) -> tuple[dict[str, str], float] | None:
        assert self._shared is not None
        found = self._shared.get(self._shared_name(caller))
        return msgspec.json.decode(found, type=tuple[dict[str, str], float]) if found else None

    def _shared_name(self, caller: tuple[str, str]) -> str:
        return msgspec.json.encode((self._route, *caller)).decode()

    def find_caller_credentials(self) -> dict[str, str]:
        """The credentials of the current call's caller, by header. Empty outside of a call. Raises `NoCallerCredentials`."""
        call = _CALL.get()
        if call is None:
            return {}
        if call.credentials:
            return call.credentials
        if not call.principal.id:
            raise Unauthenticated("this agent is called with your own credentials: send some")
        known = self._find((call.principal.tenant, call.principal.id))
        if not known:
            raise NoCallerCredentials(
                "this agent is called with your own credentials: send a request with them"
            )
        return known

    def _make_credential(self, credentials: Any) -> Any:
        given = read_credentials(credentials)
        match given:
            case CallerSettings():
                return _CallerCredential(self)
            case KeySettings():
                return ApiKey(read_secret(given.key), name=given.name, location=given.location)
            case TokenSettings():
                return self._make_token_credential(given)
        return given

    def _make_token_credential(self, given: TokenSettings) -> Credential:
        secret = read_secret(given.client_secret)
        own = ClientCredentials(
            given.client_id,
            secret,
            token_url=given.token_url,
            scopes=given.scopes,
            audience=given.audience,
            resource=given.resource,
        )
        if given.type == "client_credentials":
            return _WithOwnTransport(own, self._tokens)
        exchange = TokenExchange(
            given.client_id,
            secret,
            token_url=given.token_url,
            subject=self._subject,
            actor=read_secret(given.actor) if isinstance(given.actor, str) else given.actor,
            audience=given.audience,
            resource=given.resource,
            scopes=given.scopes,
            subject_type=given.subject_type,
            requested_type=given.requested_type,
        )
        return _ForCaller(exchange, own, self._tokens)

    def _subject(self) -> str:
        scheme, _, token = self.find_caller_credentials().get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


class _OwnTransport:
    """The transport to token endpoints. The operator named them, so any address is allowed. It shares no connection with the agent's."""

    def __init__(self) -> None:
        self._transport: HttpTransport | None = None

    def __call__(self) -> Transport:
        if self._transport is None:
            self._transport = HttpTransport()
        return self._transport

    async def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()


class _CallerCredential:
    """The credentials of the bridge's caller, unchanged."""

    def __init__(self, route: RouteCredentials) -> None:
        self._route = route

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        if _CALL.get() is None:
            return request  # outside of a call, such as for the card
        for name, value in self._route.find_caller_credentials().items():
            request = request.with_header(_HEADERS.get(name, name), value)
        return request

    async def refused(self, transport: Transport) -> bool:
        return False


_HEADERS = {"authorization": "Authorization", "x-api-key": "X-API-Key"}


class _WithOwnTransport:
    """A credential that fetches its tokens over a transport of its own."""

    def __init__(self, credential: Credential, transport: _OwnTransport) -> None:
        self._credential, self._own_transport = credential, transport

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return await self._credential.apply(request, self._own_transport())

    async def refused(self, transport: Transport) -> bool:
        return await self._credential.refused(self._own_transport())


class _ForCaller:
    """A token exchange for calls, and the bridge's own token for other requests, such as for the card."""

    def __init__(self, exchange: TokenExchange, own: ClientCredentials, transport: _OwnTransport) -> None:
        self._exchange, self._own, self._own_transport = exchange, own, transport

    @property
    def _current(self) -> Credential:
        return self._own if _CALL.get() is None else self._exchange

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return await self._current.apply(request, self._own_transport())

    async def refused(self, transport: Transport) -> bool:
        return await self._current.refused(self._own_transport())


def _expiry(credentials: dict[str, str]) -> float:
    """When stored credentials expire: the `exp` of a JWT, which is not verified, at most after `_REMEMBER_SECONDS`."""
    latest = time.time() + _REMEMBER_SECONDS
    parts = credentials.get("authorization", "").split(".")
    if len(parts) != 3:
        return latest
    try:
        body = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(body, type=_ExpiryClaim)
    except (msgspec.MsgspecError, ValueError):
        return latest
    return min(latest, claims.exp) if claims.exp is not None else latest


class _ExpiryClaim(Struct):
    exp: float | None = None
