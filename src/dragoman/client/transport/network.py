"""HTTP/1.1 over the network: keep-alive connections, TLS, proxies.

Idle connections are kept for the next request, the most recently used first, and closed before the peer closes them. That they are
closed does not depend on another request: hosts may be named by strangers, and never asked again.
There is no read timeout: the caller decides how long to wait, and TCP keep-alive notices a dead peer.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

from dragoman.client.transport.http1 import HttpConnection, HttpResponse
from dragoman.client.transport.transport import AddressBlocked, ConnectFailed, NotSent

_IDLE_SECONDS = 4.0
"""An idle connection is closed after this time. Common servers close it after 5 seconds, and must not be the first."""
_MAX_IDLE_PER_HOST = 64
_MAX_IDLE_CONNECTIONS = 256
"""For all hosts together. Then the one that was used least recently is closed."""
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Hosts that are never reached through the proxy of the environment."""
_find_line_break = re.compile("[\r\n\0]").search
_MAX_HOST_CHARS = 255
_MAX_KEPT_CHARS = 1024
"""Characters of a URL whose parts are remembered: strangers may name long ones."""
_UNQUOTED = "!#$%&'()*+,/:;=?@[]~"


class _Destination(NamedTuple):
    """The server that a URL names."""

    host: str
    port: int
    secure: bool
    host_header: str


Dial = Callable[[str, int], Awaitable[socket.socket]]
"""Connects to a host and a port."""


class AddressRefused(OSError):
    """An `AddressGuard` does not allow a connection."""


