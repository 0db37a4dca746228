"""Check values against the JSON Schemas of tools.

References to other documents are not followed. Regular expressions are not evaluated: a server's expression could take for ever, and the
server checks its arguments itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from dragoman.observe.terminal import one_line

MAX_REASON_CHARACTERS = 300


def check_value(schema: dict[str, Any], value: Any) -> str:
    """What is wrong with a value, in one line; empty if it fits. A schema that cannot be used fits nothing."""
    from jsonschema.exceptions import SchemaError, best_match

    try:
        validator = _validator(msgspec.json.encode(schema))
        error = best_match(validator.iter_errors(value))
    except SchemaError as invalid:
        return f"its schema is invalid: {_short(invalid.message)}"
    except Exception as unresolved:  # a reference that leads nowhere, in one of several exceptions
        return f"its schema cannot be used: {_short(str(unresolved))}"
    if error is None:
        return ""
    where = ".".join(str(step) for step in error.absolute_path)
    return _short(f"{where}: {error.message}" if where else str(error.message))


@lru_cache(256)
def _validator(schema: bytes) -> Any:
    from jsonschema.validators import Draft202012Validator, extend, validator_for
    from referencing import Registry

    document = msgspec.json.decode(schema)
    kind = validator_for(document, default=Draft202012Validator)
    kind.check_schema(document)
    additional = kind.VALIDATORS["additionalProperties"]

    def unchecked(*_: Any) -> Iterator[Any]:
        return iter(())

    def additional_properties(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema:
            return iter(())
        found: Iterator[Any] = additional(validator, value, instance, schema)
        return found

    rules = dict.fromkeys(("pattern", "patternProperties", "unevaluatedProperties"), unchecked)
    checked = extend(kind, {**rules, "additionalProperties": additional_properties})
    return checked(document, registry=Registry())


def _short(text: str) -> str:
    return one_line(text)[:MAX_REASON_CHARACTERS]
