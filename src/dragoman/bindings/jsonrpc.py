"""JSON-RPC: one handler for every method of every version.

HTTP says 200 for whatever JSON-RPC can say itself, errors included, because clients of all versions read it there.
The exceptions are what an intermediary or a browser must see: 401, 403, 415, 429 and 503.

The request's id is checked, then spliced into each answer as it came, byte for byte.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Raw, Struct

from dragoman.bindings.call import call_of
from dragoman.bindings.exchange import JSON, Disconnected, Exchange, Header
from dragoman.bindings.limits import deeper_than
from dragoman.bindings.mount import Handler, Mount
from dragoman.bindings.sse import Frames
from dragoman.dialects import select
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.sse import frame
from dragoman.errors import (
    A2AError,
    Forbidden,
    InvalidRequest,
    ParseError,
    RateLimited,
    Unauthenticated,
    Unavailable,
    VersionNotSupported,
)
from dragoman.model.card import JSONRPC, Interface
from dragoman.model.ops import SUBSCRIBE, Call, GetOrigin, Op, Principal, Request

log = logging.getLogger(__name__)

MAX_ID = 512
"""Bytes in a request's id: it comes back with every event."""
OURS: Header = (b"dragoman", b"1")
"""Tells our own client that events are numbered and that an `Idempotency-Key` is honoured."""


class WrongContentType(InvalidRequest):
    http = 415


_SAID_BY_HTTP = (Unauthenticated, Forbidden, RateLimited, Unavailable, WrongContentType)


class _Envelope(Struct, gc=False):
    method: str
    jsonrpc: str = ""
    id: Raw = Raw()
    params: Raw = Raw()


class _OnlyId(Struct, gc=False):
    id: Raw = Raw()


