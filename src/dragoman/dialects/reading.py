"""Take members out of a plain JSON object, one kind of value at a time.

The versions before 1.0 are read by hand. These are the hands: each takes an object that `tidy` has been over, the name
of a member and the object's path, and either returns a value of the right type or says which member is wrong.
"""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.dialects.checks import MAX_MEMBERS
from dragoman.dialects.tidy import larger_than, tidy
from dragoman.errors import InvalidParams
from dragoman.model.content import NOTHING


class Malformed(Exception):
    """A member is not what it should be."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.path = path
        self.why = why


def read_params(params: bytes) -> dict[str, Any]:
    """The parameters of a call as a tidy object. Raises `InvalidParams`."""
    try:
        document = tidy_request(msgspec.json.decode(params)) if params else {}
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"params are not JSON: {error}") from None
    except RecursionError:
        raise InvalidParams("params are nested too deeply") from None
    if document is None:
        return {}
    if type(document) is not dict:
        raise InvalidParams("params must be an object", fields=(("params", "must be an object"),))
    return document


def tidy_request(document: Any) -> Any:
    """Raises `InvalidParams` if there is too much to read."""
    if larger_than(MAX_MEMBERS, document):
        raise InvalidParams(f"the request has more than {MAX_MEMBERS} members and items")
    return tidy(document)


def under(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def text(document: dict[str, Any], name: str, path: str) -> str:
    """A string; empty when absent."""
    value = document.get(name, "")
    if type(value) is not str:
        raise Malformed(under(path, name), "must be a string")
    return value


def identifier(document: dict[str, Any], name: str, path: str) -> str:
    """A string, or a number that should have been one."""
    value = document.get(name, "")
    return str(value) if type(value) is int else text(document, name, path)


def needed(document: dict[str, Any], name: str, path: str) -> str:
    """An identifier that must be there."""
    value = identifier(document, name, path)
    if not value:
        raise Malformed(under(path, name), "is missing")
    return value


def task_id_of(document: dict[str, Any]) -> str:
    """The task a call is about: `id`, though some say `taskId`."""
    return identifier(document, "id", "") or identifier(document, "taskId", "") or needed(document, "id", "")


def flag(document: dict[str, Any], name: str, path: str) -> bool:
    value = document.get(name, False)
    if type(value) is not bool:
        raise Malformed(under(path, name), "must be true or false")
    return value


def number(document: dict[str, Any], name: str, path: str) -> int | None:
    value = document.get(name)
    if value is not None and type(value) is not int:
        raise Malformed(under(path, name), "must be a whole number")
    return value


def mapping(document: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    """An object; empty when absent."""
    value = document.get(name)
    if value is None:
        return NOTHING
    return an_object(value, under(path, name)) or NOTHING


def an_object(value: Any, path: str) -> dict[str, Any]:
    if type(value) is not dict:
        raise Malformed(path or "it", "must be an object")
    return value


def needed_object(document: dict[str, Any], name: str, path: str) -> dict[str, Any]:
    if name not in document:
        raise Malformed(under(path, name), "is missing")
    return an_object(document[name], under(path, name))


def sequence(document: dict[str, Any], name: str, path: str) -> list[Any]:
    """A list; empty when absent."""
    value = document.get(name)
    if value is None:
        return []
    if type(value) is not list:
        raise Malformed(under(path, name), "must be a list")
    return value


def strings(document: dict[str, Any], name: str, path: str) -> tuple[str, ...]:
    """A list of strings; one string stands for a list of it."""
    value = document.get(name)
    if type(value) is str:
        return (value,)
    values = sequence(document, name, path)
    if any(type(item) is not str for item in values):
        raise Malformed(under(path, name), "must be a list of strings")
    return tuple(values)
