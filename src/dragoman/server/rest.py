"""HTTP+JSON: one path per operation, and HTTP's own statuses.

The paths of 1.0 are directly below the mount, and again below a tenant's name (`/acme/tasks/...`). Those of 0.3 are below
`/v1`, with the JSON of its protobuf definition. `dialects/paths.py` has both tables. The path, the query and the body of
a request become one document, which the dialect reads.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.dialects import paths, select
from dragoman.dialects.cards import version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.errors import write_rest_error
from dragoman.dialects.paths import QUERY, FoundPath, Path
from dragoman.dialects.pieces import write_pieces
from dragoman.dialects.sse import frame
from dragoman.errors import A2AError, InvalidParams, ParseError
from dragoman.model.card import HTTP_JSON, AgentCard, Interface
from dragoman.model.ops import EXTENDED_CARD, EXTENSION, PUSH_DELETE, Batch, Request
from dragoman.server import docs_page, openapi
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.mount import Header, Mount
from dragoman.server.pipeline import (
    NOT_SHARED,
    Frames,
    Handler,
    HttpCall,
    Parsed,
    collect,
    handle,
    is_large,
    read_extension_call,
    to_error,
)

A2A_JSON: Header = (b"content-type", b"application/a2a+json")

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw] | None).decode
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_raw = msgspec.json.Decoder(Raw).decode


class Rest:
    """The `Binding`."""

    def __init__(self) -> None:
        built = _Described()
        described = {"/openapi.json": built.document, "/docs": built.page}
        self._described: Mapping[str, Mapping[str, Handler]] = {
            path: {"GET": handler, "HEAD": handler} for path, handler in described.items()
        }

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        path = path.removesuffix("/")  # some frameworks put one there
        if path in self._described:
            return self._described[path]
        if mount.methods and path.startswith("/extensions/"):
            name = unquote(path.removeprefix("/extensions/"))
            return {"POST": partial(self._call_method, method=name)} if name in mount.methods else None
        found = paths.find(path)
        if found is None:
            return None
        methods = {verb: partial(self._answer, found=found, path=each) for verb, each in found.paths.items()}
        if "GET" in methods and not found.paths["GET"].op.streams:
            methods["HEAD"] = methods["GET"]
        return methods

    def interfaces(self, mount: Mount, url: str) -> Sequence[Interface]:
        return [
            Interface(url=url, protocol_binding=HTTP_JSON, protocol_version=version)
            for version in paths.PATHS
            if mount.speaks(version)
        ]

    def _call_method(self, exchange: Exchange, mount: Mount, *, method: str) -> Awaitable[None]:
        return handle(_ExtensionRestCall(exchange, mount, method))

    def _answer(self, exchange: Exchange, mount: Mount, *, found: FoundPath, path: Path) -> Awaitable[None]:
        return handle(_RestCall(exchange, mount, found, path))


class _RestCall(HttpCall):
    def __init__(self, exchange: Exchange, mount: Mount, found: FoundPath, path: Path) -> None:
        super().__init__(exchange, mount, select.of_paths(path.version))
        self._path = path
        self._values, self._tenant = found.values, found.tenant
        self._type = _type(exchange) if path.version == "1.0" else JSON

    async def read(self) -> Parsed:
        op, body = self._path.op, b""
        self.principal = await self.exchange.principal(self.mount)
        if self.exchange.method == "POST":
            body = await self.read_body()
        self.dialect = dialect = self._choose(body)
        return Parsed(dialect, op, self._read(dialect, body))

    def _choose(self, body: bytes) -> Dialect:
        version, family = self.version, self._path.version
        if family == "1.0" and self.mount.prefix.endswith("/v1"):
            # Both versions have this path: the header decides, or else the shape of the message.
            label = version_of(version)
            if label == "0.3" or (not label and _has_content(body)):
                older = paths.path_of("0.3", self._path.op)
                if older is not None:
                    self._values = _write_resource_names(self._values, older)
                    self._path, self._type, family = older, JSON, "0.3"
        return select.choose_for_rest(version, family, allowed=self.mount.dialects)

    def _read(self, dialect: Dialect, body: bytes) -> Request:
        try:
            if self._values or self.exchange.method != "POST":
                params = _encode({**_decode_members(body), **self._query(), **self._values})
            else:
                params = body or b"{}"
            request = dialect.read_request(self._path.op, params)
        except InvalidParams:
            _check_json(body)
            raise
        if self._tenant:
            if request.tenant not in ("", self._tenant):
                why = "differs from the one in the path"
                raise InvalidParams(f"the tenant {why}", fields=(("tenant", why),))
            request = replace(request, tenant=self._tenant)
        return request

    def _query(self) -> dict[str, Any]:
        """The members in the query. If one is repeated, the last counts."""
        query = self.exchange.scope.get("query_string", b"")
        if not query:
            return {}
        names = (*self._path.query, "tenant") if self._path.version == "1.0" else self._path.query
        known = {name.lower(): name for name in names}
        out: dict[str, Any] = {}
        for spelled, value in parse_qsl(query.decode("latin-1")):
            name = known.get(spelled.replace("_", "").lower())
            if name is not None:
                out[name] = _convert(name, value)
        return out

    async def send_result(self, parsed: Parsed, result: Any, headers: Sequence[Header]) -> None:
        dialect, op, request = parsed
        headers = (self._type, *headers, NOT_SHARED) if op is EXTENDED_CARD else (self._type, *headers)
        if is_large(result):
            pieces = await collect(
                write_pieces(dialect, op, result, request), self.exchange.shared.large_answers
            )
            await self.exchange.respond_large(200, pieces, headers)
            return
        body = b"{}" if op is PUSH_DELETE else dialect.write_result(op, result, request)
        await self.exchange.respond(200, body, headers)

    async def send_stream(
        self, parsed: Parsed, batches: AsyncIterator[Batch], headers: Sequence[Header]
    ) -> None:
        shared = self.exchange.shared
        frames = Frames(*parsed, max_event=shared.limits.max_event)

        def failed(error: Exception) -> bytes:
            return frame(_encode(self._write_error(to_error(error))[1]), event="error")

        await shared.streams.serve(self.exchange, batches, frames, failed=failed, headers=headers)

    async def send_error(self, error: A2AError) -> None:
        status, body = self._write_error(error)
        await self.respond_error(error, status, _encode(body), self._type)

    def _write_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        assert self.dialect is not None
        return write_rest_error(error, self.dialect.name)


class _ExtensionRestCall(HttpCall):
    """A method that an extension adds: `POST /extensions/NAME` with its params."""

    def __init__(self, exchange: Exchange, mount: Mount, method: str) -> None:
        label = "1.0" if mount.speaks("1.0") else "0.3"
        super().__init__(exchange, mount, select.of_paths(label))
        self._method = method

    async def read(self) -> Parsed:
        assert self.dialect is not None
        self.principal = await self.exchange.principal(self.mount)
        return Parsed(self.dialect, EXTENSION, read_extension_call(self._method, await self.read_body()))

    async def send_result(self, parsed: Parsed, result: Any, headers: Sequence[Header]) -> None:
        await self.exchange.respond(200, _encode(result), (JSON, *headers))

    async def send_stream(
        self, parsed: Parsed, batches: AsyncIterator[Batch], headers: Sequence[Header]
    ) -> None:
        raise AssertionError("methods of extensions do not stream")

    async def send_error(self, error: A2AError) -> None:
        assert self.dialect is not None
        status, body = write_rest_error(error, self.dialect.name)
        await self.respond_error(error, status, _encode(body), JSON)


async def _may_read(exchange: Exchange, mount: Mount) -> bool:
    """False, after a refusal, if the card is private and not for this caller."""
    if mount.private:
        try:
            await exchange.card_reader(mount)
        except A2AError as error:
            status, body = write_rest_error(error, "1.0")
            await exchange.respond(status, _encode(body), (JSON, *mount.refusal(error, status)))
            return False
    return True


class _Described:
    """The OpenAPI document of an agent, and the page that shows it. Each is built once per card and URL."""

    def __init__(self) -> None:
        self._built: dict[tuple[str, str], tuple[AgentCard, bytes, bytes]] = {}

    def _build(self, exchange: Exchange, mount: Mount) -> tuple[AgentCard, bytes, bytes]:
        url, card = (exchange.base_url() + mount.path).rstrip("/"), mount.current_card()
        built = self._built.get((mount.path, url))
        if built is None or (built[0] is not card and built[0] != card):
            spoken = filter(mount.speaks, paths.PATHS)
            document = openapi.document(card, url, spoken, sorted(mount.methods))
            built = card, _encode(document), docs_page.page(document).encode()
            if len(self._built) >= _MAX_DOCUMENTS:
                self._built.clear()
            self._built[mount.path, url] = built
        return built

    async def document(self, exchange: Exchange, mount: Mount) -> None:
        if await _may_read(exchange, mount):
            header = _PRIVATE if mount.private else _ANY_ORIGIN
            await exchange.respond(200, self._build(exchange, mount)[1], (JSON, header))

    async def page(self, exchange: Exchange, mount: Mount) -> None:
        if await _may_read(exchange, mount):
            await exchange.respond(200, self._build(exchange, mount)[2], _PAGE_HEADERS)


_MAX_DOCUMENTS = 64
"""In memory: clients choose the base URL, in `Host`."""
_PRIVATE: Header = (b"cache-control", b"private, no-store")
_ANY_ORIGIN: Header = (b"access-control-allow-origin", b"*")
_PAGE_HEADERS: Sequence[Header] = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", docs_page.CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def _type(exchange: Exchange) -> Header:
    """A2A's media type for clients that use it, else that of JSON."""
    accept = exchange.headers.get(b"accept", b"").lower()
    if b"a2a+json" in accept:
        wanted = dict(map(_weight_of, accept.split(b",")))
        ours = wanted.get(A2A_JSON[1], 0)
        return A2A_JSON if ours and ours >= wanted.get(JSON[1], 0) else JSON
    sends = b"a2a+json" in exchange.headers.get(b"content-type", b"") and b"application/json" not in accept
    return A2A_JSON if sends else JSON


