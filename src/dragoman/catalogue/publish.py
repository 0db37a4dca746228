"""The catalogue over HTTP. It follows two drafts, which still change. Only this module writes their documents
(`client/catalogue.py` reads them).

AI Catalog, specVersion 1.0, the draft of October 2026 (github.com/Agent-Card/ai-catalog, specification/ai-catalog.md):

    GET  /.well-known/ai-catalog.json      application/ai-catalog+json, conformance level 2 (no trust manifests)

Agentic Resource Discovery (ARD) v0.91 of 26 August 2026 (github.com/ards-project/ard-spec, spec/ard.md):

    GET  /.well-known/ard.json             the manifest; its entry of type application/ai-registry+json is the base of the next
    POST /catalogue/search                 ranked; `federation` has no effect: no other registry is asked
    GET  /catalogue/agents/{identifier}    one entry
    GET  /catalogue/agents                 all entries, by name
    POST /catalogue/explore                how many entries have which values

Where the two contradict each other, each document follows its own draft. An agent elsewhere that is only listed here may not have an
identifier `urn:air:` in an AI Catalog, and has to have one in ARD. A name is left to the card in an AI Catalog, and required in ARD.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

import msgspec
from msgspec import Meta, Struct

from dragoman.catalogue.catalogue import CatalogueSearch, Match
from dragoman.catalogue.entry import Entry
from dragoman.catalogue.sources import CatalogueViewer
from dragoman.client.catalogue import A2A_CARD, AI_CATALOG, ARD, METADATA, REGISTRY
from dragoman.errors import A2AError, InvalidParams, InvalidRequest, RateLimited, Unauthenticated, Unavailable
from dragoman.server.app import CATALOGUE_PATH
from dragoman.server.exchange import JSON, Exchange
from dragoman.server.mount import Header
from dragoman.server.routes import NotFound

SPEC_VERSION = "1.0"
CATALOG_TYPE = "application/ai-catalog+json"
CARD_PATH = "/.well-known/agent-card.json"
DEFAULT_PAGE, DEFAULT_LIST, MAX_PAGE = 10, 20, 100
DEFAULT_BUCKETS, MAX_BUCKETS, MAX_FACETS = 20, 100, 16
MAX_DOCUMENT_ENTRIES = 2000
MAX_QUERY_CHARACTERS = 1000
_MAX_FILTERS, _MAX_VALUES = 16, 100

_IDENTIFIER = re.compile(r"urn:air:[a-zA-Z0-9.-]+(:[a-zA-Z0-9._-]+)+")
_SEGMENT = re.compile(r"[^a-zA-Z0-9._-]+")
_TERM = re.compile(r"\s*(\w+)\s*=\s*'([^']*)'\s*", re.ASCII)
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "INVALID_ARGUMENT",
    413: "INVALID_ARGUMENT",
    429: "RATE_LIMIT_EXCEEDED",
    503: "UNAVAILABLE",
}


T = TypeVar("T")


class ServerAddress:
    """Where a client sees this server: `base` has no slash at its end."""

    def __init__(self, base: str) -> None:
        self.base = base
        host = urlsplit(base).hostname or "localhost"
        self.publisher = _SEGMENT.sub("-", host).replace("_", "-")
        self.registry = f"{base}{CATALOGUE_PATH}"

    def identifier(self, entry: Entry) -> str:
        """The entry's name in ARD: of this server, and of what it is here."""
        kind = "catalogue" if entry.url else entry.tenant or "agent"
        names = (kind, entry.tenant, entry.name) if entry.url and entry.tenant else (kind, entry.name)
        return ":".join(["urn:air", self.publisher, *(_SEGMENT.sub("-", name) or "-" for name in names)])

    def card(self, entry: Entry) -> str:
        if entry.url:
            return entry.card_url or entry.url
        return f"{self.base}{entry.path.rstrip('/')}{CARD_PATH}"


