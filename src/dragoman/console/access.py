"""Who may use the console, and from where.

    a one-time token     in the fragment of the URL that the server prints on a loopback address; it works once
    an operator token    given by the operator, or made and stored (0600) beside the store; scripts send it as a bearer
    a session            a signed cookie that the page gets for either of them; no server state, so that it works on every
                         worker and after a restart

A cookie is only accepted from our own pages: `SameSite=Strict`, and the `Origin` or `Sec-Fetch-Site` of the request says so.
Every request must name a host that we serve, so that a page cannot reach a loopback server under its own name (DNS rebinding).
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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from dragoman.errors import Forbidden, InvalidRequest, RateLimited, Unauthenticated
from dragoman.server.exchange import Exchange

logger = logging.getLogger("dragoman.console")

T = TypeVar("T")

OPERATOR, TENANT = "operator", "tenant"
COOKIE = "dragoman_console"
SESSION_SECONDS = 7 * 86_400
MIN_TOKEN_CHARACTERS = 16
"""Of an operator token that somebody chooses."""
MAX_FAILURES, FAILURE_SECONDS = 20, 60.0
"""Wrong tokens of one address that this process answers in so many seconds; more are refused unread."""
MAX_ADDRESSES = 1000
"""Addresses whose failures are counted."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")


class Viewer(Struct, frozen=True, array_like=True):
    """Somebody who uses the console. An operator sees every scope, a tenant its own."""

    role: str
    tenant: str = ""
    """Of a tenant: the tenant in the scope of its tasks."""
    name: str = ""
    """Of a tenant: its name for people."""
    generation: int = 0
    """Of a tenant: the number of the token that it showed."""
    scope: str = ""
    """Of a tenant: what the token may do: `read`, `run` or `admin`."""
    who: str = ""
    """Of a tenant: the name of the token or of the user."""
    expires: float = 0.0
    """When the token expires, and the session with it; 0: never."""

    @property
    def reads_only(self) -> bool:
        return self.role == TENANT and self.scope == "read"


