"""Limits of requests and connections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dragoman.dialects.sse import MAX_EVENT

BODIES_BYTES = 64 << 20
"""Of large request bodies that a process works on at a time. The work takes several copies of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    max_body: int = 8 << 20
    """Bytes in a request."""
    max_head: int = 64 << 10
    """Bytes in the head of a request; on our own server."""
    max_depth: int = 64
    """Levels of nesting in its JSON."""
    max_nodes: int = 250_000
    """Objects and arrays in it: eight megabytes of `[],[],` would become hundreds in memory."""
    max_event: int = MAX_EVENT
    """Bytes in one event of a stream we write."""
    body_timeout: float = 30.0
    """Seconds the body of a request may take to arrive."""
    head_timeout: float = 10.0
    """Seconds until a connection has sent the head of a request; on our own server."""
    write_timeout: float = 60.0
    """Seconds a client may go without reading what we wrote; on our own server and gRPC. The task goes on without it."""
    read_rate: int = 1024
    """Bytes per second that it has to read in that time, if there are more to read than a connection holds."""

    max_connections: int = 0
    """Open connections, over HTTP and gRPC together. Further ones get 503, or over gRPC are closed. 0: any number. On our
    own server."""
    max_streams: int = 256
    """Open calls of one gRPC connection; its client delays further ones."""
    max_uploads: int = 8
    """Of these, the calls that may send a body at once; the others wait, each with what fits into its window."""

    def exceeded_by(self, document: bytes) -> str:
        """Which limit a document exceeds, found without decoding it; empty if none."""
        if document.count(b"{") + document.count(b"[") <= self.max_depth:
            return ""
        brackets = _outside_strings(document).translate(_ONE_KIND)
        if brackets.count(b"(") > self.max_nodes:
            return f"the request has more than {self.max_nodes} objects and arrays"
        if _deeper_than(self.max_depth, brackets):
            return f"the request nests deeper than {self.max_depth} levels"
        return ""


class ConnectionGauge(Protocol):
    """The open connections of all workers of a server."""

    def set(self, value: int) -> None: ...

    def total(self) -> int: ...


class Connections:
    """Counts the open connections of a process, of all its bindings. `gauge`: adds those of other workers."""

    def __init__(self, most: int = 0, gauge: ConnectionGauge | None = None) -> None:
        self._most, self._gauge = most, gauge
        self.here = 0

    def count(self, change: int) -> None:
        self.here += change
        if self._gauge is not None:
            self._gauge.set(self.here)

    @property
    def full(self) -> bool:
        """True if there are more connections than allowed."""
        return self._most > 0 and (self._gauge.total() if self._gauge else self.here) > self._most


_NEITHER = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ONE_KIND = bytes.maketrans(b"[]{}", b"()()")


def _outside_strings(document: bytes) -> bytes:
    """The brackets that are not in strings; a string that does not end goes to the end."""
    if b"\\" in document:  # in JSON only strings have them: what is left of them escapes a quote
        document = document.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = document.translate(None, _NEITHER)
    # Two adjacent quotes change nothing around them, and most strings have no brackets.
    return b"".join(marks.replace(b'""', b"").split(b'"')[::2])


def _deeper_than(limit: int, brackets: bytes) -> bool:
    """Remove the innermost pairs, once per level: what is left after `limit` rounds was deeper."""
    descent = b"(" * (limit + 1)
    for _ in range(limit):
        if descent in brackets:
            return True
        shorter = brackets.replace(b"()", b"")
        if len(shorter) == len(brackets):
            break  # nothing closes: not JSON
        brackets = shorter
    return b"()" in brackets
