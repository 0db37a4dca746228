"""Who may use the console, and from where.

    a one-time token     in the fragment of the URL that the server prints on a loopback address; it works once
    an operator token    given by the operator, or made and stored (0600) beside the store; scripts send it as a bearer
    a session            a signed cookie that the page gets for either of them; no server state, so that it works on every
                         worker and after a restart

A cookie is only accepted in requests of the console's own pages: it has `SameSite=Strict`, and `Origin` or `Sec-Fetch-Site` is checked.
The `Host` of every request must be a name of this server, against DNS rebinding: a page could reach a loopback server under its own name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import mmap
import os
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.errors import Forbidden, InvalidRequest, RateLimited, Unauthenticated
from dragoman.server.exchange import Exchange

logger = logging.getLogger("dragoman.console")

OPERATOR, TENANT = "operator", "tenant"
COOKIE = "dragoman_console"
SESSION_SECONDS = 7 * 86_400
MIN_TOKEN_CHARACTERS = 16
"""The minimum length of an operator token that the operator chooses."""
MAX_FAILURES, FAILURE_SECONDS = 20, 60.0
"""Wrong tokens of one address within so many seconds; after that, its tokens are refused unchecked."""
MAX_ADDRESSES = 1000
"""Addresses whose failures are counted."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class Viewer(Struct, frozen=True, array_like=True):
    """A user of the console. An operator sees every scope, a tenant its own."""

    role: str
    tenant: str = ""
    """Of a tenant: the tenant in the scope of its tasks."""
    name: str = ""
    """Of a tenant: its name for people."""
    generation: int = 0
    """Of a tenant: the generation of its token."""
    scope: str = ""
    """Of a tenant: what the token may do: `read`, `run` or `admin`."""
    who: str = ""
    """Of a tenant: the name of the token or of the user."""
    expires: float = 0.0
    """When the token expires, and the session with it; 0: never."""

    @property
    def is_read_only(self) -> bool:
        return self.role == TENANT and self.scope == "read"


