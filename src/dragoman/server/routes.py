"""Routes of a JSON API: requests are answered from a table, and the OpenAPI document is made from it.

A handler gets an `ApiRequest` and returns the body of the answer, or an `ApiResponse`, or None if it has streamed the answer
itself. An `A2AError` that it raises becomes a JSON error: one of the protocol's, or one of the two here. The hub's native API, the console
and the catalogue use this.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from typing import Annotated, Any, Generic, NamedTuple, TypeAlias, TypeVar, get_type_hints
from urllib.parse import parse_qs, quote, unquote

import msgspec
from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams, InvalidRequest
from dragoman.model.ops import refuse
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.mount import Header

T = TypeVar("T")
C = TypeVar("C")

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number in a body: an id, a time, a count."""

MAX_REASON_CHARACTERS = 120
"""Characters of what a decoder says that a caller is told."""
MAX_STRINGS = 500_000
"""Strings in a body, names of members included."""
_HEADER_CHARACTERS = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_PARAMETER = re.compile(r"\{(\w+)\}")


class NotFound(A2AError):
    """There is no such thing, or none that this caller may know about."""

    reason, http = "NOT_FOUND", 404


class Conflict(A2AError):
    """It is not in a state for this, or exists already: `existing`."""

    reason, http = "CONFLICT", 409

    def __init__(self, message: str, *, existing: Any = None) -> None:
        super().__init__(message)
        self.existing = existing


class Pieces(NamedTuple):
    """A body that is read as it is sent."""

    content: AsyncGenerator[bytes, None]
    size: int | None
    """None: nobody knows before the end."""


class ApiResponse(NamedTuple):
    """`body` is bytes, `Pieces`, or a value that is sent as JSON."""

    body: Any = None
    status: int = 200
    headers: Sequence[Header] = ()


class ApiRequest(Generic[C]):
    """One request to the API of a `caller`. `path` has the parameters of the path."""

    def __init__(self, exchange: Exchange, caller: C, path: Mapping[str, str]) -> None:
        self.exchange, self.caller, self.path = exchange, caller, path
        self._query: dict[str, list[str]] | None = None

    def path_id(self, name: str = "id") -> int:
        """A number in the path. Raises `NotFound` for anything else."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) < 16):
            raise NotFound(f"there is nothing with the id {text[:40]!r}: it would be a number")
        return int(text)

    def queries(self) -> Mapping[str, list[str]]:
        """All parameters of the query."""
        if self._query is None:
            query = self.exchange.scope.get("query_string", b"").decode("latin-1")
            self._query = parse_qs(query, keep_blank_values=True)
        return self._query

    def query(self, name: str, default: str = "") -> str:
        return self.queries().get(name, [default])[-1]

    def query_int(self, name: str, default: int = 0, maximum: int = 2**53) -> int:
        """A number in the query, at most `maximum`. Raises `InvalidParams`."""
        text = self.query(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 17):
            raise InvalidParams(
                f"{name} must be a whole number that is not negative", fields=((name, f"is {text[:40]!r}"),)
            )
        return min(int(text), maximum)

    def query_limit(self, default: int, maximum: int) -> int:
        """How many to list, at least one and at most `maximum`. Raises `InvalidParams`."""
        limit = self.query_int("limit", default, maximum)
        if not limit:
            raise InvalidParams("limit must be at least 1", fields=(("limit", "is 0"),))
        return limit

    def query_flag(self, name: str, default: bool = True) -> bool:
        """Raises `InvalidParams`."""
        text = self.query(name).lower()
        if text and text not in (*_YES, *_NO):
            why = f"is one of {', '.join((*_YES, *_NO))}"
            raise InvalidParams(f"{name} {why}, and not {text[:40]!r}", fields=((name, why),))
        return text in _YES if text else default

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raises `InvalidParams` for a parameter that would be ignored, because it is unknown or another one follows."""
        for name, values in self.queries().items():
            if len(values) > 1:
                refuse(name[:40], "is there more than once")
            if name not in known:
                close = get_close_matches(name.lower(), known, 1)
                hint = f": did you mean {close[0]!r}?" if close else ""
                why = f"there is no parameter {name[:40]!r} here{hint}"
                raise InvalidParams(why, fields=((name[:40], "is unknown"),))

    def query_word(self, name: str, known: Collection[str]) -> str:
        """One word of `known`, or nothing. Raises `InvalidParams`."""
        text = self.query(name)
        if text and text not in known:
            why = f"is one of {', '.join(known)}"
            raise InvalidParams(f"there is no {name} {text[:40]!r}: it {why}", fields=((name, why),))
        return text

    def query_words(self, name: str, known: Collection[str]) -> list[str]:
        """Words with commas between them, each one of `known`. Raises `InvalidParams`."""
        words = [word for word in self.query(name).split(",") if word]
        if unknown := [word for word in words if word not in known]:
            raise InvalidParams(
                f"there is no {name} {unknown[0][:40]!r}: it is one of {', '.join(known)}",
                fields=((name, f"is one of {', '.join(known)}"),),
            )
        return words

    @property
    def last_event_id(self) -> int | None:
        """The event after which a stream continues; None if the request does not say."""
        text = self.exchange.header(b"last-event-id")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None

    async def json(self, kind: type[T], *, required: bool | None = None) -> T:
        """The body as `kind`. It is `required` unless all members of `kind` may be left out. Raises `InvalidParams` and `InvalidRequest`."""
        raw = await self.exchange.body()
        if not raw and (needs_members(kind) if required is None else required):
            raise InvalidRequest("the body is empty")
        if raw.count(b'"') - raw.count(b'\\"') > 2 * MAX_STRINGS:
            raise InvalidRequest(f"the body has more than {MAX_STRINGS} strings")
        if exceeded := self.exchange.shared.limits.exceeded_by(raw):
            raise InvalidRequest(exceeded)
        try:
            return msgspec.json.decode(raw or b"{}", type=kind)
        except msgspec.ValidationError as error:
            member, why = explain(error)
            fields = ((member, why),) if member else ()
            raise InvalidParams(sentence(member or "the body", why), fields=fields) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None


