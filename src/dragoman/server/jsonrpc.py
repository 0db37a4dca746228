"""JSON-RPC: one handler for every method of every version.

HTTP's status is 200 whenever JSON-RPC can express the answer, errors included, because clients of all versions read it
there. The exceptions are what an intermediary or a browser must see: 401, 403, 415, 429 and 503.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct

from dragoman.dialects import select
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.pieces import write_pieces
from dragoman.dialects.sse import frame
from dragoman.errors import (
    A2AError,
    Forbidden,
    InvalidRequest,
    ParseError,
    ProtocolError,
    RateLimited,
    Unauthenticated,
    Unavailable,
    VersionNotSupported,
)
from dragoman.model.byte_budget import LARGE_BYTES
from dragoman.model.card import JSONRPC, Interface
from dragoman.model.ops import EXTENDED_CARD, EXTENSION, OPS, SUBSCRIBE, Batch, GetOrigin
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.mount import Header, Mount
from dragoman.server.pipeline import (
    NOT_SHARED,
    Compressed,
    Frames,
    Handler,
    HttpCall,
    Parsed,
    WrongContentType,
    call_of,
    collect,
    handle,
    is_large,
    read_extension_call,
    to_error,
)

_HTTP_ERRORS = (Unauthenticated, Forbidden, RateLimited, Unavailable, Compressed)
_encode = msgspec.json.Encoder().encode
PEEK_BYTES, PEEK_SECONDS = 64 << 10, 1.0
"""How much of an unauthenticated request is read to find its version, and for how long."""
MAX_ID_BYTES = 512
"""Of a request's id, which every event repeats."""
NO_ID = b"null"
_ID_STARTS = b'"-0123456789n'
"""First bytes of an id: a string, a number, null."""


class JsonRpc:
    """The `Binding`."""

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        return _METHODS if path in ("", "/") else None

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        """The newest versions; clients of older ones read the older members of the card."""
        spoken = [v for v in select.VERSIONS if mount.speaks(v)]
        return [
            Interface(url=url, protocol_binding=JSONRPC, protocol_version=version)
            for version in [v for v in spoken if v in ("1.0", "0.3")] or spoken[:1]
        ]


def _post(exchange: Exchange, mount: Mount) -> Awaitable[None]:
    return handle(_JsonRpcCall(exchange, mount))


_METHODS: Mapping[str, Handler] = {"POST": _post}


