"""Find agents in a catalogue elsewhere: a Dragoman server's, or any that publishes one.

    connect("catalogue://agents.example.com/refunds")

The document at /.well-known/ard.json (Agentic Resource Discovery) is read, else the one at /.well-known/ai-catalog.json (AI
Catalog). A search is sent to the registry that the first one names. Other members than those that are used here are ignored, so
drafts may move on. `catalogue/publish.py` writes these documents, and says of which drafts they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from msgspec import Struct

from dragoman.client.transport.network import LOOPBACK_HOSTS
from dragoman.client.transport.transport import (
    NOT_JSON,
    NotSent,
    NotThere,
    RequestRejected,
    Transport,
    decode_json,
    error_class,
    read_at_most,
    to_error,
)
from dragoman.errors import InvalidAgentResponse, Unreachable

SCHEMES = ("catalogue://", "catalogue+http://")
"""The second is for a catalogue without TLS; on loopback, the first is, too."""
A2A_CARD, REGISTRY = "application/a2a-agent-card+json", "application/ai-registry+json"
ARD, AI_CATALOG = "/.well-known/ard.json", "/.well-known/ai-catalog.json"
METADATA = "https://ai-catalog.org/extensions/metadata"
"""The extension of AI Catalog for members of one's own."""
_MAX_ANSWER_BYTES = 8 << 20
_MAX_ENTRIES = 10_000
_ANSWER_SECONDS = 30.0
_PAGE_ENTRIES = 100