class _Session(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    viewer: Viewer
    expires: float


class OneTimeToken:
    """A token that one caller can use once, in any of the workers that this process forks."""

    def __init__(self, text: str = "") -> None:
        self.text = text or secrets.token_urlsafe(24)
        self._used = mmap.mmap(-1, 1)  # shared with forked workers

    def use(self, token: str) -> bool:
        if self._used[0] or not equals_secret(token, self.text):
            return False
        self._used[0] = 1
        return True


class Viewers(Protocol):
    """Who may use a console."""

    async def identify(self, token: str) -> Viewer | None:
        """The viewer of a token; None if it is wrong."""
        ...

    async def is_valid(self, viewer: Viewer) -> bool:
        """True while a session of this viewer is valid."""
        ...

    async def signing_key(self) -> bytes:
        """The key that signs sessions: a new key ends all of them."""
        ...


class OperatorToken:
    """The `Viewers` of a console that only operators use: they have one token, which also signs their sessions."""

    def __init__(self, token: str) -> None:
        self._token, self._key = token, signing_key(token)

    async def identify(self, token: str) -> Viewer | None:
        return Viewer(OPERATOR) if equals_secret(token, self._token) else None

    async def is_valid(self, viewer: Viewer) -> bool:
        return True

    async def signing_key(self) -> bytes:
        return self._key


class Access:
    def __init__(
        self, viewers: Viewers, *, one_time: OneTimeToken | None = None, hosts: Sequence[str] = ()
    ) -> None:
        self._viewers, self._one_time = viewers, one_time
        self._hosts = frozenset(host.lower() for host in ("localhost", *hosts) if host)
        self._failures: dict[str, list[float]] = {}
        """By address: when it sent wrong tokens. Counted per address, so that a stranger cannot lock an operator out."""

    # -- requests ----------------------------------------------------------------------------------------------

    def check_host(self, exchange: Exchange) -> None:
        """Refuse a `Host` that is not a name of this server. IP addresses are allowed: DNS rebinding needs a name."""
        host = exchange.header(b"host")
        match = _HOST.fullmatch(host)
        if match is None or len(host) > 300:
            raise InvalidRequest("the Host header is missing or malformed")
        name = match[1].lower().rstrip(".")
        if name not in self._hosts and not _is_address(name):
            raise Forbidden(
                f"this console is not served as {name[:80]!r}: use its address, or start it with --public-url"
            )

    async def viewer(self, exchange: Exchange) -> Viewer:
        """Who sends this request. Raises `Unauthenticated`, `Forbidden` or `RateLimited`."""
        scheme, _, token = exchange.header(b"authorization").partition(" ")
        if scheme.lower() == "bearer":
            return await self._identify(exchange, token.strip(), one_time=False)
        cookie = self._cookie(exchange)
        viewer = await self._read_session(cookie) if cookie else None
        if viewer is None:
            raise Unauthenticated(
                "log in first: open the URL that the server printed, or give the operator token"
            )
        self.check_origin(exchange)
        return viewer

    async def check_session(self, viewer: Viewer) -> None:
        """Raise `Unauthenticated` if the viewer of an open stream has no access any more."""
        expired = 0 < viewer.expires <= time.time()
        if expired or not await self._viewers.is_valid(viewer):
            raise Unauthenticated("this session has ended")

    def check_origin(self, exchange: Exchange) -> None:
        """Refuse requests that a page of another origin makes. Raises `Forbidden`."""
        site = exchange.header(b"sec-fetch-site").lower()
        reads = exchange.method in ("GET", "HEAD")
        if site and site != "same-origin" and not (reads and site == "none"):
            raise Forbidden("a page of another origin cannot use the console")
        origin = exchange.header(b"origin")
        if origin and _netloc(origin) not in (
            exchange.header(b"host").lower(),
            self._public_netloc(exchange),
        ):
            raise Forbidden("a page of another origin cannot use the console")
        if not reads and not site and not origin:
            raise Forbidden(
                "the request has a cookie, but neither Origin nor Sec-Fetch-Site: scripts send the token instead"
            )

    async def log_in(self, exchange: Exchange, token: str) -> tuple[Viewer, str]:
        """The viewer of a token, and the cookie of a new session."""
        if exchange.header(b"origin") or exchange.header(b"sec-fetch-site"):
            self.check_origin(exchange)
        viewer = await self._identify(exchange, token, one_time=True)
        ends = time.time() + SESSION_SECONDS
        ends = min(ends, viewer.expires) if viewer.expires else ends
        body = msgspec.json.encode(_Session(viewer, ends))
        value = f"{_encode(body)}.{_encode(await self._sign(body))}"
        return viewer, self._set_cookie(exchange, value, max(1, int(ends - time.time())))

    def log_out(self, exchange: Exchange) -> str:
        """The cookie that ends a session in the browser."""
        return self._set_cookie(exchange, "", 0)

    # -- tokens ------------------------------------------------------------------------------------------------

    async def _identify(self, exchange: Exchange, token: str, *, one_time: bool) -> Viewer:
        now, client = time.monotonic(), exchange.scope.get("client")
        address = client[0] if client else ""
        failures = [at for at in self._failures.get(address, ()) if at > now - FAILURE_SECONDS]
        if len(failures) >= MAX_FAILURES:
            raise RateLimited("too many wrong tokens; wait a minute", retry_after=FAILURE_SECONDS)
        viewer = await self._viewers.identify(token) if token else None
        if viewer is None and one_time and self._one_time is not None and self._one_time.use(token):
            viewer = Viewer(OPERATOR)
        if viewer is None:
            self._failures.pop(address, None)
            if len(self._failures) >= MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]  # the oldest failure
            self._failures[address] = [*failures, now]
            raise Unauthenticated("this token is wrong, or was used before")
        return viewer

    async def _read_session(self, cookie: str) -> Viewer | None:
        """The viewer of a session cookie; None if its signature is wrong, or the session has expired or was revoked."""
        body, _, signature = cookie.partition(".")
        try:
            raw, signed = _decode(body), _decode(signature)
            if not hmac.compare_digest(signed, await self._sign(raw)):
                return None
            session = msgspec.json.decode(raw, type=_Session)
        except ValueError:
            return None
        if session.expires <= time.time() or not await self._viewers.is_valid(session.viewer):
            return None
        return session.viewer

    async def _sign(self, body: bytes) -> bytes:
        return hmac.digest(await self._viewers.signing_key(), b"session " + body, "sha256")

    # -- cookies -----------------------------------------------------------------------------------------------

    def _cookie(self, exchange: Exchange) -> str:
        name, jar = self._cookie_name(exchange), SimpleCookie()
        for header, value in exchange.scope["headers"]:
            if header == b"cookie" and len(value) <= 16_384:
                with suppress(CookieError):
                    jar.load(value.decode("latin-1"))
        return jar[name].value if name in jar else ""

    def _cookie_name(self, exchange: Exchange) -> str:
        """The name has the port: browsers share cookies between ports, and two servers would overwrite each other's."""
        match = _HOST.fullmatch(exchange.header(b"host"))
        return f"{COOKIE}_{match[2]}" if match is not None and match[2] else COOKIE

    def _set_cookie(self, exchange: Exchange, value: str, seconds: int) -> str:
        base = urlsplit(exchange.base_url())
        secure = "; Secure" if base.scheme == "https" else ""
        path = f"{base.path.rstrip('/')}/console"
        return f"{self._cookie_name(exchange)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _public_netloc(self, exchange: Exchange) -> str:
        return urlsplit(exchange.base_url()).netloc.lower()


class TokenFile:
    """The operator token of a server without a configured one: made once, in a file that only this user can read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str:
        """The token. Raises `SystemExit` if the file can be read by others, or cannot be made."""
        try:
            try:
                handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            except FileExistsError:
                found = self.path.stat()
                if os.name == "posix" and (found.st_mode & 0o077 or found.st_uid != os.geteuid()):
                    raise SystemExit(
                        f"dragoman: {self.path} belongs to another user, or others can read it. Delete it: the next start makes a new one"
                    ) from None
            else:
                with os.fdopen(handle, "w") as file:
                    file.write(f"op_{secrets.token_urlsafe(32)}\n")
            token = self.path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(
                f"dragoman: the console's token cannot be stored in {self.path}: {error}"
            ) from None
        check_token(token, str(self.path))
        return token


def check_token(token: str, where: str) -> None:
    """Raises `SystemExit` for an operator token that could be guessed."""
    if len(token) < MIN_TOKEN_CHARACTERS or not token.isascii() or any(c.isspace() for c in token):
        raise SystemExit(
            f"dragoman: the operator token of {where} has fewer than {MIN_TOKEN_CHARACTERS} characters, or others than "
            "ASCII without spaces: `dragoman keys token` makes a good one"
        )


def signing_key(token: str) -> bytes:
    """The key of the sessions of an operator token: another token ends all sessions."""
    return hashlib.sha256(b"dragoman console session key\0" + token.encode()).digest()


def equals_secret(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(hashlib.sha256(one.encode()).digest(), hashlib.sha256(other.encode()).digest())


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _encode(data: bytes) -> str:
    """Bytes in a cookie: base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    """Raises `ValueError`."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
