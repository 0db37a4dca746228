"""The head of a request, as far as it could be read in two ways: then it is not read at all.

Whoever stands before us (a proxy, a filter) must have seen the same request as we do: one host, one end of its body, one
target. The parser has refused most of the rest by now: lengths that differ, lines that are folded, ends that are none.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.server.http_exchange import Header

_MOST = 256
"""Lines in a head."""


class Refused(Exception):
    """The parser stops here. Says with which status."""

    def __init__(self, status: int = 400) -> None:
        self.status = status


def check_head(target: bytes, headers: Sequence[Header], version: str, most: int) -> None:
    """`most`: bytes that a head may have. Raises `Refused`."""
    if len(headers) > _MOST:
        raise Refused(431)
    hosts, size = 0, len(target)
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name == b"host":
            hosts += 1
        elif name == b"transfer-encoding" and (value.strip(b" \t").lower() != b"chunked" or version == "1.0"):
            raise Refused
    if size > most:
        raise Refused(431)
    if version != "1.1" and version != "1.0":
        raise Refused(505)
    if hosts != 1 and (hosts or version != "1.0"):
        raise Refused


def check_target(target: bytes, method: bytes, headers: Sequence[Header]) -> None:
    """For a target that is more than a path: it may say `http://` and the host that the head names. Raises `Refused`."""
    if target == b"*" and method == b"OPTIONS":
        return
    scheme, _, rest = target.partition(b"://")
    authority = rest.partition(b"/")[0].partition(b"?")[0].lower()
    named = [value.strip(b" \t").lower() for name, value in headers if name == b"host"] or [authority]
    if scheme.lower() not in (b"http", b"https") or authority != named[0] or b"#" in target:
        raise Refused


def without_upgrade(method: bytes, target: bytes, version: str, headers: Sequence[Header]) -> bytes:
    """The head of a request that asked to change the protocol, as if it had not: else its body would not be read."""
    said = b"".join([b"%b: %b\r\n" % header for header in headers if header[0] != b"upgrade"])
    return b"%b %b HTTP/%b\r\n%b\r\n" % (method, target, version.encode(), said)
