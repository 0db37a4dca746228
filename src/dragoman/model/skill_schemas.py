"""The JSON Schemas of an agent's skills, on its card: what each takes and returns as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.model.card import AgentCard, Extension
from dragoman.model.content import Wire

SKILL_SCHEMAS = "urn:dragoman:extension:skill-schemas:v1"
"""The URI of the extension. See `docs/extensions.md`."""

FILE: dict[str, Any] = {"type": "string", "format": "binary", "contentEncoding": "base64"}
"""The schema of a parameter that is a file part of the message, not a member of its data."""


class SkillSchema(Wire, frozen=True):
    """What one skill takes and returns. None: not known, or only text."""

    input: dict[str, Any] | None = None
    """An object: each property is a parameter."""
    output: dict[str, Any] | None = None


class _Params(Wire, frozen=True):
    skills: dict[str, SkillSchema] = {}


def extension_of(schemas: Mapping[str, SkillSchema]) -> Extension:
    """The entry of the card."""
    return Extension(
        uri=SKILL_SCHEMAS,
        description="JSON Schemas of what skills take and return",
        params={"skills": msgspec.to_builtins(schemas)},
    )


def schemas_on(card: AgentCard) -> dict[str, SkillSchema]:
    """The schemas that a card has, by skill; empty if it has none, or none that can be read."""
    for extension in card.capabilities.extensions:
        if extension.uri == SKILL_SCHEMAS:
            try:
                return msgspec.convert(extension.params, _Params, strict=False).skills
            except msgspec.ValidationError:
                return {}
    return {}


def is_file(schema: Any) -> bool:
    """True for the schema of a file, or of a list of files."""
    if not isinstance(schema, Mapping):
        return False
    return schema.get("format") == "binary" or is_file(schema.get("items"))
