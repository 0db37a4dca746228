"""What a function takes, as its signature says it.

Read when the function becomes a skill, so that what no message could ever hold is refused there and then, with a sentence
that says what is wrong.
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
)
from dataclasses import dataclass
from types import FrameType, NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from msgspec import Meta
from msgspec import inspect as types

from dragoman.engine.turn import Turn
from dragoman.model.content import Artifact, Message, Part

TEXT, JSON = "text/plain", "application/json"

_OBJECTS = (types.StructType, types.DataclassType, types.TypedDictType, types.DictType, types.CustomType)
_ARRAYS = (types.CollectionType, types.TupleType, types.NamedTupleType)
_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
_PIECES = (AsyncGenerator, AsyncIterator, AsyncIterable, Generator, Iterator, Iterable)
_CONTENT = (Artifact, Message, Part)
_OURS = {"Turn": Turn, "Message": Message, "Part": Part}
"""Names that may be imported for type checkers only."""


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
    """A hint whose constraints are msgspec's, whoever wrote them: `Annotated[int, pydantic.Field(ge=1)]`."""
    if get_origin(hint) is not Annotated:
        return hint
    kind, *notes = get_args(hint)
    said = [each for note in notes for each in (note, *getattr(note, "metadata", ()))]
    found = {name: getattr(each, name, None) for each in said for name in _CONSTRAINTS if hasattr(each, name)}
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
    """The media types of what a function returns or yields, as far as its annotation tells."""
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