# -- AI Catalog --------------------------------------------------------------------------------------------------------


def ai_catalog(entries: Sequence[Entry], place: ServerAddress, name: str = "") -> dict[str, Any]:
    host = {"displayName": name or place.publisher, "identifier": place.publisher}
    return {
        "specVersion": SPEC_VERSION,
        "host": host,
        "entries": [ai_catalog_entry(entry, place) for entry in entries[:MAX_DOCUMENT_ENTRIES]],
    }


def ai_catalog_entry(entry: Entry, place: ServerAddress) -> dict[str, Any]:
    """Without name, description and version: the card has them."""
    identifier = place.identifier(entry)
    if entry.url:  # we list it and did not publish it
        identifier = f"{place.registry}/agents/{quote(identifier, safe='')}"
    out: dict[str, Any] = {"identifier": identifier, "type": A2A_CARD, "url": place.card(entry)}
    if entry.description.tags:
        out["tags"] = list(entry.description.tags)
    out["extensions"] = {METADATA: {"name": entry.name, **metadata(entry)}}
    return out


# -- ARD ---------------------------------------------------------------------------------------------------------------


def ard_manifest(entries: Sequence[Entry], place: ServerAddress, name: str = "") -> dict[str, Any]:
    registry = {
        "identifier": f"urn:air:{place.publisher}:registry:catalogue",
        "displayName": f"Catalogue of {name or place.publisher}",
        "type": REGISTRY,
        "url": place.registry,
        "description": "Search for agents: POST search.",
    }
    listed = [ard_entry(entry, place) for entry in entries[:MAX_DOCUMENT_ENTRIES]]
    return {
        "specVersion": SPEC_VERSION,
        "host": {"displayName": name or place.publisher, "identifier": place.publisher},
        "entries": [registry, *listed],
    }


def ard_entry(entry: Entry, place: ServerAddress) -> dict[str, Any]:
    about = entry.description
    out: dict[str, Any] = {
        "identifier": place.identifier(entry),
        "displayName": entry.title,
        "type": A2A_CARD,
        "url": place.card(entry),
        "description": about.description,
        "version": about.version,
        "tags": list(about.tags),
        "capabilities": [skill.id for skill in about.skills],
        "representativeQueries": list(about.examples[:5]),
        "metadata": {"name": entry.name, **metadata(entry)},
    }
    return {name: value for name, value in out.items() if value}


def metadata(entry: Entry) -> dict[str, Any]:
    """Facts for which no draft has a member."""
    out: dict[str, Any] = {
        "kind": entry.kind,
        "health": entry.health.state,
        "checked": entry.health.checked,
        "signature": entry.signature,
        "interfaces": list(entry.description.interfaces),
        "provider": entry.description.provider,
    }
    return {name: value for name, value in out.items() if value}


class Query(Struct, forbid_unknown_fields=True):
    text: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY_CHARACTERS)]
    filter: dict[str, str | list[str]] = {}
    context: Any = msgspec.field(default=None, name="@context")


class SearchRequest(Struct, forbid_unknown_fields=True):
    query: Query
    federation: Literal["auto", "referrals", "none"] = "auto"
    pageSize: Annotated[int, Meta(ge=1)] = DEFAULT_PAGE
    pageToken: str = ""


class ExploreQuery(Struct, frozen=True, forbid_unknown_fields=True):
    text: Annotated[str, Meta(max_length=MAX_QUERY_CHARACTERS)] = ""
    filter: dict[str, str | list[str]] = {}
    context: Any = msgspec.field(default=None, name="@context")


class Facet(Struct, forbid_unknown_fields=True):
    field: str
    limit: Annotated[int, Meta(ge=1)] = DEFAULT_BUCKETS
    minCount: Annotated[int, Meta(ge=0)] = 1


class Facets(Struct, forbid_unknown_fields=True):
    facets: Annotated[list[Facet], Meta(min_length=1, max_length=MAX_FACETS)]


