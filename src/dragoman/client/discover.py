"""Find the card of an agent, and the URLs in it.

An agent can be named by its base URL, the URL of its card, a card (an object, a document, a file), a name from the
`[agents]` table of `dragoman.toml`, a name in a catalogue (`catalogue://host/name`), or be an agent in this process. Cards are cached as HTTP allows.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.catalogue import SCHEMES as CATALOGUE_SCHEMES
from dragoman.client.config import CONFIG, AgentEntry
from dragoman.client.fetch import Fetcher
from dragoman.client.transport.transport import (
    NOT_JSON,
    NotSent,
    RequestRejected,
    Response,
    Transport,
    decode_json,
    read_at_most,
    to_error,
)
from dragoman.dialects.cards import read_card, write_card
from dragoman.dialects.reading import snake
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    RateLimited,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from dragoman.model.card import AgentCard

_WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_CARD_MEMBERS = (
    "supportedInterfaces", "additionalInterfaces", "preferredTransport", "protocolVersion", "capabilities", "skills",
    "defaultInputModes", "defaultOutputModes",
)  # fmt: skip
_MAX_CACHED_AGENTS = 256
_MAX_CACHED_CARD_BYTES = 256 << 10
_MAX_CARD_BYTES = 4 << 20
_MAX_AGE_DIGITS = 9
_INFORMATIVE = (Unauthenticated, InvalidAgentResponse, RateLimited, Unavailable)
"""Errors that say more than "there is no card here"."""


class FoundCard(Struct, frozen=True):
    """A card as it was published."""

    document: dict[str, Any]
    card: AgentCard
    url: str = ""
    """Where it was found; empty if the user gave it."""
    is_dragoman: bool = False
    """A Dragoman server sent it."""
    verified: Any = None
    """The `auth.signing.Verified` of a card whose signature was checked."""


class _CachedCard(Struct):
    document: dict[str, Any]
    etag: str
    expires: float
    is_dragoman: bool


class AgentCache:
    """What clients know of the agents they have met: their cards, and the dialects in which they answer.

    It holds at most `_MAX_CACHED_AGENTS` of each, and drops the oldest. Clients of a process share `SHARED_CACHE`;
    `connect(..., cache=AgentCache())` gives a client its own.
    """

    def __init__(self) -> None:
        self._cards: OrderedDict[str, _CachedCard] = OrderedDict()
        self.dialects = DialectCache()

    def expire(self, url: str) -> None:
        """Ask the server again, the next time, for any card of the agent at `url`."""
        urls = set(card_urls(url))
        for key, cached in self._cards.items():
            if key.partition(" ")[2] in urls:
                cached.expires = 0.0

    async def get_card(
        self, transport: Transport, url: str, *, version: str = "", private: bool = False
    ) -> FoundCard:
        """The card at `url`. `private`: the request has credentials, so its answer is neither cached nor read from there."""
        key = f"{version} {url}"
        cached = None if private else self._cards.get(key)
        if cached is not None and time.monotonic() < cached.expires:
            return _found_card(cached.document, url, cached.is_dragoman)
        headers = {"Accept": "application/json"}
        if version:
            headers["A2A-Version"] = version
        if cached is not None and cached.etag:
            headers["If-None-Match"] = cached.etag
        response = await transport.request("GET", url, headers)
        body = await read_at_most(response, _MAX_CARD_BYTES, url)
        if response.status == 304 and cached is not None:
            cached.expires = _expiry(response)
            return _found_card(cached.document, url, cached.is_dragoman)
        if response.status != 200:
            if response.status == 401 and "dragoman" in response.headers:
                raise _PrivateCard(f"{url} needs credentials that it accepts")
            raise to_error(
                response, body, url, lambda document, status: RequestRejected(f"{url}: HTTP {status}")
            )
        try:
            document = decode_json(body)
        except NOT_JSON as error:
            raise InvalidAgentResponse(f"{url} is not a card: {error}") from error
        if not _looks_like_card(document):
            raise InvalidAgentResponse(
                f"{url} is not a card: it says neither where the agent is nor what it can do"
            )
        found = _found_card(document, url, "dragoman" in response.headers)
        cacheable = not private and len(body) <= _MAX_CACHED_CARD_BYTES
        if cacheable and "no-store" not in _cache_control(response):
            while len(self._cards) >= _MAX_CACHED_AGENTS:
                self._cards.popitem(last=False)
            etag = response.headers.get("etag", "")
            self._cards[key] = _CachedCard(document, etag, _expiry(response), found.is_dragoman)
        return found


class DialectCache:
    """The dialect in which each endpoint answers, by its URL, its binding and the dialect that its card promises."""

    def __init__(self) -> None:
        self._names: OrderedDict[tuple[str, str, str], str] = OrderedDict()

    def get(self, url: str, binding: str, promised: str) -> str | None:
        return self._names.get((url, binding, promised))

    def put(self, url: str, binding: str, promised: str, dialect: str) -> None:
        while len(self._names) >= _MAX_CACHED_AGENTS:
            self._names.popitem(last=False)
        self._names[url, binding, promised] = dialect


SHARED_CACHE = AgentCache()
"""Shared by the clients of this process that were not given a cache."""


def _looks_like_card(document: Any) -> bool:
    """A JSON document with a name may be anything. A card of any version has a member that only cards have."""
    if not isinstance(document, dict):
        return True  # `read_card` says what is wrong with it
    return any(name in document or snake(name) in document for name in _CARD_MEMBERS)


def _cache_control(response: Response) -> dict[str, str]:
    """The directives of `Cache-Control`: `{"public": "", "max-age": "60"}`."""
    pairs = (word.partition("=") for word in response.headers.get("cache-control", "").lower().split(","))
    return {name.strip(): value.strip(' "') for name, _, value in pairs}


def _expiry(response: Response) -> float:
    directives = _cache_control(response)
    if "no-cache" in directives:
        return 0.0
    age = _seconds(response.headers.get("age", ""))
    return time.monotonic() + _seconds(directives.get("max-age", "")) - age


def _seconds(number: str) -> int:
    return int(number[:_MAX_AGE_DIGITS]) if number.isdecimal() else 0


def _found_card(document: Any, url: str, is_dragoman: bool = False) -> FoundCard:
    card, _ = read_card(document, found_at=url)
    return FoundCard(document, card, url, is_dragoman)


def read_given_card(target: AgentCard | Mapping[str, Any] | Path) -> FoundCard:
    """A card that the user gives: an object, a document or a file."""
    if isinstance(target, AgentCard):
        return FoundCard(write_card(target, "1.0"), target)
    if isinstance(target, Path):
        try:
            target = decode_json(target.read_bytes())
        except (OSError, *NOT_JSON) as error:
            raise InvalidAgentResponse(f"{target} is not a card: {error}") from error
    return _found_card(target, "")


def resolve_target(name: str, agents: Mapping[str, AgentEntry]) -> str | Path:
    """The URL or the file that a text names. Raises `NotSent`."""
    if name.lower().startswith(("http://", "https://", *CATALOGUE_SCHEMES)):
        return name
    if name in agents:
        return resolve_target(agents[name].url, {})
    if Path(name).is_file():
        return Path(name)
    scheme, separator, _ = name.partition("://")
    if separator:
        raise NotSent(f"{scheme}: is not a scheme we know: http, https or catalogue")
    if name.endswith(".json") and (name.count("/") == 0 or name.startswith((".", "/", "~"))):
        raise NotSent(f"there is no file {name}")
    host = urlsplit(f"//{name}").hostname or ""
    if _is_loopback(host):
        return f"http://{name}"
    if "." in host or ":" in name:
        return f"https://{name}"
    close = get_close_matches(name, agents, 1)
    hint = f": did you mean {close[0]!r}?" if close else ""
    raise NotSent(f"{name!r} is neither a URL nor a file, and [agents] in {CONFIG} has no such name{hint}")


def card_urls(url: str) -> list[str]:
    """Where the card of the agent at `url` may be, the likeliest first."""
    parts = urlsplit(url)
    if parts.path.endswith(".json"):
        return [url]
    root = f"{parts.scheme}://{parts.netloc}"
    base = root + parts.path.rstrip("/")
    urls = [base + path for path in _WELL_KNOWN] + [base + "/agent-card.json"]
    if base != root:
        urls += [root + parts.path] + [root + path for path in _WELL_KNOWN]
    return [f"{each}?{parts.query}" for each in urls] if parts.query else urls


async def find_card(
    transport: Transport,
    url: str,
    cache: AgentCache,
    *,
    version: str = "",
    private: bool = False,
    has_credentials: bool = False,
) -> FoundCard:
    """Look for a card at all the URLs where it may be. Raises `Unauthenticated` if it is there and not for us.

    `has_credentials`: the caller has credentials for the agent at `url`. If that asks for some, a card at the root of the
    server, which may be another agent's, is not taken instead. If they have not been sent (`private` is False), the first
    answer that asks for them ends the search.
    """
    failures: list[A2AError] = []
    for place in card_urls(url):
        above = not place.startswith(url.partition("?")[0].rstrip("/"))
        if has_credentials and above:
            for error in failures:
                if isinstance(error, Unauthenticated):
                    raise error
        try:
            found = await cache.get_card(transport, place, version=version, private=private)
            if above and found.is_dragoman:
                _check_agent_at(found, url)
            return found
        except A2AError as error:
            if isinstance(error, _AnotherAgent | _PrivateCard) or (
                isinstance(error, Unreachable) and not isinstance(error, RequestRejected)
            ):
                raise  # the card may be there, so no other card may be taken for it
            if isinstance(error, Unauthenticated) and has_credentials and not private and not above:
                raise
            failures.append(error)
    informative = [error for error in failures if isinstance(error, _INFORMATIVE)]
    if informative:
        raise informative[0]
    raise RequestRejected(f"there is no agent card at {url}: {failures[0]}")


class _PrivateCard(Unauthenticated):
    """A Dragoman server has the card there, for others. It has it nowhere else."""


class _AnotherAgent(RequestRejected):
    """A Dragoman server is at that address, and has no agent there."""


def _check_agent_at(found: FoundCard, url: str) -> None:
    """Check that the card at the root of a Dragoman server belongs to the agent at `url`.

    Dragoman servers show each card below the agent's own address as well, so a card with another address is of another
    agent.
    """
    wanted = urlsplit(url).path.rstrip("/") + "/"
    urls = [absolute_url(each.url, found.url) for each in found.card.supported_interfaces]
    if not any(wanted.startswith(urlsplit(each).path.rstrip("/") + "/") for each in urls):
        where = f", {urls[0].rstrip('/')}" if urls else ""
        raise _AnotherAgent(f"there is no agent at {url}: at its root is {found.card.name!r}{where}")


async def get_extended_card(transport: Transport, url: str, path: str) -> FoundCard:
    """The extended card of an agent that has it on a page (0.2): below its endpoint, or beside it."""
    endpoint, cache = url.rstrip("/"), AgentCache()
    try:
        return await cache.get_card(transport, endpoint + path, private=True)
    except Unreachable:
        return await cache.get_card(transport, urljoin(endpoint, "." + path), private=True)


def absolute_url(url: str, found_at: str) -> str:
    """The URL of an interface. It may be relative to the card, or to the agent whose well-known card it is.

    An agent that calls itself 0.0.0.0 is where its card was found.
    """
    if not found_at:
        return url
    base = found_at.partition("?")[0]
    for path in _WELL_KNOWN:
        if base.endswith(path):
            base = base.removesuffix(path) + "/"
    try:
        url = urljoin(base, url)
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:  # using it raises an error; the card's other interfaces may work
        return url
    if parts.hostname in ("0.0.0.0", "::"):
        here = urlsplit(found_at).hostname or ""
        return parts._replace(netloc=_add_brackets(here) + port).geturl()
    return url


def grpc_url(url: str, found_at: str) -> str:
    """The `host:port` of a gRPC interface as `grpcs://host:port`, or `grpc://` for a connection without TLS.

    Cards do not say which of the two it is. It is as secure as the way by which the card came. If the user gave the card,
    only loopback is taken to be without TLS.
    """
    scheme, _, rest = url.rpartition("://")
    here = urlsplit(found_at)
    try:
        parts = urlsplit(f"//{rest.strip('/')}")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidAgentResponse(f"{url!r} is not the address of a gRPC server") from None
    if host in ("0.0.0.0", "::") and here.hostname:
        host = here.hostname
    if scheme in ("http", "grpc"):
        secure = False
    elif scheme in ("https", "grpcs"):
        secure = True
    elif found_at:
        secure = here.scheme == "https"
    else:
        secure = not _is_loopback(host)
    return f"{'grpcs' if secure else 'grpc'}://{_add_brackets(host)}:{port or (443 if secure else 80)}"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def _add_brackets(host: str) -> str:
    """A host as it is in a URL: an IPv6 address has brackets."""
    return f"[{host}]" if ":" in host else host


async def verify_card(found: FoundCard, signed_by: Any, transport: Transport) -> FoundCard:
    """The signed part of a card, if a trusted key has signed it. Raises `InvalidAgentResponse`.

    `signed_by`: a JWK set, a file with one, its URL, or a `Trust`.
    """
    verified = await _read_trust(signed_by).verify(found.document, Fetcher(transport))
    card, _ = read_card(verified.document, found_at=found.url)
    return FoundCard(verified.document, card, found.url, found.is_dragoman, verified)


def _read_trust(signed_by: Any) -> Any:
    from dragoman.auth.signing import Trust  # imports cryptography, which is slow

    if isinstance(signed_by, Trust):
        return signed_by
    if isinstance(signed_by, Mapping):
        return Trust(signed_by)
    if isinstance(signed_by, str) and "://" in signed_by:
        return Trust(jwks_url=signed_by)
    try:
        return Trust(msgspec.json.decode(Path(signed_by).read_bytes()))
    except (OSError, ValueError) as error:
        raise ValueError(f"{signed_by} has no keys to trust: {error}") from error
