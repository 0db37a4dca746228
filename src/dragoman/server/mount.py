"""An agent at a path, and what a binding has to offer to serve it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dragoman.errors import A2AError, Unavailable
from dragoman.model.card import AgentCard, Interface, Signature
from dragoman.model.ops import Principal, Service
from dragoman.server.exchange import Exchange, Header
from dragoman.server.tls import client_certificate


class Authenticator(Protocol):
    """Finds out who is calling, from the head of a request alone: it runs before the body is read."""

    challenge: str
    """What `WWW-Authenticate` says to somebody who was not let in."""

    async def authenticate(
        self, headers: Mapping[str, str], *, query: str = "", certificate: bytes = b""
    ) -> Principal:
        """Header names are lower case, repeated ones joined with a comma; `certificate` is the client's, in DER, if
        TLS asked for one. Raises `Unauthenticated`, `Forbidden`, `RateLimited` or `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    service: Service
    card: AgentCard | Callable[[], AgentCard]
    """Without the interfaces that the bindings here add to it, with those served elsewhere."""
    agent: str = ""
    """The agent's name in the scope of its tasks."""
    path: str = "/"
    versions: tuple[str, ...] | None = None
    """What it speaks; everything if not said. Arbiter's dialect comes with 0.3, whose wire it is."""
    arbiter: bool = False
    """Speaks as an Arbiter server would, and no other way."""
    home: str = ""
    """The dialect of calls that could be of several: `arbiter` takes those of 0.3 that do not say so, and those that say
    1.0. Every other call is answered in its own."""
    authenticator: Authenticator | None = None
    private: bool = False
    """The card, too, is only for callers who are let in."""
    signer: Signer | None = None

    @property
    def prefix(self) -> str:
        """The path without a slash at its end: empty at the root."""
        return self.path.rstrip("/")

    def speaks(self, version: str) -> bool:
        return self.versions is None or version in self.versions

    @property
    def dialects(self) -> tuple[str, ...] | None:
        """The dialects that `versions` stands for; None means all."""
        if self.versions is None or "0.3" not in self.versions:
            return self.versions
        return (*self.versions, "arbiter")

    def current_card(self) -> AgentCard:
        return self.card if isinstance(self.card, AgentCard) else self.card()

    def refusal(self, error: A2AError, status: int) -> Sequence[Header]:
        """The headers that go with a refusal: how to be let in, and when to come back."""
        headers: list[Header] = []
        if self.authenticator is not None:
            if status == 401:
                headers.append((b"www-authenticate", self.authenticator.challenge.encode("latin-1")))
            elif status == 403 and (scope := error.metadata.get("scope")):
                said = f'Bearer error="insufficient_scope", scope="{_QUOTED.sub("", scope)}"'
                headers.append((b"www-authenticate", said.encode("latin-1")))
        after = error.retry_after
        if after is None and isinstance(error, Unavailable):
            after = SOON
        if after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(after))))
        return headers

    async def principal(self, exchange: Exchange) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        if self.authenticator is None:
            return ANONYMOUS
        headers: dict[str, str] = {}
        for name, value in exchange.scope["headers"]:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            headers[key] = f"{headers[key]}, {text}" if key in headers else text
        return await self.authenticator.authenticate(
            headers,
            query=exchange.scope.get("query_string", b"").decode("latin-1"),
            certificate=client_certificate(exchange.scope),
        )


ANONYMOUS = Principal()
SOON = 1.0
"""Seconds after which to come back, if who is away does not say (a store, for example)."""
_QUOTED = re.compile(r"[^ !#-\[\]-~]")
"""What cannot be part of a scope, nor of a quoted word in a header (RFC 6749, 3.3)."""


class Signer(Protocol):
    """Vouches for cards with keys that it publishes."""

    @property
    def stamp(self) -> object:
        """Changes when the keys do."""
        ...

    def sign(self, document: Mapping[str, Any]) -> Sequence[Signature]:
        """The signatures for a card, from its 1.0 document."""
        ...

    def public(self) -> Mapping[str, Any]:
        """The keys to check them with, as a JWK set."""
        ...


Handler = Callable[[Exchange, Mount], Awaitable[None]]


class Binding(Protocol):
    """One way to speak HTTP with the agents of an application."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        """Who answers at a path below a mount, by HTTP method; None if it is not ours. The mount itself is `` or `/`."""
        ...

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        """What the card says about this binding; `url` is where the client sees the mount."""
        ...