class _JsonRpcCall(HttpCall):
    _id = NO_ID
    _in_stream = False
    """An error, too, is sent as an event."""

    async def read(self) -> Parsed:
        mount = self.mount
        if mount.authenticator is not None:
            await self._authenticate()
        if mount.home:
            select.check_version_first(self.version, mount.home, only=bool(mount.only))
        try:
            envelope = read_envelope(await self.read_body())
        except MalformedEnvelope as malformed:
            self._id = malformed.id
            if malformed.method:
                self.dialect = self._likely_dialect(malformed.method)
            raise malformed.error from None
        self._id, params = envelope.id, envelope.params
        if envelope.method in mount.methods:
            self.dialect = dialect = select.before_body(self.version, mount="", allowed=mount.versions)
            return Parsed(dialect, EXTENSION, read_extension_call(envelope.method, params))
        if envelope.method in OPS and len(self.version) < select.MAX_VERSION_LENGTH:
            chosen = select.choose_for_rpc_cached(self.version, envelope.method, mount.only, mount.dialects)
        else:
            chosen = self._choose(envelope.method, params)
        dialect, op, certain = chosen
        self.dialect = dialect
        if dialect.requires_jsonrpc_member and not envelope.has_jsonrpc:
            raise InvalidRequest('jsonrpc must be "2.0"')
        self._in_stream = op is SUBSCRIBE and dialect.subscribe_errors_as_events
        request = dialect.read_request(op, params)
        if mount.only:
            dialect.check_strictly(params)
        if not certain:
            call = call_of(self.exchange, mount, self.principal, dialect)
            origin = await mount.service.call(call, GetOrigin(id=request.id))  # type: ignore[attr-defined]
            created = select.by_origin(origin, mount.dialects, home=mount.home)
            if created is not dialect:
                self.dialect, self._in_stream = created, False
                return Parsed(created, op, created.read_request(op, params))
        return Parsed(dialect, op, request)

    async def _authenticate(self) -> None:
        try:
            self.principal = await self.exchange.principal(self.mount)
        except A2AError:
            await self._peek_method()
            raise

    async def _peek_method(self) -> None:
        """Read a short body for its method, which tells the version in which to refuse a caller that sends no version."""
        headers = self.exchange.headers
        length = headers.get(b"content-length", b"")
        short = length.isdigit() and len(length) < 9 and int(length) <= PEEK_BYTES
        if self.version or b"expect" in headers or not short:
            return
        try:
            async with asyncio.timeout(PEEK_SECONDS):
                body = await self.exchange.body()
            if self.exchange.shared.limits.exceeded_by(body):
                return
            envelope = read_envelope(body)
        except (A2AError, MalformedEnvelope, TimeoutError):
            return
        self._id = envelope.id
        self.dialect = self._likely_dialect(envelope.method, envelope.params)

    def _likely_dialect(self, method: str, params: bytes = b"") -> Dialect:
        try:
            return self._choose(method, params).dialect
        except select.DialectRefused as refused:
            return refused.dialect

    def _choose(self, method: str, params: bytes) -> select.ChosenDialect:
        mount = self.mount
        return select.choose_for_rpc(
            self.version,
            method,
            params,
            mount=mount.only,
            home=mount.home,
            pushes=bool(mount.home and mount.current_card().capabilities.push_notifications),
            allowed=mount.dialects,
        )

    async def send_result(self, parsed: Parsed, result: Any, headers: Sequence[Header]) -> None:
        dialect, op, request = parsed
        headers = (JSON, *headers, NOT_SHARED) if op is EXTENDED_CARD else (JSON, *headers)
        if is_large(result):
            written = write_pieces(dialect, op, result, request)
            pieces = await collect(written, self.exchange.shared.large_answers)
        else:
            pieces = [_encode(result) if op is EXTENSION else dialect.write_result(op, result, request)]
            if len(pieces[0]) < LARGE_BYTES:
                body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (self._id, pieces[0])
                await self.exchange.respond(200, body, headers)
                return
        first = b'{"jsonrpc":"2.0","id":%b,"result":' % self._id
        await self.exchange.respond_large(200, (first, *pieces, b"}"), headers)

    async def send_stream(
        self, parsed: Parsed, batches: AsyncIterator[Batch], headers: Sequence[Header]
    ) -> None:
        dialect, op, request = parsed
        opening = b'data: {"jsonrpc":"2.0","id":' + self._id + b',"result":'
        if dialect.sse_event:
            opening = b"event: %b\n%b" % (dialect.sse_event.encode(), opening)
        shared = self.exchange.shared
        frames = Frames(
            dialect, op, request, opening=opening, closing=b"}\n\n", max_event=shared.limits.max_event
        )

        def failed(error: Exception) -> bytes:
            sent = to_error(error)
            return frames.fail(sent) or frame(self._write_error(sent))

        await shared.streams.serve(self.exchange, batches, frames, failed=failed, headers=headers)

    async def send_error(self, error: A2AError) -> None:
        if isinstance(error, VersionNotSupported) and self._error_dialect().checks_version_first:
            self._id = NO_ID
        status = error.http if isinstance(error, _HTTP_ERRORS) else 200
        if isinstance(error, WrongContentType):
            status = 415  # the table of 1.0 has 400 for it, but that is for HTTP+JSON
        kind, body = JSON, self._write_error(error)
        if self.mount.only:
            status, body = select.DIALECTS[self.mount.only].refuse_strictly(error, status, body)
        if self._in_stream and status == 200:
            kind, body = (b"content-type", b"text/event-stream"), frame(body)
        await self.respond_error(error, status, body, kind)

    def _write_error(self, error: A2AError) -> bytes:
        written = _encode(self._error_dialect().write_error(error))
        return b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (self._id, written)

    def _error_dialect(self) -> Dialect:
        """The call's dialect. Before it is known, the headers decide."""
        mount = self.mount
        name = mount.only or (mount.home if self.version in ("", "1.0", "1") else "")
        return self.dialect or select.before_body(self.version, mount=name, allowed=mount.versions)


