"""Check the addresses of requests whose URL somebody else chose (SSRF).

A name is resolved once, all its addresses are checked, and the socket is connected to an address that was checked: there
is no second look-up with another result. `HttpTransport(dial=guard.dial)` uses it for webhooks and key sets. gRPC opens
its own connections: it gets `Guard.addresses` and no name. `connect(..., guard=Guard())` uses both.

Every address that IANA lists as special is not public: private, loopback, link-local (where clouds keep their
credentials), carrier-grade NAT, documentation, benchmarking, multicast, reserved. For IPv6 everything but global unicast
is special. An IPv4 address inside an IPv6 one counts as what it is. The old tunnels (6to4, Teredo, ISATAP), which lead
to an address in their last digits, are special as a whole.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from dragoman.client.transport.network import AddressRefused, HttpTransport

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host."""
Connect = Callable[[str, int], Awaitable[socket.socket]]
"""A socket connected to an address (never a name)."""

_MAX_URL_CHARS = 2048
_MAX_HOST_CHARS = 253
_CONNECT_SECONDS = 5.0
"""How long to wait for one address before trying the next."""
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\.?", re.IGNORECASE)
_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+))*\.?", re.IGNORECASE)
_RESOLVER_THREADS = 32
"""Look-ups at a time of one guard."""


class Guard:
    """`allow_private`: for development, allows loopback, private networks and plain HTTP.

    `only`: the only hosts that are allowed (`webhooks.example.com`, `*.example.com`). `trust`: networks that are
    allowed though they are not public (`10.1.0.0/16`). `http`: allows plain HTTP. `ports`: the allowed ports; by default
    80, 443 and everything from 1024 on.

    A guard has its own threads to resolve names: names that take long delay neither other work of the process nor other guards.
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
        self._trust: list[IpNetwork] = [ip_network(text, strict=False) for text in trust]
        self._schemes = ("https", "http") if http or allow_private else ("https",)
        self._ports = frozenset(ports)
        self._resolve = resolve or _Resolver().resolve
        self._connect = connect or _connect

    def check(self, url: str) -> None:
        """Check a URL without a look-up. Raises `AddressRefused`."""
        parts = _split(url)
        if parts.scheme not in self._schemes:
            raise AddressRefused(f"its scheme is not {' or '.join(self._schemes)}")
        if parts.username is not None or parts.password is not None:
            raise AddressRefused("it has a name or a password in it")
        if parts.fragment:
            raise AddressRefused("it has a fragment")
        assert parts.hostname is not None
        self._check_port(parts.port or (443 if parts.scheme == "https" else 80))
        self._check_host(parts.hostname)

    async def dial(self, host: str, port: int) -> socket.socket:
        """A socket to one of the host's addresses, if all of them are allowed. Raises `AddressRefused`, `OSError`."""
        failure: OSError = AddressRefused(f"{host} has no address")
        for address in await self.addresses(host, port):
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    connected = await self._connect(address, port)
            except TimeoutError:
                failure = OSError(f"{host} does not answer")
                continue
            except OSError as error:
                failure = error
                continue
            try:
                self._check_address(connected.getpeername()[0])
            except OSError:
                connected.close()
                raise
            return connected
        raise failure

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The host's addresses, if all of them are allowed. Raises `AddressRefused`, `OSError`."""
        self._check_port(port)
        self._check_host(host)
        found = [self._check_address(text) for text in await self._resolve(host, port)]
        return [str(address) for address in dict.fromkeys(found)]

    def _check_port(self, port: int) -> None:
        if self._ports:
            fine = port in self._ports
        else:
            fine = self._allow_private or port in (80, 443) or port >= 1024
        if not fine:
            raise AddressRefused(f"port {port} is not allowed")

    def _check_host(self, host: str) -> None:
        """Check the form of a host. An address in an unusual form (`2130706433`, `0x7f.1`) is refused."""
        if len(host) > _MAX_HOST_CHARS:
            raise AddressRefused("its host is too long")
        name = host.lower().rstrip(".")
        if self._only and not any(_matches(name, each) for each in self._only):
            raise AddressRefused("its host is not allowed")
        if _read_address(host) is not None:
            self._check_address(host)
        elif _NUMERIC.fullmatch(host):
            raise AddressRefused("its host is a number")
        elif not _NAME.fullmatch(host):
            raise AddressRefused("its host is not a name")
        elif not self._allow_private and (name == "localhost" or name.endswith(".localhost")):
            raise AddressRefused("its host is not on the internet")

    def _check_address(self, text: str) -> IpAddress:
        address = _read_address(text)
        if address is None:
            raise AddressRefused("its host has an invalid address")
        if not (self._allow_private or is_public(address) or _is_in(address, self._trust)):
            raise AddressRefused("its host is not on the internet")
        return address


