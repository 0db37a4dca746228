"""JSON-RPC: one handler for every method of every version.

HTTP says 200 for whatever JSON-RPC can say itself, errors included, because clients of all versions read it there.
The exceptions are what an intermediary or a browser must see: 401, 403, 415, 429 and 503.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from dragoman.dialects import select
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import frame
from dragoman.errors import (
    A2AError,
    Forbidden,
    InvalidRequest,
    RateLimited,
    Unauthenticated,
    Unavailable,
    VersionNotSupported,
)
from dragoman.model.card import JSONRPC, Interface
from dragoman.model.inflight import LARGE_BYTES
from dragoman.model.ops import SUBSCRIBE, Call, GetOrigin, Op, Request
from dragoman.server.call import call_of, check_tenant
from dragoman.server.envelope import NO_ID, Envelope, Malformed, read_envelope
from dragoman.server.exchange import JSON, Disconnected, Exchange
from dragoman.server.mount import Handler, Mount
from dragoman.server.responses import (
    OURS,
    Compressed,
    WrongContentType,
    activated,
    check_type,
    kept,
    perform,
    refusal,
    said,
)
from dragoman.server.sse import Frames

log = logging.getLogger(__name__)

_SAID_BY_HTTP = (Unauthenticated, Forbidden, RateLimited, Unavailable, Compressed)
_encode = msgspec.json.Encoder().encode
_OVERHEARD, _SOON = 64 << 10, 1.0
"""Bytes and seconds that we have for somebody who is not let in."""


class JsonRpc:
    """The `Binding`. `strict_versioning`: a call of 1.0 must say so in its `A2A-Version` header."""

    def __init__(self, *, strict_versioning: bool = False) -> None:
        self._strict = strict_versioning
        self._methods: Mapping[str, Handler] = {"POST": self._post}

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        return self._methods if path in ("", "/") else None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        """The newest versions; who speaks an older one reads the older members of the card."""
        spoken = [v for v in select.VERSIONS if mount.speaks(v)]
        return [
            Interface(url=url, protocol_binding=JSONRPC, protocol_version=version)
            for version in [v for v in spoken if v in ("1.0", "0.3")] or spoken[:1]
        ]

    async def _post(self, exchange: Exchange, mount: Mount) -> None:
        rpc = _Rpc(exchange, mount, self._strict)
        try:
            await rpc.answer()
        except Disconnected:
            pass
        except Exception as error:
            if exchange.responding:
                log.exception("a response could not be finished")
            else:
                await rpc.refuse(error)


class _Rpc:
    """One call, and how to answer it so far."""

    __slots__ = ("_dialect", "_exchange", "_id", "_in_stream", "_mount", "_strict", "_version")

    def __init__(self, exchange: Exchange, mount: Mount, strict: bool) -> None:
        self._exchange = exchange
        self._mount = mount
        self._strict = strict
        self._version = exchange.version()
        self._dialect: Dialect | None = None
        """Once it is known; see `_tongue`."""
        self._id = NO_ID
        self._in_stream = False
        """A refusal, too, has to be an event."""

    async def answer(self) -> None:
        exchange, mount = self._exchange, self._mount
        try:
            principal = await mount.principal(exchange)
        except A2AError:
            await self._overhear()
            raise
        check_type(exchange)
        select.gate(self._version, mount.home)
        envelope = self._read(await exchange.body())
        self._id, params = envelope.id, envelope.params
        chosen = self._choose(envelope.method, params)
        self._dialect = dialect = chosen.dialect
        if dialect.requires_jsonrpc_member and not envelope.labelled:
            raise InvalidRequest('jsonrpc must be "2.0"')
        op = chosen.op
        # Some clients of 0.3 take nothing but an event stream here.
        self._in_stream = op is SUBSCRIBE and dialect.subscribe_errors_as_events
        request = dialect.read_request(op, params)
        call = call_of(exchange, mount, principal, dialect)
        if not chosen.certain:
            origin = await mount.service.call(call, GetOrigin(id=request.id))  # type: ignore[attr-defined]
            created = select.by_origin(origin, mount.dialects, home=mount.home)
            if created is not dialect:
                self._dialect = dialect = created
                self._in_stream = False
                request = dialect.read_request(op, params)
                call = call_of(exchange, mount, principal, dialect)
        check_tenant(call, request)
        del envelope, params  # they may be large, and the answer may be long in coming
        if op.streams:
            await self._stream(dialect, op, request, call)
        else:
            result = await perform(exchange, mount, dialect, op, call, request)
            headers = (JSON, OURS, *kept(op), *activated(mount, dialect, call))
            if len(result) < LARGE_BYTES:
                await exchange.respond(200, self._envelope(b"result", result), headers)
            else:
                first, last = self._envelope(b"result", b"\n").split(b"\n")
                await exchange.respond_large(200, (first, result, last), headers)

    def _read(self, body: bytes) -> Envelope:
        try:
            return read_envelope(body, self._exchange.shared.limits)
        except Malformed as malformed:
            self._id = malformed.id
            if malformed.method:
                self._dialect = self._likely(malformed.method)
            raise malformed.error from None

    async def _overhear(self) -> None:
        """Whoever is refused and does not say its version may have said a method of it: if that is short, and here soon."""
        headers = self._exchange.headers
        length = headers.get(b"content-length", b"")
        short = length.isdigit() and len(length) < 9 and int(length) <= _OVERHEARD
        if self._version or b"expect" in headers or not short:
            return
        try:
            async with asyncio.timeout(_SOON):
                envelope = read_envelope(await self._exchange.body(), self._exchange.shared.limits)
        except (A2AError, Malformed, TimeoutError):
            return
        self._id = envelope.id
        self._dialect = self._likely(envelope.method, envelope.params)

    def _likely(self, method: str, params: bytes = b"") -> Dialect:
        try:
            return self._choose(method, params).dialect
        except select.Refused as refused:
            return refused.dialect

    def _choose(self, method: str, params: bytes) -> select.Chosen:
        mount = self._mount
        return select.rpc(
            self._version,
            method,
            params,
            mount="arbiter" if mount.arbiter else "",
            home=mount.home,
            pushes=bool(mount.home and mount.current_card().capabilities.push_notifications),
            strict=self._strict,
            allowed=mount.dialects,
        )

    async def _stream(self, dialect: Dialect, op: Op, request: Request, call: Call) -> None:
        exchange = self._exchange
        opening = b'data: {"jsonrpc":"2.0","id":' + self._id + b',"result":'
        if dialect.sse_event:
            opening = b"event: %b\n%b" % (dialect.sse_event.encode(), opening)
        frames = Frames(
            dialect,
            op,
            request,
            opening=opening,
            closing=b"}\n\n",
            max_event=exchange.shared.limits.max_event,
        )
        await exchange.shared.streams.serve(
            exchange,
            self._mount.service.stream(call, request),  # type: ignore[arg-type]
            frames,
            failed=lambda error: self._failed(frames, said(error)),
            headers=(OURS, *activated(self._mount, dialect, call)),
        )

    def _failed(self, frames: Frames, error: A2AError) -> bytes:
        """The last frame of a stream that broke off."""
        return frames.fail(error) or frame(self._envelope(b"error", self._error(error)))

    async def refuse(self, error: Exception) -> None:
        if isinstance(error, select.Refused):
            self._dialect, error = error.dialect, error.error
        heard = said(error)
        if isinstance(heard, VersionNotSupported) and self._tongue().checks_version_first:
            self._id = NO_ID  # it checks the version before it reads the request
        status = heard.http if isinstance(heard, _SAID_BY_HTTP) else 200
        if isinstance(heard, WrongContentType):
            status = 415  # the table of 1.0 has 400 for it, but that is for HTTP+JSON
        headers = [JSON, *refusal(self._mount, heard, status)]
        body = self._envelope(b"error", self._error(heard))
        if self._in_stream and status == 200:
            headers[0], body = (b"content-type", b"text/event-stream"), frame(body)
        try:
            await self._exchange.respond(status, body, headers)
        except Disconnected:
            pass

    def _envelope(self, member: bytes, value: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (self._id, member, value)

    def _error(self, error: A2AError) -> bytes:
        return _encode(self._tongue().write_error(error))

    def _tongue(self) -> Dialect:
        """The dialect to refuse in: before the request is understood, its headers have to do."""
        mount = self._mount
        tongue = "arbiter" if mount.arbiter else mount.home if self._version in ("", "1.0", "1") else ""
        return self._dialect or select.before_body(self._version, mount=tongue, allowed=mount.versions)