def _weight_of(accepted: bytes) -> tuple[bytes, float]:
    """A media type of `Accept`, and its weight."""
    kind, _, more = accepted.partition(b";")
    weight = _WEIGHT.search(more)
    return kind.strip(), float(weight[1]) if weight else 1.0


_WEIGHT = re.compile(rb"(?:^|;)\s*q=([01](?:\.\d{0,3})?)")


def _decode_members(body: bytes) -> dict[str, Any]:
    """The members of a body. Some clients send nothing or `null` for an empty one."""
    try:
        return dict(_members(body) or {}) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParams("the body must be an object") from None


def _check_json(body: bytes) -> None:
    """Raises `ParseError` if a body is not JSON."""
    try:
        if body.strip():
            _raw(body)
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"the body is not JSON: {error}") from None


def _write_resource_names(values: Mapping[str, str], path: Path) -> dict[str, str]:
    """Ids as the resource names of 0.3."""
    return {name: form.replace("*", "{}").format(*values.values()) for name, form in path.variables.items()}


def _convert(name: str, value: str) -> Any:
    """The value of a text in a query. A text that is not of the right type stays text, and is refused later."""
    kind = QUERY[name]
    if kind is bool and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if (kind is int or name == "status") and _WHOLE.fullmatch(value):
        return int(value)
    if name == "statusTimestampAfter":
        return value.replace(" ", "+")  # a plus sign that the client did not encode
    return value


def _has_content(body: bytes) -> bool:
    """True if a message has `content`, as in 0.3."""
    try:
        message = msgspec.json.decode(body).get("message") if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return False
    return isinstance(message, dict) and "content" in message
