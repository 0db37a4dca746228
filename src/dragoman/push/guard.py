"""Where we may be sent: a guard for requests whose URL a stranger has chosen.

A name is resolved once, every address it has is checked, and the socket is connected to an address that was checked:
there is no second look-up that could answer something else. `Guard.dial` goes into the client's `HttpTransport`, which
follows no redirects, so it serves webhooks, key sets and whatever else is fetched on somebody's word. gRPC makes its
connections itself: it gets `Guard.addresses` and no name. `connect(..., guard=Guard())` uses both.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import SplitResult, urlsplit

from dragoman.client.transport.network import AddressRefused
from dragoman.push.addresses import Address, Network, public, read_address, read_network, within

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""
Connect = Callable[[str, int], Awaitable[socket.socket]]
"""A socket connected to an address (never a name)."""

MAX_URL = 2048
_MAX_HOST = 253
_EACH = 5.0
"""Seconds to wait for one address before trying the next."""
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.IGNORECASE)
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)


_RESOLVERS = ThreadPoolExecutor(32, "dragoman-resolve")
"""Threads of our own: names that take for ever to resolve keep nobody else in this process waiting."""


class Refused(AddressRefused):
    """We do not go there."""


class Guard:
    """`allow_private`: for development, loopback and private networks and plain HTTP are fine.

    `only`: the hosts we go to, and no others (`webhooks.example.com`, `*.example.com`). `trust`: networks that may be
    reached though they are not public (`10.1.0.0/16`). `http`: plain HTTP is fine. `ports`: which ones; unless given,
    80, 443 and everything from 1024 on.
    """

    def __init__(
        self,
        *,
        allow_private: bool = False,
        only: Sequence[str] = (),
        trust: Sequence[str] = (),
        http: bool = False,
        ports: Sequence[int] = (),
        resolve: Resolve | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._allow_private = allow_private
        self._only = tuple(host.lower().rstrip(".") for host in only)
        self._trust: list[Network] = [read_network(text) for text in trust]
        self._schemes = ("https", "http") if http or allow_private else ("https",)
        self._ports = frozenset(ports)
        self._resolve = resolve or _resolve
        self._connect = connect or _connect

    def check(self, url: str) -> None:
        """What can be said of a URL without looking anything up. Raises `Refused`."""
        parts = _split(url)
        if parts.scheme not in self._schemes:
            raise Refused(f"its scheme is not {' or '.join(self._schemes)}")
        if parts.username is not None or parts.password is not None:
            raise Refused("it has a name or a password in it")
        if parts.fragment:
            raise Refused("it has a fragment")
        assert parts.hostname is not None
        self._check_port(parts.port or (443 if parts.scheme == "https" else 80))
        self._check_host(parts.hostname)

    async def dial(self, host: str, port: int) -> socket.socket:
        """A socket to one of the host's addresses, if all of them are allowed. Raises `Refused`, `OSError`."""
        failure: OSError = Refused(f"{host} has no address")
        for address in await self.addresses(host, port):
            try:
                async with asyncio.timeout(_EACH):
                    connected = await self._connect(address, port)
            except TimeoutError:
                failure = OSError(f"{host} does not answer")
                continue
            except OSError as error:
                failure = error
                continue
            try:
                self._checked(connected.getpeername()[0])
            except OSError:
                connected.close()
                raise
            return connected
        raise failure

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses, if all of them are allowed. Raises `Refused`, `OSError`."""
        self._check_port(port)
        self._check_host(host)
        found = [self._checked(text) for text in await self._resolve(host, port)]
        return [str(address) for address in dict.fromkeys(found)]

    def _check_port(self, port: int) -> None:
        if self._ports:
            fine = port in self._ports
        else:
            fine = self._allow_private or port in (80, 443) or port >= 1024
        if not fine:
            raise Refused(f"port {port} is not one we go to")

    def _check_host(self, host: str) -> None:
        """What its form says. An address in disguise (`2130706433`, `0x7f.1`) is not how an honest URL is written."""
        if len(host) > _MAX_HOST:
            raise Refused("its host is too long")
        name = host.lower().rstrip(".")
        if self._only and not any(_matches(name, each) for each in self._only):
            raise Refused("its host is not one we go to")
        if read_address(host) is not None:
            self._checked(host)
        elif _NUMERIC.fullmatch(host):
            raise Refused("its host is a number")
        elif not _NAME.fullmatch(host):
            raise Refused("its host is not a name")
        elif not self._allow_private and (name == "localhost" or name.endswith(".localhost")):
            raise Refused("its host is not on the internet")

    def _checked(self, text: str) -> Address:
        address = read_address(text)
        if address is None:
            raise Refused("its host has an address that makes no sense")
        if not (self._allow_private or public(address) or within(address, self._trust)):
            raise Refused("its host is not on the internet")
        return address


def _split(url: str) -> SplitResult:
    if len(url) > MAX_URL:
        raise Refused(f"it is longer than {MAX_URL} characters")
    if not url.isascii() or any(char <= " " or char in '\\"<>^`{|}\x7f' for char in url):
        raise Refused("it has characters that do not belong in a URL")
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise Refused("port 0 is not one we go to")
    except ValueError:
        raise Refused("it is not a URL") from None
    if not parts.hostname:
        raise Refused("it has no host")
    return parts


def _matches(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


async def _resolve(host: str, port: int) -> Sequence[str]:
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_RESOLVERS, look)
    return [str(where[0]) for *_, where in found]


async def _connect(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    connecting = socket.socket(family, socket.SOCK_STREAM)
    try:
        connecting.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connecting, (address, port))
    except BaseException:
        connecting.close()
        raise
    return connecting