class OutboundGuard:
    """For clients of agents elsewhere: allows public addresses, those that the operator named (`host:port`), and all if
    `allow_private`."""

    def __init__(self, *, allow_private: bool = False) -> None:
        self._anywhere = Guard(allow_private=True)
        self._public = Guard(http=True)
        self._allow_private = allow_private
        self._named: set[str] = set()

    def allow(self, url: str) -> None:
        """The operator named this URL: its host and port may be private."""
        parts = urlsplit(url)
        if parts.hostname:
            self._named.add(
                f"{parts.hostname.lower()}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
            )

    async def dial(self, host: str, port: int) -> socket.socket:
        return await self._guard(host, port).dial(host, port)

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        return await self._guard(host, port).addresses(host, port)

    def _guard(self, host: str, port: int) -> Guard:
        named = f"{host.lower()}:{port}" in self._named
        return self._anywhere if self._allow_private or named else self._public

    def transport(self) -> HttpTransport:
        """A transport without credentials, for logging in."""
        return HttpTransport(dial=self.dial)


def _split(url: str) -> SplitResult:
    if len(url) > _MAX_URL_CHARS:
        raise AddressRefused(f"it is longer than {_MAX_URL_CHARS} characters")
    if not url.isascii() or any(char <= " " or char in '\\"<>^`{|}\x7f' for char in url):
        raise AddressRefused("it has characters that do not belong in a URL")
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            raise AddressRefused("port 0 is not allowed")
    except ValueError:
        raise AddressRefused("it is not a URL") from None
    if not parts.hostname:
        raise AddressRefused("it has no host")
    return parts


def _matches(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


class _Resolver:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_RESOLVER_THREADS, "dragoman-resolve")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, look)
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


# --- which addresses are public

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network

_SPECIAL_4 = [
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; a cloud's metadata service is in it, too
        "127.0.0.0/8",
        "168.63.129.16/32",  # a public address that is the metadata service of a large cloud
        "169.254.0.0/16",  # link-local: the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
_GLOBAL_6 = IPv6Network("2000::/3")
_SPECIAL_6 = [
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4
        "3fff::/20",  # documentation
    )
]
_WITH_IPV4 = [IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96")]
"""Mapped, and translated by NAT64: the last 32 bits are an IPv4 address."""
_ISATAP = (0x00005EFE, 0x02005EFE)


def effective_address(address: IpAddress) -> IpAddress:
    """The address that is reached in the end: IPv4 inside IPv6 is IPv4."""
    if isinstance(address, IPv6Address) and any(address in network for network in _WITH_IPV4):
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def is_public(address: IpAddress) -> bool:
    """True if the address is on the public internet."""
    address = effective_address(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _SPECIAL_4)
    if address not in _GLOBAL_6 or (int(address) >> 32) & 0xFFFFFFFF in _ISATAP:
        return False
    return not any(address in network for network in _SPECIAL_6)


def _is_in(address: IpAddress, networks: list[IpNetwork]) -> bool:
    address = effective_address(address)
    return any(address.version == network.version and address in network for network in networks)


def _read_address(text: str) -> IpAddress | None:
    """An address in its usual form; None for anything else. A zone (`%eth0`) is dropped: such an address is never public."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None
