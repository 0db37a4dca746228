"""An agent at a path, and what a binding has to offer to serve it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dragoman.bindings.exchange import Exchange
from dragoman.model.card import AgentCard, Interface
from dragoman.model.ops import Principal, Service


class Authenticator(Protocol):
    """Finds out who is calling, from the headers alone: it runs before the body is read."""

    challenge: str
    """What `WWW-Authenticate` says to somebody who was not let in."""

    async def authenticate(self, headers: Mapping[str, str]) -> Principal:
        """Header names are lower case. Raises `Unauthenticated`, `Forbidden` or `RateLimited`."""
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
    """Speaks as an Arbiter server would."""
    authenticator: Authenticator | None = None

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

    async def principal(self, exchange: Exchange) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        if self.authenticator is None:
            return ANONYMOUS
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers.items()
        }
        return await self.authenticator.authenticate(headers)


ANONYMOUS = Principal()

Handler = Callable[[Exchange, Mount], Awaitable[None]]


class Binding(Protocol):
    """One way to speak HTTP with the agents of an application."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        """Who answers at a path below a mount, by HTTP method; None if it is not ours. The mount itself is `` or `/`."""
        ...

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        """What the card says about this binding; `url` is where the client sees the mount."""
        ...
