"""JSON Schemas: of Python types, and of an agent's skills on its card (what each takes and returns as data)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from dragoman.model.card import AgentCard, Extension
from dragoman.model.content import Wire


def json_schema(kind: Any) -> dict[str, Any] | None:
    """The JSON Schema of a type, with its own definitions; None if the type has none."""
    try:
        return _schema(kind)
    except TypeError:  # not hashable, or nothing that JSON could hold
        return None


@lru_cache(512)
def _schema(kind: Any) -> dict[str, Any]:
    try:
        if hasattr(kind, "model_json_schema"):
            found: dict[str, Any] = kind.model_json_schema()
            return found
        return inline_top(msgspec.json.schema(kind, schema_hook=_hook))
    except (TypeError, NameError, NotImplementedError) as error:
        raise TypeError(f"{kind!r} has no JSON Schema") from error


def inline_top(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema that is nothing but a reference, with what it refers to in its place."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    defs = schema.get("$defs", {})
    if name not in defs:
        return schema
    inner, rest = defs[name], {key: value for key, value in defs.items() if key != name}
    if f"#/$defs/{name}" in msgspec.json.encode(inner).decode():  # it contains itself
        rest = defs
    return {**inner, "$defs": rest} if rest else dict(inner)


def _hook(kind: Any) -> dict[str, Any]:
    if hasattr(kind, "model_json_schema"):
        found: dict[str, Any] = kind.model_json_schema()
        return found
    raise NotImplementedError


# -- the schemas of skills --------------------------------------------------------------------------------------------


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