class ListedAgent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent as a catalogue shows it. Its texts come from anybody."""

    name: str
    identifier: str
    title: str = ""
    description: str = ""
    version: str = ""
    url: str = ""
    """Of its card."""
    card: dict[str, Any] | None = None
    """The card itself, where the catalogue has it."""
    tags: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    score: int | None = None
    kind: str = ""
    health: str = ""
    checked: str = ""
    signature: str = ""
    interfaces: tuple[str, ...] = ()
    provider: str = ""


def is_catalogue(target: str) -> bool:
    return target.lower().startswith(SCHEMES)


def split_catalogue(target: str) -> tuple[str, str]:
    """The base URL of the catalogue and the name of the agent in `catalogue://host/name`. Raises `NotSent`."""
    scheme, _, rest = target.partition("://")
    place, _, name = rest.rpartition("/")
    try:
        host = urlsplit(f"//{place}").hostname or ""
    except ValueError:
        host = ""
    if not host or not name or "?" in place or "#" in target or "@" in place:
        raise NotSent(f"{target!r} is not catalogue://HOST/NAME")
    plain = scheme.lower() != "catalogue" or host in LOOPBACK_HOSTS
    return f"{'http' if plain else 'https'}://{place}", unquote(name)


class RemoteCatalogue:
    """A catalogue at a base URL."""

    def __init__(self, url: str, transport: Transport) -> None:
        self.url, self._transport = url.rstrip("/"), transport

    async def find(self, name: str) -> ListedAgent:
        """The agent with this name. Raises `RequestRejected` if there is none, or more than one."""
        _, agents = await self._document()
        wanted = name.lower()
        for names in (
            lambda agent: (agent.name.lower(), agent.identifier.lower()),
            lambda agent: (agent.identifier.rpartition(":")[2].lower(),),
            lambda agent: (agent.title.lower(),),
        ):
            found = [agent for agent in agents if wanted in names(agent)]
            if len({agent.identifier for agent in found}) > 1:
                raise RequestRejected(
                    f"the catalogue at {self.url} has several agents called {name!r}: use an identifier"
                )
            if found:
                return found[0]
        raise RequestRejected(
            f"the catalogue at {self.url} has no agent {name!r}, or does not show it to you"
        )

    async def list(self, limit: int = _MAX_ENTRIES) -> Sequence[ListedAgent]:
        _, agents = await self._document()
        return agents[:limit]

    async def search(self, text: str, limit: int = 10) -> Sequence[ListedAgent]:
        """What matches, best first. A catalogue without a registry is searched here, for texts with all the words."""
        registry, agents = await self._document()
        if not registry:
            words = text.lower().split()
            return [agent for agent in agents if all(word in _text(agent) for word in words)][:limit]
        found: list[ListedAgent] = []
        token = ""
        while len(found) < limit:
            body: dict[str, Any] = {"query": {"text": text, "filter": {"type": [A2A_CARD]}}}
            body |= {"federation": "none", "pageSize": min(limit - len(found), _PAGE_ENTRIES)}
            page = await self._ask(
                "POST", f"{registry}/search", {**body, **({"pageToken": token} if token else {})}
            )
            entries = page.get("results")
            found += [agent for each in _dicts(entries) if (agent := _read(each)) is not None]
            next_token = page.get("pageToken")
            if not isinstance(next_token, str) or not next_token or next_token == token or not entries:
                break
            token = next_token
        return found[:limit]

    async def _document(self) -> tuple[str, Sequence[ListedAgent]]:
        """The base URL of the registry, if there is one, and the agents that are listed."""
        document: Mapping[str, Any] | None = None
        for path in (ARD, AI_CATALOG):
            try:
                document = await self._ask("GET", self.url + path)
                break
            except NotThere:
                continue
        if document is None:
            raise RequestRejected(
                f"there is no catalogue at {self.url} (`dragoman serve --catalogue` publishes one)"
            )
        version = _word(document, "specVersion")
        if path == AI_CATALOG and version.partition(".")[0] not in ("", "1"):
            raise InvalidAgentResponse(
                f"the catalogue at {self.url} has version {version[:20]}, and we read 1"
            )
        entries = _dicts(document.get("entries"))[:_MAX_ENTRIES]
        registries = [_word(each, "url") for each in entries if _word(each, "type") == REGISTRY]
        registry = next((url.rstrip("/").removesuffix("/search") for url in registries if _is_http(url)), "")
        agents = (_read(each) for each in entries if _word(each, "type", "mediaType") == A2A_CARD)
        return registry, [agent for agent in agents if agent is not None]

    async def _ask(self, method: str, url: str, body: Any = None) -> dict[str, Any]:
        headers = {"Accept": "application/json, application/ai-catalog+json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                raw = b"" if body is None else msgspec.json.encode(body)
                response = await self._transport.request(method, url, headers, raw)
                answer = await read_at_most(response, _MAX_ANSWER_BYTES, url)
        except TimeoutError:
            raise Unreachable(f"{url} did not answer within {_ANSWER_SECONDS:g} s") from None
        if response.status != 200:
            # an answer in the form of an error of A2A says no more than its status
            raise to_error(
                response, answer, url, lambda document, status: error_class(status)(f"{url}: HTTP {status}")
            )
        try:
            document = decode_json(answer)
        except NOT_JSON as error:
            raise InvalidAgentResponse(f"{url} is not a catalogue: {error}") from error
        if not isinstance(document, dict):
            raise InvalidAgentResponse(f"{url} is not a catalogue")
        return document


def card_of(agent: ListedAgent) -> str | dict[str, Any]:
    """What `connect` takes for the agent: the URL of its card, or the card. Raises `InvalidAgentResponse`."""
    if agent.card is not None:
        return agent.card
    if not _is_http(agent.url):
        raise InvalidAgentResponse(f"the catalogue does not say where {agent.name!r} is")
    return agent.url


def _read(entry: Mapping[str, Any]) -> ListedAgent | None:
    """An entry of either draft; None if it has no identifier."""
    identifier = _word(entry, "identifier")
    if not identifier:
        return None
    more = entry.get("metadata")
    if not isinstance(more, dict):
        extensions = entry.get("extensions")
        more = extensions.get(METADATA) if isinstance(extensions, dict) else None
    more = more if isinstance(more, dict) else {}
    card, score = entry.get("data"), entry.get("score")
    last = unquote(identifier).replace("/", ":").rpartition(":")[2]
    return ListedAgent(
        name=_word(more, "name") or last,
        identifier=identifier,
        title=_word(entry, "displayName"),
        description=_word(entry, "description"),
        version=_word(entry, "version"),
        url=_word(entry, "url"),
        card=card if isinstance(card, dict) else None,
        tags=_words(entry, "tags"),
        skills=_words(entry, "capabilities"),
        score=score if isinstance(score, int) and not isinstance(score, bool) else None,
        kind=_word(more, "kind"),
        health=_word(more, "health"),
        checked=_word(more, "checked"),
        signature=_word(more, "signature"),
        interfaces=_words(more, "interfaces"),
        provider=_word(more, "provider"),
    )


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _word(entry: Mapping[str, Any], *names: str) -> str:
    return next((entry[name] for name in names if isinstance(entry.get(name), str)), "")


def _words(entry: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = entry.get(name)
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _text(agent: ListedAgent) -> str:
    parts = (agent.name, agent.title, agent.description, *agent.tags, *agent.skills)
    return " ".join(parts).lower()


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))
