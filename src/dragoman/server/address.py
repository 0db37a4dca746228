"""The URL that clients use for this server.

The operator's `public_url` comes first, then `Forwarded` or `X-Forwarded-*` of a trusted proxy (of several values the last,
which that proxy wrote), then the client's `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?")
_PREFIX = re.compile(r"(?:/[A-Za-z0-9._~!$&'()*+,;=:@%-]+)+")
_URL = re.compile(rf"https?://{_HOST.pattern}(?:{_PREFIX.pattern})?")
_PAIR = re.compile(r'\s*([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;,"]*))\s*')


def bracketed(host: str) -> str:
    """A host as it is in a URL: an IPv6 address has brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class PublicAddress:
    """`trusted_proxies`: addresses or networks (`10.0.0.0/8`) of proxies; `*` trusts whoever connects."""

    def __init__(self, public_url: str = "", trusted_proxies: Sequence[str] = ()) -> None:
        """Raises `ValueError` for an invalid URL or network."""
        self._public = public_url.rstrip("/")
        if self._public and not _URL.fullmatch(self._public):
            raise ValueError(f"{public_url!r} is no public URL; write https://agents.example.com")
        self._anybody = "*" in trusted_proxies
        self._networks: list[IPv4Network | IPv6Network] = [
            ip_network(proxy, strict=False) for proxy in trusted_proxies if proxy != "*"
        ]

    def base_url(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> str:
        """The URL, without a slash at its end."""
        if self._public:
            return self._public
        scheme, prefix = scope.get("scheme", "http"), ""
        host = headers.get(b"host", b"").decode("latin-1").strip(" \t")
        if (self._anybody or self._networks) and self._trusts(scope.get("client")):
            forwarded = _read_forwarded(headers)
            scheme, host = forwarded.get("proto", scheme), forwarded.get("host", host)
            prefix = forwarded.get("prefix", "")
        if scheme not in ("http", "https"):
            scheme = "http"
        if not _HOST.fullmatch(host):
            host = _server(scope.get("server"))
        if prefix and not _PREFIX.fullmatch(prefix):
            prefix = ""
        return f"{scheme}://{host}{prefix}{scope.get('root_path', '').rstrip('/')}"

    def _trusts(self, client: tuple[str, int] | None) -> bool:
        if self._anybody:
            return True
        try:
            peer = ip_address(client[0]) if client else None
        except ValueError:  # a unix socket
            return False
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped:  # on a socket for both
            peer = peer.ipv4_mapped
        return peer is not None and any(peer in network for network in self._networks)


def _server(server: Sequence[Any] | None) -> str:
    return f"{bracketed(server[0])}:{server[1]}" if server and server[1] else "localhost"


def _read_forwarded(headers: Mapping[bytes, bytes]) -> dict[str, str]:
    """`proto`, `host` and `prefix` as the nearest proxy gives them."""
    forwarded = {}
    for name in ("proto", "host", "prefix"):
        value = headers.get(f"x-forwarded-{name}".encode(), b"").decode("latin-1")
        if value := value.rpartition(",")[2].strip():
            forwarded[name] = value.rstrip("/")
    if b"forwarded" in headers:
        hop = _last_hop(headers[b"forwarded"].decode("latin-1"))
        forwarded |= {name: hop[name] for name in ("proto", "host") if hop.get(name)}
    if "proto" in forwarded:
        forwarded["proto"] = forwarded["proto"].lower()
    return forwarded


def _last_hop(value: str) -> dict[str, str]:
    """The last element of a `Forwarded` header (RFC 7239); empty if the header is malformed."""
    hop: dict[str, str] = {}
    at = 0
    while at < len(value):
        pair = _PAIR.match(value, at)
        if pair is None:
            return {}
        hop[pair[1].lower()] = pair[3] if pair[2] is None else re.sub(r"\\(.)", r"\1", pair[2])
        at = pair.end()
        if value[at : at + 1] == ",":
            hop = {}
        elif at < len(value) and value[at] != ";":
            return {}
        at += 1
    return hop
