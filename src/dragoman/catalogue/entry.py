"""One agent of the catalogue, as it is shown and searched.

A card may come from anybody. Its texts are shortened to one line without control characters.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import islice

import msgspec
from msgspec import Struct

from dragoman.client.signature import UNKNOWN
from dragoman.engine.protocols import SearchText
from dragoman.model.card import AgentCard
from dragoman.observe.terminal import shorten

AGENT, BRIDGE, REGISTERED = "agent", "bridge", "registered"
"""Where an entry comes from: an agent of this server, one behind a bridge, or a URL that the operator registered."""
UP, DOWN = "up", "down"
"""Values of `AgentHealth.state`; the third is `unknown`."""

(
    MAX_NAME_CHARACTERS,
    MAX_DESCRIPTION_CHARACTERS,
    MAX_VERSION_CHARACTERS,
    MAX_TAG_CHARACTERS,
    MAX_EXAMPLE_CHARACTERS,
) = 100, 600, 50, 40, 200
MAX_SKILLS, MAX_TAGS, MAX_EXAMPLES, MAX_INTERFACES = 50, 30, 10, 12
MAX_SKILL_DESCRIPTION_CHARACTERS = 200
_MAX_READ_ITEMS = 2000
"""How many tags, examples or interfaces of a card are read. A card may repeat the same ones."""


class SkillSummary(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    description: str = ""


class Description(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a card says of its agent."""

    name: str
    description: str = ""
    version: str = ""
    provider: str = ""
    tags: tuple[str, ...] = ()
    skills: tuple[SkillSummary, ...] = ()
    examples: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    """`1.0 JSONRPC`: the versions and bindings that it offers."""


class AgentHealth(Struct, frozen=True, kw_only=True, omit_defaults=True):
    state: str = "unknown"
    """`up`, `down` or `unknown`."""
    checked: str = ""
    """When it was last checked."""
    since: str = ""
    """When the state last changed."""
    error: str = ""
    ms: int | None = None
    """How long the last answer took."""


class Entry(Struct, frozen=True, kw_only=True):
    name: str
    """Its name in the catalogue: for agents of this server, their id."""
    kind: str = AGENT
    tenant: str = ""
    """The tenant of a hub that it belongs to; empty: all."""
    path: str = ""
    """The path of an agent of this server."""
    url: str = ""
    """The URL of an agent elsewhere."""
    card_url: str = ""
    """Where the card of an agent elsewhere was found; empty if it was not."""
    private: bool = False
    """Not for everybody."""
    health: AgentHealth = AgentHealth()
    signature: str = UNKNOWN
    """`valid`, `invalid`, `unsigned` or `unknown`."""
    description: Description
    digest: str
    """The digest of the text that is searched."""
    added: str = ""

    @property
    def title(self) -> str:
        return self.description.name or self.name


def _unique_lines(texts: Iterable[str], count: int, limit: int) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for text in islice(texts, _MAX_READ_ITEMS):
        if line := shorten(text, limit):
            found[line] = None
        if len(found) >= count:
            break
    return tuple(found)


def describe(card: AgentCard) -> Description:
    skills = card.skills[:MAX_SKILLS]
    return Description(
        name=shorten(card.name, MAX_NAME_CHARACTERS),
        description=shorten(card.description, MAX_DESCRIPTION_CHARACTERS),
        version=shorten(card.version, MAX_VERSION_CHARACTERS),
        provider=shorten(card.provider.organization, MAX_NAME_CHARACTERS)
        if card.provider is not None
        else "",
        tags=_unique_lines((tag for skill in skills for tag in skill.tags), MAX_TAGS, MAX_TAG_CHARACTERS),
        skills=tuple(
            SkillSummary(
                id=shorten(skill.id, MAX_NAME_CHARACTERS),
                name=shorten(skill.name, MAX_NAME_CHARACTERS),
                description=shorten(skill.description, MAX_SKILL_DESCRIPTION_CHARACTERS),
            )
            for skill in skills
        ),
        examples=_unique_lines(
            (text for skill in skills for text in skill.examples), MAX_EXAMPLES, MAX_EXAMPLE_CHARACTERS
        ),
        interfaces=_unique_lines(
            (f"{each.protocol_version} {each.protocol_binding}" for each in card.supported_interfaces),
            MAX_INTERFACES,
            MAX_TAG_CHARACTERS,
        ),
    )


def search_text(name: str, about: Description) -> SearchText:
    return SearchText(
        name=f"{name} {about.name}",
        tags=" ".join(about.tags),
        skills=" ".join(f"{skill.id} {skill.name}" for skill in about.skills),
        about=" ".join(
            [
                about.description,
                about.provider,
                *(skill.description for skill in about.skills),
                *about.examples,
            ]
        ),
    )


def digest_of(text: SearchText) -> str:
    return sha256(msgspec.json.encode(text)).hexdigest()[:40]
