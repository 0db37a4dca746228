"""JSON Schemas of Python types: what a question wants, what a skill takes and returns."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

DIALECT = "https://json-schema.org/draft/2020-12/schema"


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
