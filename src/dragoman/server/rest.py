"""HTTP+JSON: one address per operation, and HTTP's own statuses.

1.0 lives directly below the mount, and again below a tenant's name (`/acme/tasks/...`); 0.3 lives below `/v1`, in the
JSON of its protobuf definition. `dialects/paths.py` has the table of both. What a request says in its path, its query
and its body is put together into the one document that the operation takes, so from there on a call is like any other.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dragoman.dialects import paths, rest_errors, select
from dragoman.dialects.cards import version_of
from dragoman.dialects.dialect import Dialect
from dragoman.dialects.paths import QUERY, Found, Path
from dragoman.dialects.sse import frame
from dragoman.errors import A2AError, InvalidParams, InvalidRequest, ParseError
from dragoman.model.card import HTTP_JSON, Interface
from dragoman.model.ops import PUSH_DELETE, Request
from dragoman.server import docs_page, openapi
from dragoman.server.call import call_of, check_tenant
from dragoman.server.exchange import JSON, Disconnected, Exchange, Header
from dragoman.server.mount import Handler, Mount
from dragoman.server.responses import OURS, activated, check_type, kept, perform, refusal, said
from dragoman.server.schemas import Document
from dragoman.server.sse import Frames

log = logging.getLogger(__name__)

A2A_JSON: Header = (b"content-type", b"application/a2a+json")

_encode = msgspec.json.Encoder().encode
_members = msgspec.json.Decoder(dict[str, Raw] | None).decode
_WHOLE = re.compile(r"-?[0-9]{1,15}")
_raw = msgspec.json.Decoder(Raw).decode


class Rest:
    """The `Binding`. `strict_versioning`: a call of 1.0 must say so in its `A2A-Version` header."""

    def __init__(self, *, strict_versioning: bool = False) -> None:
        self._strict = strict_versioning
        described = {"/openapi.json": _openapi, "/docs": _docs}
        self._described: Mapping[str, Mapping[str, Handler]] = {
            path: {"GET": handler, "HEAD": handler} for path, handler in described.items()
        }

    def match(self, mount: Mount, path: str) -> Mapping[str, Handler] | None:
        path = path.removesuffix("/")  # some frameworks put one there
        if path in self._described:
            return self._described[path]
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

    async def _answer(self, exchange: Exchange, mount: Mount, *, found: Found, path: Path) -> None:
        rest = _Rest(exchange, mount, found, path, self._strict)
        try:
            await rest.answer()
        except Disconnected:
            pass
        except Exception as error:
            if exchange.responding:
                log.exception("a response could not be finished")
            else:
                await rest.refuse(error)


class _Rest:
    """One call, and how to answer it."""

    __slots__ = ("_dialect", "_exchange", "_mount", "_path", "_strict", "_tenant", "_type", "_values")

    def __init__(self, exchange: Exchange, mount: Mount, found: Found, path: Path, strict: bool) -> None:
        self._exchange = exchange
        self._mount = mount
        self._path = path
        self._values, self._tenant = found.values, found.tenant
        self._strict = strict
        self._dialect: Dialect = select.by_name("1.0" if path.version == "1.0" else "0.3-proto")
        self._type = _type(exchange) if path.version == "1.0" else JSON

    async def answer(self) -> None:
        exchange, mount = self._exchange, self._mount
        principal = await mount.principal(exchange)
        op, body = self._path.op, b""
        if exchange.method == "POST":
            check_type(exchange)
            body = await exchange.body()
            if exceeded := exchange.shared.limits.exceeded_by(body):
                raise InvalidRequest(exceeded)
        self._dialect = dialect = self._choose(body)
        request = self._read(dialect, body)
        del body  # it may be large, and the answer may be long in coming
        call = call_of(exchange, mount, principal, dialect)
        check_tenant(call, request)
        if op.streams:
            await exchange.shared.streams.serve(
                exchange,
                mount.service.stream(call, request),  # type: ignore[arg-type]
                Frames(dialect, op, request, max_event=exchange.shared.limits.max_event),
                failed=self._failed,
                headers=(OURS, *activated(mount, dialect, call)),
            )
        else:
            result = await perform(exchange, mount, dialect, op, call, request)
            headers = (self._type, OURS, *kept(op), *activated(mount, dialect, call))
            await exchange.respond(200, b"{}" if op is PUSH_DELETE else result, headers)

    def _choose(self, body: bytes) -> Dialect:
        version, family = self._exchange.version(), self._path.version
        if family == "1.0" and self._mount.prefix.endswith("/v1"):
            # Both versions are at this address: the header tells them apart, or else the shape of the message.
            label = version_of(version)
            if label == "0.3" or (not label and _has_content(body)):
                older = paths.path_of("0.3", self._path.op)
                if older is not None:
                    self._values = _renamed(self._values, older)
                    self._path, self._type, family = older, JSON, "0.3"
        return select.rest(version, family, strict=self._strict, allowed=self._mount.dialects)

    def _read(self, dialect: Dialect, body: bytes) -> Request:
        try:
            if self._values or self._exchange.method != "POST":
                params = _encode({**_decoded(body), **self._asked(), **self._values})
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

    def _asked(self) -> dict[str, Any]:
        """What the query says of the members it may have. Of one that is repeated, the last counts."""
        query = self._exchange.scope.get("query_string", b"")
        if not query:
            return {}
        names = (*self._path.query, "tenant") if self._path.version == "1.0" else self._path.query
        known = {name.lower(): name for name in names}
        out: dict[str, Any] = {}
        for spelled, value in parse_qsl(query.decode("latin-1")):
            name = known.get(spelled.replace("_", "").lower())
            if name is not None:
                out[name] = _typed(name, value)
        return out

    def _failed(self, error: Exception) -> bytes:
        """The last frame of a stream that broke off."""
        _, body = rest_errors.write(said(error), self._dialect.name)
        return frame(_encode(body), event="error")

    async def refuse(self, error: Exception) -> None:
        if isinstance(error, select.Refused):
            self._dialect, error = error.dialect, error.error
        heard = said(error)
        status, body = rest_errors.write(heard, self._dialect.name)
        try:
            headers = (self._type, *refusal(self._mount, heard, status))
            await self._exchange.respond(status, _encode(body), headers)
        except Disconnected:
            pass


def _document(exchange: Exchange, mount: Mount) -> Document:
    url = (exchange.base_url() + mount.path).rstrip("/")
    return openapi.document(mount.current_card(), url, filter(mount.speaks, paths.PATHS))


async def _let_in(exchange: Exchange, mount: Mount) -> bool:
    """Whether somebody may read what is on a private card."""
    try:
        await mount.principal(exchange)
    except A2AError as error:
        status, body = rest_errors.write(error, "1.0")
        await exchange.respond(status, _encode(body), (JSON, *mount.refusal(error, status)))
        return False
    return True


async def _openapi(exchange: Exchange, mount: Mount) -> None:
    if mount.private and not await _let_in(exchange, mount):
        return
    body = _encode(_document(exchange, mount))
    kept = (
        (b"cache-control", b"private, no-store") if mount.private else (b"access-control-allow-origin", b"*")
    )
    await exchange.respond(200, body, (JSON, kept))


async def _docs(exchange: Exchange, mount: Mount) -> None:
    if mount.private and not await _let_in(exchange, mount):
        return
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-security-policy", docs_page.CSP.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )
    await exchange.respond(200, docs_page.page(_document(exchange, mount)).encode(), headers)


def _type(exchange: Exchange) -> Header:
    """A2A's own media type for those who use it; everybody can read JSON."""
    accept = exchange.headers.get(b"accept", b"").lower()
    if b"a2a+json" in accept:
        wanted = dict(map(_weighed, accept.split(b",")))
        ours = wanted.get(A2A_JSON[1], 0)
        return A2A_JSON if ours and ours >= wanted.get(JSON[1], 0) else JSON
    speaks = b"a2a+json" in exchange.headers.get(b"content-type", b"") and b"application/json" not in accept
    return A2A_JSON if speaks else JSON