class MalformedEnvelope(Exception):
    """The error, with the id and the method of the request if it has them."""

    def __init__(self, error: ProtocolError, id: bytes = NO_ID, method: str = "") -> None:
        super().__init__(error.message)
        self.error = error
        self.id = id
        self.method = method


class Envelope(Struct, frozen=True, gc=False):
    method: str
    params: bytes
    id: bytes
    has_jsonrpc: bool = True
    """It has `"jsonrpc": "2.0"`."""


class _Wire(Struct, gc=False):
    method: str
    jsonrpc: str = ""
    id: Raw = Raw()
    params: Raw = Raw()


_decode = msgspec.json.Decoder(_Wire).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode


def read_envelope(body: bytes) -> Envelope:
    """Raises `MalformedEnvelope`.

    The id is kept byte for byte, because it is copied into every answer. So it is bounded, and a request with characters
    that could end a line of an event stream (control characters, bytes that are not UTF-8) is refused.
    """
    try:
        if not body.isascii():
            body.decode()
        try:
            wire = _decode(body)
        except msgspec.ValidationError:
            raise _explain(body) from None
    except UnicodeDecodeError:
        raise MalformedEnvelope(ParseError("the request is not UTF-8")) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedEnvelope(ParseError(f"the request is not JSON: {error}")) from None
    id = bytes(wire.id)
    if id[:1] not in _ID_STARTS or len(id) > MAX_ID_BYTES:
        raise _wrong_id(wire.method)
    id = id or NO_ID
    if wire.jsonrpc != "2.0" or not wire.id:
        # Examples of the versions before 1.0 have no `jsonrpc` and no `id`.
        if wire.jsonrpc not in ("", "2.0") or (not wire.jsonrpc and "/" not in wire.method):
            raise MalformedEnvelope(InvalidRequest('jsonrpc must be "2.0"'), id, wire.method)
        if "/" not in wire.method:
            raise MalformedEnvelope(InvalidRequest("id is missing"), id, wire.method)
    return Envelope(wire.method, bytes(wire.params), id, wire.jsonrpc == "2.0")


def _explain(body: bytes) -> MalformedEnvelope:
    """Why JSON is not a request. Raises `DecodeError` if it is not JSON."""
    match bytes(_decode_raw(body))[:1]:
        case b"[":
            return MalformedEnvelope(InvalidRequest("batches are not supported: send one request at a time"))
        case b"{":
            members = {name: bytes(value) for name, value in _decode_members(body).items()}
        case _:
            return MalformedEnvelope(InvalidRequest("a request is an object"))
    stated = members.get("method", b"")
    method = msgspec.json.decode(stated, type=str) if stated[:1] == b'"' else ""
    id = members.get("id", b"")
    if id[:1] not in _ID_STARTS or len(id) > MAX_ID_BYTES:
        return _wrong_id(method)
    if not stated:
        why = "method is missing"
    else:
        why = "method must be a string" if stated[:1] != b'"' else 'jsonrpc must be "2.0"'
    return MalformedEnvelope(InvalidRequest(why), id or NO_ID, method)


def _wrong_id(method: str) -> MalformedEnvelope:
    why = f"id must be a string or a number of up to {MAX_ID_BYTES} bytes"
    return MalformedEnvelope(InvalidRequest(why), method=method)
