"""Credentials, in the forms that a card can ask for.

A secret can be given as itself, as `env:NAME`, or as a function (plain or async) that returns it: the function is called
again when the agent answers 401. `oauth.py` has the credentials that fetch their own tokens; `authorize.py` decides
where credentials may go.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dragoman.client.transport.transport import Transport
from dragoman.errors import Unauthenticated
from dragoman.model.card import AgentCard, SecurityScheme

Secret = str | Callable[[], "str | Awaitable[str]"]


class Outgoing(Struct, frozen=True):
    """The parts of a request that can carry a credential."""

    url: str
    headers: Mapping[str, str]

    def with_header(self, name: str, value: str) -> Outgoing:
        """Replaces a header of that name, in any case."""
        others = {other: text for other, text in self.headers.items() if other.lower() != name.lower()}
        return replace(self, headers={**others, name: value})

    def with_cookie(self, cookie: str) -> Outgoing:
        held = [text for name, text in self.headers.items() if name.lower() == "cookie"]
        return self.with_header("Cookie", "; ".join([*held, cookie]))


class Credential(Protocol):
    """Something that authenticates a request."""

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        """The request with the credential. `transport` is for credentials that have to be fetched first."""
        ...

    async def refused(self, transport: Transport) -> bool:
        """The agent answered 401. True if the next `apply` uses another value."""
        ...


class _Secret:
    """A secret that is read when it is first needed."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._value: str | None = None
        self._reading = asyncio.Lock()

    async def value(self) -> str:
        if self._value is None:
            async with self._reading:  # concurrent calls read it once
                if self._value is None:
                    self._value = await self._read()
        return self._value

    async def _read(self) -> str:
        if callable(self._secret):
            made = self._secret()
            return await made if inspect.isawaitable(made) else made
        if self._secret.startswith("env:"):
            name = self._secret[4:]
            if name not in os.environ:
                raise Unauthenticated(f"the environment variable {name} is not set")
            return os.environ[name]
        return self._secret

    async def refused(self, transport: Transport) -> bool:
        before, self._value = self._value, None
        return not isinstance(self._secret, str) and await self.value() != before


class Bearer(_Secret):
    """`Authorization: Bearer <token>`."""

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        return request.with_header("Authorization", f"Bearer {await self.value()}")


class Basic(_Secret):
    """`Authorization: Basic`, from a name and a password."""

    def __init__(self, name: str, password: Secret) -> None:
        super().__init__(password)
        self._name = name

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        pair = b64encode(f"{self._name}:{await self.value()}".encode()).decode()
        return request.with_header("Authorization", f"Basic {pair}")


class ApiKey(_Secret):
    """A key in a header, in the query or in a cookie."""

    def __init__(self, key: Secret, *, name: str = "X-API-Key", location: str = "header") -> None:
        super().__init__(key)
        if location not in ("header", "query", "cookie"):
            raise ValueError(f"an API key goes in a header, query or cookie, not in {location!r}")
        self._name, self._location = name, location

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        key = await self.value()
        if self._location == "header":
            return request.with_header(self._name, key)
        if self._location == "cookie":
            return request.with_cookie(f"{self._name}={quote(key)}")
        joint = "&" if "?" in request.url else "?"
        return replace(request, url=f"{request.url}{joint}{quote(self._name)}={quote(key, safe='')}")