def _weighed(accepted: bytes) -> tuple[bytes, float]:
    """A media type in `Accept`, and how much it is wanted."""
    kind, _, more = accepted.partition(b";")
    weight = _WEIGHT.search(more)
    return kind.strip(), float(weight[1]) if weight else 1.0


_WEIGHT = re.compile(rb"(?:^|;)\s*q=([01](?:\.\d{0,3})?)")


def _decoded(body: bytes) -> dict[str, Any]:
    """The members of a body. None at all, and `null`, are what some clients send for an empty one."""
    try:
        return dict(_members(body) or {}) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParams("the body must be an object") from None


def _check_json(body: bytes) -> None:
    """Raises `ParseError` if that is what is wrong with a body."""
    try:
        if body.strip():
            _raw(body)
            body.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"the body is not JSON: {error}") from None


def _renamed(values: Mapping[str, str], path: Path) -> dict[str, str]:
    """Plain ids as the resource names that 0.3 makes of them."""
    return {name: form.replace("*", "{}").format(*values.values()) for name, form in path.variables.items()}


def _typed(name: str, value: str) -> Any:
    """A query's text as the JSON it stands for; what it cannot be stays text, and is refused as that."""
    kind = QUERY[name]
    if kind is bool and value.lower() in ("true", "false", "1", "0"):
        return value.lower() in ("true", "1")
    if (kind is int or name == "status") and _WHOLE.fullmatch(value):
        return int(value)
    if name == "statusTimestampAfter":
        return value.replace(" ", "+")  # a plus sign that was not encoded
    return value


def _has_content(body: bytes) -> bool:
    """Whether a message has `content`, as in 0.3, and not `parts`."""
    try:
        message = msgspec.json.decode(body).get("message") if body else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return False
    return isinstance(message, dict) and "content" in message
