"""The parameters of a skill's function: read from its signature, and filled from a message.

The signature is read when the function becomes a skill, so that what no message could hold is refused there, with a sentence
that says what is wrong.

Members of the data go to the parameters of their names. What is left, a text or a value that is no object, goes to the one
parameter that it fits: so `summarize(text: str, words: int = 100)` takes plain text, too.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec import inspect as types

from dragoman.engine.turn import Turn
from dragoman.errors import ContentTypeNotSupported, InvalidParams
from dragoman.model.content import Artifact, Message, Part, plain
from dragoman.model.schema import FILE, json_schema
from dragoman.model.values import Unfit, convert, convert_text

TEXT, JSON = "text/plain", "application/json"

_OBJECTS = (types.StructType, types.DataclassType, types.TypedDictType, types.DictType, types.CustomType)
_ARRAYS = (types.CollectionType, types.TupleType, types.NamedTupleType)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
_PIECES = (AsyncGenerator, AsyncIterator, AsyncIterable, Generator, Iterator, Iterable)
_CONTENT = (Artifact, Message, Part)
_OURS = {"Turn": Turn, "Message": Message, "Part": Part}
"""Names that may be imported for type checkers only."""
_MAX_NAMED_MEMBERS = 10
"""Members that an error names."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    hint: Any
    default: Any
    takes: str
    """`turn`, `message`, `file`, `files`, `content` and `contents` (the bytes of files), `text`, `data`, `any` (data, or
    else text) or `member` (one member of the data)."""
    object: bool = False
    """Only an object will do."""

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


def parameters_of(function: Callable[..., Any], hints: dict[str, Any]) -> tuple[Parameter, ...]:
    """The parameters of a function. Raises TypeError for what has no place in a message."""
    found = [_parameter(function, p, hints) for p in _signature(function).parameters.values()]
    simple = [p for p in found if p.takes in ("text", "any", "member")]
    if len(simple) < 2:
        return tuple(found)
    return tuple(
        Parameter(p.name, p.hint, p.default, "member") if p.takes in ("text", "any") else p for p in found
    )


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if not inspect.isroutine(function):
        raise TypeError(f"a skill is a function or a method, not {function!r}")
    try:
        return inspect.signature(function)
    except ValueError as error:
        raise TypeError(f"{function!r} cannot be a skill: {error}") from None


def _parameter(function: Callable[..., Any], p: inspect.Parameter, hints: dict[str, Any]) -> Parameter:
    where = f"skill {function.__name__}"
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise TypeError(
            f"{where}: *args and **kwargs have no place in a message (a decorator needs functools.wraps)"
        )
    if p.kind is p.POSITIONAL_ONLY:
        raise TypeError(f"{where}: {p.name} is given by name, and cannot be positional only")
    if p.name in ("self", "cls") and p.name not in hints:
        raise TypeError(f"{where}: a method needs its object: make the object, then agent.skill(it.method)")
    hint = hints.get(p.name, Turn if p.name == "turn" else str)
    wanted, optional = _wanted(_constrained(hint))
    default = None if optional and p.default is p.empty else p.default
    takes = _given(wanted)
    if takes:
        return Parameter(p.name, wanted, default, takes)
    try:
        form = _form(wanted)
    except (TypeError, NameError) as error:
        raise TypeError(f"{where}: {p.name}: {error}") from None
    is_data = any(isinstance(each, _OBJECTS + _ARRAYS) for each in form)
    return Parameter(
        p.name,
        wanted,
        default,
        "data" if is_data else "member",
        object=all(isinstance(each, _OBJECTS) for each in form),
    )


def _given(hint: Any) -> str:
    """What is given as it is, without a look at its type; empty if it is not."""
    hint = _bare(hint)
    many = _bare(next(iter(get_args(hint)), None)) if _gathers(get_origin(hint)) else None
    for kind, takes in (
        (Turn, "turn"),
        (Message, "message"),
        (Part, "file"),
        (bytes, "content"),
        (str, "text"),
        (Any, "any"),
        (object, "any"),
    ):
        if hint is kind:
            return takes
    return "files" if many is Part else "contents" if many is bytes else ""