class Headers:
    """Headers that are sent as they are."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        for name, value in self._headers.items():
            request = request.with_header(name, value)
        return request

    async def refused(self, transport: Transport) -> bool:
        return False


class Combined:
    """All of these together."""

    def __init__(self, credentials: Sequence[Credential]) -> None:
        self._credentials = tuple(credentials)

    async def apply(self, request: Outgoing, transport: Transport) -> Outgoing:
        for credential in self._credentials:
            request = await credential.apply(request, transport)
        return request

    async def refused(self, transport: Transport) -> bool:
        return any([await credential.refused(transport) for credential in self._credentials])


class ClientCertificate(Struct, frozen=True):
    """Mutual TLS: a certificate chain and its key, as PEM files. It is part of the connection, not of a request."""

    certificate: str
    key: str | None = None
    password: str | None = None

    def context(self, base: ssl.SSLContext | None = None) -> ssl.SSLContext:
        context = base or ssl.create_default_context()
        with name_files(self.certificate if self.key is None else f"{self.certificate}, {self.key}"):
            context.load_cert_chain(self.certificate, self.key, self.password)
        return context


@contextmanager
def name_files(files: str) -> Iterator[None]:
    """Add the names of PEM files to errors; `ssl` leaves them out."""
    try:
        yield
    except ssl.SSLError as error:
        raise ValueError(f"{files}: not a PEM file of that kind ({error.reason or error})") from error
    except OSError as error:
        raise ValueError(f"{files}: {error.strerror}") from error


def without_client_certificate(context: ssl.SSLContext) -> ssl.SSLContext:
    """A context that trusts the authorities of `context`, as far as it lists them, and has no client certificate."""
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.check_hostname, bare.verify_mode = context.check_hostname, context.verify_mode
    bare.minimum_version, bare.options = context.minimum_version, context.options
    if trusted := context.get_ca_certs(binary_form=True):
        bare.load_verify_locations(cadata=b"".join(trusted))
    else:
        bare.load_default_certs()
    return bare


Given = Any
"""What a user may give: a `Credential`, a secret, a `(name, password)`, or those by the name of a scheme."""


def choose_credential(given: Given, card: AgentCard | None, origin: str) -> Credential:
    """What was given for `origin`, in the form that the card asks for. Without a card a secret is a bearer token."""
    if isinstance(given, Mapping):
        schemes = card.security_schemes if card is not None else {}
        for name in given:
            if card is not None and name not in schemes:
                known = ", ".join(schemes) or "none"
                raise ValueError(f"the card has no security scheme {name!r}; it has {known}")
        return Combined(
            [_to_credential(value, schemes.get(name), card, origin) for name, value in given.items()]
        )
    return _to_credential(given, _required_scheme(card), card, origin)


def _to_credential(
    given: Given, scheme: SecurityScheme | None, card: AgentCard | None, origin: str
) -> Credential:
    if isinstance(given, tuple):
        return Basic(*given)
    if isinstance(given, str) or (callable(given) and not hasattr(given, "apply")):
        if scheme is not None and scheme.api_key_security_scheme is not None:
            key = scheme.api_key_security_scheme
            return ApiKey(given, name=key.name, location=key.location)
        http = scheme.http_auth_security_scheme if scheme is not None else None
        if http is not None and http.scheme.lower() == "basic" and isinstance(given, str) and ":" in given:
            name, _, password = given.partition(":")
            return Basic(name, password)
        return Bearer(given)
    if card is not None and hasattr(given, "learn"):
        given.learn(card, origin)
    credential: Credential = given
    return credential


def _required_scheme(card: AgentCard | None) -> SecurityScheme | None:
    """The first scheme the card requires; if it requires none, the first it declares."""
    if card is None:
        return None
    for requirement in card.security_requirements:
        for name in requirement.schemes:
            if name in card.security_schemes:
                return card.security_schemes[name]
    return next(iter(card.security_schemes.values()), None)


def describe_schemes(card: AgentCard) -> str:
    """The security schemes of a card, in words."""
    words = []
    for name, scheme in card.security_schemes.items():
        if scheme.api_key_security_scheme is not None:
            key = scheme.api_key_security_scheme
            words.append(f"an API key in the {key.location} {key.name!r}")
        elif scheme.http_auth_security_scheme is not None:
            words.append(f"HTTP {scheme.http_auth_security_scheme.scheme}")
        elif scheme.oauth2_security_scheme is not None:
            words.append("an OAuth2 token")
        elif scheme.open_id_connect_security_scheme is not None:
            words.append("an OpenID Connect token")
        elif scheme.mtls_security_scheme is not None:
            words.append("a client certificate")
        else:
            words.append(name)
    return " or ".join(words)
