"""The hub's own routes: a table, from which requests are answered and the OpenAPI document is made.

A handler gets a `Visit` and returns an `Answer`, or has streamed one itself. What it raises becomes JSON here.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import parse_qs, quote, unquote

import msgspec
from msgspec import Struct

from dragoman.errors import A2AError, InvalidParams, InvalidRequest
from dragoman.hub.tenants.tenants import Tenant
from dragoman.server.exchange import JSON, Exchange, Header

T = TypeVar("T")
TENANT, ADMIN, ANYBODY = "tenant", "admin", "anybody"

Natural: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
"""A number in a body: an id, a time, a count."""

_PRINTABLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
MAX_STRINGS = 500_000
"""Strings in a body, names of members included: sixteen megabytes of `"",` would be five million."""
_PARAMETER = re.compile(r"\{(\w+)\}")


class Answer(NamedTuple):
    body: Any = None
    status: int = 200
    headers: Sequence[Header] = ()


class Visit:
    """One request to the native API."""

    def __init__(self, exchange: Exchange, tenant: Tenant | None, values: Mapping[str, str]) -> None:
        self.exchange = exchange
        self._tenant = tenant
        self.values = values
        """What stands in the path."""
        self._query: dict[str, list[str]] | None = None

    @property
    def tenant(self) -> Tenant:
        assert self._tenant is not None, "only routes for tenants have one"
        return self._tenant

    def number(self, name: str) -> int:
        """A number in the path; what is no number names nothing."""
        text = self.values[name]
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0

    def asked(self, name: str, default: str = "") -> str:
        """A word in the query."""
        if self._query is None:
            self._query = parse_qs(self.exchange.scope.get("query_string", b"").decode("latin-1"))
        return self._query.get(name, [default])[-1]

    def count(self, name: str, default: int, most: int = 2**53) -> int:
        """A number in the query, and no more than allowed. Raises `InvalidParams`."""
        text = self.asked(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 17):
            raise InvalidParams(f"{name} must be a number", fields=((name, f"is {text[:40]!r}"),))
        return min(int(text), most)

    @property
    def last_event(self) -> int | None:
        """The number of the event after which a stream is to go on; None if nobody says so."""
        text = self.exchange.header(b"last-event-id")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None

    def flag(self, name: str, default: bool = True) -> bool:
        """Something in the query that is on or off."""
        text = self.asked(name).lower()
        return text not in ("off", "false", "no", "0") if text else default

    async def json(self, kind: type[T]) -> T:
        """The body as `kind`. Raises `InvalidParams` and `InvalidRequest`."""
        raw = await self.exchange.body()
        if raw.count(b'"') - raw.count(b'\\"') > 2 * MAX_STRINGS:
            raise InvalidRequest(f"the body has more than {MAX_STRINGS} strings")
        if exceeded := self.exchange.shared.limits.exceeded_by(raw):
            raise InvalidRequest(exceeded)
        try:
            return msgspec.json.decode(raw or b"{}", type=kind)
        except msgspec.ValidationError as error:
            raise InvalidParams(*_explained(str(error))) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None


Handler = Callable[[Visit], Awaitable[Answer | None]]


class Route(Struct, frozen=True):
    method: str
    path: str
    handler: Handler
    about: str
    tag: str
    who: str = TENANT
    body: Any = None
    """The type of the body; None if there is none."""
    query: Mapping[str, str] = {}
    """What may be asked, and what it means."""
    streams: bool = False
    status: int = 200
    """Of an answer that went well."""


HEAD_OF_STREAM = Answer(headers=((b"content-type", b"text/event-stream"),))
"""For who asks for no more than that: nobody waits for what will not be sent."""


class Table:
    """All routes. Finds the one that is meant, or what else there is at its path."""

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


def header_value(text: str) -> bytes:
    """`text` as the value of a header, which takes printable ASCII alone: everything else is percent-encoded."""
    return quote(text, safe=_PRINTABLE).encode()


async def say(exchange: Exchange, answer: Answer) -> None:
    body = answer.body
    if isinstance(body, bytes) or body is None:
        await exchange.respond(answer.status, body or b"", answer.headers)
    else:
        await exchange.respond(answer.status, msgspec.json.encode(body), (JSON, *answer.headers))


def refused(error: A2AError) -> Answer:
    """An error as the native API says it: a sentence, and whatever helps."""
    body: dict[str, Any] = {"error": error.message}
    if error.fields:
        body["fields"] = [{"field": field, "reason": why} for field, why in error.fields]
    if reason := error.metadata.get("reason"):
        body["reason"] = reason
    for name in ("existing", "existing_id"):
        if (value := getattr(error, name, None)) is not None:
            body[name] = value
    headers: list[Header] = []
    if error.retry_after is not None:
        wait = max(1, round(error.retry_after))
        body["retry_after_seconds"] = wait
        headers.append((b"retry-after", b"%d" % wait))
    if error.http == 401:
        headers.append((b"www-authenticate", b'Bearer realm="dragoman"'))
    return Answer(body, error.http, headers)


def _explained(error: str) -> tuple[str]:
    """`Expected int, got str - at `$.x`` as a sentence."""
    why, _, path = error.replace("`", "").partition(" - at ")
    where = path.removeprefix("$.") or "the body"
    return (f"{where}: {why[:1].lower()}{why[1:]}",)
