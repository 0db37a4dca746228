"""What JSON can say and protobuf cannot, said as text: numbers that fit no double, and what is nested too deep.

For answers only. Whoever put that into a task, perhaps in another binding, must not keep others from reading the rest of it,
or of a list it is in. A request that cannot be carried is refused instead.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dragoman.dialects.proto.values import DEEPEST

_LARGEST = int(1.7976931348623157e308)
_encode = msgspec.json.Encoder().encode


def tamed(value: Any) -> Any:
    """A value of the model, with JSON in it that fits into protobuf."""
    if isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        return replace(value, **{name: tamed(each) for name, each in fields.items()})
    if isinstance(value, tuple):
        return tuple(map(tamed, value))
    return _json(value, 0)


def _json(value: Any, depth: int) -> Any:
    if type(value) is int and abs(value) > _LARGEST:
        return str(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if depth >= DEEPEST:
        return _encode(value).decode()
    if isinstance(value, dict):
        return {name: _json(each, depth + 1) for name, each in value.items()}
    return [_json(each, depth + 1) for each in value]
