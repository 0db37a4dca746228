"""An agent at a path, with what its bindings need: its service, its card, its authentication, its keys."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec.structs import replace

from dragoman.dialects import cards
from dragoman.errors import A2AError, Unavailable
from dragoman.model.card import AgentCard, Interface, Signature
from dragoman.model.ops import Principal, Service

Header = tuple[bytes, bytes]


class Authenticator(Protocol):
    """Identifies a caller from the head of a request: it runs before the body is read."""

    challenge: str
    """The `WWW-Authenticate` header of a refusal."""

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
    """With the interfaces that other servers have; the bindings add their own."""
    agent: str = ""
    """The agent's name in the scope of its tasks."""
    path: str = "/"
    versions: tuple[str, ...] | None = None
    """The versions that the agent speaks; None for all. Arbiter's dialect belongs to 0.3."""
    only: str = ""
    """The only dialect that the agent speaks (`arbiter`): everything else is refused. Empty: those of `versions`."""
    home: str = ""
    """The dialect of ambiguous calls: `arbiter` takes calls with methods of 0.3 whose version is missing or 1.0. All
    others are answered in their own."""
    authenticator: Authenticator | None = None
    private: bool = False
    """The card is for authenticated callers only."""
    check_reader: Callable[[Principal], None] | None = None
    """Raises `Forbidden` if an authenticated caller may not read a private card. None: all may."""
    signer: Signer | None = None
    deduplicates: Callable[[], bool] | None = None
    """False: a repeated `Idempotency-Key` is not recognised and events have no numbers, so clients are not told that they
    are. None: always true."""
    methods: frozenset[str] = frozenset()
    """Methods that extensions of the agent add."""
    dialects: tuple[str, ...] | None = field(init=False)
    """The dialects of `versions`; None for all."""

    def __post_init__(self) -> None:
        dialects = (*self.versions, "arbiter") if self.versions and "0.3" in self.versions else self.versions
        object.__setattr__(self, "dialects", dialects)

    @property
    def prefix(self) -> str:
        """The path without a slash at its end: empty at the root."""
        return self.path.rstrip("/")

    def speaks(self, version: str) -> bool:
        return self.versions is None or version in self.versions

    def current_card(self) -> AgentCard:
        return self.card if isinstance(self.card, AgentCard) else self.card()

    def sign_card(self, card: AgentCard) -> AgentCard:
        """The card with our signatures over its 1.0 document, if we sign."""
        if self.signer is None:
            return card
        return replace(card, signatures=tuple(self.signer.sign(cards.write_card(card, "1.0"))))

    @property
    def marks(self) -> Sequence[Header]:
        """Tells our own client that events are numbered and that an `Idempotency-Key` is honoured."""
        return MARKS if self.deduplicates is None or self.deduplicates() else ()

    def refusal(self, error: A2AError, status: int) -> Sequence[Header]:
        """The headers of a refusal: `WWW-Authenticate` and `Retry-After`."""
        headers: list[Header] = []
        if self.authenticator is not None:
            if status == 401:
                headers.append((b"www-authenticate", self.authenticator.challenge.encode("latin-1")))
            elif status == 403 and (scope := error.metadata.get("scope")):
                value = f'Bearer error="insufficient_scope", scope="{_QUOTED.sub("", scope)}"'
                headers.append((b"www-authenticate", value.encode("latin-1")))
        after = error.retry_after
        if after is None and isinstance(error, Unavailable):
            after = RETRY_SECONDS
        if after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(after))))
        return headers


OURS: Header = (b"dragoman", b"1")
MARKS: Sequence[Header] = (OURS,)
ANONYMOUS = Principal()
RETRY_SECONDS = 1.0
"""`Retry-After` of `Unavailable`, where the error does not say."""
_QUOTED = re.compile(r"[^ !#-\[\]-~]")
"""Characters that a scope cannot have, nor a quoted word in a header (RFC 6749, 3.3)."""


def with_interfaces(card: AgentCard, here: Sequence[Interface]) -> AgentCard:
    """The card with more interfaces: the newest version first, and ours before those of other servers."""
    listed = sorted(
        (*here, *card.supported_interfaces),
        key=lambda each: cards.version_of(each.protocol_version),
        reverse=True,
    )
    return replace(card, supported_interfaces=tuple(listed))


class Signer(Protocol):
    """Signs cards with keys that it publishes."""

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


def client_certificate(scope: Mapping[str, Any]) -> bytes:
    """The client's certificate in DER, from ASGI's TLS extension; empty if there is none."""
    tls = (scope.get("extensions") or {}).get("tls")
    chain = tls.get("client_cert_chain") if tls else None
    return ssl.PEM_cert_to_DER_cert(chain[0]) if chain else b""