class _Session(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    viewer: Viewer
    expires: float


class OneTimeToken:
    """A token that one caller can use once, in any of the workers that this process forks."""

    def __init__(self, text: str = "") -> None:
        self.text = text or secrets.token_urlsafe(24)
        self._used = mmap.mmap(-1, 1)  # shared with forked workers

    def take(self, token: str) -> bool:
        if self._used[0] or not same(token, self.text):
            return False
        self._used[0] = 1
        return True


class Access:
    """`check` says who shows a token; `holds` whether a session of this viewer is still good. `key` signs the sessions."""

    def __init__(
        self,
        *,
        key: Callable[[], Awaitable[bytes]],
        check: Callable[[str], Awaitable[Viewer | None]],
        holds: Callable[[Viewer], Awaitable[bool]] | None = None,
        one_time: OneTimeToken | None = None,
        hosts: Sequence[str] = (),
    ) -> None:
        self._key, self._check, self._holds, self._one_time = key, check, holds, one_time
        self._hosts = frozenset(host.lower() for host in ("localhost", *hosts) if host)
        self._failures: dict[str, list[float]] = {}
        """By address: when it showed a wrong token. Per address, so that a stranger cannot lock an operator out."""

    # -- requests ----------------------------------------------------------------------------------------------

    def check_host(self, exchange: Exchange) -> None:
        """Refuse a name that is not ours. An address cannot be rebound, so every address is fine."""
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
        viewer = await self._open(cookie) if cookie else None
        if viewer is None:
            raise Unauthenticated(
                "log in first: open the URL that the server printed, or give the operator token"
            )
        self.check_origin(exchange)
        return viewer

    async def check_still(self, viewer: Viewer) -> None:
        """Raise `Unauthenticated` if the viewer of an open stream has no access any more."""
        if viewer.expires and viewer.expires <= time.time():
            raise Unauthenticated("this session has ended")
        if self._holds is not None and not await self._holds(viewer):
            raise Unauthenticated("this session has ended")

    def check_origin(self, exchange: Exchange) -> None:
        """Refuse requests that a page of another origin makes. Raises `Forbidden`."""
        site = exchange.header(b"sec-fetch-site").lower()
        reads = exchange.method in ("GET", "HEAD")
        if site and site != "same-origin" and not (reads and site == "none"):
            raise Forbidden("a page of another origin cannot use the console")
        origin = exchange.header(b"origin")
        if origin and _netloc(origin) not in (exchange.header(b"host").lower(), self._public(exchange)):
            raise Forbidden("a page of another origin cannot use the console")
        if not reads and not site and not origin:
            raise Forbidden("a browser says where a request comes from; scripts send the token, not a cookie")

    async def log_in(self, exchange: Exchange, token: str) -> tuple[Viewer, str]:
        """The viewer of a token, and the cookie of a new session."""
        if exchange.header(b"origin") or exchange.header(b"sec-fetch-site"):
            self.check_origin(exchange)
        viewer = await self._identify(exchange, token, one_time=True)
        ends = time.time() + SESSION_SECONDS
        ends = min(ends, viewer.expires) if viewer.expires else ends
        body = msgspec.json.encode(_Session(viewer, ends))
        value = f"{encode(body)}.{encode(await self._sign(body))}"
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
        viewer = await self._check(token) if token else None
        if viewer is None and one_time and self._one_time is not None and self._one_time.take(token):
            viewer = Viewer(OPERATOR)
        if viewer is None:
            self._failures.pop(address, None)
            if len(self._failures) >= MAX_ADDRESSES:
                del self._failures[next(iter(self._failures))]  # the one that failed longest ago
            self._failures[address] = [*failures, now]
            raise Unauthenticated("this token is wrong, or was used before")
        return viewer

    async def _open(self, cookie: str) -> Viewer | None:
        """The viewer of a session; None if it is not ours, has expired or was revoked."""
        body, _, signature = cookie.partition(".")
        try:
            raw, signed = decode(body), decode(signature)
            if not hmac.compare_digest(signed, await self._sign(raw)):
                return None
            session = msgspec.json.decode(raw, type=_Session)
        except ValueError:
            return None
        if session.expires <= time.time():
            return None
        if self._holds is not None and not await self._holds(session.viewer):
            return None
        return session.viewer

    async def _sign(self, body: bytes) -> bytes:
        return hmac.digest(await self._key(), b"session " + body, "sha256")

    # -- cookies -----------------------------------------------------------------------------------------------

    def _cookie(self, exchange: Exchange) -> str:
        name, jar = self._cookie_name(exchange), SimpleCookie()
        for header, value in exchange.scope["headers"]:
            if header == b"cookie" and len(value) <= 16_384:
                with suppress(CookieError):
                    jar.load(value.decode("latin-1"))
        return jar[name].value if name in jar else ""

    def _cookie_name(self, exchange: Exchange) -> str:
        """Cookies do not know ports: two servers on one machine would overwrite each other's."""
        match = _HOST.fullmatch(exchange.header(b"host"))
        return f"{COOKIE}_{match[2]}" if match is not None and match[2] else COOKIE

    def _set_cookie(self, exchange: Exchange, value: str, seconds: int) -> str:
        base = urlsplit(exchange.base_url())
        secure = "; Secure" if base.scheme == "https" else ""
        path = f"{base.path.rstrip('/')}/console"
        return f"{self._cookie_name(exchange)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _public(self, exchange: Exchange) -> str:
        return urlsplit(exchange.base_url()).netloc.lower()


def operator_access(token: str, *, one_time: OneTimeToken | None = None, hosts: Sequence[str] = ()) -> Access:
    """Access for operators alone, who have one token. It also signs their sessions."""
    secret = signing_key(token)

    async def key() -> bytes:
        return secret

    async def check(shown: str) -> Viewer | None:
        return Viewer(OPERATOR) if same(shown, token) else None

    return Access(key=key, check=check, one_time=one_time, hosts=hosts)


class TokenFile:
    """The operator token of a server whose operator gave none: made once, for this user alone, beside the store."""

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
                        f"dragoman: {self.path} is not yours alone: others can read it, or made it. Delete it, and it is made anew"
                    ) from None
            else:
                with os.fdopen(handle, "w") as file:
                    file.write(f"op_{secrets.token_urlsafe(32)}\n")
            token = self.path.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(
                f"dragoman: the console's token cannot be kept in {self.path}: {error}"
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


def same(one: str, other: str) -> bool:
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


def encode(data: bytes) -> str:
    """Bytes in a URL or a cookie: base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Raises `ValueError`."""
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def read_json(text: str, kind: type[T]) -> T:
    """JSON in base64url. Raises `ValueError`."""
    return msgspec.json.decode(decode(text), type=kind)
