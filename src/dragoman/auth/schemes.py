"""The ways to say who one is: each knows what the card says of it, what a refusal says, and how to check.

A scheme looks for what is its own in what was presented. `None` means that there was nothing for it; something that is
there and wrong is `Unauthenticated`. Holders of secrets are given, or are in a file (`filed.py`). `jwt.py` and `oidc.py`
have the schemes that read signed tokens.
"""

from __future__ import annotations

import binascii
import inspect
import re
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dragoman.auth.filed import Filed
from dragoman.auth.presented import Presented
from dragoman.auth.secrets import Holders, Passwords, Tokens
from dragoman.errors import Unauthenticated
from dragoman.model.card import ApiKeyScheme, HttpAuthScheme, MutualTlsScheme, SecurityScheme
from dragoman.model.ops import Principal

if TYPE_CHECKING:
    from dragoman.auth.certificate import Certificate


class Fetch(Protocol):
    """Gets a small document, such as the keys of an issuer; with a `form`, what is answered to it. Raises `A2AError`."""

    def __call__(
        self, url: str, form: Mapping[str, str] | None = None, authorization: str = ""
    ) -> Awaitable[bytes]: ...


TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What HTTP calls a token: the name of a header, for example."""
AUTHORIZATION = "authorization"
"""The place of most credentials."""


class Scheme(Protocol):
    name: str
    """In the card's `securitySchemes`."""
    scopes: tuple[str, ...]
    """What everybody needs who comes in this way."""

    @property
    def declaration(self) -> SecurityScheme:
        """What the card says."""
        ...

    @property
    def challenge(self) -> str:
        """What `WWW-Authenticate` says, without the realm: the scheme's name and perhaps parameters."""
        ...

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        """Raises `Unauthenticated`, or `Unavailable` when it cannot tell."""
        ...


class Placed(Protocol):
    """A scheme that can say where in a request its credentials are."""

    def place(self, presented: Presented) -> str:
        """Where a credential for this scheme is; empty if there is none, or if it is the connection's. Raises `Unauthenticated` for one that is no use."""
        ...


class Bearer:
    """Opaque tokens in `Authorization: Bearer`. Only their hashes are kept: `Bearer({"alice": hashed(token)})`."""

    challenge = "Bearer"

    def __init__(
        self,
        tokens: Holders | str | Path,
        *,
        scopes: Sequence[str] = (),
        name: str = "bearer",
        description: str = "",
    ) -> None:
        self._tokens = Filed(tokens, Tokens)
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(
            http_auth_security_scheme=HttpAuthScheme(scheme="bearer", description=description)
        )

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization("bearer") else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        token = presented.authorization("bearer")
        return self._tokens.now().find(token) if token else None


class ApiKey:
    """A key in a header, in the query or in a cookie."""

    def __init__(
        self,
        keys: Holders | str | Path,
        *,
        location: str = "header",
        parameter: str = "X-API-Key",
        scopes: Sequence[str] = (),
        name: str = "apiKey",
        description: str = "",
    ) -> None:
        if location not in ("header", "query", "cookie"):
            raise ValueError(f"an API key goes in a header, query or cookie, not in {location!r}")
        if not TOKEN.fullmatch(parameter):
            raise ValueError(f"{parameter!r} cannot be the name of a {location}")
        self._keys, self._location, self._parameter = Filed(keys, Tokens), location, parameter
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(
            api_key_security_scheme=ApiKeyScheme(location=location, name=parameter, description=description)
        )
        self.challenge = f'ApiKey in="{location}", name="{parameter}"'

    def place(self, presented: Presented) -> str:
        if not self._key(presented):
            return ""
        return (
            self._parameter.lower() if self._location == "header" else f"{self._location} {self._parameter}"
        )

    def _key(self, presented: Presented) -> str:
        look = {"header": presented.header, "query": presented.parameter, "cookie": presented.cookie}
        return look[self._location](self._parameter)

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        key = self._key(presented)
        return self._keys.now().find(key) if key else None


class Basic:
    """A name and a password. `Basic({"alice": hashed_password(...)})`."""

    challenge = 'Basic charset="UTF-8"'

    def __init__(
        self,
        passwords: Holders | str | Path,
        *,
        scopes: Sequence[str] = (),
        name: str = "basic",
        description: str = "",
    ) -> None:
        self._passwords = Filed(passwords, Passwords)
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(
            http_auth_security_scheme=HttpAuthScheme(scheme="basic", description=description)
        )

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization("basic") else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        pair = presented.authorization("basic")
        if not pair:
            return None
        try:
            name, colon, password = b64decode(pair, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            colon = ""
        if not colon:
            raise Unauthenticated("Basic credentials are name:password in base64")
        return await self._passwords.now().find(name, password)


class MutualTLS:
    """A client certificate. The server's TLS checks it against its CA before a request is read.

    Its holder is `spiffe://...` if the certificate has such a name, else `x509:` and the subject. With `clients`, only
    certificates whose SHA-256 fingerprint is there are let in, each under the name given to it.
    """

    challenge = "MutualTLS"

    def __init__(
        self,
        clients: Holders | str | Path | None = None,
        *,
        scopes: Sequence[str] = (),
        name: str = "mutualTLS",
        description: str = "",
    ) -> None:
        self._clients = Filed(clients, Tokens) if clients is not None else None
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(mtls_security_scheme=MutualTlsScheme(description=description))
        self._read: dict[bytes, Certificate] = {}

    def place(self, presented: Presented) -> str:
        return ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        shown = presented.certificate
        if not shown:
            return None
        certificate = self._read.get(shown)
        if certificate is None:
            if len(self._read) >= 256:
                self._read.clear()
            from dragoman.auth.certificate import Certificate  # with cryptography, which takes its time

            certificate = self._read[shown] = Certificate(shown)
        if not certificate.begins <= time.time() < certificate.ends:  # a connection may outlive it
            raise Unauthenticated("the client certificate is not valid now")
        if self._clients is not None:
            return self._clients.now().find_digest(certificate.fingerprint)
        if not certificate.holder:
            raise Unauthenticated("the client certificate names nobody")
        return Principal(id=certificate.holder)


class Custom:
    """A check of one's own: `async def check(presented) -> Principal | None`. `declaration` is for the card."""

    def __init__(
        self,
        check: Callable[[Presented], Any],
        *,
        declaration: SecurityScheme | None = None,
        challenge: str = "Bearer",
        scopes: Sequence[str] = (),
        name: str = "",
    ) -> None:
        self._check = check
        called = getattr(check, "__name__", "")
        self.name = name or (called if TOKEN.fullmatch(called) else "custom")
        self.scopes = tuple(scopes)
        self.challenge = challenge
        self.declaration = declaration or SecurityScheme(
            http_auth_security_scheme=HttpAuthScheme(scheme="bearer")
        )

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        found = self._check(presented)
        principal: Principal | None = await found if inspect.isawaitable(found) else found
        return principal