class ExploreRequest(Struct, forbid_unknown_fields=True):
    resultType: Facets
    query: ExploreQuery = ExploreQuery()


_FILTERS: dict[str, Callable[[Entry, ServerAddress], Sequence[str]]] = {
    "identifier": lambda entry, place: [place.identifier(entry)],
    "displayName": lambda entry, place: [entry.title],
    "type": lambda entry, place: [A2A_CARD],
    "tags": lambda entry, place: entry.description.tags,
    "capabilities": lambda entry, place: [skill.id for skill in entry.description.skills],
    "version": lambda entry, place: [entry.description.version],
    "publisher": lambda entry, place: [place.publisher],
    "metadata.name": lambda entry, place: [entry.name],
    "metadata.kind": lambda entry, place: [entry.kind],
    "metadata.health": lambda entry, place: [entry.health.state],
    "metadata.signature": lambda entry, place: [entry.signature],
    "metadata.interfaces": lambda entry, place: entry.description.interfaces,
    "metadata.provider": lambda entry, place: [entry.description.provider],
}


def read_filter(given: Mapping[str, str | list[str]]) -> Callable[[Entry, ServerAddress], bool]:
    """Values of one key are alternatives; all keys have to match. Raises `InvalidParams`."""
    wanted: list[tuple[Callable[[Entry, ServerAddress], Sequence[str]], frozenset[str]]] = []
    if len(given) > _MAX_FILTERS:
        raise InvalidParams(f"a filter has at most {_MAX_FILTERS} keys")
    for key, values in given.items():
        alternatives = [values] if isinstance(values, str) else values[:_MAX_VALUES]
        wanted.append((_values_of(key), frozenset(alternatives)))
    return lambda entry, place: all(not values.isdisjoint(of(entry, place)) for of, values in wanted)


def _values_of(key: str) -> Callable[[Entry, ServerAddress], Sequence[str]]:
    """The values of an entry under a key of a filter. Raises `InvalidParams`."""
    if key not in _FILTERS:
        raise InvalidParams(f"there is no filter {key[:60]!r}, only {', '.join(_FILTERS)}")
    return _FILTERS[key]


def count_values(
    entries: Sequence[Entry],
    place: ServerAddress,
    facet: Facet,
    values: Callable[[Entry, ServerAddress], Sequence[str]],
) -> dict[str, Any]:
    """How many entries have which value, the most frequent first."""
    counts = Counter(value for entry in entries for value in set(values(entry, place)) if value)
    common = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    limit = min(facet.limit, MAX_BUCKETS)
    shown = [each for each in common if each[1] >= facet.minCount]
    out: dict[str, Any] = {"buckets": [{"value": value, "count": n} for value, n in shown[:limit]]}
    if rest := sum(n for _, n in shown[limit:]):
        out["otherCount"] = rest
    return out


def read_expression(text: str) -> Callable[[Entry, ServerAddress], bool]:
    """The filter of a list: `displayName = 'desk' AND type = 'a,b'`. Raises `InvalidParams`."""
    terms: list[Callable[[Entry, ServerAddress], bool]] = []
    for term in re.split(r"\bAND\b", text[:MAX_QUERY_CHARACTERS]) if text.strip() else ():
        found = _TERM.fullmatch(term)
        if found is None or found[1] not in ("displayName", "type", "publisherId"):
            raise InvalidParams(
                "a filter is made of displayName = '...', type = '...' and publisherId = '...', with AND between them"
            )
        name, values = found[1], [value.strip() for value in found[2].split(",")]
        if name == "displayName":
            part = found[2].lower()
            terms.append(lambda entry, place, part=part: part in entry.title.lower())  # type: ignore[misc]
        elif name == "type":
            terms.append(lambda entry, place, values=values: A2A_CARD in values)  # type: ignore[misc]
        else:
            terms.append(lambda entry, place, values=values: place.publisher in values)  # type: ignore[misc]
    return lambda entry, place: all(term(entry, place) for term in terms)


