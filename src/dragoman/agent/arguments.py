"""What a message means to a skill's parameters.

Members of the data go to the parameters of their names. What is left, a text or a value that is no object, goes to the one
parameter that it can only be meant for: so `summarize(text: str, words: int = 100)` takes plain text, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from dragoman.agent.parameters import Parameter
from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.model.content import Message, Part
from dragoman.model.values import Unfit, convert, spoken


def arguments_of(parameters: Sequence[Parameter], message: Message, turn: Turn | None) -> dict[str, Any]:
    """Bind a message to the parameters. Without a turn, only check that it can be done. Raises what is wrong with it."""
    out: dict[str, Any] = {}
    members: list[Parameter] = []
    for p in parameters:
        match p.takes:
            case "turn":
                out[p.name] = turn
            case "message":
                out[p.name] = message
            case "text":
                out[p.name] = text = _text(p, message, parameters)
                if p.hint is not str:  # there is more to it: `Annotated[str, Meta(max_length=80)]`
                    _bind(out, p, text)
            case "any":
                out[p.name] = message.text if message.data is None else message.data
            case "file" | "files" | "content" | "contents":
                _file(out, p, message)
            case _:
                members.append(p)
    if members:
        _members(out, members, message)
    return out


def _text(p: Parameter, message: Message, parameters: Sequence[Parameter]) -> Any:
    if any(part.text is not None for part in message.parts):
        return message.text
    data = message.data
    if isinstance(data, dict) and isinstance(data.get(p.name), str):
        return data[p.name]
    if not p.required:
        return p.default
    if any(other.takes not in ("turn", "text") for other in parameters):
        return ""  # the rest of the message is for somebody
    if data is None:
        raise ContentTypeNotSupported(f"{p.name!r} is missing: send text")
    return msgspec.json.encode(data).decode()


def _file(out: dict[str, Any], p: Parameter, message: Message) -> None:
    files = message.files
    if p.takes in ("file", "content"):
        if files:
            out[p.name] = files[0] if p.takes == "file" else _content(files[0])
        elif p.required:
            raise ContentTypeNotSupported(f"{p.name!r} is missing: send a file")
        else:
            out[p.name] = p.default
    elif files or p.required:
        each: Any = files if p.takes == "files" else tuple(_content(file) for file in files)
        out[p.name] = each if get_origin(p.hint) is tuple else list(each)
    else:
        out[p.name] = p.default


def _content(file: Part) -> bytes:
    if file.raw is None:
        raise ContentTypeNotSupported("send the file itself, not a link to it")
    return file.raw


def _members(out: dict[str, Any], parameters: list[Parameter], message: Message) -> None:
    """Bind the parameters that are made of data, or of what is said instead of it."""
    value = message.data if message.data is not None else _json(message.text, parameters)
    fields = value if isinstance(value, dict) else {}
    alone = len(parameters) == 1
    left = []
    for p in parameters:
        if p.name in fields and not (alone and p.object):
            _bind(out, p, fields[p.name])
        elif p.takes == "data" and value is not None and (alone or p.required):
            _bind(out, p, value)
        else:
            left.append(p)
    loose: Any = message.text.strip() or None
    if isinstance(value, dict):
        loose = loose if message.data is not None else None
    elif message.data is not None:
        loose = value
    meant = _meant(left, alone=alone, beside=isinstance(value, dict)) if loose is not None else None
    for p in left:
        if p is meant:
            _bind(out, p, loose, text=isinstance(loose, str))
        elif p.required:
            why = "is missing"
            if p.takes == "data":
                why += ": send it as data, or as JSON"
            elif not alone:
                why += f": send data with {', '.join(each.name for each in parameters)}"
            raise InvalidParams(f"{p.name!r} {why}", fields=((p.name, why),))
        else:
            out[p.name] = p.default


def _meant(left: list[Parameter], *, alone: bool, beside: bool) -> Parameter | None:
    """The one parameter that a loose text or value can be meant for. `beside` data, text is only ever meant as text."""
    candidates = [p for p in left if p.takes == "member" or _may_be_text(p.hint)]
    required = [p for p in candidates if p.required]
    if required or not alone:
        texts = [p for p in candidates if p.hint is str]
        candidates = required if len(required) == 1 else texts
    if beside:
        candidates = [p for p in candidates if p.hint is str]
    return candidates[0] if len(candidates) == 1 else None


def _may_be_text(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType) and str in get_args(hint)


def _bind(out: dict[str, Any], p: Parameter, value: Any, *, text: bool = False) -> None:
    if value is None and not p.required:
        out[p.name] = p.default
        return
    try:
        out[p.name] = spoken(value, p.hint) if text and p.hint is not str else convert(value, p.hint)
    except Unfit as error:
        raise InvalidParams(f"{p.name}: {error}", fields=((p.name, str(error)),)) from error


def _json(text: str, parameters: Sequence[Parameter]) -> Any:
    """The value that a text spells out in JSON: an object, or an array. None if it is meant as text."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    if any(p.takes == "data" for p in parameters):
        return value
    named = isinstance(value, dict) and any(p.name in value for p in parameters)
    return value if named else None
