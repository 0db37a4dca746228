"""Struct, Value and Timestamp: JSON and times inside protobuf.

A Struct has one kind of number, the double. A whole number stays exact up to 2^53; beyond that its last digits are lost.
Readers of protobuf stop at 100 levels of messages, and one level of JSON takes three. `json_for_protobuf` writes as text what
protobuf cannot carry: numbers that fit no double, and JSON that is nested too deep. It is for answers only: such a value
must not prevent others from reading the rest of a task. A request with such values is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.reading import Malformed
from dragoman.model.content import Artifact, Message
from dragoman.model.ids import timestamp
from dragoman.model.task import ArtifactUpdate, Event, StatusUpdate, Task

_EXACT = float(2**53)
MAX_JSON_DEPTH = 30
MANY_VALUES = 20_000
"""So many take several milliseconds to write, one by one, in Python."""


def write_struct(document: dict[str, Any], depth: int = 1) -> dict[str, Any]:
    return {"fields": [{"key": name, "value": write_value(item, depth)} for name, item in document.items()]}


def write_value(item: Any, depth: int = 0) -> dict[str, Any]:
    kind = type(item)
    if kind is str:
        return {"stringValue": item}
    if kind is bool:
        return {"boolValue": item}
    if item is None:
        return {"nullValue": 0}
    if kind is int or kind is float:
        return {"numberValue": item}
    if depth > MAX_JSON_DEPTH:
        raise ValueError(f"it nests deeper than {MAX_JSON_DEPTH} levels")
    if isinstance(item, dict):
        return {"structValue": write_struct(item, depth + 1)}
    if isinstance(item, list | tuple):
        return {"listValue": {"values": [write_value(each, depth + 1) for each in item]}}
    raise TypeError(f"{kind.__name__} is not JSON")


def read_struct(struct: Any) -> dict[str, Any]:
    # Of two with one name, the last counts.
    return {entry.key: read_value(entry.value) for entry in struct.fields}


def read_value(value: Any) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "stringValue":
        return value.stringValue
    if kind == "numberValue":
        return _read_number(value.numberValue)
    if kind == "boolValue":
        return value.boolValue
    if kind == "structValue":
        return read_struct(value.structValue)
    if kind == "listValue":
        return [read_value(each) for each in value.listValue.values]
    return None


def _read_number(number: float) -> int | float:
    if number.is_integer():
        return int(number) if -_EXACT <= number <= _EXACT else number
    if number - number != 0:  # infinite, or not a number: JSON has neither
        raise Malformed("", "must not hold infinity or NaN")
    return number


def has_many_values(answer: Any) -> bool:
    """True if `data` and `metadata` of an answer have more than `MANY_VALUES` in them."""
    left = MANY_VALUES
    inside = (
        _json_of(answer) if type(answer) in _EVENTS else [answer] if isinstance(answer, _CONTAINERS) else []
    )
    while inside:
        each = inside.pop()
        found: Any
        if isinstance(each, Struct):
            found = [getattr(each, name) for name in each.__struct_fields__]
        else:
            found = each.values() if isinstance(each, dict) else each
            left -= len(found)
            if left < 0:
                return True
        inside += [value for value in found if value and isinstance(value, _CONTAINERS)]
    return False


_CONTAINERS = (dict, list, tuple, Struct)
_EVENTS = frozenset({Task, Message, StatusUpdate, ArtifactUpdate})


def _json_of(event: Event) -> list[Any]:
    """All `data` and `metadata` of an event that is there, found faster than by looking at every field. Nearly all events
    have none."""
    found: list[Any] = []
    if event.metadata and not isinstance(event, Message):
        found.append(event.metadata)
    for each in _contents(event):
        if each.metadata:
            found.append(each.metadata)
        if len(each.parts) > MANY_VALUES:
            found.append(each.parts)
        for part in each.parts:
            if part.text is None or part.metadata:
                found.append(part)
    return found


def _contents(event: Event) -> Sequence[Artifact | Message]:
    """The messages and artifacts in an event."""
    if isinstance(event, Message):
        return (event,)
    if isinstance(event, ArtifactUpdate):
        return (event.artifact,)
    said = (event.status.message,) if event.status.message is not None else ()
    return said if isinstance(event, StatusUpdate) else event.artifacts + event.history + said


_MAX_CACHED_CHARACTERS = 64
"""Longer timestamps are not cached: a peer may have sent any text."""


def write_moment(text: str) -> dict[str, int] | None:
    """None for an invalid timestamp, which a peer of another version may have sent: it is left out. Cached, because readers of
    tasks read the same ones again."""
    write = _write_moment if len(text) <= _MAX_CACHED_CHARACTERS else _write_moment.__wrapped__
    return write(text)


@lru_cache(1024)
def _write_moment(text: str) -> dict[str, int] | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return {"seconds": (at - _EPOCH) // _SECOND, "nanos": at.microsecond * 1000}


def read_moment(moment: Any) -> str:
    try:
        second = timestamp(moment.seconds)
    except (ValueError, OverflowError, OSError):
        raise Malformed("", "is not a moment in time") from None
    return f"{second[:-4]}{moment.nanos // 1_000_000:03d}Z"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = datetime.resolution * 1_000_000


_LARGEST = int(1.7976931348623157e308)
_encode = msgspec.json.Encoder().encode


def json_for_protobuf(value: Any) -> Any:
    """A value of the model, with JSON in it that fits into protobuf."""
    if isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return replace(value, **{name: json_for_protobuf(each) for name, each in fields.items()})
    if isinstance(value, tuple):
        return tuple(map(json_for_protobuf, value))
    return _json(value, 0)


def _json(value: Any, depth: int) -> Any:
    if type(value) is int and abs(value) > _LARGEST:
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= MAX_JSON_DEPTH:
        return _encode(value).decode()
    if isinstance(value, dict):
        return {name: _json(each, depth + 1) for name, each in value.items()}
    return [_json(each, depth + 1) for each in value]