def _gathers(origin: Any) -> bool:
    return isinstance(origin, type) and issubclass(origin, Collection) and not issubclass(origin, dict)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def _constrained(hint: Any) -> Any:
    """A hint with its constraints as msgspec writes them: `Annotated[int, pydantic.Field(ge=1)]`."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    annotations = [each for note in notes for each in (note, *getattr(note, "metadata", ()))]
    found = {
        name: getattr(each, name, None)
        for each in annotations
        for name in _CONSTRAINTS
        if hasattr(each, name)
    }
    constraints = {name: value for name, value in found.items() if value is not None}
    return Annotated[kind, Meta(**constraints)] if constraints else hint


def _wanted(hint: Any) -> tuple[Any, bool]:
    """What a hint asks for, and whether it can do without: `Trip | None` is a `Trip`, if there is one."""
    kinds = get_args(_bare(hint))
    if get_origin(_bare(hint)) in (Union, UnionType) and NoneType in kinds:
        rest = tuple(kind for kind in kinds if kind is not NoneType)
        return Union[rest], True  # noqa: UP007 (there is a tuple of them)
    return hint, False


def _form(hint: Any) -> list[types.Type]:
    """What a hint may be, as msgspec sees it. Raises TypeError if that has no JSON form, NameError if it is unknown."""
    form = types.type_info(hint)
    for kind in _custom(form, set()):
        if not hasattr(kind, "model_validate"):
            raise TypeError(f"{getattr(kind, '__name__', kind)} is nothing that a message could hold")
    return list(form.types) if isinstance(form, types.UnionType) else [form]


def _custom(form: Any, seen: set[int]) -> Iterator[Any]:
    """The types in `form` that msgspec knows nothing about."""
    if id(form) in seen:
        return
    seen.add(id(form))
    if isinstance(form, types.CustomType):
        yield form.cls
    elif isinstance(form, types.Type | types.Field):
        for name in form.__struct_fields__:
            yield from _custom(getattr(form, name), seen)
    elif isinstance(form, tuple):
        for each in form:
            yield from _custom(each, seen)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function as types, also those that name what its surroundings alone know.

    An annotation of the result that cannot be looked at says nothing; one of a parameter is a TypeError.
    """
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        pass
    except TypeError:
        return {}  # nothing that could have annotations: `_signature` says so
    inner = inspect.unwrap(function)
    globals = getattr(inner, "__globals__", {})
    known = {**_OURS, **_surroundings(globals)}
    hints = {}
    for name, annotation in inner.__annotations__.items():
        try:
            one = SimpleNamespace(__annotations__={name: annotation})
            hints.update(get_type_hints(one, globals, known, include_extras=True))
        except NameError as error:
            if name != "return":
                raise TypeError(f"skill {function.__name__}: {name}: {error}") from None
    return hints


def _surroundings(globals: dict[str, Any]) -> dict[str, Any]:
    """The local names of the functions that are being called, of the file that `globals` belong to."""
    names: dict[str, Any] = {}
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals is globals and frame.f_locals is not globals:
            names = {**frame.f_locals, **names}
        frame = frame.f_back
    return names


def output_modes(hint: Any) -> tuple[str, ...]:
    """The media types of the return annotation of a function."""
    while _bare(hint) is not hint or get_origin(hint) in _PIECES:
        hint = _bare(hint) if _bare(hint) is not hint else get_args(hint)[0]
    if hint is bytes:
        return ("application/octet-stream",)
    many = next(iter(get_args(hint)), None)
    if hint in (str, None, NoneType, Any, *_CONTENT) or many in _CONTENT:
        return ()
    try:
        return (JSON, TEXT) if _form(hint) else ()
    except (TypeError, NameError):
        return ()


def arguments_of(parameters: Sequence[Parameter], message: Message, turn: Turn | None) -> dict[str, Any]:
    """The arguments for a call, from a message. Without a turn, only check that there are. Raises what is wrong with it."""
    out: dict[str, Any] = {}
    members: list[Parameter] = []
    for p in parameters:
        match p.takes:
            case "turn":
                out[p.name] = turn
            case "message":
                out[p.name] = message
            case "text":
                out[p.name] = text = message.text or _text_for(p, message, parameters)
                if p.hint is not str:  # there is more to it: `Annotated[str, Meta(max_length=80)]`
                    _fill(out, p, text)
            case "any":
                out[p.name] = message.text if message.data is None else message.data
            case "file" | "files" | "content" | "contents":
                _fill_file(out, p, message)
            case _:
                members.append(p)
    if members:
        _fill_members(out, members, message)
    return out


def _text_for(p: Parameter, message: Message, parameters: Sequence[Parameter]) -> Any:
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


def _fill_file(out: dict[str, Any], p: Parameter, message: Message) -> None:
    files = message.files
    if p.takes in ("file", "content"):
        if files:
            out[p.name] = files[0] if p.takes == "file" else _bytes_of(files[0])
        elif p.required:
            raise ContentTypeNotSupported(f"{p.name!r} is missing: send a file")
        else:
            out[p.name] = p.default
    elif files or p.required:
        each: Any = files if p.takes == "files" else tuple(_bytes_of(file) for file in files)
        out[p.name] = each if get_origin(p.hint) is tuple else list(each)
    else:
        out[p.name] = p.default


def _bytes_of(file: Part) -> bytes:
    if file.raw is None:
        raise ContentTypeNotSupported("send the file itself, not a link to it")
    return file.raw