def read_page(token: str) -> int:
    """The place where a page begins. Raises `InvalidParams`."""
    if not token:
        return 0
    if not (token.isascii() and token.isdigit() and len(token) < 10):
        raise InvalidParams("this is not a page token of this catalogue")
    return int(token)


# -- HTTP --------------------------------------------------------------------------------------------------------------


class PublishedCatalogue:
    """Answers requests for the catalogue. `name` is that of its operator."""

    def __init__(self, catalogue: CatalogueSearch, *, name: str = "") -> None:
        self.catalogue, self._name = catalogue, name

    async def start(self) -> None:
        await self.catalogue.start()

    async def stop(self) -> None:
        await self.catalogue.stop()

    def serves(self, path: str) -> bool:
        return path in (AI_CATALOG, ARD) or path == CATALOGUE_PATH or path.startswith(f"{CATALOGUE_PATH}/")

    async def __call__(self, exchange: Exchange) -> None:
        try:
            await self._answer(exchange)
        except A2AError as error:
            await _fail(exchange, _status(error), error.message, error)

    async def _answer(self, exchange: Exchange) -> None:
        path, method = exchange.path, exchange.method
        below = path.removeprefix(CATALOGUE_PATH).rstrip("/") if path.startswith(CATALOGUE_PATH) else path
        if below in ("/search", "/explore"):
            if method != "POST":
                await _fail(exchange, 405, "this path takes POST", headers=((b"allow", b"POST"),))
            elif below == "/explore":
                await self._explore(exchange)
            else:
                await self._search(exchange)
        elif method not in ("GET", "HEAD"):
            await _fail(exchange, 405, "this path takes GET", headers=((b"allow", b"GET, HEAD"),))
        elif path in (AI_CATALOG, ARD):
            viewer, place = CatalogueViewer(exchange), ServerAddress(exchange.base_url())
            entries = await self.catalogue.list(viewer)
            if path == AI_CATALOG:
                document = ai_catalog(entries, place, self._name)
                await _send(exchange, viewer, document, media=CATALOG_TYPE.encode())
            else:
                await _send(exchange, viewer, ard_manifest(entries, place, self._name))
        elif below == "/agents":
            await self._list(exchange)
        elif below.startswith("/agents/"):
            await self._retrieve(exchange, below.removeprefix("/agents/"))
        else:
            raise NotFound("there is nothing at this path")

    async def _search(self, exchange: Exchange) -> None:
        request = await _read(exchange, SearchRequest)
        matches, start = read_filter(request.query.filter), read_page(request.pageToken)
        place, size = ServerAddress(exchange.base_url()), min(request.pageSize, MAX_PAGE)
        viewer = CatalogueViewer(exchange)
        ranked = await self.catalogue.search(viewer, request.query.text)
        found = [each for each in ranked if matches(each.entry, place)]
        out: dict[str, Any] = {"results": [_result(each, place) for each in found[start : start + size]]}
        if len(found) > start + size:
            out["pageToken"] = str(start + size)
        if request.federation == "referrals":
            out["referrals"] = []
        await _send(exchange, viewer, out)

    async def _explore(self, exchange: Exchange) -> None:
        """Over all that matches, not over one page."""
        request = await _read(exchange, ExploreRequest)
        matches, place = read_filter(request.query.filter), ServerAddress(exchange.base_url())
        values = [(facet, _values_of(facet.field)) for facet in request.resultType.facets]
        viewer = CatalogueViewer(exchange)
        ranked = await self.catalogue.search(viewer, request.query.text)
        found = [each.entry for each in ranked if matches(each.entry, place)]
        facets = {facet.field: count_values(found, place, facet, of) for facet, of in values}
        await _send(exchange, viewer, {"resultType": "facets", "facets": facets})

    async def _list(self, exchange: Exchange) -> None:
        query = parse_qs(exchange.scope.get("query_string", b"").decode("latin-1"))
        given = {name: values[-1] for name, values in query.items()}
        if given.pop("orderBy", "displayName").split(" ")[0] != "displayName":
            raise InvalidParams("entries are only ordered by displayName")
        matches, start = read_expression(given.get("filter", "")), read_page(given.get("pageToken", ""))
        size = given.get("pageSize", str(DEFAULT_LIST))
        if not (size.isascii() and size.isdigit() and int(size[:9]) > 0):
            raise InvalidParams("pageSize is a number above 0")
        place, count = ServerAddress(exchange.base_url()), min(int(size[:9]), MAX_PAGE)
        viewer = CatalogueViewer(exchange)
        found = [entry for entry in await self.catalogue.list(viewer) if matches(entry, place)]
        out: dict[str, Any] = {
            "items": [ard_entry(entry, place) for entry in found[start : start + count]],
            "total": len(found),
        }
        if len(found) > start + count:
            out["pageToken"] = str(start + count)
        await _send(exchange, viewer, out)

    async def _retrieve(self, exchange: Exchange, name: str) -> None:
        identifier = unquote(name)
        if not _IDENTIFIER.fullmatch(identifier):
            raise InvalidParams("an identifier is urn:air:PUBLISHER:NAMESPACE:NAME")
        place = ServerAddress(exchange.base_url())
        viewer = CatalogueViewer(exchange)
        entry = await self.catalogue.find(viewer, lambda each: place.identifier(each) == identifier)
        await _send(exchange, viewer, ard_entry(entry, place))


