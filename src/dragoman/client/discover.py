"""From whatever a user calls an agent to its card, and to the ways of talking to it.

An agent can be named by its base URL, the URL of its card, a card (an object, a document, a file), a name from the
`[agents]` table of `dragoman.toml`, or be an agent in this process. Cards are cached as HTTP allows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from msgspec import Struct

from dragoman.client.agents_table import CONFIG, AgentEntry
from dragoman.client.transport.transport import (
    NOT_JSON,
    NotSent,
    Rejected,
    Response,
    Transport,
    decoded,
    error_of,
    read_at_most,
)
from dragoman.dialects.cards import read_card, write_card
from dragoman.dialects.tidy import snake
from dragoman.errors import (
    A2AError,
    InvalidAgentResponse,
    RateLimited,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from dragoman.model.card import AgentCard

if TYPE_CHECKING:
    from dragoman.auth.signing import Verified

_WELL_KNOWN = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_OF_CARDS = (
    "supportedInterfaces", "additionalInterfaces", "preferredTransport", "protocolVersion", "capabilities", "skills",
    "defaultInputModes", "defaultOutputModes",
)  # fmt: skip
_HELD = 256
_MAX_CARD = 4 << 20
_TELLING = (Unauthenticated, InvalidAgentResponse, RateLimited, Unavailable)
"""There is something at that place, and it is not as it should be."""


class Found(Struct, frozen=True):
    """A card, as it was published."""

    document: dict[str, Any]
    card: AgentCard
    url: str = ""
    """Where it was found; empty when it was given to us."""
    ours: bool = False
    verified: Verified | None = None
    """Who has signed it, if that was asked."""


class _Cached(Struct):
    document: dict[str, Any]
    etag: str
    expires: float
    ours: bool


class Cards:
    """Cards by URL, for as long as their servers allow."""

    def __init__(self) -> None:
        self._held: dict[str, _Cached] = {}

    def expire(self, url: str) -> None:
        """Ask the server again, the next time, for whatever card the agent at `url` has."""
        places = set(candidates(url))
        for key, held in self._held.items():
            if key.partition(" ")[2] in places:
                held.expires = 0.0

    async def get(self, transport: Transport, url: str, *, version: str = "", secret: bool = False) -> Found:
        """The card at `url`. `secret`: the request shows credentials, so nobody else may have what it gets."""
        key = f"{version} {url}"
        held = None if secret else self._held.get(key)
        if held is not None and time.monotonic() < held.expires:
            return _found(held.document, url, held.ours)
        headers = {"Accept": "application/json"}
        if version:
            headers["A2A-Version"] = version
        if held is not None and held.etag:
            headers["If-None-Match"] = held.etag
        response = await transport.request("GET", url, headers)
        body = await read_at_most(response, _MAX_CARD, url)
        if response.status == 304 and held is not None:
            held.expires = _expiry(response)
            return _found(held.document, url, held.ours)
        if response.status != 200:
            raise error_of(response, body, url, lambda document, status: Rejected(f"{url}: HTTP {status}"))
        try:
            document = decoded(body)
        except NOT_JSON as error:
            raise InvalidAgentResponse(f"{url} is not a card: {error}") from error
        if not _looks_like_card(document):
            raise InvalidAgentResponse(
                f"{url} is not a card: it says neither where the agent is nor what it can do"
            )
        found = _found(document, url, "dragoman" in response.headers)
        if not secret and "no-store" not in _told(response):
            if len(self._held) >= _HELD:
                self._held.clear()
            etag = response.headers.get("etag", "")
            self._held[key] = _Cached(document, etag, _expiry(response), found.ours)
        return found


def _looks_like_card(document: Any) -> bool:
    """A JSON document with a name may be anything. A card of any version has a member that only cards have."""
    if not isinstance(document, dict):
        return True  # whoever reads it says what is wrong with it
    return any(name in document or snake(name) in document for name in _OF_CARDS)


CARDS = Cards()
"""The cards this process knows."""


def _told(response: Response) -> dict[str, str]:
    """What a server says about keeping its answer: `{"public": "", "max-age": "60"}`."""
    pairs = (word.partition("=") for word in response.headers.get("cache-control", "").lower().split(","))
    return {name.strip(): value.strip(' "') for name, _, value in pairs}


def _expiry(response: Response) -> float:
    told = _told(response)
    if "no-cache" in told:
        return 0.0
    return time.monotonic() + _seconds(told.get("max-age", "")) - _seconds(response.headers.get("age", ""))


def _seconds(number: str) -> int:
    return int(number[:9]) if number.isdecimal() else 0  # nobody lives longer


def _found(document: Any, url: str, ours: bool = False) -> Found:
    card, _ = read_card(document, found_at=url)
    return Found(document, card, url, ours)


def given(target: AgentCard | Mapping[str, Any] | Path) -> Found:
    """A card that is here already."""
    if isinstance(target, AgentCard):
        return Found(write_card(target, "1.0"), target)
    if isinstance(target, Path):
        try:
            target = decoded(target.read_bytes())
        except (OSError, *NOT_JSON) as error:
            raise InvalidAgentResponse(f"{target} is not a card: {error}") from error
    return _found(target, "")


def address(name: str, agents: Mapping[str, AgentEntry]) -> str | Path:
    """What a text stands for: a URL, a file, or a name in `agents`."""
    if name.lower().startswith(("http://", "https://")):
        return name
    if name in agents:
        return address(agents[name].url, {})
    if Path(name).is_file():
        return Path(name)
    scheme, there, _ = name.partition("://")
    if there:
        raise NotSent(f"{scheme}: is not a scheme we know: http or https")
    if name.endswith(".json") and (name.count("/") == 0 or name.startswith((".", "/", "~"))):
        raise NotSent(f"there is no file {name}")
    host = urlsplit(f"//{name}").hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return f"http://{name}"
    if "." in host or ":" in name:
        return f"https://{name}"
    raise NotSent(f"{name!r} is neither a URL nor a file, and [agents] in {CONFIG} has no such name")


def candidates(url: str) -> list[str]:
    """Where the card of the agent at `url` may be, likeliest first."""
    parts = urlsplit(url)
    if parts.path.endswith(".json"):
        return [url]
    root = f"{parts.scheme}://{parts.netloc}"
    base = root + parts.path.rstrip("/")
    places = [base + path for path in _WELL_KNOWN] + [base + "/agent-card.json"]
    if base != root:
        places += [root + parts.path] + [root + path for path in _WELL_KNOWN]
    return [f"{place}?{parts.query}" for place in places] if parts.query else places


async def find(
    transport: Transport, url: str, *, version: str = "", secret: bool = False, can_tell: bool = False
) -> Found:
    """Look for a card in all the places it may be. Raises `Unauthenticated` if it is there and not for us.

    `can_tell`: we can say who we are, so if that is asked below `url`, another card at the root is not the one.
    """
    failures: list[A2AError] = []
    for place in candidates(url):
        above = not place.startswith(url.partition("?")[0].rstrip("/"))
        if can_tell and above:
            for error in failures:
                if isinstance(error, Unauthenticated):
                    raise error
        try:
            found = await CARDS.get(transport, place, version=version, secret=secret)
            if above and found.ours:
                _meant(found, url)
            return found
        except A2AError as error:
            if isinstance(error, _AnotherAgent) or (
                isinstance(error, Unreachable) and not isinstance(error, Rejected)
            ):
                raise  # it may be there, so that no other is to be taken for it
            failures.append(error)
    telling = [error for error in failures if isinstance(error, _TELLING)]
    if telling:
        raise telling[0]
    raise Rejected(f"there is no agent card at {url}: {failures[0]}")


class _AnotherAgent(Rejected):
    """The server at that address is one of ours, and has no agent there."""


def _meant(found: Found, url: str) -> None:
    """Whether the card at the root of one of our servers can be meant by `url`. Our servers show each agent's card below
    its own address as well, so that one with another address is another agent."""
    wanted = urlsplit(url).path.rstrip("/") + "/"
    there = [absolute(each.url, found.url) for each in found.card.supported_interfaces]
    if not any(wanted.startswith(urlsplit(each).path.rstrip("/") + "/") for each in there):
        where = f", {there[0].rstrip('/')}" if there else ""
        raise _AnotherAgent(f"there is no agent at {url}: at its root is {found.card.name!r}{where}")


async def get_extended_card(transport: Transport, url: str, path: str) -> Found:
    """The extended card of an agent that has it on a page (0.2): below its endpoint, or beside it."""
    endpoint = url.rstrip("/")
    try:
        return await CARDS.get(transport, endpoint + path, secret=True)
    except Unreachable:
        return await CARDS.get(transport, urljoin(endpoint, "." + path), secret=True)


def absolute(url: str, found_at: str) -> str:
    """An interface's URL. Relative to its card, or to the agent whose well-known card it is; and an agent that calls
    itself 0.0.0.0 means where it was found."""
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
    except ValueError:  # whoever uses it will be told; the card's other interfaces may do
        return url
    if parts.hostname in ("0.0.0.0", "::"):
        here = urlsplit(found_at).hostname or ""
        return parts._replace(netloc=(f"[{here}]" if ":" in here else here) + port).geturl()
    return url


def channel_address(url: str, found_at: str) -> str:
    """A gRPC interface's `host:port` as `grpcs://host:port`, or `grpc://` for a plain connection.

    Cards do not say which of the two it is. It is as safe as the way the card came; one that was given to us is only
    taken for plain on loopback.
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
        safe = False
    elif scheme in ("https", "grpcs"):
        safe = True
    elif found_at:
        safe = here.scheme == "https"
    else:
        safe = not (host in ("localhost", "::1") or host.startswith("127."))
    shown = f"[{host}]" if ":" in host else host
    return f"{'grpcs' if safe else 'grpc'}://{shown}:{port or (443 if safe else 80)}"