def _fill_members(out: dict[str, Any], parameters: list[Parameter], message: Message) -> None:
    """Fill the parameters that are made of data, or of text in its place."""
    value = message.data if message.data is not None else _json(message.text, parameters)
    fields = value if isinstance(value, dict) else {}
    alone = len(parameters) == 1
    left = []
    for p in parameters:
        if p.name in fields and not (alone and p.object):
            _fill(out, p, fields[p.name])
        elif p.takes == "data" and value is not None and (alone or p.required):
            _fill(out, p, value)
        else:
            left.append(p)
    loose: Any = message.text.strip() or None
    if isinstance(value, dict):
        loose = loose if message.data is not None else None
    elif message.data is not None:
        loose = value
    taker = (
        _parameter_for_loose(left, alone=alone, beside=isinstance(value, dict)) if loose is not None else None
    )
    for p in left:
        if p is taker:
            _fill(out, p, loose, text=isinstance(loose, str))
        elif p.required:
            why = "is missing"
            if p.takes == "data":
                why += f": send it as data, or as JSON{_with_members(p.hint)}"
            elif not alone:
                why += f": send data with {', '.join(each.name for each in parameters)}"
            raise InvalidParams(f"{p.name!r} {why}", fields=((p.name, why),))
        else:
            out[p.name] = p.default


def _with_members(hint: Any) -> str:
    """The names of the members of an object, for a caller who sent none: `, with city, days`."""
    form, *others = _form(hint)
    if others or not isinstance(form, _OBJECTS):
        return ""
    names = [field.encode_name for field in getattr(form, "fields", ())]
    names = names or list(getattr(getattr(form, "cls", None), "model_fields", ()))
    more = ", ..." if len(names) > _MAX_NAMED_MEMBERS else ""
    return f", with {', '.join(names[:_MAX_NAMED_MEMBERS])}{more}" if names else ""


def _parameter_for_loose(left: list[Parameter], *, alone: bool, beside: bool) -> Parameter | None:
    """The one parameter that a text or value without a name fits. `beside` data, text is only ever text."""
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


def _fill(out: dict[str, Any], p: Parameter, value: Any, *, text: bool = False) -> None:
    if value is None and not p.required:
        out[p.name] = p.default
        return
    try:
        out[p.name] = convert_text(value, p.hint) if text and p.hint is not str else convert(value, p.hint)
    except Unfit as error:
        raise InvalidParams(f"{p.name}: {error}", fields=((p.name, str(error)),)) from error


def _json(text: str, parameters: Sequence[Parameter]) -> Any:
    """The JSON object or array in a text. None if the text is only text."""
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


# -- schemas -----------------------------------------------------------------------------------------------------


def input_schema(parameters: Sequence[Parameter]) -> dict[str, Any] | None:
    """The JSON Schema of what a skill takes: an object with a property for each parameter. None if it takes only text, or
    the whole message."""
    takes = {p.takes for p in parameters}
    if "message" in takes or takes <= {"turn", "text"}:
        return None
    members = [p for p in parameters if p.takes in ("data", "member", "any")]
    properties: dict[str, Any] = {}
    required: list[str] = []
    definitions: dict[str, Any] = {}
    for p in parameters:
        if p.takes == "turn":
            continue
        if p.takes in ("file", "content"):
            schema: dict[str, Any] | None = FILE
        elif p.takes in ("files", "contents"):
            schema = {"type": "array", "items": FILE}
        else:
            schema = {} if p.takes == "any" else json_schema(p.hint)
        if schema is None:
            return None
        schema = dict(schema)
        definitions.update(schema.pop("$defs", {}))
        if p in members and len(members) == 1 and p.object and isinstance(schema.get("properties"), dict):
            properties.update(schema["properties"])  # its members are the message's data
            required += schema.get("required", []) if p.required else []
            continue
        if not p.required and p.default is not None:
            with suppress(TypeError, ValueError):
                schema["default"] = plain(p.default)
        properties[p.name] = schema
        if p.required and p.takes not in ("files", "contents"):
            required.append(p.name)
    out: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        out["required"] = required
    if definitions:
        out["$defs"] = definitions
    return out


def output_schema(hint: Any) -> dict[str, Any] | None:
    """The JSON Schema of the data that a function returns or yields. None for text, files, and what is not annotated."""
    pieces = False
    while _bare(hint) is not hint or get_origin(hint) in _PIECES:
        pieces = pieces or get_origin(hint) in _PIECES
        hint = _bare(hint) if _bare(hint) is not hint else get_args(hint)[0]
    many = next(iter(get_args(hint)), None)
    if pieces or hint in (str, bytes, None, NoneType, Any, object, *_CONTENT) or many in _CONTENT:
        return None
    return json_schema(hint)
