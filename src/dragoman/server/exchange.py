"""One HTTP request and its response, in bytes: what every binding is given.

A response is complete (`respond`), large (`respond_large`), or a stream (`streams.py`). `waits.py` stops waiting for an answer
when its client leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from dragoman.errors import InvalidRequest
from dragoman.model.byte_budget import LARGE_BYTES, ByteBudget
from dragoman.model.card import AgentCard, Interface
from dragoman.model.ops import Principal
from dragoman.server.address import PublicAddress
from dragoman.server.asgi import DIRECT, AsgiScope, Direct, Disconnected, Receive, Send
from dragoman.server.limits import Limits, TaskTimeout
from dragoman.server.mount import ANONYMOUS, Header, Mount, client_certificate, with_interfaces
from dragoman.server.streams import Streams
from dragoman.server.waits import Waits

_PIECE_BYTES = 256 << 10
"""Of a large response, written at a time."""
JSON: Header = (b"content-type", b"application/json")


class TooLarge(InvalidRequest):
    http = 413


class TooSlow(InvalidRequest):
    http = 408


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all exchanges of an application share."""

    limits: Limits
    address: PublicAddress
    body_timeout: TaskTimeout
    waits: Waits
    streams: Streams
    bodies: ByteBudget
    """Of large request bodies that are being read."""
    large_answers: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a large answer is written."""
    interfaces: Callable[[Mount, str], Sequence[Interface]]
    """The interfaces of a mount's agent, for its card; the URL is that of the mount."""