_decode = msgspec.json.Decoder(_Envelope).decode
_decode_id = msgspec.json.Decoder(_OnlyId).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_encode = msgspec.json.Encoder().encode


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
        self._dialect = select.before_body(self._version, mount="arbiter" if mount.arbiter else "")
        self._id = b"null"
        self._in_stream = False
        """A refusal, too, has to be an event."""

    async def answer(self) -> None:
        exchange, mount = self._exchange, self._mount
        principal = await mount.principal(exchange)
        _check_type(exchange)
        body = await exchange.body()
        envelope = self._read(body)
        params = bytes(envelope.params)
        chosen = self._choose(envelope.method, params)
        self._dialect, op = chosen.dialect, chosen.op
        # Some clients of 0.3 take nothing but an event stream here.
        self._in_stream = op is SUBSCRIBE and self._dialect.name == "0.3"
        request = self._dialect.read_request(op, params)
        call = call_of(exchange, mount, principal, self._dialect)
        if not chosen.certain:
            request, call = await self._by_origin(op, request, call, params, principal)
        if op.streams:
            await self._stream(op, request, call)
        else:
            result = await mount.service.call(call, request)
            await self._respond(b"result", self._dialect.write_result(op, result, request), call)

    def _read(self, body: bytes) -> _Envelope:
        if deeper_than(self._exchange.limits.max_depth, body):
            raise InvalidRequest(f"the request nests deeper than {self._exchange.limits.max_depth} levels")
        try:
            if not body.isascii():
                body.decode()
            try:
                envelope = _decode(body)
            except msgspec.ValidationError as error:
                raise self._no_request(body, error) from None
        except UnicodeDecodeError:
            raise ParseError("the request is not UTF-8") from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise ParseError(f"the request is not JSON: {error}") from None
        self._id = _id(bytes(envelope.id)) or b"null"
        self._check(envelope)
        return envelope

    def _no_request(self, body: bytes, error: Exception) -> InvalidRequest:
        """It is JSON, perhaps (raises `DecodeError` if not), but no request."""
        match bytes(_decode_raw(body))[:1]:
            case b"[":
                return InvalidRequest("batches are not supported: send one request at a time")
            case b"{":
                self._id = _id(bytes(_decode_id(body).id)) or b"null"
        return InvalidRequest(f"not a JSON-RPC request: {error}")

    def _check(self, envelope: _Envelope) -> None:
        """Examples of the versions before 1.0 leave out `jsonrpc` and `id`, so their callers may."""
        older = "/" in envelope.method
        if envelope.jsonrpc != "2.0" and not (older and not envelope.jsonrpc):
            self._dialect = self._likely(envelope)
            raise InvalidRequest('jsonrpc must be "2.0"')
        if not envelope.id and not older:
            self._dialect = self._likely(envelope)
            raise InvalidRequest("id is missing")

    def _likely(self, envelope: _Envelope) -> Dialect:
        try:
            return self._choose(envelope.method, bytes(envelope.params)).dialect
        except select.Refused as refused:
            return refused.dialect

    def _choose(self, method: str, params: bytes) -> select.Chosen:
        mount = self._mount
        return select.rpc(
            self._version,
            method,
            params,
            mount="arbiter" if mount.arbiter else "",
            strict=self._strict,
            allowed=mount.versions,
        )

    async def _by_origin(
        self, op: Op, request: Request, call: Call, params: bytes, principal: Principal
    ) -> tuple[Request, Call]:
        """Several versions could have sent this: answer in the one that created the task."""
        origin = await self._mount.service.call(call, GetOrigin(id=request.id))  # type: ignore[attr-defined]
        dialect = select.by_origin(origin)
        if dialect is self._dialect:
            return request, call
        self._dialect = dialect
        self._in_stream = False
        return dialect.read_request(op, params), call_of(self._exchange, self._mount, principal, dialect)

    async def _stream(self, op: Op, request: Request, call: Call) -> None:
        exchange, dialect = self._exchange, self._dialect
        opening = b'data: {"jsonrpc":"2.0","id":' + self._id + b',"result":'
        if dialect.name == "arbiter":
            opening = b"event: message\n" + opening
        frames = Frames(
            dialect, op, request, opening=opening, closing=b"}\n\n", max_event=exchange.limits.max_event
        )
        await exchange.streams.serve(
            exchange,
            self._mount.service.stream(call, request),  # type: ignore[arg-type]
            frames,
            failed=self._failed,
            headers=(OURS, *self._activated(call)),
        )

    def _failed(self, error: Exception) -> bytes:
        """The last frame of a stream that broke off."""
        return frame(self._envelope(b"error", self._error(_said(error))))

    async def refuse(self, error: Exception) -> None:
        if isinstance(error, select.Refused):
            self._dialect, error = error.dialect, error.error
        said = _said(error)
        if isinstance(said, VersionNotSupported) and self._dialect.name == "arbiter":
            self._id = b"null"  # it checks the version before it reads the request
        status = said.http if isinstance(said, _SAID_BY_HTTP) else 200
        headers: list[Header] = [JSON, OURS]
        if status == 401 and self._mount.authenticator is not None:
            headers.append((b"www-authenticate", self._mount.authenticator.challenge.encode("latin-1")))
        if said.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(said.retry_after))))
        body = self._envelope(b"error", self._error(said))
        if self._in_stream and status == 200:
            headers[0], body = (b"content-type", b"text/event-stream"), frame(body)
        try:
            await self._exchange.respond(status, body, headers)
        except Disconnected:
            pass

    async def _respond(self, member: bytes, value: bytes, call: Call) -> None:
        headers = (JSON, OURS, *self._activated(call)) if call.extensions else (JSON, OURS)
        await self._exchange.respond(200, self._envelope(member, value), headers)

    def _envelope(self, member: bytes, value: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (self._id, member, value)

    def _error(self, error: A2AError) -> bytes:
        return _encode(self._dialect.write_error(error))

    def _activated(self, call: Call) -> Sequence[Header]:
        """Which of the extensions that were asked for the agent has, in the spelling of the version."""
        if not call.extensions:
            return ()
        known = {extension.uri for extension in self._mount.current_card().capabilities.extensions}
        active = ", ".join(uri for uri in call.extensions if uri in known)
        name = b"a2a-extensions" if self._dialect.name == "1.0" else b"x-a2a-extensions"
        return ((name, active.encode("latin-1")),) if active else ()


def _check_type(exchange: Exchange) -> None:
    """No type is fine; what a form in a browser can send without asking is not."""
    kind = exchange.headers.get(b"content-type", b"")
    if kind and b"json" not in kind.split(b";")[0].lower():
        raise WrongContentType("the Content-Type of a request is application/json")


def _id(id: bytes) -> bytes:
    """A usable id as it came; empty when there is none. Raises `InvalidRequest`."""
    if id and (id[0] not in b'"-0123456789n' or len(id) > MAX_ID):
        raise InvalidRequest(f"id must be a string or a number of up to {MAX_ID} bytes")
    return id


def _said(error: Exception) -> A2AError:
    """What a peer may hear of an error. Anything that is not meant for it is logged, once, and stays here."""
    if isinstance(error, A2AError):
        return error
    log.error("a call failed", exc_info=error)
    return A2AError()
