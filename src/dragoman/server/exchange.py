"""One HTTP request and its answer, in bytes: what every binding is handed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from dragoman.errors import InvalidRequest
from dragoman.model.inflight import LARGE_BYTES, ByteBudget

if TYPE_CHECKING:
    from dragoman.model.card import Interface
    from dragoman.server.address import Address
    from dragoman.server.disconnect import Attendance
    from dragoman.server.http1.timeouts import TaskTimeout
    from dragoman.server.limits import Limits
    from dragoman.server.mount import Mount
    from dragoman.server.sse import Streams

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

_PIECE_BYTES = 256 << 10
"""Of a large answer, written at a time."""

JSON: Header = (b"content-type", b"application/json")
DIRECT = "dragoman.direct"
"""The extension of a server that has a short way for what is whole (`server/http1/protocol.py`)."""


class Direct(Protocol):
    """A server's short way for requests that are all here and answers that are whole."""

    def body(self) -> bytes | None:
        """The whole body, once; None if it is not here yet, or has to be asked for."""
        ...

    def respond(self, status: int, headers: Sequence[Header], body: bytes, length: int | None) -> bool:
        """Write a response; `length` is its content-length. False: not possible now, and nothing was written."""
        ...

    @property
    def half_closed(self) -> bool:
        """The client sends nothing more. Only writing shows whether it still reads."""
        ...

    def mark_slow(self) -> None:
        """The response takes long: a client that closes its side from now on has given up."""
        ...


class TooLarge(InvalidRequest):
    http = 413


class TooSlow(InvalidRequest):
    http = 408


class Disconnected(Exception):
    """The client went away before its request was complete. There is nobody to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all exchanges of an application have in common."""

    limits: Limits
    address: Address
    body_timeout: TaskTimeout
    attendance: Attendance
    streams: Streams
    bodies: ByteBudget
    """Of large request bodies that are being worked on."""
    interfaces: Callable[[Mount, str], Sequence[Interface]]
    """How the agent of a mount is reached, as its card says it; the URL is that of the mount."""


class Exchange:
    """A request to read and a response to write."""

    __slots__ = ("_direct", "always", "headers", "method", "path", "receive", "responding", "scope", "send",
                 "shared")  # fmt: skip

    def __init__(self, scope: AsgiScope, receive: Receive, send: Send, path: str, shared: Shared) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.method: str = scope["method"]
        self.path = path
        """Below the application, whatever it is mounted in."""
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        """By lower-case name; of a repeated header, the last line."""
        self.shared = shared
        self.responding = False
        self.always: Sequence[Header] = ()
        """Headers that the response gets, whatever it is, unless it has its own."""
        extensions = scope.get("extensions")
        self._direct: Direct | None = extensions.get(DIRECT) if extensions else None

    def header(self, name: bytes) -> str:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        """The members of comma-separated headers, over all their lines, each once."""
        if not any(name in self.headers for name in names):
            return ()
        lines = [value.decode("latin-1") for name, value in self.scope["headers"] if name in names]
        return tuple(
            dict.fromkeys(item.strip() for line in lines for item in line.split(",") if item.strip())
        )

    def version(self) -> str:
        """What the client says it speaks (`A2A-Version`, in the header or the query); empty if it does not."""
        asked = self.header(b"a2a-version")
        if asked and len(self.headers) != len(self.scope["headers"]):
            return ", ".join(self.listed(b"a2a-version"))  # two are none that is spoken
        if not asked and b"a2a-version" in (query := self.scope.get("query_string", b"")).lower():
            values = {name.lower(): value for name, value in parse_qs(query.decode("latin-1")).items()}
            asked = values.get("a2a-version", [""])[-1]
        return asked

    def base_url(self) -> str:
        """The URL under which the client sees the application; no slash at its end."""
        return self.shared.address.base_url(self.scope, self.headers)

    @property
    def local(self) -> bool:
        """Whether it comes from this machine; in-process callers do."""
        client = self.scope.get("client")
        return client is None or client[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "testclient")

    @property
    def half_closed(self) -> bool:
        """See `Direct.half_closed`."""
        return self._direct is not None and self._direct.half_closed

    def mark_slow(self) -> None:
        """See `Direct.mark_slow`."""
        if self._direct is not None:
            self._direct.mark_slow()

    async def body(self) -> bytes:
        """The whole request body. Raises `TooLarge`, `TooSlow` or `Disconnected`.

        A large one waits here until other large ones have been worked on.
        """
        body = await self._body()
        if len(body) >= LARGE_BYTES:
            await self.shared.bodies.hold(len(body))
        return body

    async def _body(self) -> bytes:
        limit = self.shared.limits.max_body
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit():
            declared = declared.strip(b" \t")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            raise self._too_large()
        if self._direct is not None and (here := self._direct.body()) is not None:
            if len(here) > limit:
                raise self._too_large()
            return here
        try:
            with self.shared.body_timeout:
                message = await self.receive()
                if message["type"] == "http.request" and not message.get("more_body"):
                    body: bytes = message.get("body", b"")
                    if len(body) > limit:
                        raise self._too_large()
                    return body
                return await self._pieces(message)
        except TimeoutError:
            raise TooSlow("the request body did not arrive in time") from None

    async def _pieces(self, message: MutableMapping[str, Any]) -> bytes:
        pieces = bytearray()
        while message["type"] == "http.request":
            pieces += message.get("body", b"")
            if len(pieces) > self.shared.limits.max_body:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(pieces)
            message = await self.receive()
        raise Disconnected

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self.shared.limits.max_body} bytes")

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.responding = True
        await self.send({"type": "http.response.start", "status": status, "headers": self._with(headers)})

    async def respond(self, status: int, body: bytes = b"", headers: Iterable[Header] = (JSON,)) -> None:
        """The whole response. Raises `Disconnected`."""
        length = None if status in (204, 304) else len(body)
        if self.method == "HEAD":
            body = b""
        if len(body) >= LARGE_BYTES:
            await self.respond_large(status, (body,), headers)
            return
        if self._direct is not None and self._direct.respond(status, self._with(headers), body, length):
            self.responding = True
            return
        size = () if length is None else ((b"content-length", b"%d" % length),)
        try:
            await self.start(status, (*headers, *size))
            await self.send({"type": "http.response.body", "body": body})
        except OSError:
            raise Disconnected from None

    async def respond_large(self, status: int, parts: Sequence[bytes], headers: Iterable[Header]) -> None:
        """A response of several parts, without a copy of them all: piece by piece, as the client reads it."""
        length = sum(map(len, parts))
        try:
            await self.start(status, (*headers, (b"content-length", b"%d" % length)))
            for part in parts:
                view = memoryview(part)
                for at in range(0, len(part), _PIECE_BYTES):
                    piece = bytes(view[at : at + _PIECE_BYTES])
                    await self.send({"type": "http.response.body", "body": piece, "more_body": True})
            await self.send({"type": "http.response.body", "body": b""})
        except OSError:
            raise Disconnected from None

    def _with(self, headers: Iterable[Header]) -> list[Header]:
        said = list(headers)
        if self.always:
            names = {name for name, _ in said}
            said += [header for header in self.always if header[0] not in names or header[0] == b"vary"]
        return said
