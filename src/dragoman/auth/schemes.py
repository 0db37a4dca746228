"""Authentication schemes. Each has its declaration for the card, its challenge for a 401, and its check.

A scheme looks for its credential in what the caller presented. It returns `None` if there is none, and raises
`Unauthenticated` if there is a wrong one. Holders of secrets are given, or are in a file (`secrets.py`). `jwt.py` has the
schemes that read signed tokens.
"""

from __future__ import annotations

import binascii
import hashlib
import inspect
import re
import time
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from dragoman.auth.secrets import Holders, PasswordHolders, ReloadedHolders, TokenHolders
from dragoman.errors import Unauthenticated
from dragoman.model.card import ApiKeyScheme, HttpAuthScheme, MutualTlsScheme, SecurityScheme
from dragoman.model.ops import Principal


class Fetch(Protocol):
    """Fetches a small document, such as the keys of an issuer; POSTs `form` if there is one. Raises `A2AError`."""

    def __call__(
        self, url: str, form: Mapping[str, str] | None = None, authorization: str = ""
    ) -> Awaitable[bytes]: ...


TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token of HTTP, such as the name of a header."""
AUTHORIZATION = "authorization"
"""The place of most credentials."""
_MAX_CREDENTIAL_CHARS = 16 << 10
"""A JWT with many claims needs a few thousand."""
_MAX_CACHED_CERTIFICATES = 256


class Presented(Struct, frozen=True):
    """The credentials in a request: its headers and query, and the certificate of its connection.

    A credential that is there twice is refused: a proxy and we could read different ones.
    """

    headers: Mapping[str, str]
    """By lower-case name; repeated headers are joined with a comma."""
    query: str = ""
    certificate: bytes = b""
    """The client's certificate, in DER, if TLS has verified one."""

    def authorization(self, word: str) -> str:
        """The credentials in `Authorization` for the scheme `word`; empty for another scheme."""
        scheme, _, rest = self.headers.get("authorization", "").strip().partition(" ")
        return _check_length(rest.strip()) if scheme.lower() == word.lower() else ""

    def header(self, name: str) -> str:
        return _check_length(self.headers.get(name.lower(), "").strip())

    def parameter(self, name: str) -> str:
        if name not in self.query:
            return ""
        try:
            pairs = parse_qsl(self.query, keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise Unauthenticated("the query has too many parameters") from None
        return _single(name, [value for key, value in pairs if key == name])

    def cookie(self, name: str) -> str:
        pairs = [pair.strip().partition("=") for pair in self.headers.get("cookie", "").split(";")]
        return _single(name, [unquote(value.strip('"')) for key, _, value in pairs if key == name])


def _single(name: str, values: list[str]) -> str:
    if len(values) > 1:
        raise Unauthenticated(f"{name} is there more than once")
    return _check_length(values[0]) if values else ""


def _check_length(secret: str) -> str:
    if len(secret) > _MAX_CREDENTIAL_CHARS:
        raise Unauthenticated("the credential is too long")
    return secret


class Scheme(Protocol):
    name: str
    """In the card's `securitySchemes`."""
    scopes: tuple[str, ...]
    """Scopes that every caller of this scheme needs."""

    @property
    def declaration(self) -> SecurityScheme:
        """The entry in the card."""
        ...

    @property
    def challenge(self) -> str:
        """The challenge in `WWW-Authenticate`, without the realm."""
        ...

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        """Raises `Unauthenticated`, or `Unavailable` if the check is not possible."""
        ...


class Placed(Protocol):
    """A scheme that knows where in a request its credentials are."""

    def place(self, presented: Presented) -> str:
        """The place of a credential for this scheme; empty if there is none, or if the connection has it. Raises
        `Unauthenticated`."""
        ...


class InAuthorization:
    """A scheme whose credential is in the header `Authorization`."""

    challenge = "Bearer"
    _word = "bearer"

    def __init__(self, name: str, scopes: Sequence[str], declaration: SecurityScheme) -> None:
        self.name, self.scopes, self.declaration = name, tuple(scopes), declaration

    def place(self, presented: Presented) -> str:
        return AUTHORIZATION if presented.authorization(self._word) else ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        credential = presented.authorization(self._word)
        return await self._principal(credential, fetch) if credential else None

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        raise NotImplementedError


def http_scheme(scheme: str, description: str = "", *, bearer_format: str = "") -> SecurityScheme:
    return SecurityScheme(
        http_auth_security_scheme=HttpAuthScheme(
            scheme=scheme, bearer_format=bearer_format, description=description
        )
    )


class Bearer(InAuthorization):
    """Opaque tokens in `Authorization: Bearer`. Only their hashes are stored: `Bearer({"alice": hashed(token)})`."""

    def __init__(
        self,
        tokens: Holders | str | Path,
        *,
        scopes: Sequence[str] = (),
        name: str = "bearer",
        description: str = "",
    ) -> None:
        super().__init__(name, scopes, http_scheme("bearer", description))
        self._tokens = ReloadedHolders(tokens, TokenHolders)

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        return self._tokens.current().find(credential)


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
        self._keys, self._location, self._parameter = ReloadedHolders(keys, TokenHolders), location, parameter
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
        return self._keys.current().find(key) if key else None


class Basic(InAuthorization):
    """A name and a password. `Basic({"alice": hashed_password(...)})`."""

    challenge = 'Basic charset="UTF-8"'
    _word = "basic"

    def __init__(
        self,
        passwords: Holders | str | Path,
        *,
        scopes: Sequence[str] = (),
        name: str = "basic",
        description: str = "",
    ) -> None:
        super().__init__(name, scopes, http_scheme("basic", description))
        self._passwords = ReloadedHolders(passwords, PasswordHolders)

    async def _principal(self, credential: str, fetch: Fetch) -> Principal:
        try:
            name, colon, password = b64decode(credential, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            colon = ""
        if not colon:
            raise Unauthenticated("Basic credentials are name:password in base64")
        return await self._passwords.current().find(name, password)


class MutualTLS:
    """A client certificate. The server's TLS checks it against its CA before a request is read.

    The principal is `spiffe://...` if the certificate has such a name, else `x509:` and the subject. With `clients`, only
    certificates with these SHA-256 fingerprints are accepted, each under the given name.
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
        self._clients = ReloadedHolders(clients, TokenHolders) if clients is not None else None
        self.name, self.scopes = name, tuple(scopes)
        self.declaration = SecurityScheme(mtls_security_scheme=MutualTlsScheme(description=description))
        self._read: dict[bytes, _Certificate] = {}

    def place(self, presented: Presented) -> str:
        return ""

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        given = presented.certificate
        if not given:
            return None
        certificate = self._read.get(given)
        if certificate is None:
            if len(self._read) >= _MAX_CACHED_CERTIFICATES:
                self._read.clear()
            certificate = self._read[given] = _read_certificate(given)
        # It may expire while the connection is open.
        if not certificate.begins <= time.time() < certificate.ends:
            raise Unauthenticated("the client certificate is not valid now")
        if self._clients is not None:
            return self._clients.current().find_digest(certificate.fingerprint)
        if not certificate.holder:
            raise Unauthenticated("the client certificate has no name")
        return Principal(id=certificate.holder)


class _Certificate(Struct, frozen=True):
    fingerprint: bytes
    begins: float
    ends: float
    holder: str


def _read_certificate(der: bytes) -> _Certificate:
    from cryptography import x509  # slow to import

    read = x509.load_der_x509_certificate(der)
    try:
        names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        uris = []
    spiffe = [uri for uri in uris if uri.startswith("spiffe://")]
    subject = read.subject.rfc4514_string()
    return _Certificate(
        hashlib.sha256(der).digest(),
        read.not_valid_before_utc.timestamp(),
        read.not_valid_after_utc.timestamp(),
        spiffe[0] if len(spiffe) == 1 else f"x509:{subject}" if subject else "",
    )


class Custom:
    """A check of your own: `async def check(presented) -> Principal | None`. `declaration` is for the card."""

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
        self.declaration = declaration or http_scheme("bearer")

    async def authenticate(self, presented: Presented, fetch: Fetch) -> Principal | None:
        found = self._check(presented)
        principal: Principal | None = await found if inspect.isawaitable(found) else found
        return principal
