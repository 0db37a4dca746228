"""What a route shows to the agent behind it.

    credentials = "env:CREW_TOKEN"                    # a secret, used as the card of the agent asks
    credentials = ["ada", "env:PASSWORD"]             # a name and a password
    credentials = { key = "env:KEY" }                 # secrets by the names of the card's schemes
    credentials = { type = "api_key", key = "env:KEY", name = "X-Key", location = "header" }
    credentials = { type = "caller" }                 # what our caller showed to us, as it is
    credentials = { type = "client_credentials", token_url = "https://...", client_id = "...", client_secret = "env:..." }
    credentials = { type = "token_exchange", token_url = "https://...", client_id = "...", client_secret = "env:..." }

`caller` and `token_exchange` depend on who calls. The call that is being made is in a context variable while the client below makes
its requests (`acting_for`), so that a request can only ever show what belongs to its own call. Credentials of callers are in memory
only; the workers of one server share that memory. A durable task that goes on without its caller uses what the caller showed last
(`remember`). After a restart there is nothing to use: `CallerAway`, until the caller comes back.

Every route has credentials, token caches and connections of its own.
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
"""Callers whose credentials are remembered at a time. Who was here longest ago is forgotten first."""
_LOOK_SECONDS = 0.5
"""How often a task looks whether another worker has seen its caller."""
_REMEMBER_SECONDS = 12 * 3600.0
"""How long a credential is remembered that does not say when it expires."""


class CallerAway(Unauthenticated):
    """The agent has to be called with a credential of the caller, who has not been here since this process began."""


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
    """Of a token exchange: who acts (`act`). True: we, with a token of our own. A secret: that token. False: nothing is said."""
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
    """True if an agent that is shown these credentials sees which of our callers calls."""
    return isinstance(given, dict) and given.get("type") in ("caller", "token_exchange")


class acting_for:
    """Requests that are made in this block are for `call`. Do not `yield` to a caller inside it."""

    __slots__ = ("_before", "_call")

    def __init__(self, call: Call) -> None:
        self._call = call

    def __enter__(self) -> None:
        self._before = _CALL.set(self._call)

    def __exit__(self, *_: object) -> None:
        _CALL.reset(self._before)


class RouteCredentials:
    """The credentials of one route. `given` is for `connect(credentials=)`."""

    def __init__(self, credentials: Any, certificate: str = "") -> None:
        """Both as in the settings of a route. Raises `ValueError`."""
        self.per_caller = depends_on_caller(credentials)
        self._remembered: OrderedDict[tuple[str, str], tuple[dict[str, str], float]] = OrderedDict()
        self._returned: dict[tuple[str, str], asyncio.Event] = {}
        self._shared: SharedSecrets | None = None
        self._route = ""
        self._tokens = _OwnTransport()
        self.given = ClientCertificate(certificate) if certificate else self._make(credentials)

    async def close(self) -> None:
        self._remembered.clear()
        await self._tokens.close()

    def share(self, secrets: SharedSecrets, route: str) -> None:
        """The workers of a server know the callers of a route together."""
        if self.per_caller:
            self._shared, self._route = secrets, route

    def remember(self, call: Call) -> None:
        """A caller was authenticated. An anonymous one is nobody, and nothing of it is remembered."""
        shown = call.credentials
        if not self.per_caller or not shown or not call.principal.id:
            return
        who = call.principal.tenant, call.principal.id
        known = self._remembered.get(who)
        if known is None or known[0] != shown:
            known = self._remembered[who] = dict(shown), _expiry(shown)
            while len(self._remembered) > _MAX_CALLERS:
                self._remembered.popitem(last=False)
        self._remembered.move_to_end(who)
        if self._shared is not None and self._read_shared(who) != known:
            self._shared.put(self._name(who), msgspec.json.encode(known))
        if (waiting := self._returned.pop(who, None)) is not None:
            waiting.set()

    async def wait_for_caller(self, call: Call) -> None:
        """Wait until the caller of a task shows a credential again. This may take for ever."""
        who = call.principal.tenant, call.principal.id
        while not self._find(who):
            returned = self._returned.setdefault(who, asyncio.Event())
            try:
                async with asyncio.timeout(None if self._shared is None else _LOOK_SECONDS):
                    await returned.wait()
            except TimeoutError:
                pass  # another worker may have seen it

    def forget(self, call: Call) -> bool:
        """What is remembered of the caller was refused. True if it was used for this call, and not what came with it."""
        if not self.per_caller or call.credentials or not call.principal.id:
            return False
        who = call.principal.tenant, call.principal.id
        held = self._remembered.pop(who, None)
        if self._shared is not None and held is not None and self._read_shared(who) == held:
            self._shared.put(self._name(who), b"")
        return True

    def _find(self, who: tuple[str, str]) -> dict[str, str]:
        """What a caller showed last, here or to another worker; empty if it is of no more use."""
        held = self._remembered.get(who)
        if self._shared is not None and (shared := self._read_shared(who)) is not None:
            held = self._remembered[who] = shared
        if held is None:
            return {}
        if time.time() >= held[1]:
            self._remembered.pop(who, None)
            return {}
        return held[0]

    def _read_shared(self, who: tuple[str, str]) -> tuple[dict[str, str], float] | None:
        assert self._shared is not None
        found = self._shared.get(self._name(who))
        return msgspec.json.decode(found, type=tuple[dict[str, str], float]) if found else None

    def _name(self, who: tuple[str, str]) -> str:
        return msgspec.json.encode((self._route, *who)).decode()

    def shown(self) -> dict[str, str]:
        """What the caller of the present call showed, by header. Empty outside of a call. Raises `CallerAway`."""
        call = _CALL.get()
        if call is None:
            return {}
        if call.credentials:
            return call.credentials
        if not call.principal.id:
            raise Unauthenticated("this agent is called with your own credentials: send some")
        held = self._find((call.principal.tenant, call.principal.id))
        if not held:
            raise CallerAway("this agent is called with your own credentials: send a request with them")
        return held

    def _make(self, credentials: Any) -> Any:
        given = read_credentials(credentials)
        match given:
            case CallerSettings():
                return _CallerCredential(self)
            case KeySettings():
                return ApiKey(read_secret(given.key), name=given.name, location=given.location)
            case TokenSettings():
                return self._make_tokens(given)
        return given

    def _make_tokens(self, given: TokenSettings) -> Credential:
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
            return _Fetched(own, self._tokens)
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
        scheme, _, token = self.shown().get("authorization", "").partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


class _OwnTransport:
    """For token endpoints, which the operator named: any address is allowed, and nothing of the agent's connections is used."""

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
    """What our caller showed to us, as it is."""

    def __init__(self, route: RouteCredentials) -> None:
        self._route = route

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        if _CALL.get() is None:
            return request  # the card is read for nobody
        shown = self._route.shown()
        if not shown:
            raise Unauthenticated("this agent is called with your own credentials: send some")
        for name, value in shown.items():
            request = request.with_header(_HEADERS.get(name, name), value)
        return request

    async def refused(self, transport: Transport) -> bool:
        return False