class AddressGuard(Protocol):
    """Decides which addresses a client may connect to: `dragoman.push.Guard` is one. Both methods raise
    `AddressRefused`."""

    async def dial(self, host: str, port: int) -> socket.socket:
        """A socket connected to one of the host's addresses."""
        ...

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses, all of them allowed, for bindings that connect by themselves."""
        ...


class HttpTransport:
    """A `Transport` over HTTP/1.1. `proxy` overrides the usual environment variables; "" means none.

    `dial` opens the connections instead, and may refuse them (`push/guard.py`); then there is no proxy.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        proxy: str | None = None,
        connect_timeout: float = 10.0,
        dial: Dial | None = None,
    ) -> None:
        self._tls = tls
        self._proxy = proxy if dial is None else ""
        self._connect_timeout = connect_timeout
        self._dialled = dial
        self._idle: dict[_Destination, list[HttpConnection]] = {}
        """The ones used least recently first; no list is empty."""
        self._sweeper: asyncio.TimerHandle | None = None
        self._open: set[HttpConnection] = set()
        self._routes: dict[str, tuple[_Destination, str]] = {}
        self._closed = False

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> HttpResponse:
        if self._closed:  # or a late call would open a connection that nobody closes
            raise RuntimeError("the client was closed")
        route, target = self._routes.get(url) or self._resolve(url)
        address = _without_secrets(url)
        head = _write_head(f"{method} {target} HTTP/1.1\r\nHost: {route.host_header}\r\n", headers)
        if body or method == "POST":
            head += b"Content-Length: %d\r\n" % len(body)
        connection = self._take(route)
        if connection is None:
            connection = await self._connect(route, address)
        response = connection.send(b"%b%b\r\n%b" % (head, connection.extra, body), address)
        try:
            await response.wait_for_head()
        except asyncio.CancelledError:
            connection.abort()
            raise
        return response

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._open):
            connection.abort()
        self._open.clear()
        self._idle.clear()

    def _resolve(self, url: str) -> tuple[_Destination, str]:
        address = _without_secrets(url)
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            if len(host) > _MAX_HOST_CHARS:
                raise ValueError("its host is too long")
            if not host.isascii():
                host = host.encode("idna").decode()
        except ValueError as error:
            raise NotSent(f"{address!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise NotSent(f"{address!r} is not an http or https URL")
        secure = parts.scheme == "https"
        port = port or (443 if secure else 80)
        name = f"[{host}]" if ":" in host else host
        route = _Destination(
            host, port, secure, name if port == (443 if secure else 80) else f"{name}:{port}"
        )
        target = quote(parts.path or "/", _UNQUOTED) + (
            f"?{quote(parts.query, _UNQUOTED)}" if parts.query else ""
        )
        if not secure and self._proxy_for(route):
            target = f"http://{route.host_header}{target}"
        if len(self._routes) > 1000:
            self._routes.clear()
        if len(url) <= _MAX_KEPT_CHARS:
            self._routes[url] = route, target
        return route, target

    def _take(self, route: _Destination) -> HttpConnection | None:
        now = asyncio.get_running_loop().time()
        while (connection := self._pop_idle(route, -1)) is not None:
            if _is_fresh(connection, now) and not connection.closed_by_peer():
                return connection
            self._discard(connection)
        return None

    def _pop_idle(self, route: _Destination, at: int) -> HttpConnection | None:
        """Take an idle connection out of its list; `at`: 0 is the oldest, -1 the newest."""
        if (idle := self._idle.get(route)) is None:
            return None
        connection = idle.pop(at)
        if not idle:
            del self._idle[route]
        return connection

    def _keep_idle(self, route: _Destination, connection: HttpConnection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        idle_here = self._idle.setdefault(route, [])
        if len(idle_here) >= _MAX_IDLE_PER_HOST:
            self._discard(connection)
            return
        idle_here.append(connection)
        if (
            len(self._open) > _MAX_IDLE_CONNECTIONS
            and sum(map(len, self._idle.values())) > _MAX_IDLE_CONNECTIONS
        ):
            oldest = min(self._idle, key=lambda each: self._idle[each][0].idle_since)
            if (discarded := self._pop_idle(oldest, 0)) is not None:
                self._discard(discarded)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close the connections that have been idle for too long."""
        loop = asyncio.get_running_loop()
        now, before, self._idle = loop.time(), self._idle, {}
        for route, idle in before.items():
            for connection in idle:
                if not _is_fresh(connection, now):
                    self._discard(connection)
            if fresh := [connection for connection in idle if connection.usable]:
                self._idle[route] = fresh
        self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep) if self._idle else None

    def _discard(self, connection: HttpConnection) -> None:
        connection.abort()
        self._open.discard(connection)

    async def _connect(self, route: _Destination, url: str) -> HttpConnection:
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._dial(route)
        except TimeoutError as error:
            raise ConnectFailed(
                f"cannot reach {url}: no connection within {self._connect_timeout:g} s"
            ) from error
        except ssl.SSLCertVerificationError as error:
            raise NotSent(
                f"cannot reach {url}: its certificate is not trusted: {error.verify_message}"
            ) from error
        except AddressRefused as error:
            raise AddressBlocked(f"cannot reach {url}: {error}") from error
        except ConnectionError as error:
            raise ConnectFailed(f"cannot reach {url}: {describe_os_error(error)}") from error
        except OSError as error:
            raise NotSent(f"cannot reach {url}: {describe_os_error(error)}") from error
        except ValueError as error:  # not a name that can be resolved, or a proxy that is not a URL
            raise NotSent(f"cannot reach {url}: {error}") from error
        self._open.add(connection)
        return connection

    async def _dial(self, route: _Destination) -> HttpConnection:
        connection = HttpConnection(partial(self._keep_idle, route), self._open.discard)
        proxy = self._proxy_for(route)
        if not proxy:
            context = self._context() if route.secure else None
            await _dial(route.host, route.port, context, connection, self._dialled)
            return connection
        parts = urlsplit(proxy)
        if not parts.hostname:
            raise NotSent(f"the proxy {proxy!r} is not a URL")
        context = self._context() if parts.scheme == "https" else None
        port = parts.port or (443 if context else 80)
        login = b""
        if parts.username:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            login = b"Proxy-Authorization: Basic %b\r\n" % b64encode(pair.encode())
        if not route.secure:
            connection.extra = login
            await _dial(parts.hostname, port, context, connection)
            return connection
        return await self._tunnel(route, (parts.hostname, port, context), login, connection)

    async def _tunnel(
        self,
        route: _Destination,
        proxy: tuple[str, int, ssl.SSLContext | None],
        login: bytes,
        connection: HttpConnection,
    ) -> HttpConnection:
        """CONNECT through a proxy, then speak TLS with the peer itself."""
        outer = HttpConnection(lambda _: None, lambda _: None)
        transport = await _dial(*proxy, outer)
        there = f"{route.host if ':' not in route.host else f'[{route.host}]'}:{route.port}"
        head = _write_head(f"CONNECT {there} HTTP/1.1\r\nHost: {there}\r\n", {})
        response = outer.send(b"%b%b\r\n" % (head, login), f"the proxy {proxy[0]}:{proxy[1]}")
        await response.wait_for_head()
        if response.status != 200:
            outer.abort()
            raise NotSent(f"the proxy {proxy[0]}:{proxy[1]} refused with HTTP {response.status}")
        loop = asyncio.get_running_loop()
        inner = await loop.start_tls(transport, connection, self._context(), server_hostname=route.host)
        assert inner is not None
        connection.connection_made(inner)
        return connection

    def _context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls

    def _proxy_for(self, route: _Destination) -> str:
        if self._proxy is not None:
            return self._proxy
        if not any(name.lower().endswith("_proxy") for name in os.environ):
            return ""
        from urllib.request import getproxies, proxy_bypass  # slow to import, and rarely needed

        if route.host in LOOPBACK_HOSTS or proxy_bypass(route.host):
            return ""
        return getproxies().get("https" if route.secure else "http", "")


def _without_secrets(url: str) -> str:
    """A URL for an error, which is logged and shown: its query may hold a key, and before the host may be a password."""
    address = url.partition("?")[0]
    if "@" not in address:
        return address
    scheme, slashes, rest = address.partition("//")
    host, slash, path = rest.partition("/")
    return f"{scheme}{slashes}{host.rpartition('@')[2]}{slash}{path}"


def _is_fresh(connection: HttpConnection, now: float) -> bool:
    return connection.usable and now - connection.idle_since < (connection.keep_alive or _IDLE_SECONDS)


def _write_head(start: str, headers: Mapping[str, str]) -> bytes:
    """The head of a request. Raises `ValueError` for text that a header cannot hold."""
    for name, value in headers.items():
        if _find_line_break(value) or _find_line_break(name):
            raise ValueError(f"the header {name!r} has a line break in it")
        start += f"{name}: {value}\r\n"
    try:
        return start.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!r} does not fit into a header") from error


def describe_os_error(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):  # its number is OpenSSL's
        plain = "; it may be http:// there" if error.reason == "WRONG_VERSION_NUMBER" else ""
        return f"TLS failed: {error.reason or error}{plain}"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error) or "the connection was closed"
    return os.strerror(error.errno)


async def _dial(
    host: str, port: int, context: ssl.SSLContext | None, connection: HttpConnection, dial: Dial | None = None
) -> asyncio.Transport:
    loop = asyncio.get_running_loop()
    transport: asyncio.Transport
    if dial is not None:
        dialled = await dial(host, port)
        try:
            transport, _ = await loop.create_connection(
                lambda: connection, sock=dialled, ssl=context, server_hostname=host if context else None
            )
        except BaseException:
            dialled.close()
            raise
    elif isinstance(loop, asyncio.BaseEventLoop):
        transport, _ = await loop.create_connection(
            lambda: connection, host, port, ssl=context, happy_eyeballs_delay=0.25
        )
    else:  # uvloop does not try addresses in parallel
        transport, _ = await loop.create_connection(lambda: connection, host, port, ssl=context)
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return transport