_YES, _NO = ("on", "true", "yes", "1"), ("off", "false", "no", "0")

RouteHandler = Callable[..., Awaitable[Any]]
"""Takes an `ApiRequest`, and perhaps its `body`."""


class Route(Struct, frozen=True):
    method: str
    path: str
    handler: RouteHandler
    summary: str
    tag: str
    access: str = ""
    """Who may call it: a word of the API."""
    body: Any = None
    """The type of the body; None if there is none, `bytes` for the content of a file."""
    needs_body: bool | None = None
    """Whether a request needs a body. None: unless all members of `body` may be left out."""
    returns: Any = None
    """The type of the answer's body; `str` and `bytes` if it is not JSON; None if there is none, or nobody has described it."""
    query: Mapping[str, str] = {}
    """The parameters of the query, and what they mean."""
    headers: Mapping[str, str] = {}
    """The headers that it reads, and what they mean."""
    streams: bool = False
    status: int = 200
    """Of a successful answer."""
    also: tuple[int, ...] = ()
    """Other statuses of success: with the same body, or 304."""

    async def answer(self, request: ApiRequest[Any]) -> ApiResponse | None:
        result = await self.handler(request)
        if isinstance(result, ApiResponse) or (result is None and self.streams):
            return result
        return ApiResponse(result, self.status)


HEAD_OF_STREAM = ApiResponse(headers=((b"content-type", b"text/event-stream"),))
"""The answer to a HEAD request for a stream."""


class RouteList(list[Route]):
    """Collects routes that share a tag."""

    def __init__(self, tag: str, *, access: str = "") -> None:
        super().__init__()
        self._tag, self._access = tag, access

    def add(
        self, method: str, path: str, summary: str, returns: Any = None, **options: Any
    ) -> Callable[[RouteHandler], RouteHandler]:
        """Register a handler: a decorator. `returns` and `options` are fields of `Route`.

        A handler with a parameter `body` gets the body of the request, as its type says.
        """
        options = {"access": self._access, "returns": returns, **options}

        def register(handler: RouteHandler) -> RouteHandler:
            kind, handle = get_type_hints(handler).get("body"), handler
            if kind is not None:
                options["body"] = kind

                async def handle(request: ApiRequest[Any]) -> Any:
                    return await handler(request, await request.json(kind))

            self.append(Route(method, path, handle, summary, self._tag, **options))
            return handler

        return register


LAST_EVENT_ID = {"Last-Event-ID": "The event after which the stream goes on."}
"""`Route.headers` of a stream that goes on after an event."""


class Table:
    """All routes, by path and method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._methods: dict[str, dict[str, Route]] = {}
        for route in self.routes:
            self._patterns[route.path] = re.compile(_PARAMETER.sub(r"(?P<\1>[^/]+)", route.path) + "/?")
            self._methods.setdefault(route.path, {})[route.method] = route

    def find(self, path: str) -> tuple[Mapping[str, Route], Mapping[str, str]] | None:
        """The routes at a path, by method, and what its parameters are. Fixed words go before parameters."""
        found = [(name, match) for name, p in self._patterns.items() if (match := p.fullmatch(path))]
        if not found:
            return None
        name, match = min(found, key=lambda each: len(each[1].groups()))
        # of what is encoded, the path still has what would change its shape: slashes, colons, percent signs
        return self._methods[name], {name: unquote(value) for name, value in match.groupdict().items()}


def needs_members(kind: Any) -> bool:
    """False for a struct all of whose members may be left out."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return True
    return any(field.required for field in msgspec.structs.fields(kind))


def header_value(text: str) -> bytes:
    """`text` as the value of a header: everything but printable ASCII is percent-encoded."""
    return quote(text, safe=_HEADER_CHARACTERS).encode()


async def send(exchange: Exchange, response: ApiResponse) -> None:
    body = response.body
    if isinstance(body, bytes) or body is None:
        await exchange.respond(response.status, body or b"", response.headers)
    elif isinstance(body, Pieces):
        async with aclosing(body.content):
            await exchange.respond_pieces(response.status, body.content, body.size, response.headers)
    else:
        await exchange.respond(response.status, msgspec.json.encode(body), (JSON, *response.headers))


_REASONS = (
    ("Object missing required field ", "is missing"),
    ("Object contains unknown field ", "is unknown"),
)
"""The beginnings of the decoder's errors that name the member themselves, and the reasons that we give for them."""
_MAX_NAME_CHARACTERS = 40
"""Characters of an unknown member's name."""


def explain(error: msgspec.ValidationError) -> tuple[str, str]:
    """The member of a document that is wrong, and why: of `Expected int, got str - at `$.x``. The member is empty for the whole."""
    why, _, path = str(error).replace("`", "").partition(" - at ")
    member = path.removeprefix("$").removeprefix(".").partition("[...]")[0]  # a value under any name
    for start, reason in _REASONS:
        if why.startswith(start):
            name = why.removeprefix(start)[:_MAX_NAME_CHARACTERS]
            return f"{member}.{name}" if member else name, reason
    if len(why) > MAX_REASON_CHARACTERS:  # it repeats an unknown value
        why = why[:MAX_REASON_CHARACTERS] + "..."
    return member, f"{why[:1].lower()}{why[1:]}"


def sentence(member: str, why: str) -> str:
    """What `explain` found, as one sentence."""
    return f"{member} {why}" if why.startswith("is ") else f"{member}: {why}"
