"""What a server gives an application for one request: ASGI's scope, events and messages, and a short path beside them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from dragoman.server.mount import Header

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DIRECT = "dragoman.direct"
"""The ASGI extension of our own server: a short path for complete requests and responses."""


class Direct(Protocol):
    """A short path for requests that have arrived and responses that are complete (`http1/protocol.py`)."""

    half_closed: bool
    """The client sends nothing more. Only writing shows whether it still reads."""
    gone: bool
    """The client has disconnected."""
    on_gone: Callable[[], object] | None
    """Called when the client disconnects."""

    def body(self) -> bytes | None:
        """The complete body, once; None if it has not arrived."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes, length: int | None) -> bool:
        """Write a response; `length` is its content-length. False: not possible now, and nothing was written."""
        ...

    def start(self, status: int, headers: list[Header]) -> bool:
        """Begin a response in pieces; names of headers are lower case. False as for `respond`."""
        ...

    def write(self, body: bytes, *, more: bool) -> bool:
        """Write a piece of it; `more` follow. False: not possible now, because the client does not read."""
        ...

    def mark_slow(self) -> None:
        """The response takes long: a client that closes its side from now on has given up."""
        ...


class HttpClient(Protocol):
    """The client of a request, which may leave before it is answered: an `Exchange`."""

    direct: Direct | None
    receive: Receive


class Disconnected(Exception):
    """The client left: nobody reads a response."""
