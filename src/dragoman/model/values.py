"""JSON values and texts as Python types: dataclasses, msgspec structs, pydantic models."""

from __future__ import annotations

from typing import Any, get_type_hints

import msgspec

from dragoman.model.answers import choice, wanted, yes_or_no
from dragoman.model.content import Message, Part


class Unfit(ValueError):
    """A value that is not what it should be."""


def convert(value: Any, kind: Any) -> Any:
    """A JSON value as `kind`: a pydantic model, or anything msgspec knows. Raises `Unfit`.

    JSON has one kind of number, and peers that keep data in protobuf write 2 as 2.0: both are the same.
    """
    try:
        return _convert(value, kind)
    except Unfit:
        whole = with_whole_numbers(value)
        if whole is value:
            raise
        return _convert(whole, kind)


def _convert(value: Any, kind: Any) -> Any:
    try:
        if _validator(kind) is not None:
            return _model(kind, value)
        return msgspec.convert(value, kind, strict=False, dec_hook=_model)
    except msgspec.ValidationError as error:
        raise Unfit(str(error)) from error


def with_whole_numbers(value: Any) -> Any:
    """`value` with integers for the floats that are whole; itself if it has none."""
    if type(value) is float:
        return int(value) if value.is_integer() and abs(value) <= _EXACT else value
    if type(value) is dict:
        members = {key: with_whole_numbers(member) for key, member in value.items()}
        return members if any(members[key] is not value[key] for key in value) else value
    if type(value) is list:
        each = [with_whole_numbers(member) for member in value]
        return each if any(new is not old for new, old in zip(each, value, strict=True)) else value
    return value


_EXACT = 2**53
"""Up to here a float can stand for every integer."""


def convert_text(text: str, kind: Any) -> Any:
    """What a text says, as `kind`. Raises `Unfit`."""
    text = text.strip()
    asked = wanted(kind)
    if asked is bool and (answer := yes_or_no(text)) is not None:
        return answer
    if (chosen := choice(text, asked)) is not None:
        return convert(chosen, kind)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = text.rstrip(".!") if asked in (int, float) else text
    return convert(value, kind)


def answer_as(kind: Any, message: Message) -> Any:
    """What a message says, as `kind`: its data, or its text. Raises `Unfit`."""
    if kind is Message:
        return message
    if kind is str:
        return message.text
    if kind is Part or kind is bytes:
        return _file_of(message, kind)
    return convert_text(message.text, kind) if message.data is None else convert(message.data, kind)


def _file_of(message: Message, kind: type[Part] | type[bytes]) -> Part | bytes:
    if not message.files:
        raise Unfit("send a file")
    file = message.files[0]
    if kind is Part:
        return file
    if file.raw is None:
        raise Unfit("send the file itself, not a link to it")
    return file.raw


def decode_result(value: msgspec.Raw, work: Any) -> Any:
    """What `work` returned, from what was recorded of it."""
    try:
        return msgspec.json.decode(value, type=_returns(work), dec_hook=_model)
    except (TypeError, NotImplementedError):  # a type that has no JSON form, of a value that does
        return msgspec.json.decode(value)


def _model(kind: Any, value: Any) -> Any:
    """A value as a type that msgspec leaves to others: a pydantic model. Raises `Unfit`."""
    validate = _validator(kind)
    if validate is None:
        raise NotImplementedError
    try:
        return validate(value)
    except ValueError as error:
        raise Unfit(_why(error)) from error


def _validator(kind: Any) -> Any:
    """What pydantic checks a value with, for a model or a dataclass of its own; None for other types."""
    inner = getattr(kind, "__pydantic_validator__", None)
    return getattr(kind, "model_validate", None) or getattr(inner, "validate_python", None)


def _why(error: Any) -> str:
    """What pydantic says, on one line."""
    if not hasattr(error, "errors"):
        return str(error)
    wrong = [(".".join(str(place) for place in each["loc"]), each["msg"]) for each in error.errors()]
    return "; ".join(f"{where}: {what}" if where else what for where, what in wrong)


def _returns(work: Any) -> Any:
    try:
        hint = get_type_hints(work).get("return", Any)
    except Exception:  # hints that name what is not there any more say nothing about the value
        return Any
    return Any if hint is None else hint