class Exchange:
    """A request to read and a response to write."""

    __slots__ = ("always", "at_end", "direct", "headers", "method", "path", "receive", "responding", "scope",
                 "send", "shared")  # fmt: skip

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
        """Headers of every response that does not set them itself."""
        self.at_end: Callable[[], None] | None = None
        """Called when the response is sent, or the client is gone."""
        extensions = scope.get("extensions")
        self.direct: Direct | None = extensions.get(DIRECT) if extensions else None

    def header(self, name: bytes) -> str:
        value = self.headers.get(name)
        return value.decode("latin-1").strip() if value else ""

    def listed(self, *names: bytes) -> tuple[str, ...]:
        """The members of comma-separated headers, over all their lines, each once."""
        if self.headers.keys().isdisjoint(names):
            return ()
        return listed(self.scope["headers"], names)

    def version(self) -> str:
        """`A2A-Version`, from the header or the query; empty if there is none."""
        value = self.headers.get(b"a2a-version")
        asked = value.decode("latin-1").strip() if value else ""
        if asked and len(self.headers) != len(self.scope["headers"]):
            return ", ".join(self.listed(b"a2a-version"))  # two versions are not supported
        if not asked and b"a2a-version" in (query := self.scope.get("query_string", b"")).lower():
            values = {name.lower(): value for name, value in parse_qs(query.decode("latin-1")).items()}
            asked = values.get("a2a-version", [""])[-1]
        return asked

    async def principal(self, mount: Mount) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden`."""
        if mount.authenticator is None:
            return ANONYMOUS
        return await mount.authenticator.authenticate(
            joined(self.scope["headers"]),
            query=self.scope.get("query_string", b"").decode("latin-1"),
            certificate=client_certificate(self.scope),
        )

    async def card_reader(self, mount: Mount) -> Principal:
        """Who is calling. Raises `Unauthenticated` or `Forbidden` if they may not read a private card."""
        principal = await self.principal(mount)
        if mount.check_reader is not None:
            mount.check_reader(principal)
        return principal

    def place(self, card: AgentCard, mount: Mount) -> AgentCard:
        """The card with the interfaces that we serve."""
        return with_interfaces(card, self.shared.interfaces(mount, self.base_url() + mount.path))

    def base_url(self) -> str:
        """The URL under which the client sees the application; no slash at its end."""
        return self.shared.address.base_url(self.scope, self.headers)

    @property
    def local(self) -> bool:
        """True for requests from this machine or this process."""
        client = self.scope.get("client")
        return client is None or client[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "testclient")

    async def body(self) -> bytes:
        """The complete request body. Raises `TooLarge`, `TooSlow` or `Disconnected`.

        A large one waits here until there is memory for it.
        """
        limit = self.shared.limits.max_body
        declared = self.headers.get(b"content-length", b"0")
        if not declared.isdigit():
            declared = declared.strip(b" \t")
        if not declared.isdigit() or len(declared) > 18 or int(declared) > limit:
            raise self._too_large()
        body = self.direct.body() if self.direct is not None else None
        if body is None:
            try:
                with self.shared.body_timeout:
                    body = await self._receive_body(limit)
            except TimeoutError:
                raise TooSlow("the request body did not arrive in time") from None
        if len(body) > limit:
            raise self._too_large()
        if len(body) >= LARGE_BYTES:
            await self.shared.bodies.hold(len(body))
        return body

    async def _receive_body(self, limit: int) -> bytes:
        pieces = bytearray()
        while (message := await self.receive())["type"] == "http.request":
            if not message.get("more_body") and not pieces:
                body: bytes = message.get("body", b"")
                return body
            pieces += message.get("body", b"")
            if len(pieces) > limit:
                raise self._too_large()
            if not message.get("more_body"):
                return bytes(pieces)
        raise Disconnected

    async def body_pieces(self) -> AsyncIterator[bytes]:
        """The request body as it arrives, of any size. Raises `TooSlow` or `Disconnected`."""
        body = self.direct.body() if self.direct is not None else None
        if body is not None:
            yield body
            return
        while True:
            try:
                with self.shared.body_timeout:
                    message = await self.receive()
            except TimeoutError:
                raise TooSlow("the request body did not arrive in time") from None
            if message["type"] != "http.request":
                raise Disconnected
            if piece := message.get("body", b""):
                yield piece
            if not message.get("more_body"):
                return

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the request body is larger than {self.shared.limits.max_body} bytes")

    async def start(self, status: int, headers: Iterable[Header]) -> None:
        self.responding = True
        headers = self._with(headers) if self.always else list(headers)
        if self.direct is None or not self.direct.start(status, headers):
            await self.send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes, *, more: bool = True) -> None:
        """Send a piece of a response that was started."""
        if self.direct is None or not self.direct.write(body, more=more):
            await self.send({"type": "http.response.body", "body": body, "more_body": more})

    async def respond(self, status: int, body: bytes = b"", headers: Sequence[Header] = (JSON,)) -> None:
        """Send a complete response. Raises `Disconnected`."""
        length = None if status in (204, 304) else len(body)
        if self.method == "HEAD":
            body = b""
        if len(body) >= LARGE_BYTES:
            await self.respond_large(status, (body,), headers)
            return
        if self.direct is not None and self.direct.respond(
            status, self._with(headers) if self.always else headers, body, length
        ):
            self.responding = True
            return
        size = () if length is None else ((b"content-length", b"%d" % length),)
        try:
            await self.start(status, (*headers, *size))
            await self.write(body, more=False)
        except OSError:
            raise Disconnected from None

    async def respond_large(self, status: int, parts: Sequence[bytes], headers: Iterable[Header]) -> None:
        """Send a response of several parts piece by piece, as the client reads it, without copying it all."""
        length = sum(map(len, parts))
        if self.method == "HEAD":
            parts = ()
        try:
            await self.start(status, (*headers, (b"content-length", b"%d" % length)))
            for part in parts:
                view = memoryview(part)
                for at in range(0, len(part), _PIECE_BYTES):
                    await self.write(bytes(view[at : at + _PIECE_BYTES]))
            await self.write(b"", more=False)
        except OSError:
            raise Disconnected from None

    async def respond_pieces(
        self, status: int, pieces: AsyncIterator[bytes], length: int | None, headers: Iterable[Header]
    ) -> None:
        """Send a response whose body comes in pieces, as the client reads it. Raises what `pieces` raises."""
        size = () if length is None else ((b"content-length", b"%d" % length),)
        first = b"" if self.method == "HEAD" else await anext(pieces, b"")  # an error may still be the answer
        try:
            await self.start(status, (*headers, *size))
            if first:
                await self.write(first)
                async for piece in pieces:
                    await self.write(piece)
            await self.write(b"", more=False)
        except OSError:
            raise Disconnected from None

    def _with(self, headers: Iterable[Header]) -> list[Header]:
        """The headers, and those that every response has."""
        listed = list(headers)
        names = {name for name, _ in listed}
        return listed + [header for header in self.always if header[0] not in names or header[0] == b"vary"]


def listed(headers: Iterable[Header], names: Collection[bytes]) -> tuple[str, ...]:
    """The members of comma-separated headers, over all their lines, each once."""
    lines = [value.decode("latin-1") for name, value in headers if name in names]
    return tuple(dict.fromkeys(item.strip() for line in lines for item in line.split(",") if item.strip()))


def joined(headers: Iterable[Header]) -> dict[str, str]:
    """The headers, with the lines of a repeated one joined by commas."""
    out: dict[str, str] = {}
    for name, value in headers:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        out[key] = f"{out[key]}, {text}" if key in out else text
    return out