async def _read(exchange: Exchange, kind: type[T]) -> T:
    """The body of a request. Raises `InvalidParams` and `InvalidRequest`."""
    raw = await exchange.body()
    if exceeded := exchange.shared.limits.exceeded_by(raw):
        raise InvalidRequest(exceeded)
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidParams(f"the request cannot be read: {str(error)[:200]}") from None


def _result(found: Match, place: ServerAddress) -> dict[str, Any]:
    entry = ard_entry(found.entry, place)
    entry.pop("representativeQueries", None)
    return {**entry, "score": round(found.score * 100), "source": place.registry}


def _status(error: A2AError) -> int:
    if isinstance(error, NotFound | RateLimited | Unavailable | Unauthenticated):
        return error.http
    return error.http if error.http in (413, 408) else 400


async def _send(exchange: Exchange, viewer: CatalogueViewer, document: Any, *, media: bytes = b"") -> None:
    """Send a document. It may be cached publicly if no source accepted credentials of the viewer."""
    body = msgspec.json.encode(document)
    tag = b'"%b"' % sha256(body).hexdigest()[:32].encode()
    public = not viewer.known
    headers: list[Header] = [
        (b"content-type", media) if media else JSON,
        (
            b"cache-control",
            b"public, max-age=60" if public and exchange.method != "POST" else b"private, no-store",
        ),
        (b"vary", b"Authorization, Cookie"),
        (b"etag", tag),
    ]
    if public and not exchange.always:
        headers.append((b"access-control-allow-origin", b"*"))
    if exchange.method != "POST" and exchange.headers.get(b"if-none-match") == tag:
        await exchange.respond(304, b"", headers[1:])
    else:
        await exchange.respond(200, body, headers)


async def _fail(
    exchange: Exchange,
    status: int,
    message: str,
    error: A2AError | None = None,
    headers: Sequence[Header] = (),
) -> None:
    if error is not None and error.retry_after is not None:
        headers = (*headers, (b"retry-after", b"%d" % max(1, round(error.retry_after))))
    code = _CODES.get(status, "INTERNAL_ERROR")
    body = msgspec.json.encode({"errorCode": code, "message": message})
    await exchange.respond(status, body, (JSON, (b"cache-control", b"no-store"), *headers))