_HEADERS = {"authorization": "Authorization", "x-api-key": "X-API-Key"}


class _Fetched:
    """A credential that fetches its tokens over a transport of its own."""

    def __init__(self, credential: Credential, transport: _OwnTransport) -> None:
        self._credential, self._own_transport = credential, transport

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return await self._credential.apply(request, self._own_transport())

    async def refused(self, transport: Transport) -> bool:
        return await self._credential.refused(self._own_transport())


class _ForCaller:
    """A token exchange for calls, and our own token for what is read for nobody, such as the card."""

    def __init__(self, exchange: TokenExchange, own: ClientCredentials, transport: _OwnTransport) -> None:
        self._exchange, self._own, self._own_transport = exchange, own, transport

    @property
    def _present(self) -> Credential:
        return self._own if _CALL.get() is None else self._exchange

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return await self._present.apply(request, self._own_transport())

    async def refused(self, transport: Transport) -> bool:
        return await self._present.refused(self._own_transport())


def _expiry(shown: dict[str, str]) -> float:
    """When a credential is of no more use: what a JWT says, unchecked, and never later than `_REMEMBER_SECONDS`."""
    latest = time.time() + _REMEMBER_SECONDS
    parts = shown.get("authorization", "").split(".")
    if len(parts) != 3:
        return latest
    try:
        body = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        claims = msgspec.json.decode(body, type=_Expiring)
    except (msgspec.MsgspecError, ValueError):
        return latest
    return min(latest, claims.exp) if claims.exp is not None else latest


class _Expiring(Struct):
    exp: float | None = None
